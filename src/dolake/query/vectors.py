"""What a snapshot of format 3 has deleted, as positions: DuckDB must not read its deletion vectors.

From overlay.py. DuckDB 1.5 reads some tables with deletion vectors wrong, in silence; so it never sees one. What they
and older delete files say is read here, and handed to DuckDB as position deletes of format 2. Promise: each row that
the snapshot has deleted is left out, or the table is refused in words.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestFile

from dolake.catalog.manifests import OFFSET, REFERENCED, SIZE, read_entries
from dolake.errors import Damaged, InvalidInput
from dolake.tables.vectors import positions_in

Json = dict[str, Any]
Positions = dict[str, NDArray[np.uint32]]
FORMAT_MIN = 3
_POSITIONS_MAX = 16_000_000
_OF_AN_ENTRY = 256
_MANIFESTS_MAX = 256


class Vectors:
    """Reads them through a lake's files; what never changes is kept, up to a bound. Any thread may ask."""

    def __init__(self, io: FileIO) -> None:
        self._io = io
        self._keeping = threading.Lock()
        self._kept: OrderedDict[tuple[str, int], Positions] = OrderedDict()
        self._count = 0
        self._listed: OrderedDict[str, list[DataFile]] = OrderedDict()
        """Of manifests, which never change."""

    def split(self, manifests: Iterable[ManifestFile]) -> tuple[list[ManifestFile], Positions]:
        """The manifests that DuckDB may read, and the rows that the others say are deleted."""
        kept: list[ManifestFile] = []
        parts: list[Positions] = []
        for manifest in manifests:
            files = [] if manifest.content == ManifestContent.DATA else self._delete_files(manifest)
            if any(each.content == DataFileContent.POSITION_DELETES for each in files):
                parts += map(self._positions, files)
            else:
                kept.append(manifest)  # of data, or of equality deletes alone
        return kept, joined(parts)

    def _delete_files(self, manifest: ManifestFile) -> list[DataFile]:
        path = manifest.manifest_path
        with self._keeping:
            if path in self._listed:
                self._listed.move_to_end(path)
                return self._listed[path]
        found = [entry.data_file for entry in read_entries(self._io.new_input(path))]
        with self._keeping:
            self._listed[path] = found
            while len(self._listed) > _MANIFESTS_MAX:
                self._listed.popitem(last=False)
        return found

    def _positions(self, file: DataFile) -> Positions:
        if file.content == DataFileContent.EQUALITY_DELETES:
            raise InvalidInput(
                "a table of format 3 has deletes by value beside deletes by position, which are not read here",
                hint="let its writer compact it, or read it with Spark through the catalog",
            )
        key = file.file_path, file[OFFSET] or 0
        with self._keeping:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        found = self._read(file)
        with self._keeping:
            if key not in self._kept:
                self._kept[key] = found
                self._count += _size(found)
            while self._count > _POSITIONS_MAX and len(self._kept) > 1:
                self._count -= _size(self._kept.popitem(last=False)[1])
        return found

    def _read(self, file: DataFile) -> Positions:
        with self._io.new_input(file.file_path).open() as source:
            if file.file_format == FileFormat.PUFFIN:
                source.seek(file[OFFSET])
                try:
                    return {file[REFERENCED]: positions_in(source.read(file[SIZE]))}
                except ValueError as error:
                    raise Damaged(f"{file.file_path}: {error}", hint="restore the file from a backup") from error
            rows = pq.read_table(source, columns=["file_path", "pos"])
        paths = rows.column("file_path").combine_chunks().dictionary_encode()
        numbers = rows.column("pos").to_numpy()
        return {
            path: np.sort(numbers[paths.indices.to_numpy() == at]).astype(np.uint32)
            for at, path in enumerate(paths.dictionary.to_pylist())
        }


def joined(parts: Iterable[Mapping[str, NDArray[np.uint32]]]) -> Positions:
    """All that any of them says, ascending."""
    found: dict[str, list[NDArray[np.uint32]]] = {}
    for part in parts:
        for path, positions in part.items():
            found.setdefault(path, []).append(positions)
    return {path: each[0] if len(each) == 1 else np.unique(np.concatenate(each)) for path, each in found.items()}


def refuse_unreadable(schema: Json) -> None:
    """What format 3 has and format 2 has no words for."""
    for field in _fields(schema):
        if field.get("initial-default") is not None:
            raise InvalidInput(
                f"the column {field['name']} has a value for rows that were there before it, which is not read here",
                hint="read the table with Spark through the catalog",
            )


def _fields(type_: Any) -> Iterator[Json]:
    """All fields of a type, also those inside others."""
    if isinstance(type_, dict):
        for field in type_.get("fields", ()):
            yield field
            yield from _fields(field["type"])
        for part in ("element", "key", "value"):
            yield from _fields(type_.get(part))


def _size(positions: Positions) -> int:
    """What it takes to keep them, in positions: the paths take something, too."""
    return _OF_AN_ENTRY + sum(map(len, positions.values()))
