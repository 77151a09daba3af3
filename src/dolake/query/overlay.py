"""Iceberg metadata that nobody commits: a snapshot of a table, and the same without the rows that the tail replaces.

From live.py and time_travel.py; to DuckDB, which reads it like any other metadata file and so prunes files and leaves
out deleted rows by itself. A table of format 3 is shown to it as one of format 2 (vectors.py says why). Promise:
nothing of it is outside the scratch folder, and what no query uses is removed.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    read_manifest_list,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from dolake.errors import Unavailable
from dolake.pipeline.files import DELETES
from dolake.query.vectors import FORMAT_MIN, Vectors, joined, refuse_unreadable

Json = dict[str, Any]
Positions = Mapping[str, NDArray[np.uint32]]
_ID = 1
"""Of the snapshot that a file of ours describes: nobody else ever sees it."""
_LISTS_MAX = 64
_FORMAT: Literal[2] = 2


@dataclass(frozen=True, eq=False)
class Overlay:
    """A metadata file; it is there for as long as somebody holds this."""

    path: Path
    made_of: tuple[Json, Json, Path | None] | None = None
    """Table, snapshot and file of the rows that are left out, where it is not just that snapshot."""


class Overlays:
    """Writes them into one folder."""

    def __init__(self, folder: Path, lake: FileIO | None = None, *, is_quick: bool = True) -> None:
        self._folder, self._is_quick = folder, is_quick
        self._numbers = itertools.count(1)
        self._io = PyArrowFileIO()
        self._lake = lake or self._io
        self._vectors = Vectors(self._lake)
        self._keeping = threading.Lock()
        self._lists: dict[str, list[ManifestFile]] = {}
        self._refused: dict[str, Unavailable] = {}
        """Lists that could not be fetched: nobody waits for them a second time."""
        self._schemas: dict[tuple[str, int], Schema] = {}
        self._known: weakref.WeakValueDictionary[str, Overlay] = weakref.WeakValueDictionary()

    def in_parts(self, path: str) -> tuple[Overlay, Path | None]:
        """The snapshot with all rows, and the file of those to leave out: Java wants deletes to be of a partition."""
        overlay = self._known[path]
        if overlay.made_of is None:
            return overlay, None
        metadata, snapshot, deletes = overlay.made_of
        return self._as_it_is(metadata, snapshot), deletes

    def plain(self, metadata: Json, snapshot: Json) -> Overlay:
        """A table as of one of its snapshots."""
        if metadata["format-version"] >= FORMAT_MIN:
            return self.without(metadata, snapshot, {})
        return self._as_it_is(metadata, snapshot)

    def _as_it_is(self, metadata: Json, snapshot: Json) -> Overlay:
        return self._write(metadata, snapshot, snapshot["manifest-list"], [])

    def without(self, metadata: Json, snapshot: Json, positions: Positions) -> Overlay:
        """The same without these rows of its data files."""
        number = next(self._numbers)
        deletes, manifest, manifests = (self._folder / f"{number}.{end}" for end in ("parquet", "m.avro", "l.avro"))
        known = self._manifests_of(snapshot["manifest-list"])
        if metadata["format-version"] >= FORMAT_MIN:
            refuse_unreadable(_schema_json(metadata))
            known, gone = self._vectors.split(known)
            positions = joined([gone, positions])
        if positions:
            _write_deletes(deletes, positions)
            count = sum(map(len, positions.values()))
            known = [*known, self._write_manifest(manifest, metadata, deletes, count)]
        sequence = int(snapshot.get("sequence-number", 0)) + 1  # those from format 1 have none
        with write_manifest_list(_FORMAT, self._io.new_output(str(manifests)), _ID, None, sequence, "null") as writer:
            writer.add_manifests(known)
        later = snapshot | {"sequence-number": sequence}
        made_of = metadata, snapshot, deletes if positions else None
        shown = metadata | {"format-version": _FORMAT}
        return self._write(shown, later, str(manifests), [deletes, manifest, manifests], made_of)

    def fetch(self, snapshot: Json | None) -> None:
        """Try to have what `without` may need of a store, before others are locked out: it may take its time."""
        if snapshot is None or self._is_quick:
            return
        location = snapshot["manifest-list"]
        try:
            self._refused.pop(location, None)
            self._manifests_of(location)
        except Unavailable as error:  # raised when it is needed after all
            if len(self._refused) >= _LISTS_MAX:
                self._refused.clear()
            self._refused[location] = error

    def _manifests_of(self, location: str) -> list[ManifestFile]:
        """Asked again and again between two publishes."""
        with self._keeping:
            found = self._lists.get(location)
        if found is None:
            if error := self._refused.get(location):
                raise error
            found = list(read_manifest_list(self._lake.new_input(location)))
            with self._keeping:
                while len(self._lists) >= _LISTS_MAX:
                    del self._lists[next(iter(self._lists))]
                self._lists[location] = found
        return found

    def _schema_of(self, metadata: Json) -> Schema:
        """PyIceberg takes a millisecond for it."""
        key = metadata["table-uuid"], metadata["current-schema-id"]
        if key not in self._schemas:
            while len(self._schemas) >= _LISTS_MAX:
                del self._schemas[next(iter(self._schemas))]
            self._schemas[key] = Schema.model_validate(_schema_json(metadata))
        return self._schemas[key]

    def _write(
        self,
        metadata: Json,
        snapshot: Json,
        manifest_list: str,
        others: list[Path],
        made_of: tuple[Json, Json, Path | None] | None = None,
    ) -> Overlay:
        path = self._folder / f"{next(self._numbers)}.metadata.json"
        own = snapshot | {"snapshot-id": _ID, "manifest-list": manifest_list, "summary": {"operation": "append"}}
        own.pop("parent-snapshot-id", None)
        shown = metadata | {
            "partition-specs": [*metadata["partition-specs"], {"spec-id": _spec_id(metadata), "fields": []}],
            "snapshots": [own],
            "current-snapshot-id": _ID,
            "last-sequence-number": max(int(metadata["last-sequence-number"]), int(own["sequence-number"])),
            "refs": {"main": {"snapshot-id": _ID, "type": "branch"}},
            "snapshot-log": [],
            "metadata-log": [],
            "statistics": [],
            "partition-statistics": [],
        }
        path.write_bytes(msgspec.json.encode(shown))
        overlay = self._known[str(path)] = Overlay(path, made_of)
        weakref.finalize(overlay, _remove, [path, *others])
        return overlay

    def _write_manifest(self, path: Path, metadata: Json, deletes: Path, rows: int) -> ManifestFile:
        """One position delete file for all data files, of whichever partition: so it is of a spec without any."""
        schema = self._schema_of(metadata)
        file = DataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=str(deletes),
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=rows,
            file_size_in_bytes=deletes.stat().st_size,
            _table_format_version=_FORMAT,
        )
        entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=_ID, data_file=file)
        output = self._io.new_output(str(path))
        spec = PartitionSpec(spec_id=_spec_id(metadata))
        with _DeletesWriter(spec, schema, output, _ID, "null") as writer:
            writer.add(entry)
        return writer.to_manifest_file()


def _schema_json(metadata: Json) -> Json:
    current: Json = next(each for each in metadata["schemas"] if each["schema-id"] == metadata["current-schema-id"])
    return current


def _spec_id(metadata: Json) -> int:
    """Of a spec that the table does not have."""
    return 1 + max((int(spec["spec-id"]) for spec in metadata["partition-specs"]), default=-1)


class _DeletesWriter(ManifestWriterV2):
    """PyIceberg writes manifests of data files alone."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def _write_deletes(path: Path, positions: Positions) -> None:
    """Sorted by file and position, as Iceberg wants it."""
    files = sorted(positions)
    numbers = np.repeat(np.arange(len(files), dtype=np.int32), [len(positions[file]) for file in files])
    paths = pa.DictionaryArray.from_arrays(pa.array(numbers), pa.array(files, pa.string()))
    rows = np.concatenate([np.sort(positions[file]) for file in files]).astype(np.int64)
    schema = DELETES.set(0, DELETES.field(0).with_type(paths.type))  # written as it is, read as the text that it means
    table = pa.table([paths, pa.array(rows)], schema=schema)
    pq.write_table(table, path, compression="none", store_schema=False, use_dictionary=[DELETES.names[0]])


def _remove(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
