"""All tables of a lake, their key indexes and the published position, seen at one moment.

From run.py; reads the catalog's store, the metadata files and the indexes, beside a running server or without one.
Promise: the pointers and the position are of one transaction of the store, so state and changes are those of the same
publish; an index is that of the state's snapshot. Where the pipeline was quicker, a later moment is taken.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dolake.backup.base import awaited_indexes, refuse_unfinished
from dolake.catalog.base import Pointer
from dolake.catalog.documents import Documents
from dolake.catalog.readers import current_schema, current_snapshot_id, snapshot_by_id
from dolake.catalog.stores import open_store
from dolake.catalog.values import Json
from dolake.errors import NotFound, Unavailable
from dolake.keyindex import KeyIndexView, StaleIndex
from dolake.positions import Position
from dolake.settings import CatalogSettings, DoLakeConfig
from dolake.storage.base import Storage
from dolake.storage.opening import Place, open_storage
from dolake.tables.layout import CHANGES_SUFFIX, table_names
from dolake.tables.names import RESERVED_SUFFIXES

_DEFAULTS = CatalogSettings()
_TRIES_MAX = 50
_TRY_AGAIN_S = 0.05
_IN_HOME = Place()


class Moved(Exception):
    """What was being read is no longer kept: the moment is over, take another."""


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """One Iceberg table as it was then."""

    pointer: Pointer
    metadata: Json

    @property
    def snapshot_id(self) -> int | None:
        return current_snapshot_id(self.metadata)

    @property
    def schema(self) -> Json:
        return current_schema(self.metadata) or {"fields": []}


@dataclass(frozen=True, slots=True)
class SourceTable:
    """The two tables of one source table, and the index of its state; None for what is not there."""

    name: str
    number: int
    state: IcebergTable | None
    changes: IcebergTable | None
    index: KeyIndexView | None
    index_problem: str = ""
    is_index_awaited: bool = False
    """Whether the home was recovered without it, and the table not written since."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Everything before `position` was published then, and nothing else."""

    position: Position
    tables: list[SourceTable]


class LakeFiles:
    """The folders of one lake."""

    def __init__(self, home: Path, storage: Storage, settings: CatalogSettings = _DEFAULTS) -> None:
        refuse_unfinished(home)
        store = open_store(home, settings, must_exist=True)
        self.journal = home / "journal"
        self.storage = storage
        self._indexes = home / "keyindex"
        self._awaited = awaited_indexes(home)
        self._store = store
        self._documents = Documents(self.storage)

    def close(self) -> None:
        self._store.close()

    def take_moment(self, only: str | None = None) -> Moment:
        """Every source table, or the one of this name."""
        for _ in range(_TRIES_MAX):
            with contextlib.suppress(Moved):
                return self._look(only)
            time.sleep(_TRY_AGAIN_S)
        raise Unavailable("the tables move faster than they can be looked at", hint="try again when less is published")

    def is_kept(self, table: IcebergTable) -> bool:
        """Whether the table still has the snapshot of that moment: while it does, its files must be there."""
        try:
            now = self._store.find(table.pointer.name, "table")
            metadata = self._documents.read(now.metadata_location).metadata
        except NotFound:
            return False
        return snapshot_by_id(metadata, table.snapshot_id) is not None

    def _look(self, only: str | None) -> Moment:
        pointers, published = self._store.snapshot(None)
        managed = {str(pointer.name): pointer for pointer in pointers if pointer.is_managed}
        names = sorted({name.removesuffix(CHANGES_SUFFIX) for name in managed if _is_ours(name)})
        if only is not None:
            names = _chosen(names, only)
        tables = [self._table(number, name, managed) for number, name in enumerate(names)]
        return Moment(published.position, tables)

    def _table(self, number: int, name: str, managed: dict[str, Pointer]) -> SourceTable:
        state = self._load(managed.get(name))
        changes = self._load(managed.get(name + CHANGES_SUFFIX))
        if state is None or state.snapshot_id is None:  # without a row it needs no index
            return SourceTable(name, number, state, changes, None)
        try:
            view = KeyIndexView.open(self._indexes / state.pointer.uuid, state.snapshot_id)
        except StaleIndex as error:
            now = self._store.find(state.pointer.name, "table")
            if now.version != state.pointer.version:
                raise Moved from None  # the index has followed the table to its next snapshot
            is_awaited = self._awaited.get(state.pointer.uuid) == state.snapshot_id
            return SourceTable(name, number, state, changes, None, error.message, is_awaited)
        return SourceTable(name, number, state, changes, view)

    def _load(self, pointer: Pointer | None) -> IcebergTable | None:
        if pointer is None:
            return None
        try:
            return IcebergTable(pointer, self._documents.read(pointer.metadata_location).metadata)
        except NotFound:
            if self._store.find(pointer.name, "table").version != pointer.version:
                raise Moved from None  # old metadata files are removed some publishes later
            raise


def _is_ours(name: str) -> bool:
    """Whether this is a state or a changes table, and not another that DoLake makes beside them."""
    others = tuple(suffix for suffix in RESERVED_SUFFIXES if suffix != CHANGES_SUFFIX)
    return not name.endswith(others)


def _chosen(names: list[str], only: str) -> list[str]:
    wanted = ".".join(table_names(only)[0])
    if wanted not in names:
        hint = f"there are: {', '.join(names[:10]) or 'none'}"
        raise NotFound(f"DoLake manages no table {wanted}", hint=hint)
    return [wanted]


@contextlib.contextmanager
def opened(
    home: Path, lake: DoLakeConfig, place: Place = _IN_HOME, catalog: CatalogSettings = _DEFAULTS
) -> Iterator[LakeFiles]:
    """The lake in this home, whose tables are there or in a store."""
    warehouse = home / lake.r2_base_path
    if place.is_local and not warehouse.is_dir():
        raise NotFound(f"no warehouse at {warehouse}", hint="do the settings name the folder that the server uses?")
    storage = open_storage(home, lake, place)
    try:
        files = LakeFiles(home, storage, catalog)
        try:
            yield files
        finally:
            files.close()
    finally:
        storage.close()
