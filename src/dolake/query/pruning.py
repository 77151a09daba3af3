"""Which partitions cannot have a row that meets a condition, over all of Iceberg's transforms.

From plan.py, which knows the bounds of each file too. Most transforms keep the order of values, so a range of values is
a range of partitions; a bucket says something about one value alone, and DuckDB looks at it for no more than one.
Promise: see plan.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyiceberg.manifest import DataFile
from pyiceberg.transforms import parse_transform
from pyiceberg.types import DateType, IntegerType, LongType, NestedField, PrimitiveType, TimestampType, TimestamptzType

from dolake.tables.transforms import shown_text, shown_value

Json = dict[str, Any]
CanHave = Callable[[Any], bool]
Check = Callable[[DataFile], str | None]
_IN_ORDER = ("identity", "truncate", "year", "month", "day", "hour")
_WHOLE = (IntegerType, LongType, DateType, TimestampType, TimestamptzType)


def partition_check(metadata: Mapping[str, Any], field: NestedField, operator: str, values: Sequence[Any]) -> Check:
    """Says why no row of a file's partition can meet the condition; `values` are as Iceberg stores them."""
    found: dict[int, list[tuple[int, Json, CanHave]]] = {}
    for spec in metadata.get("partition-specs") or ():
        checks = [
            (place, each, can_have)
            for place, each in enumerate(spec["fields"])
            if each["source-id"] == field.field_id
            and (can_have := _can_have(each["transform"], field.field_type, operator, values))
        ]
        if checks:
            found[spec["spec-id"]] = checks

    def check(file: DataFile) -> str | None:
        for place, each, can_have in found.get(file.spec_id, ()):
            value = file.partition[place]
            if not can_have(value):
                shown = shown_text(shown_value(each["transform"], value, str(field.field_type)))
                return f"{field.name}: no such row in the partition {each['name']}={shown[:60]}"
        return None

    return check


def _can_have(transform: str, type_: Any, operator: str, values: Sequence[Any]) -> CanHave | None:
    """Whether a partition with this value can have such rows; None where its values do not say."""
    kind = transform.partition("[")[0]
    if kind not in (*_IN_ORDER, "bucket"):
        return None
    if operator == "is_null":
        return lambda value: value is None
    if operator == "not_null":
        return lambda value: value is not None
    bounds = [_closed(operator, value, type_) for value in values]
    if not bounds or None in bounds:
        return None
    wanted = [parse_transform(transform).transform(type_)(value) for value in bounds]
    return _by_order(operator, wanted, is_bucket=kind == "bucket")


def _by_order(operator: str, wanted: list[Any], *, is_bucket: bool) -> CanHave | None:
    if is_bucket and (operator not in ("=", "in") or len(wanted) > 1):
        return None
    if operator in ("=", "in"):
        return lambda value: value is not None and value in wanted
    (bound,) = wanted
    if operator in (">", ">="):
        return lambda value: value is not None and value >= bound
    return lambda value: value is not None and value <= bound


def _closed(operator: str, value: Any, type_: PrimitiveType) -> Any:
    """Less than 10 is at most 9, where values are whole; None where one cannot be transformed."""
    if not isinstance(type_, _WHOLE):
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value - 1 if operator == "<" else value + 1 if operator == ">" else value
