"""The catalog at one moment: its database, the metadata that it points at, the key indexes of those snapshots.

From take.py. Promise: the pointers and the published position are of one transaction; every metadata file that a
pointer names is copied, or a later moment is taken, because old metadata goes some publishes later.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from dolake.backup.copying import Meter, copy_file
from dolake.backup.database import DATABASE, copy_store_of
from dolake.backup.table_files import TableFiles
from dolake.catalog.base import Pointer
from dolake.catalog.documents import HINT_FILE, SUFFIX
from dolake.catalog.readers import current_snapshot_id
from dolake.catalog.sqlite import SqliteStore
from dolake.errors import Unavailable
from dolake.keyindex import KeyIndexView, StaleIndex
from dolake.keyindex.disk import Disk
from dolake.keyindex.manifest import INDEX, store_manifest
from dolake.positions import Position
from dolake.settings import CatalogSettings
from dolake.tables.names import RESERVED_SUFFIXES

_TRIES_MAX = 40
_TRIES_FOR_INDEXES = 10
_TRY_AGAIN_S = 0.05


@dataclass(slots=True)
class CatalogCopy:
    """What was copied. `metadata` has the bytes of every metadata file, by its location."""

    published: Position = 0
    pointers: list[Pointer] = field(default_factory=list)
    metadata: dict[str, bytes] = field(default_factory=dict)
    hints: dict[str, bytes] = field(default_factory=dict)
    indexes: dict[str, KeyIndexView] = field(default_factory=dict)
    """By the table's uuid, held open."""
    indexes_left_out: list[str] = field(default_factory=list)

    def documents(self) -> list[dict[str, Any]]:
        """The metadata of all tables, decoded."""
        locations = [pointer.metadata_location for pointer in self.pointers if pointer.kind == "table"]
        return [msgspec.json.decode(self.metadata[location]) for location in locations]


def copy_catalog(home: Path, target: Path, settings: CatalogSettings, files: TableFiles) -> CatalogCopy:
    """Copy the database to `target`, and read what it points at before that goes."""
    for attempt in range(_TRIES_MAX):
        copy_store_of(home, target / DATABASE, settings)
        try:
            copy = _read(home, target / DATABASE, files)
        except FileNotFoundError:
            time.sleep(_TRY_AGAIN_S)
            continue
        if not copy.indexes_left_out or attempt >= _TRIES_FOR_INDEXES:
            return copy
        time.sleep(_TRY_AGAIN_S)
    raise Unavailable(
        "a metadata file that the catalog points at was not there, again and again",
        hint="`dolake verify` says whether it is lost; else try again when less is published",
    )


def copy_indexes(copy: CatalogCopy, home: Path, target: Path, meter: Meter) -> None:
    """The indexes of the copied snapshots; one that is merged away this moment is left out."""
    for uuid, view in copy.indexes.items():
        try:
            for run in view.manifest.runs:
                copy_file(home / "keyindex" / uuid / run.name, target / uuid / run.name, meter)
        except FileNotFoundError:
            copy.indexes_left_out.append(uuid)
            continue
        (target / uuid).mkdir(parents=True, exist_ok=True)
        store_manifest(target / uuid / INDEX, view.manifest, Disk())
    copy.indexes.clear()


def _read(home: Path, database: Path, files: TableFiles) -> CatalogCopy:
    store = SqliteStore(database)
    try:
        copy = CatalogCopy(store.published().position, store.pointers())
    finally:
        store.close()
    for pointer in copy.pointers:
        location = pointer.metadata_location
        copy.metadata[location] = files.read(location)
        if pointer.kind == "table":
            folder, _, name = location.rpartition("/")
            copy.hints[f"{folder}/{HINT_FILE}"] = name.removesuffix(SUFFIX).encode()
            _find_index(copy, home, pointer)
    return copy


def _find_index(copy: CatalogCopy, home: Path, pointer: Pointer) -> None:
    if not pointer.is_managed or pointer.name.name.endswith(RESERVED_SUFFIXES):
        return
    snapshot_id = current_snapshot_id(msgspec.json.decode(copy.metadata[pointer.metadata_location]))
    if snapshot_id is None:
        return
    try:
        copy.indexes[pointer.uuid] = KeyIndexView.open(home / "keyindex" / pointer.uuid, snapshot_id)
    except StaleIndex:
        copy.indexes_left_out.append(str(pointer.name))
