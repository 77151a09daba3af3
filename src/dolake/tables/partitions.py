"""How a table's rows are divided into partitions: words such as `day(created_at)`, and the Iceberg spec that they mean.

From the settings, and from Python (`create_day_partition_spec` and the others); to the pipeline, which makes tables by
it and changes them, and to anyone who makes a table through the catalog. Pure. Promise: what is well formed stops no
table: `fitted` leaves out what the columns do not allow, and says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dolake.errors import InvalidInput
from dolake.tables.transforms import DAYS, TIMES, transform_fits
from dolake.tables.types import column_name

Json = dict[str, Any]

FIELD_ID_START = 1000
BY_DATE, UNPARTITIONED = "date", "none"
"""Words for a whole spec: by day of the first column that has days; and no partitions at all."""
DATE_COLUMNS = ("date", "day", "dt", "created_at", "timestamp", "ts", "event_time", "time", "updated_at")
_WIDTH_MAX = 2**31 - 1
_WORDS = (
    "`day(created_at)`, `hour(ts)`, `month(ts)`, `year(ts)`, `bucket(16, user_id)`, `truncate(10, name)` or `region`"
)
_WORD = re.compile(r"\s*(?:(\w+)\s*\(([^()]*)\)|([^()\s,][^(),]*?))(?:\s+as\s+([^\s(),./]+))?\s*", re.IGNORECASE)
_SUFFIXES = {"bucket": "bucket", "truncate": "trunc", "year": "year", "month": "month", "day": "day", "hour": "hour"}
_HELPERS_NAMES = {"day": "dt", "hour": "hr", "bucket": "bucket", "truncate": "trunc", "month": "month", "year": "year"}


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One part of a spec: what is done to a column, and what the result is called; empty means as Iceberg calls it."""

    transform: str
    column: str
    name: str = ""

    def word(self) -> str:
        """As the settings have it."""
        kind, _, width = self.transform.partition("[")
        inside = f"{width[:-1]}, {self.column}" if width else self.column
        return f"{kind}({inside})" + (f" as {self.name}" if self.name else "")


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """Some fields in their order; it is not bound to a table yet."""

    fields: tuple[PartitionField, ...] = ()
    field_id: int = FIELD_ID_START

    def words(self) -> tuple[str, ...]:
        """For the setting `partition_by`."""
        return tuple(field.word() for field in self.fields) or (UNPARTITIONED,)

    def for_schema(self, schema: Mapping[str, Any]) -> Json:
        """Iceberg's JSON for a table with this schema, also Iceberg's JSON; refuses what the columns do not allow."""
        found = fitted(self.fields, schema)
        if found.problems:
            raise InvalidInput(f"the table cannot be partitioned so: {found.problems[0]}", hint="look at its columns")
        fields = [field | {"field-id": self.field_id + place} for place, field in enumerate(found.fields)]
        return {"spec-id": 0, "fields": fields}


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a table's columns allow, as fields of Iceberg's JSON without ids of their own; and why not the rest."""

    fields: list[Json]
    problems: list[str]


# --- words -----------------------------------------------------------------------------------------------------------


def problem_with_partition_word(word: str) -> str | None:
    """Say in words why this is no part of `partition_by`, or None when it is one."""
    if word in (BY_DATE, UNPARTITIONED):
        return None
    try:
        _parsed(word)
    except InvalidInput as error:
        return error.message
    return None


def parse_partition_words(words: Sequence[str], schema: Mapping[str, Any]) -> tuple[PartitionField, ...] | None:
    """What the words mean for a table with this schema; None where nobody wants anything of it."""
    if not words:
        return None
    if UNPARTITIONED in words:
        return ()
    return tuple(field for word in words for field in _meant(word, schema))


def _meant(word: str, schema: Mapping[str, Any]) -> Iterator[PartitionField]:
    if word != BY_DATE:
        yield _parsed(word)
    elif column := _date_column(schema):
        is_day_itself = column["name"] == BY_DATE and column["type"] == "date"
        yield PartitionField("identity" if is_day_itself else "day", column["name"], BY_DATE)


def _date_column(schema: Mapping[str, Any]) -> Json | None:
    by_name = {field["name"]: field for field in schema["fields"]}
    found = (by_name[name] for name in DATE_COLUMNS if name in by_name)
    return next((field for field in found if isinstance(field["type"], str) and field["type"] in DAYS), None)


def _parsed(word: str) -> PartitionField:
    found = _WORD.fullmatch(word)
    if not found:
        raise InvalidInput(f"is not {_WORDS}")
    function, inside, column, name = found.groups()
    if function is None:
        return PartitionField("identity", column.strip(), name or "")
    parts = [part.strip() for part in inside.split(",")]
    return _field(function.lower().removesuffix("s"), parts[-1], parts[:-1], name or "")


def _field(kind: str, column: str, widths: Sequence[object], name: str) -> PartitionField:
    """Checked: the right number of arguments, and a width that Iceberg takes."""
    has_width = kind in ("bucket", "truncate")
    if kind not in (*TIMES, "bucket", "truncate", "identity") or not column or len(widths) != has_width:
        raise InvalidInput(f"is not {_WORDS}")
    if not has_width:
        return PartitionField(kind, column, name)
    width = str(widths[0])
    if not (width.isascii() and width.isdigit() and 0 < int(width) <= _WIDTH_MAX):
        raise InvalidInput(f"has {width[:20]!r} where a whole number above 0 should be")
    return PartitionField(f"{kind}[{int(width)}]", column, name)


# --- a spec for a table's columns ------------------------------------------------------------------------------------


def fitted(fields: Iterable[PartitionField], schema: Mapping[str, Any]) -> Fitted:
    """Fields that these columns allow."""
    columns = {field["name"]: field for field in schema["fields"]}
    done: list[Json] = []
    problems: list[str] = []
    for field in fields:
        column = columns.get(field.column) or columns.get(column_name(field.column))
        if problem := _problem(field, column, done):
            problems.append(problem)
        elif column:
            taken = {each["name"].casefold() for each in (*done, *columns.values())}
            name = _free_name(field, column["name"], taken)
            done.append({"source-id": column["id"], "transform": field.transform, "name": name})
    return Fitted(done, problems)


def _problem(field: PartitionField, column: Json | None, done: Sequence[Json]) -> str | None:
    if column is None:
        return f"{field.word()}: there is no column {field.column!r}"
    kind = column["type"].partition("(")[0] if isinstance(column["type"], str) else column["type"]["type"]
    if not transform_fits(field.transform, kind):
        return f"{field.word()}: a column of type {kind} cannot be divided so"
    if kind == "decimal" and field.transform.startswith("truncate"):
        return f"{field.word()}: a decimal that is cut off may have more digits than its type"
    if kind in ("float", "double"):
        # Iceberg would allow it; but -0.0, 0.0 and NaN are the same or not the same, depending on whom you ask.
        return f"{field.word()}: fractions make no partitions"
    for other in done:
        if other["source-id"] == column["id"]:
            both_times = field.transform in TIMES and other["transform"] in TIMES
            if both_times or other["transform"] == field.transform:
                return f"{field.word()}: the column is divided by {other['transform']} already"
    return None


def _free_name(field: PartitionField, column: str, taken: set[str]) -> str:
    """A name that no column has, but that the column's own value may have."""
    kind = field.transform.partition("[")[0]
    if kind == "identity" and field.name.casefold() in ("", column.casefold()):
        return column
    usual = f"{column}_{_SUFFIXES.get(kind, kind)}"
    numbered = (f"{usual}_{number}" for number in range(2, 1_000))
    return next(name for name in (field.name, usual, *numbered) if name and name.casefold() not in taken)


def spec_changes(
    current: Sequence[Mapping[str, Any]], wanted: Sequence[Json], former: Iterable[Mapping[str, Any]]
) -> tuple[list[str], list[Json]]:
    """What leads from one spec to another: names of fields that go, and fields that come.

    A field that has the same source and transform stays, under the name that it has. Two fields of different meaning
    never share a name, also not over time: readers show all of them side by side.
    """
    keep = {_meaning(field) for field in wanted}
    gone = [field["name"] for field in current if _meaning(field) not in keep and field["transform"] != "void"]
    have = {_meaning(field) for field in current}
    names = {field["name"]: _meaning(field) for field in former}
    return gone, [field | {"name": _unused(field, names)} for field in wanted if _meaning(field) not in have]


def _unused(field: Json, names: Mapping[str, tuple[int, str]]) -> str:
    usual = str(field["name"])
    candidates = (usual, *(f"{usual}_{number}" for number in range(2, 1_000)))
    return next(name for name in candidates if names.get(name, _meaning(field)) == _meaning(field))


def _meaning(field: Mapping[str, Any]) -> tuple[int, str]:
    return field["source-id"], field["transform"]


# --- from Python -----------------------------------------------------------------------------------------------------


def create_day_partition_spec(source_field: str, field_id: int = FIELD_ID_START) -> PartitionSpec:
    """By day, such as `dt=2024-01-15`."""
    return _of_one("day", source_field, field_id)


def create_hour_partition_spec(source_field: str, field_id: int = FIELD_ID_START) -> PartitionSpec:
    """By hour, such as `hr=2024-01-15-14`: one field, because Iceberg takes no day and hour of one column together."""
    return _of_one("hour", source_field, field_id)


def create_month_partition_spec(source_field: str, field_id: int = FIELD_ID_START) -> PartitionSpec:
    """By month, such as `month=2024-01`."""
    return _of_one("month", source_field, field_id)


def create_year_partition_spec(source_field: str, field_id: int = FIELD_ID_START) -> PartitionSpec:
    """By year, such as `year=2024`."""
    return _of_one("year", source_field, field_id)


def create_identity_partition_spec(source_field: str, field_id: int = FIELD_ID_START) -> PartitionSpec:
    """By the column's own value, such as `region=eu`."""
    return _of_one("identity", source_field, field_id)


def create_bucket_partition_spec(source_field: str, num_buckets: int, field_id: int = FIELD_ID_START) -> PartitionSpec:
    """By a hash of the column, such as `bucket=7`."""
    return _of_one("bucket", source_field, field_id, num_buckets)


def create_truncate_partition_spec(source_field: str, width: int, field_id: int = FIELD_ID_START) -> PartitionSpec:
    """By the first characters of a text, or by steps of a number, such as `trunc=ab`."""
    return _of_one("truncate", source_field, field_id, width)


def create_composite_partition_spec(
    parts: Sequence[Mapping[str, Any]], field_id: int = FIELD_ID_START
) -> PartitionSpec:
    """By several: dicts such as `{"type": "bucket", "source_field": "region", "num_buckets": 4}`, also in camelCase."""
    fields: list[PartitionField] = []
    for part in parts:
        field = _of_part(part)
        if any(each.column == field.column and {each.transform, field.transform} <= set(TIMES) for each in fields):
            raise InvalidInput(
                f"{field.column} would be divided by two spans of time",
                hint="Iceberg takes one: the finer one is enough",
            )
        taken = {each.name for each in fields}
        fields.append(field if field.name not in taken else PartitionField(field.transform, field.column))
    return PartitionSpec(tuple(fields), field_id)


def _of_part(part: Mapping[str, Any]) -> PartitionField:
    kind, column = part.get("type"), part.get("source_field", part.get("sourceField"))
    if not isinstance(kind, str) or not isinstance(column, str):
        hint = 'such as {"type": "day", "source_field": "created_at"}'
        raise InvalidInput("each part of a spec has a `type` and a `source_field`", hint=hint)
    width = part.get("num_buckets", part.get("numBuckets", part.get("width")))
    name = str(part.get("name") or _HELPERS_NAMES.get(kind, ""))
    return _checked_field(kind, column, width, name)


def _of_one(kind: str, column: str, field_id: int, width: int | None = None) -> PartitionSpec:
    return PartitionSpec((_checked_field(kind, column, width, _HELPERS_NAMES.get(kind, "")),), field_id)


def _checked_field(kind: str, column: str, width: object, name: str) -> PartitionField:
    try:
        return _field(kind, column, () if width is None else (width,), name)
    except InvalidInput as error:
        raise InvalidInput(f"{kind} of {column!r} {error.message}", hint=f"there are {_WORDS}") from None
