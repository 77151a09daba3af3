"""Which files a question has to open, by the bounds that Iceberg keeps of each: for `/v1/query/plan` and for freshness.

From worker.py, with the snapshots of a view and the filters of a statement; manifests are read once and kept. DuckDB
prunes by the same bounds when it reads; what is said here is what it does. Promise: a file is called pruned only if no
row of it can pass the filters.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestFile, read_manifest_list
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType

from dolake.query.lake import LakeTable
from dolake.query.pruning import partition_check
from dolake.tables.schema import timestamp_us
from dolake.tables.tiers import WARM, Tier, Tiers
from dolake.tables.transforms import PartitionNames

Json = dict[str, Any]
Operator = Literal["=", "<", "<=", ">", ">=", "in", "is_null", "not_null"]
_MANIFESTS_MAX = 512
_EPOCH_DAY = date(1970, 1, 1).toordinal()


@dataclass(frozen=True, slots=True)
class Condition:
    """What every row must meet: a column compared with constants."""

    column: str
    operator: Operator
    values: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A data file of a snapshot; with a reason it need not be opened."""

    path: str
    byte_count: int
    row_count: int
    partition: str
    tier: Tier = WARM
    reason: str | None = None


class Manifests:
    """The data files of snapshots. Manifests never change, so each is read once."""

    def __init__(self, io: FileIO | None = None) -> None:
        self._io = io or PyArrowFileIO()
        self._known: OrderedDict[str, list[DataFile]] = OrderedDict()
        self._lock = threading.Lock()

    def files(self, snapshot: Json) -> Iterator[DataFile]:
        for manifest in read_manifest_list(self._io.new_input(snapshot["manifest-list"])):
            yield from self._files_of(manifest)

    def paths(self, snapshot: Json) -> Iterator[str]:
        """Every file that a reader of this snapshot opens."""
        yield snapshot["manifest-list"]
        for manifest in read_manifest_list(self._io.new_input(snapshot["manifest-list"])):
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(self._io, discard_deleted=True):
                yield entry.data_file.file_path

    def _files_of(self, manifest: ManifestFile) -> list[DataFile]:
        path = manifest.manifest_path
        with self._lock:
            found = self._known.get(path)
            if found is not None:
                self._known.move_to_end(path)
                return found
        entries = manifest.fetch_manifest_entry(self._io, discard_deleted=True)
        found = [entry.data_file for entry in entries if entry.data_file.content == DataFileContent.DATA]
        with self._lock:
            self._known[path] = found
            while len(self._known) > _MANIFESTS_MAX:
                self._known.popitem(last=False)
        return found


def planned(
    manifests: Manifests, table: LakeTable, snapshot: Json, conditions: Sequence[Condition], tiers: Tiers | None = None
) -> list[PlannedFile]:
    """All data files of a snapshot, with the reason for those that need not be opened."""
    schema = Schema.model_validate(table.schema)
    checks = [check for each in conditions if (check := _check_of(table.metadata, schema, each))]
    names = PartitionNames(table.metadata)
    return [
        PlannedFile(
            file.file_path,
            file.file_size_in_bytes,
            file.record_count,
            names.of(file.spec_id, _values_of(file)) if len(file.partition) else "",
            tiers.of(file.file_path) if tiers else WARM,
            next((reason for check in checks if (reason := check(file))), None),
        )
        for file in manifests.files(snapshot)
    ]


def may_have_values(manifests: Manifests, table: LakeTable, snapshot: Json, column: str) -> bool:
    """Whether a data file of a snapshot may have a value in this column of DoLake's own."""
    id_ = next((field["id"] for field in table.schema["fields"] if field["name"] == column), None)
    if id_ is None:
        return False
    counts = ((file.record_count, (file.null_value_counts or {}).get(id_)) for file in manifests.files(snapshot))
    return any(nulls is None or nulls < rows for rows, nulls in counts)


def _values_of(file: DataFile) -> list[Any]:
    return [file.partition[place] for place in range(len(file.partition))]


def _check_of(metadata: Json, schema: Schema, condition: Condition) -> Callable[[DataFile], str | None] | None:
    """Says why a file cannot have a row that meets the condition; None where bounds cannot tell."""
    try:
        field = schema.find_field(condition.column, case_sensitive=False)
    except ValueError:
        return None
    if not isinstance(field.field_type, PrimitiveType):
        return None
    values = [value for each in condition.values if (value := _as_stored(each, field.field_type)) is not None]
    if len(values) != len(condition.values):
        return None
    type_, id_, name = field.field_type, field.field_id, field.name
    by_partition = partition_check(metadata, field, condition.operator, values)

    def check(file: DataFile) -> str | None:
        if len(file.partition) and (reason := by_partition(file)):
            return reason
        rows, nulls = file.record_count, (file.null_value_counts or {}).get(id_)
        if condition.operator == "is_null":
            return f"{name}: no row is null" if nulls == 0 else None
        if nulls is not None and nulls == rows:
            return f"{name}: all rows are null"
        lower, upper = (
            None if bounds is None or id_ not in bounds else from_bytes(type_, bounds[id_])
            for bounds in (file.lower_bounds, file.upper_bounds)
        )
        return _reason(name, condition.operator, values, lower, upper, str(type_))

    return check


def _reason(name: str, operator: Operator, values: Sequence[Any], lower: Any, upper: Any, type_: str) -> str | None:
    def shown(value: Any) -> str:
        return _shown(value, type_)

    if operator == "not_null" or not values:
        return None
    least, most = min(values), max(values)
    if (
        operator in ("=", "in", ">", ">=")
        and upper is not None
        and (upper < least or (operator == ">" and upper <= least))
    ):
        return f"{name}: upper bound {shown(upper)} < {shown(least)}"
    if (
        operator in ("=", "in", "<", "<=")
        and lower is not None
        and (lower > most or (operator == "<" and lower >= most))
    ):
        return f"{name}: lower bound {shown(lower)} > {shown(most)}"
    if operator == "in" and lower is not None and upper is not None and not any(lower <= v <= upper for v in values):
        return f"{name}: none of the values is between {shown(lower)} and {shown(upper)}"
    return None


def _shown(value: Any, type_: str) -> str:
    """As people write it."""
    if type_ in ("timestamp", "timestamptz"):
        return (datetime(1970, 1, 1) + timedelta(microseconds=value)).isoformat(sep=" ")  # noqa: DTZ001
    return str(date.fromordinal(value + _EPOCH_DAY)) if type_ == "date" else str(value)[:60]


def _as_stored(value: Any, type_: PrimitiveType) -> Any:
    """A constant as bounds have it; None where they cannot be compared."""
    match str(type_):
        case "long" | "int":
            if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
                return None
            return value
        case "double" | "float":
            return None if isinstance(value, bool) or not isinstance(value, int | float | Decimal) else float(value)
        case "string":
            return value if isinstance(value, str) else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case "timestamptz" | "timestamp":
            return _microseconds(value)
        case "date":
            return _days(value)
        case _:
            return None


def _microseconds(value: Any) -> int | None:
    if isinstance(value, datetime):
        return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1_000_000)
    if isinstance(value, date):
        return (value.toordinal() - _EPOCH_DAY) * 86_400_000_000
    if isinstance(value, str):
        found = timestamp_us(value)
        days = _days(value)
        return found if found is not None else None if days is None else days * 86_400_000_000
    return None


def _days(value: Any) -> int | None:
    if isinstance(value, datetime):
        return None
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value)
        except ValueError:
            return None
    return value.toordinal() - _EPOCH_DAY if isinstance(value, date) else None
