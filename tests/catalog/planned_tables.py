"""Tables for scan planning: partitioned by any transform, with specs and schemas that changed, and deleted rows."""

from __future__ import annotations

import datetime as dt
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.transforms import BucketTransform, DayTransform, MonthTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType, TimestamptzType
from pyiceberg.utils.datetime import datetime_to_micros

PATH_ID, POS_ID = 2147483546, 2147483545
_FLAT = 999
_FIRST = Schema(
    NestedField(1, "id", IntegerType()),
    NestedField(2, "at", TimestamptzType()),
    NestedField(3, "name", StringType()),
    NestedField(4, "city", StringType()),
)


def append(table: Table, rows: list[dict[str, Any]]) -> None:
    """As PyIceberg does, but into partitions of any transform, which takes it a library that we do not need."""
    spec, schema = table.spec(), table.schema()
    sources = [(schema.find_field(each.source_id), each.transform) for each in spec.fields]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = tuple(transform.transform(field.field_type)(_inside(row.get(field.name))) for field, transform in sources)
        groups.setdefault(key, []).append(row)
    flat = table.metadata.model_copy(
        update={"default_spec_id": _FLAT, "partition_specs": [PartitionSpec(spec_id=_FLAT)]}
    )
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as files:
        for key, group in groups.items():
            for file in _dataframe_to_data_files(flat, pa.Table.from_pylist(group, schema.as_arrow()), table.io):
                file[3], file.spec_id = Record(*key), spec.spec_id
                files.append_data_file(file)


def _inside(value: Any) -> Any:
    return datetime_to_micros(value) if isinstance(value, dt.datetime) else value


def row(id_: int, **more: Any) -> dict[str, Any]:
    return {"id": id_, "at": dt.datetime(2026, 1, 1 + id_ % 5, id_ % 24, tzinfo=dt.UTC)} | more


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return super()._meta | {"content": "deletes"}


class _Deleting(_FastAppendFiles):
    """One more snapshot with delete files, which PyIceberg reads and does not write."""

    deletes: list[DataFile]

    def _existing_manifests(self) -> list[ManifestFile]:
        found = super()._existing_manifests()
        for spec_id in {file.spec_id for file in self.deletes}:
            parts = self.spec(spec_id), self.schema(), self.new_manifest_output(), self._snapshot_id, "deflate"
            with _DeleteManifest(*parts) as manifest:  # type: ignore[arg-type]
                for file in self.deletes:
                    if file.spec_id == spec_id:
                        added = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=file)
                        added.snapshot_id = self._snapshot_id
                        manifest.add_entry(added)
            found.append(manifest.to_manifest_file())
        return found


def delete_rows(table: Table, *ids: int, is_named: bool = True, by_value: bool = False) -> None:
    """With position deletes, one for each data file, whose bounds name it or not; or with equality deletes."""
    deletes = []
    for task in table.scan().plan_files():
        found = pq.read_table(task.file.file_path.removeprefix("file://"))["id"].to_pylist()
        if places := [place for place, id_ in enumerate(found) if id_ in ids]:
            deletes.append(
                _delete_file(table, task.file, places, is_named, [*map(found.__getitem__, places)] * by_value)
            )
    with table.transaction() as transaction:
        made = _Deleting(Operation.DELETE, transaction, table.io)
        made.deletes = deletes
        made.commit()


def _delete_file(table: Table, of: DataFile, places: list[int], is_named: bool, values: list[int]) -> DataFile:
    path = f"{table.location()}/data/{uuid.uuid4()}-deletes.parquet"
    columns = {PATH_ID: ("file_path", [of.file_path] * len(places)), POS_ID: ("pos", places)}
    if values:
        columns = {1: ("id", values)}
    schema = pa.schema(
        [
            pa.field(name, pa.array(each).type, nullable=False, metadata={"PARQUET:field_id": str(id_)})
            for id_, (name, each) in columns.items()
        ]
    )
    pq.write_table(pa.table([each for _, each in columns.values()], schema=schema), path.removeprefix("file://"))
    bounds = {PATH_ID: of.file_path.encode()} if is_named and not values else {}
    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES if values else DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=of.partition,
        record_count=len(places),
        file_size_in_bytes=Path(path.removeprefix("file://")).stat().st_size,
        lower_bounds=bounds,
        upper_bounds=bounds,
        equality_ids=[1] if values else None,
    )
    file.spec_id = of.spec_id
    return file


def grown_table(catalog: RestCatalog, name: str) -> Table:
    """Three specs, two schemas and five snapshots; rows of two specs are deleted. Its ids go from 0 to 119."""
    by_day = PartitionSpec(PartitionField(2, 1000, DayTransform(), "at_day"))
    table: Table = catalog.create_table(name, _FIRST, partition_spec=by_day)
    append(table, [row(id_, name=f"n{id_ % 7}", city="Rome" if id_ % 3 else None) for id_ in range(50)])
    delete_rows(table, 3, 13, 23, 33, 43)
    with table.update_spec() as spec:
        spec.add_field("id", BucketTransform(3), "id_bucket").remove_field("at_day")
    with table.update_schema() as schema:
        schema.add_column("price", DoubleType()).update_column("id", LongType())
        schema.rename_column("name", "label").delete_column("city")
    table = catalog.load_table(name)
    append(table, [row(id_, label=f"n{id_ % 7}", price=id_ / 2) for id_ in range(50, 100)])
    delete_rows(table, 77, 78, is_named=False)
    with table.update_spec() as spec:
        spec.add_field("at", MonthTransform(), "at_month")
    append(table, [row(id_, label=None, price=float("nan") if id_ % 2 else None) for id_ in range(100, 120)])
    return table
