"""What is asked of the query process, as the bodies of its routes have it.

From clients, through the server, which only passes the bytes on; to answering.py. Checked once, here; a field that is
not known is left alone, so that a newer client can talk to an older server.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from dolake.errors import InvalidInput
from dolake.positions import Position
from dolake.query.sqltext import quoted

Format = Literal["json", "csv", "arrow"]
Wish = Literal["auto", "duckdb", "spark"]
"""Which engine is to answer."""
CONTENT_TYPES: dict[Format, str] = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "arrow": "application/vnd.apache.arrow.stream",
}


class _Body(Struct, frozen=True, rename="camel", kw_only=True):
    """What all of them have."""

    namespace: str = "default"
    min_position: Position | None = None
    max_age_ms: int | None = None
    timeout_ms: int | None = None
    limit: int | None = None


class Question(_Body, frozen=True, rename="camel", kw_only=True):
    """`POST /v1/query`."""

    sql: str
    params: list[Any] | dict[str, Any] | None = None
    as_of: str | int | float | None = None
    snapshot_id: int | str | None = None
    partition: dict[str, Any] | None = None
    format: Format | None = None
    engine: Wish = "auto"


class TableName(Struct, frozen=True, rename="camel", kw_only=True):
    """A table in its two parts."""

    name: str
    namespace: list[str] | str = "default"


class PlanQuestion(_Body, frozen=True, rename="camel", kw_only=True):
    """`POST /v1/query/plan`: a statement, or the parts of one."""

    sql: str | None = None
    params: list[Any] | dict[str, Any] | None = None
    as_of: str | int | float | None = None
    snapshot_id: int | str | None = None
    partition: dict[str, Any] | None = None
    table: TableName | str | None = None
    columns: list[str] | None = None
    where: str | None = None
    engine: Wish = "auto"

    def statement(self) -> str:
        """The SQL that it means. What stands in `where` is read by the guard like any other."""
        if self.sql is not None:
            return self.sql
        if self.table is None:
            raise InvalidInput("neither `sql` nor `table` is there", hint='send {"sql": "SELECT ..."}')
        columns = ", ".join("*" if each == "*" else quoted(each) for each in self.columns or ["*"])
        condition = f" WHERE {self.where}" if self.where else ""
        return f"SELECT {columns} FROM {self._table()}{condition}"  # noqa: S608

    def _table(self) -> str:
        if not isinstance(self.table, TableName):
            return str(self.table)
        namespace = self.table.namespace
        levels = namespace.split(".") if isinstance(namespace, str) else namespace
        return f"{quoted('.'.join(levels))}.{quoted(self.table.name)}"


class DiffQuestion(_Body, frozen=True, rename="camel", kw_only=True):
    """`POST /v1/diff`. With the format `arrow` or `lines` each difference is a row, and there is no limit."""

    table: str
    from_: Any = msgspec.field(name="from")
    to: Any = None
    format: Literal["json", "arrow", "lines"] = "json"
    """`lines` is for rollbacks: JSON that a source could have sent, whole numbers of any size as they are."""


Body = TypeVar("Body", Question, PlanQuestion, DiffQuestion)


def read_body(raw: bytes, kind: type[Body]) -> Body:
    """The body, or what is wrong with it."""
    try:
        body = msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the body cannot be read: {error}", hint="docs/reference/http.md has its fields") from None
    if body.limit is not None and body.limit < 0:
        raise InvalidInput(f"limit is {body.limit}", hint="say how many rows there may be, or leave it out")
    if body.max_age_ms is not None and body.max_age_ms < 0:
        raise InvalidInput(f"maxAgeMs is {body.max_age_ms}", hint="say how old the answer may be, or leave it out")
    if body.timeout_ms is not None and body.timeout_ms <= 0:
        raise InvalidInput(f"timeoutMs is {body.timeout_ms}", hint="say how long it may take, or leave it out")
    return body
