"""A snapshot's manifests, read with PyIceberg through our storage, in the newest form of the format.

From scan_planner.py. PyIceberg's own readers leave out what format 3 added, and take a partition's values in the order
of the file instead of the spec's. Promise: `may_go_on` is asked before each file and every few entries, and raises to
end it; only files inside the warehouse are read, and only those that `check_paths` lets pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pyiceberg.avro.file import AvroFile
from pyiceberg.io import InputFile
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    _inherit_from_manifest,
)
from pyiceberg.typedef import Record
from pyiceberg.types import StructType

from dolake.catalog.errors import IllegalArgument
from dolake.catalog.pyiceberg_files import StorageIO
from dolake.storage.base import Storage

_NEWEST = 3
_PLACES = {each.name: at for at, each in enumerate(DATA_FILE_TYPE[_NEWEST].fields)}
_PARTITION = _PLACES["partition"]
FIRST_ROW, REFERENCED = _PLACES["first_row_id"], _PLACES["referenced_data_file"]
OFFSET, SIZE = _PLACES["content_offset"], _PLACES["content_size_in_bytes"]
"""Where a file has what PyIceberg has no name for yet."""
_FIRST_ROW_OF_MANIFEST = [each.name for each in MANIFEST_LIST_FILE_SCHEMAS[_NEWEST].fields].index("first_row_id")
_PARTITION_ID = 102
_CHECK_EVERY = 256


class Manifests:
    """Reads what belongs to one plan."""

    def __init__(
        self, storage: Storage, may_go_on: Callable[[], None], check_paths: Callable[[list[str]], None]
    ) -> None:
        self._io, self._may_go_on, self._check_paths = StorageIO(storage), may_go_on, check_paths

    def of(self, snapshot: Mapping[str, Any]) -> list[ManifestFile]:
        """Those of a snapshot."""
        location = snapshot.get("manifest-list")
        if not location:
            raise IllegalArgument("the snapshot names its manifests one by one, which is not planned here")
        self._may_go_on()
        self._check_paths([location])
        with AvroFile[ManifestFile](
            self._io.new_input(location),
            MANIFEST_LIST_FILE_SCHEMAS[_NEWEST],
            read_types={-1: ManifestFile, 508: PartitionFieldSummary},
            read_enums={517: ManifestContent},
        ) as reader:
            return list(reader)

    def entries(self, manifest: ManifestFile, partition_ids: Sequence[int]) -> Iterator[ManifestEntry]:
        """Those of files that are there, with what they inherit; their partitions have these fields in this order."""
        self._may_go_on()
        self._check_paths([manifest.manifest_path])
        next_row = manifest[_FIRST_ROW_OF_MANIFEST]
        with _entries(self._io.new_input(manifest.manifest_path)) as reader:
            ordered = _ordering(reader.schema.find_field(_PARTITION_ID).field_type, partition_ids)
            for number, entry in enumerate(reader):
                if number % _CHECK_EVERY == 0:
                    self._may_go_on()
                if entry.status == ManifestEntryStatus.DELETED:
                    continue
                file = entry.data_file
                if ordered:
                    file[_PARTITION] = ordered(file.partition)
                if next_row is not None and file[FIRST_ROW] is None and file.content == DataFileContent.DATA:
                    file[FIRST_ROW] = next_row
                    next_row += file.record_count
                yield _inherit_from_manifest(entry, manifest)


def read_entries(manifest: InputFile) -> list[ManifestEntry]:
    """Of files that are there, with all that format 3 says of them; what they inherit is not filled in."""
    with _entries(manifest) as reader:
        return [entry for entry in reader if entry.status != ManifestEntryStatus.DELETED]


def _entries(manifest: InputFile) -> AvroFile[ManifestEntry]:
    return AvroFile[ManifestEntry](
        manifest,
        MANIFEST_ENTRY_SCHEMAS[_NEWEST],
        read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    )


def _ordering(found: Any, wanted: Sequence[int]) -> Callable[[Record], Record] | None:
    """Some writers, such as DuckDB, put the fields of all specs into each manifest; None where nothing is to do."""
    ids = [each.field_id for each in found.fields] if isinstance(found, StructType) else []
    if ids == list(wanted):
        return None
    places = [ids.index(each) if each in ids else None for each in wanted]
    return lambda partition: Record(*(None if place is None else partition[place] for place in places))
