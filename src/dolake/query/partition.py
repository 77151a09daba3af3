"""A part of the tables instead of all: by days, or by values of columns.

From answering.py, for questions with a `partition`. The conditions go into the relation itself, where DuckDB finds them
and leaves out the files that cannot have such rows; planning.py counts these by the same conditions. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

from dolake.errors import InvalidInput
from dolake.query.plan import Condition
from dolake.query.relation import Relation
from dolake.query.sqltext import literal, quoted

Partition = Mapping[str, Any]
_DAYS = ("dateStart", "dateEnd", "column")
_DAY_COLUMNS = ("date", "day", "dt", "timestamp", "created_at", "createdat", "time", "ts", "event_time", "updated_at")
"""Where days are looked for, if nobody says where."""
_DAY_LENGTH = len("2024-01-31")


def conditions_of(relations: Sequence[Relation], partition: Partition | None) -> list[tuple[Condition, ...]]:
    """For each relation what its rows must meet: nothing where it has not the columns, but one of them has."""
    if not partition:
        return [()] * len(relations)
    has_days = "dateStart" in partition or "dateEnd" in partition
    find = _by_days if has_days else _by_values
    found = [find({column.lower(): column for column in each.columns}, partition) for each in relations]
    if relations and not any(found):
        columns = sorted({column for each in relations for column in each.columns})
        hint = f"name one with `column`; there are {', '.join(columns)[:300]}"
        raise InvalidInput(f"no table has a column for the partition {dict(partition)}", hint=hint)
    return found


def narrowed(relation: Relation, conditions: Sequence[Condition]) -> Relation:
    """The same relation with only the rows that meet these."""
    if not conditions:
        return relation
    wanted = " AND ".join(map(_sql, conditions))
    return replace(relation, sql=f"SELECT * FROM ({relation.sql}) WHERE {wanted}")  # noqa: S608


def _by_days(columns: Mapping[str, str], partition: Partition) -> tuple[Condition, ...]:
    if unknown := sorted(partition.keys() - set(_DAYS)):
        raise InvalidInput(f"a partition by days has no {unknown[0]!r}", hint=f"it has {', '.join(_DAYS)}")
    wanted = (str(partition["column"]).lower(),) if partition.get("column") else _DAY_COLUMNS
    column = next((columns[name] for name in wanted if name in columns), None)
    if column is None:
        return ()
    start, end = partition.get("dateStart"), partition.get("dateEnd")
    from_ = [] if start is None else [Condition(column, ">=", (str(start),))]
    return (*from_, *([] if end is None else [_up_to(column, str(end))]))


def _up_to(column: str, end: str) -> Condition:
    """The last day counts as a whole; a moment as it is."""
    if len(end) != _DAY_LENGTH:
        return Condition(column, "<=", (end,))
    try:
        return Condition(column, "<", ((date.fromisoformat(end) + timedelta(days=1)).isoformat(),))
    except (ValueError, OverflowError):
        raise InvalidInput(f"dateEnd {end!r} is not a day", hint="write it as 2024-01-31") from None


def _by_values(columns: Mapping[str, str], partition: Partition) -> tuple[Condition, ...]:
    if not all(name.lower() in columns for name in partition):
        return ()
    return tuple(_equals(columns[name.lower()], value) for name, value in partition.items())


def _equals(column: str, value: Any) -> Condition:
    match value:
        case None:
            return Condition(column, "is_null")
        case bool() | int() | float() | str():
            return Condition(column, "=", (value,))
        case list() if value and all(isinstance(each, bool | int | float | str) for each in value):
            return Condition(column, "in", tuple(value))
    hint = "give text, a number, true, false or null, or a list of such values"
    raise InvalidInput(f"a partition cannot have the value {str(value)[:80]!r}", hint=hint)


def _sql(condition: Condition) -> str:
    column, values = quoted(condition.column), [_constant(value) for value in condition.values]
    match condition.operator:
        case "is_null":
            return f"{column} IS NULL"
        case "in":
            return f"{column} IN ({', '.join(values)})"
        case operator:
            return f"{column} {operator} {values[0]}"


def _constant(value: Any) -> str:
    """Text takes the type of the column that it is compared with."""
    return literal(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else repr(value)
