"""Planning a scan: from a snapshot's manifests to the pages that a client gets.

From scan_rest.py, in the threads that plan; it loads this module with the first scan, because PyIceberg takes a second.
PyIceberg judges manifests and files; what it lacks is in manifests.py, delete_files.py and scan_filters.py. Promise: a
file that can hold a row of the scan is in its plan, with all deletes that apply to it; the same scan gives the same
pages; memory holds one manifest, the delete files and the packed pages, and no more.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pyiceberg.conversions import to_json
from pyiceberg.exceptions import ResolveError, ValidationError
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    expression_evaluator,
    inclusive_projection,
    manifest_evaluator,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import UnknownType

from dolake.catalog.delete_files import DeleteFiles, partition_of
from dolake.catalog.errors import IllegalArgument, MissingFile, NoSuchPlan, NoSuchPlanTask
from dolake.catalog.manifests import FIRST_ROW, OFFSET, REFERENCED, SIZE, Manifests
from dolake.catalog.pages import Pages
from dolake.catalog.partitions import BAD_FILE
from dolake.catalog.readers import snapshot_by_id
from dolake.catalog.scan_filters import Filter, check_fields
from dolake.catalog.scans import Scan, snapshots_between
from dolake.catalog.values import Json
from dolake.errors import NotFound

_CONTENT = {
    DataFileContent.DATA: "data",
    DataFileContent.POSITION_DELETES: "position-deletes",
    DataFileContent.EQUALITY_DELETES: "equality-deletes",
}
_RESIDUALS_KEPT = 1_000
_METADATA_COLUMNS = ("_file", "_pos", "_partition", "_spec_id", "_deleted", "_row_id", "_last_updated_sequence_number")
_encode = msgspec.json.Encoder().encode


def plan(metadata: Mapping[str, Any], scan: Scan, manifests: Manifests, pages: Pages) -> list[bytes]:
    """Pages of tasks for this scan."""
    with _said_plainly("the filter does not fit the table"):
        planner = _Planner(metadata, scan, manifests)
    if scan.snapshot_id is None:
        return pages.close()
    with _said_plainly("the table's manifests cannot be read"):
        rows = 0
        for task in planner.tasks():
            pages.add(task.file, task.deletes, task.residual)
            rows += task.rows_sure
            if scan.rows_min is not None and rows >= scan.rows_min:
                break
    return pages.close()


@contextlib.contextmanager
def _said_plainly(problem: str) -> Iterator[None]:
    """What is wrong with a filter or with a table's files, in our words."""
    try:
        yield
    except (NoSuchPlan, NoSuchPlanTask):
        raise
    except NotFound as error:
        raise MissingFile(f"a manifest of the table is missing: {error.message}", hint="restore the file") from None
    except (*BAD_FILE, ResolveError, ValidationError, NotImplementedError) as error:
        raise IllegalArgument(f"{problem}: {type(error).__name__}: {str(error)[:300]}") from error


@dataclass(frozen=True, slots=True)
class Task:
    """One data file to read."""

    file: bytes
    deletes: list[tuple[str, bytes]]
    """By a name that is the file's own within the plan."""
    residual: bytes
    rows_sure: int
    """Rows that the scan surely gets from it."""


class _Planner:
    def __init__(self, metadata: Mapping[str, Any], scan: Scan, manifests: Manifests) -> None:
        self._metadata, self._scan, self._manifests = metadata, scan, manifests
        schema = _schema_of(metadata, scan.schema_id)
        is_exact = scan.is_case_sensitive
        self._filter = Filter(scan.filter, schema, is_case_sensitive=is_exact)
        check_fields((name for name in scan.select if not _is_of_no_column(name)), schema, is_case_sensitive=is_exact)
        self._stats = frozenset(check_fields(scan.stats, schema, is_case_sensitive=is_exact))
        self._specs = {
            each["spec-id"]: _Spec(PartitionSpec.model_validate(each), schema, self._filter)
            for each in metadata["partition-specs"]
        }
        self._metrics = _InclusiveMetricsEvaluator(schema, self._filter.expression, case_sensitive=True)

    def tasks(self) -> Iterator[Task]:
        appends = self._appends()
        manifests = self._chosen(appends)
        data = [each for each in manifests if each.content == ManifestContent.DATA]
        deletes = self._deletes([each for each in manifests if each.content == ManifestContent.DELETES], data)
        for manifest in data:
            spec = self._specs[manifest.partition_spec_id]
            for entry in self._manifests.entries(manifest, spec.field_ids):
                file = entry.data_file
                if _is_wanted(entry, appends) and spec.has_match(file) and self._can_match(file):
                    yield self._task(spec, file, deletes.of(file, entry.sequence_number or 0))

    def _appends(self) -> dict[int, Json] | None:
        """The snapshots whose new files are asked for; None where it is all of one snapshot."""
        start_id, end_id = self._scan.start_id, self._scan.snapshot_id
        if start_id is None or end_id is None:
            return None
        between = snapshots_between(self._metadata, start_id, end_id)
        if between is None:
            raise NoSuchPlanTask("a snapshot of this plan task has expired", hint="plan the scan again")
        return {each["snapshot-id"]: each for each in between if _operation(each) == "append"}

    def _chosen(self, appends: dict[int, Json] | None) -> list[ManifestFile]:
        """The manifests that are to be read, in their order."""
        if appends is None:
            snapshot = snapshot_by_id(self._metadata, self._scan.snapshot_id)
            if snapshot is None:
                raise NoSuchPlanTask("the snapshot of this plan task has expired", hint="plan the scan again")
            return [each for each in self._manifests.of(snapshot) if self._spec_of(each).may_match(each)]
        found = {
            manifest.manifest_path: manifest
            for snapshot in appends.values()
            for manifest in self._manifests.of(snapshot)
            if manifest.content == ManifestContent.DATA
            and manifest.added_snapshot_id in appends
            and self._spec_of(manifest).may_match(manifest)
        }
        return list(found.values())

    def _spec_of(self, manifest: ManifestFile) -> _Spec:
        if manifest.partition_spec_id not in self._specs:
            raise ValueError(f"a manifest is of the spec {manifest.partition_spec_id}, which the table does not have")
        return self._specs[manifest.partition_spec_id]

    def _deletes(self, manifests: list[ManifestFile], data: list[ManifestFile]) -> DeleteFiles:
        deletes = DeleteFiles()
        oldest = min((each.min_sequence_number or 0 for each in data), default=0)
        for manifest in manifests:
            if (manifest.sequence_number or 0) < oldest:
                continue  # older than all data: it has nothing to delete any more
            spec = self._specs[manifest.partition_spec_id]
            for entry in self._manifests.entries(manifest, spec.field_ids):
                file = entry.data_file
                if spec.has_match(file):
                    deletes.add(
                        file,
                        entry.sequence_number or 0,
                        referenced=file[REFERENCED],
                        is_vector=file[OFFSET] is not None,
                        is_partitioned=spec.is_partitioned,
                    )
        return deletes

    def _can_match(self, file: DataFile) -> bool:
        """By the file's statistics. Those that cannot be read, as after a change of a type, rule nothing out."""
        try:
            return bool(self._metrics.eval(file))
        except (ValueError, TypeError, ArithmeticError, struct.error):
            return True

    def _task(self, spec: _Spec, file: DataFile, deletes: list[DataFile]) -> Task:
        residual = spec.residual(file)
        is_sure = residual == b"true" and all(each.content == DataFileContent.POSITION_DELETES for each in deletes)
        gone = sum(each.record_count for each in deletes)
        return Task(
            _encode(self._shown(spec, file)),
            [(f"{each.file_path}@{each[OFFSET]}", self._shown_delete(each)) for each in deletes],
            residual,
            max(0, file.record_count - gone) if is_sure else 0,
        )

    def _shown_delete(self, file: DataFile) -> bytes:
        shown = self._shown(self._specs[file.spec_id], file, has_stats=False)
        shown |= {
            "equality-ids": file.equality_ids,
            "referenced-data-file": file[REFERENCED],
            "content-offset": file[OFFSET],
            "content-size-in-bytes": file[SIZE],
        }
        return _encode({key: value for key, value in shown.items() if value is not None})

    def _shown(self, spec: _Spec, file: DataFile, *, has_stats: bool = True) -> dict[str, Any]:
        shown = {
            "spec-id": file.spec_id,
            "content": _CONTENT[file.content],
            "file-path": file.file_path,
            "file-format": str(file.file_format.value).lower(),
            "partition": spec.values(file),
            "file-size-in-bytes": file.file_size_in_bytes,
            "record-count": file.record_count,
        }
        optional = {
            "key-metadata": file.key_metadata.hex().upper() if file.key_metadata else None,
            "split-offsets": file.split_offsets,
            "sort-order-id": file.sort_order_id,
            "first-row-id": file[FIRST_ROW] if file.content == DataFileContent.DATA else None,
        }
        if has_stats and self._stats:
            optional |= self._shown_stats(file)
        return shown | {key: value for key, value in optional.items() if value is not None}

    def _shown_stats(self, file: DataFile) -> dict[str, Any]:
        counts = {
            "column-sizes": file.column_sizes,
            "value-counts": file.value_counts,
            "null-value-counts": file.null_value_counts,
            "nan-value-counts": file.nan_value_counts,
        }
        bounds = {"lower-bounds": file.lower_bounds, "upper-bounds": file.upper_bounds}
        shown = {name: self._asked_for(each) for name, each in (counts | bounds).items() if each}
        for name in bounds.keys() & shown.keys():
            shown[name]["values"] = [bound.hex().upper() for bound in shown[name]["values"]]
        return {name: each for name, each in shown.items() if each["keys"]}

    def _asked_for(self, stats: Mapping[int, Any]) -> dict[str, list[Any]]:
        kept = {id_: value for id_, value in stats.items() if id_ in self._stats}
        return {"keys": list(kept), "values": list(kept.values())}


@dataclass(slots=True)
class _Spec:
    """One of the table's partition specs, ready to judge manifests and files for this scan."""

    spec: PartitionSpec
    schema: Schema
    filter: Filter
    is_partitioned: bool = field(init=False)
    field_ids: list[int] = field(init=False)
    _types: list[Any] = field(init=False)
    _summary_matches: Callable[[ManifestFile], bool] = field(init=False)
    _matches: Callable[[Any], bool] = field(init=False)
    _residual_of: Callable[[Any], object] = field(init=False)
    _residuals: dict[tuple[Any, ...], bytes] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        struct_type = self.spec.partition_type(self.schema)
        self.is_partitioned = not self.spec.is_unpartitioned()
        self.field_ids = [each.field_id for each in struct_type.fields]
        self._types = [each.field_type for each in struct_type.fields]
        projected = inclusive_projection(self.schema, self.spec, case_sensitive=True)(self.filter.expression)
        self._summary_matches = manifest_evaluator(self.spec, self.schema, projected, case_sensitive=True)
        self._matches = expression_evaluator(Schema(*struct_type.fields), projected, case_sensitive=True)
        self._residual_of = self.filter.residual_of(self.spec)

    def may_match(self, manifest: ManifestFile) -> bool:
        """By the manifest's summaries, which go by position: those of other fields than the spec's say nothing."""
        if manifest.partitions is not None and len(manifest.partitions) != len(self.field_ids):
            return True
        return self._summary_matches(manifest)

    def has_match(self, file: DataFile) -> bool:
        return self._matches(file.partition)

    def residual(self, file: DataFile) -> bytes:
        """What of the filter is left to do in this file, as JSON."""
        key = partition_of(file) if self.is_partitioned else ()
        if key not in self._residuals:
            if len(self._residuals) >= _RESIDUALS_KEPT:
                self._residuals.clear()
            self._residuals[key] = _encode(self._residual_of(file.partition))
        return self._residuals[key]

    def values(self, file: DataFile) -> list[Any]:
        return [_json_value(kind, value) for kind, value in zip(self._types, partition_of(file), strict=True)]


def _json_value(kind: Any, value: Any) -> Any:
    """In the specification's form for single values. Of a column that was dropped nobody knows the type any more."""
    if value is None or isinstance(kind, UnknownType):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    shown = to_json(kind, value)
    return shown.upper() if isinstance(value, bytes) else shown


def _schema_of(metadata: Mapping[str, Any], schema_id: int) -> Schema:
    found = next((each for each in metadata["schemas"] if each.get("schema-id", 0) == schema_id), None)
    if found is None:
        raise NoSuchPlanTask("the schema of this plan task is gone", hint="plan the scan again")
    try:
        return Schema.model_validate(found)
    except ValueError as error:
        raise IllegalArgument(f"the table's schema cannot be planned with: {str(error)[:300]}") from None


def _is_wanted(entry: ManifestEntry, appends: dict[int, Json] | None) -> bool:
    return appends is None or (entry.snapshot_id in appends and entry.status == ManifestEntryStatus.ADDED)


def _operation(snapshot: Mapping[str, Any]) -> object:
    return (snapshot.get("summary") or {}).get("operation")


def _is_of_no_column(name: str) -> bool:
    """Engines select what they make themselves, too."""
    return name == "*" or name.partition(".")[0] in _METADATA_COLUMNS
