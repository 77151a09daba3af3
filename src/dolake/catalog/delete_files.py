"""Which delete files a reader of a data file needs.

From scan_planner.py, which adds every delete file first. The rules are the specification's: a deletion vector stands
for all position deletes of its data file; position deletes apply to files as old as they are or older, in their
partition or by name; equality deletes apply to older files of their partition, or of the whole table if unpartitioned.
PyIceberg's own index knows neither vectors nor equality deletes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import Any

from pyiceberg.manifest import DataFileContent

PATH_FIELD_ID = 2147483546
_Partition = tuple[int, tuple[Any, ...]]


class _Aged:
    """Files by sequence number."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._files: list[Any] = []

    def add(self, number: int, file: Any) -> None:
        at = bisect_left(self._numbers, number)
        self._numbers.insert(at, number)
        self._files.insert(at, file)

    def since(self, number: int) -> list[Any]:
        return self._files[bisect_left(self._numbers, number) :]


class DeleteFiles:
    """All delete files of a scan."""

    def __init__(self) -> None:
        self._vectors: dict[str, _Aged] = defaultdict(_Aged)
        self._of_file: dict[str, _Aged] = defaultdict(_Aged)
        self._of_partition: dict[_Partition, _Aged] = defaultdict(_Aged)
        self._equal_of_partition: dict[_Partition, _Aged] = defaultdict(_Aged)
        self._equal_of_all = _Aged()

    def add(self, file: Any, number: int, *, referenced: str | None, is_vector: bool, is_partitioned: bool) -> None:
        partition = file.spec_id, partition_of(file)
        if file.content == DataFileContent.EQUALITY_DELETES:
            (self._equal_of_partition[partition] if is_partitioned else self._equal_of_all).add(number, file)
        elif named := referenced or _only_path(file):
            (self._vectors if is_vector else self._of_file)[named].add(number, file)
        else:
            self._of_partition[partition].add(number, file)

    def of(self, file: Any, number: int) -> list[Any]:
        """Those that apply to a data file of this sequence number."""
        partition = file.spec_id, partition_of(file)
        found = _since(self._vectors, file.file_path, number)
        if not found:
            found = _since(self._of_file, file.file_path, number)
            path = file.file_path.encode()
            found += [each for each in _since(self._of_partition, partition, number) if _can_name(each, path)]
        found += _since(self._equal_of_partition, partition, number + 1)
        return found + self._equal_of_all.since(number + 1)


def partition_of(file: Any) -> tuple[Any, ...]:
    return tuple(file.partition)


def _since(aged: dict[Any, _Aged], key: Any, number: int) -> list[Any]:
    return aged[key].since(number) if key in aged else []


def _path_bounds(file: Any) -> tuple[bytes | None, bytes | None]:
    return (file.lower_bounds or {}).get(PATH_FIELD_ID), (file.upper_bounds or {}).get(PATH_FIELD_ID)


def _only_path(file: Any) -> str | None:
    """The one data file that a delete file is about, if its bounds say so."""
    lower, upper = _path_bounds(file)
    return lower.decode(errors="replace") if lower and lower == upper else None


def _can_name(file: Any, path: bytes) -> bool:
    lower, upper = _path_bounds(file)
    return (lower is None or lower <= path) and (upper is None or path <= upper)
