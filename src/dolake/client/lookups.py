"""What a client asks without SQL: rows by their keys, and how fresh the lake is.

Part of reading.py's Reading, and so of every client. Promise: a look-up sees everything that this client has sent
before it; values are the Python values that query() has for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlencode

import msgspec

from dolake import errors
from dolake.client.answers import LakeFreshness
from dolake.client.asking import AsOf, least_position, moment_of, table_path
from dolake.client.http import Http
from dolake.client.results import Column, Freshness
from dolake.client.rows import Row, layout_of
from dolake.client.values import reader_of
from dolake.errors import QueryUnavailable
from dolake.positions import Position

TIMEOUT_S = 60.0
"""How long acknowledgements are waited for, where the caller says nothing; the server has the same for its part."""
SILENCE_MAX_S = 660.0


class LookingUp(ABC):
    """Needs what Reading has: a connection, and to know what was sent."""

    _http: Http

    @abstractmethod
    def _check_usable(self) -> None: ...

    @abstractmethod
    async def _own_position(self, timeout_s: float) -> Position | None: ...

    async def freshness(
        self,
        table: str | None = None,
        *,
        max_age: float | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the server waits
    ) -> LakeFreshness:
        """How far each table and source is durable, published and visible.

        fresh = await lake.freshness()
        print(fresh.published.age_ms, fresh.tables["orders"].published.position)
        await lake.freshness("orders", max_age=2.0)  # before a job of another engine: wait until it can see that much

        max_age: seconds that a change may wait to be published; TooStale if it takes longer than timeout (10 s).
        """
        self._check_usable()
        sent = {
            "table": table,
            "maxAgeMs": None if max_age is None else round(1000 * max_age),
            "waitMs": None if timeout is None else round(1000 * timeout),
        }
        query = urlencode({name: value for name, value in sent.items() if value is not None})
        return await self._http.ask(
            "GET", "/v1/freshness" + (f"?{query}" if query else ""), LakeFreshness, silence_max_s=SILENCE_MAX_S
        )

    # --- rows by key ------------------------------------------------------------------------------------------------

    async def get(
        self,
        table: str,
        key: str | int,
        *,
        source: str | None = None,
        as_of: AsOf | None = None,
        snapshot_id: int | str | None = None,
        position: Position | None = None,
    ) -> Row | None:
        """One row by its key, in milliseconds; None where there is none.

        order = await lake.get("orders", 7)
        then = await lake.get("orders", 7, as_of=datetime(2025, 1, 14))

        key: what the source sends as `rowId`; a number is written as text.
        source: the row's source, where that is a part of the key (`lake.key_scope = "source"`).
        as_of, snapshot_id: the row at this moment or snapshot.
        position: read at least up to here, beside what this client has sent itself.
        """
        moment = {"source": source, "as_of": as_of, "snapshot_id": snapshot_id, "position": position}
        return (await self.get_many(table, [key], **moment))[0]  # type: ignore[arg-type]

    async def get_many(
        self,
        table: str,
        keys: Iterable[str | int],
        *,
        source: str | None = None,
        as_of: AsOf | None = None,
        snapshot_id: int | str | None = None,
        position: Position | None = None,
    ) -> FoundRows:
        """Rows by their keys, all of one moment, in the order of the keys; None where there is none.

        orders = await lake.get_many("orders", [7, 8, 9])
        print([order and order.total for order in orders], orders.freshness.position)
        """
        self._check_usable()
        if isinstance(keys, str):
            raise errors.InvalidInput("get_many() takes a list of keys", hint="get() takes one key")
        own = least_position(position, await self._own_position(TIMEOUT_S))
        body = {
            "keys": [str(key) for key in keys],
            "source": source,
            "asOf": None if as_of is None else moment_of(as_of),
            "snapshotId": None if snapshot_id is None else str(snapshot_id),
            "minPosition": None if as_of is not None or snapshot_id is not None else own,
        }
        sent = {name: value for name, value in body.items() if value is not None}
        data = await self._http.ask_bytes("POST", f"{table_path(table)}/rows", sent, silence_max_s=SILENCE_MAX_S)
        return FoundRows.from_json(data)


class _Answer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    table: str
    columns: list[Column]
    rows: list[dict[str, Any] | None]
    freshness: Freshness = Freshness()


class FoundRows(list[Row | None]):
    """Rows in the order of their keys, None where there is none; `freshness` says of when they are."""

    table: str
    columns: list[Column]
    freshness: Freshness

    @classmethod
    def from_json(cls, data: bytes) -> FoundRows:
        try:
            answer = msgspec.json.decode(data, type=_Answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise QueryUnavailable(f"the answer is not what was agreed: {error}") from None
        readers = {each.name: read for each in answer.columns if (read := reader_of(each.type)) is not None}
        found = cls(None if row is None else _row(row, readers) for row in answer.rows)
        found.table, found.columns, found.freshness = answer.table, answer.columns, answer.freshness
        return found


def _row(row: dict[str, Any], readers: dict[str, Any]) -> Row:
    values = [readers[name](value) if value is not None and name in readers else value for name, value in row.items()]
    return Row(layout_of(list(row)), values)
