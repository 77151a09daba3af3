"""Questions as callers write them become what the server reads: moments, parameters, partitions. Pure.

From reading.py. Promise: what a Python value means is not lost on the way into JSON; a value that has no meaning there
is refused by name before anything is sent.
"""

from __future__ import annotations

import enum
import math
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import quote
from uuid import UUID

from dolake.client.answers import Snapshot
from dolake.errors import InvalidInput
from dolake.positions import Position

AsOf = datetime | date | str | int
"""A moment: a datetime (without a zone it is UTC), a day (its first moment in UTC), ISO 8601 text, or milliseconds."""
Moment = AsOf | Snapshot | Mapping[str, Any]
"""Where diff() looks: a moment, or a snapshot, as list_snapshots() gives it or as {"snapshot_id": ...}."""
Parameters = Sequence[Any] | Mapping[str, Any]

DEFAULT_NAMESPACE = "default"
_INT64 = range(-(2**63), 2**63)
_QUERY_ID = re.compile(r"[A-Za-z0-9-]{1,64}")
_IN_PARTITION = {"date_start": "dateStart", "date_end": "dateEnd"}


def question(
    sql: str | None,
    params: Parameters | None = None,
    *,
    as_of: AsOf | None = None,
    snapshot_id: int | str | None = None,
    partition: Mapping[str, Any] | None = None,
    entity_type: str | None = None,
    limit: int | None = None,
    timeout: float | None = None,
    max_age: float | None = None,
    namespace: str | None = None,
    engine: str | None = None,
) -> dict[str, Any]:
    """The body of a question, but for its position and format."""
    if as_of is not None and snapshot_id is not None:
        raise InvalidInput("a question is asked as of a moment or as of a snapshot, not both")
    body = {
        "sql": _statement(sql, entity_type),
        "params": None if params is None else _parameters(params),
        "asOf": None if as_of is None else moment_of(as_of),
        "snapshotId": None if snapshot_id is None else str(snapshot_id),
        "partition": None if partition is None else _partition(partition),
        "limit": limit,
        "timeoutMs": None if timeout is None else milliseconds(timeout),
        "maxAgeMs": None if max_age is None else round(1000 * max_age),
        "namespace": namespace,
        "engine": engine,
    }
    return {name: value for name, value in body.items() if value is not None}


def _statement(sql: str | None, entity_type: str | None) -> str:
    if (sql is None) == (entity_type is None):
        raise InvalidInput(
            "a question is either SQL or an entity_type", hint='lake.query("SELECT ...") or entity_type="Customer"'
        )
    if sql is not None:
        return sql
    assert entity_type is not None
    namespace, _, table = entity_type.rpartition(".")
    parts = (namespace, table) if namespace else (entity_type,)
    name = ".".join('"' + part.replace('"', '""') + '"' for part in parts)
    return f"SELECT * FROM {name}"  # noqa: S608 - each part is quoted


def _parameters(params: Parameters) -> list[Any] | dict[str, Any]:
    if isinstance(params, Mapping):
        return {str(name): plain(value, f"params[{name!r}]") for name, value in params.items()}
    if isinstance(params, str | bytes | bytearray) or not isinstance(params, Sequence):
        raise InvalidInput(
            f"params is {type(params).__name__}", hint="give a list for `?`, or a dictionary for `:name`"
        )
    return [plain(value, f"params[{index}]") for index, value in enumerate(params)]


def _partition(partition: Mapping[str, Any]) -> dict[str, Any]:
    return {_IN_PARTITION.get(name, name): plain(value, f"partition[{name!r}]") for name, value in partition.items()}


def plain(value: Any, where: str = "the value") -> Any:
    """A Python value as JSON can carry it, without loss."""
    match value:
        case enum.Enum():
            return plain(value.value, where)
        case None | bool() | str():
            return value
        case int():
            return value if value in _INT64 else str(value)
        case float():
            return value if math.isfinite(value) else _name_of(value)
        case datetime():
            return iso_text(value)
        case date() | time():
            return value.isoformat()
        case timedelta():
            return f"{value // timedelta(microseconds=1)} microseconds"
        case Decimal() | UUID():
            return str(value)
        case bytes() | bytearray() | memoryview():
            return b64encode(value).decode()
        case Mapping():
            return {str(name): plain(inner, f"{where}[{name!r}]") for name, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(inner, f"{where}[{index}]") for index, inner in enumerate(value)]
        case _ if callable(getattr(value, "item", None)) and getattr(value, "ndim", None) == 0:
            return plain(value.item(), where)  # a number of NumPy
        case _:
            raise InvalidInput(f"{where} is {type(value).__name__}, which JSON cannot carry")


def _name_of(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def iso_text(moment: datetime) -> str:
    """With its zone turned into UTC; without one it stays without."""
    if moment.tzinfo is None:
        return moment.isoformat(timespec="microseconds")
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def moment_of(as_of: AsOf) -> str | int:
    """A moment as the server reads it."""
    match as_of:
        case bool():
            raise InvalidInput(f"{as_of} is not a moment")
        case datetime():
            return iso_text(as_of if as_of.tzinfo else as_of.replace(tzinfo=UTC))
        case date():
            return f"{as_of.isoformat()}T00:00:00.000000Z"
        case int() | str():
            return as_of
        case _:
            raise InvalidInput(
                f"{type(as_of).__name__} is not a moment", hint="give a datetime, a date, ISO 8601 text or milliseconds"
            )


def place_of(moment: Moment) -> str | int | dict[str, str]:
    """One end of a diff as the server reads it."""
    if isinstance(moment, Snapshot):
        return {"snapshotId": moment.snapshot_id}
    if isinstance(moment, Mapping):
        found = moment.get("snapshot_id", moment.get("snapshotId"))
        if found is None:
            raise InvalidInput("a diff goes from and to moments or snapshots", hint='{"snapshot_id": ...}')
        return {"snapshotId": str(found)}
    return moment_of(moment)


def milliseconds(timeout: float) -> int:
    if timeout <= 0:
        raise InvalidInput(f"timeout is {timeout}, and must be more than 0 seconds")
    return max(1, round(timeout * 1000))


def table_path(table: str, below: str = "/v1/tables") -> str:
    """`shop.orders` as it stands in paths."""
    namespace, _, name = table.rpartition(".")
    if not name:
        raise InvalidInput(f"{table!r} is not the name of a table", hint="write it like orders or shop.orders")
    return f"{below}/{quote(namespace or DEFAULT_NAMESPACE, safe='')}/{quote(name, safe='')}"


def least_position(*positions: Position | None) -> Position | None:
    """What an answer must include at least; None when anything will do."""
    return max((position for position in positions if position), default=None)


def checked_query_id(query_id: str) -> str:
    if not _QUERY_ID.fullmatch(query_id):
        raise InvalidInput(
            f"query_id {query_id[:80]!r} cannot be one", hint="use at most 64 letters, digits and hyphens"
        )
    return query_id
