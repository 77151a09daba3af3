"""Changes as they come: `async for batch in lake.subscribe(...)`, which goes on whatever happens to the connection.

From reading.py, whose clients have `subscribe`. Promise: batches come in order and each change once, over reconnects
and restarts of the server, because each connection begins with the token of the last batch. What the caller has not
finished when its own process dies is not known here: that is what names, `ack` and the token are for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
from aiohttp import ClientWSTimeout, WSMsgType

from dolake import errors
from dolake.backoff import BackOff
from dolake.client.http import Http
from dolake.client.rows import Row, layout_of
from dolake.client.transport import Interrupted, Transport
from dolake.positions import Position

PATH = "/v1/subscribe"
_FIRST_WAIT_S = 30.0
_ANSWER_WAIT_S = 30.0
_RETRY_WAIT_MAX_MS = 5_000
_QUIET_FACTOR = 3
_QUIET_MIN_S = 10.0


class ChangeEvent(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One change. Values are as JSON has them: moments and decimals are texts."""

    operation: str
    table: str
    position: Position
    row_id: str = ""
    after: Any = None
    """The row after an INSERT or UPDATE: `event.after.id`, `event.after["id"]`."""
    before: Any = None
    """The row before an UPDATE or DELETE, where the source sent it."""
    timestamp_ms: int = msgspec.field(default=0, name="timestamp")
    commit_timestamp_ms: int = msgspec.field(default=0, name="commitTimestamp")
    source: str = ""
    sequence: int = 0
    transaction_id: str | None = None
    previous_row_id: str | None = None
    rescued: Any = None


@dataclass(frozen=True)
class Batch:
    """Changes that came together."""

    events: list[ChangeEvent]
    token: str
    """To go on behind this batch: `subscribe(since=token)`. Keep it with what you did."""
    position: Position
    """Everything before it has been told."""
    start: Position

    def __len__(self) -> int:
        return len(self.events)


@dataclass(frozen=True)
class ChangeBatch(Batch):
    """A batch of `async for`."""

    _http: Http = field(repr=False, compare=False)
    _name: str | None = field(repr=False, compare=False)

    async def ack(self) -> None:
        """Tell the server that this batch is done with; returns when that is on its disk. For named subscriptions."""
        if self._name is None:
            raise errors.InvalidInput("only a named subscription is acknowledged", hint="subscribe(name=...)")
        path = f"/v1/subscriptions/{quote(self._name, safe='')}/ack"
        await self._http.ask("POST", path, dict[str, Any], {"token": self.token})


Since = str | int | datetime | date | Batch | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is subscribed to."""

    tables: Sequence[str]
    operations: Sequence[str] | None
    where: str | None
    columns: Sequence[str] | None
    name: str | None
    transactions: bool

    def message(self, since: str | int) -> bytes:
        body = {
            "type": "subscribe",
            "tables": list(self.tables),
            "operations": list(self.operations) if self.operations else None,
            "where": self.where,
            "columns": list(self.columns) if self.columns else None,
            "from": since,
            "name": self.name,
            "transactions": self.transactions,
        }
        return msgspec.json.encode({key: value for key, value in body.items() if value is not None})


def texts(given: str | Iterable[str] | None) -> Sequence[str] | None:
    """One name may stand without brackets."""
    return (given,) if isinstance(given, str) else None if given is None else tuple(given)


def start_of(since: Since) -> str | int:
    """As the server wants it."""
    match since:
        case None:
            return "now"
        case Batch():
            return since.token
        case datetime():
            return (since if since.tzinfo else since.replace(tzinfo=UTC)).isoformat()
        case date():
            return datetime(since.year, since.month, since.day, tzinfo=UTC).isoformat()
        case _:
            return since


async def batches(
    http: Http, transport: Transport, wanted: Wanted, since: str | int, give_up_after_s: float | None
) -> AsyncGenerator[ChangeBatch, None]:
    """Batch after batch, connection after connection."""
    back_off = BackOff(_RETRY_WAIT_MAX_MS, first_at_once=True)
    token: str | None = None
    done: str | None = None
    patience_s, failed_s = _FIRST_WAIT_S, time.monotonic()
    while True:
        try:
            async with _subscribed(transport, wanted, since if token is None else token) as connection:
                back_off.reset()
                token = token or connection.token
                patience_s = float("inf") if give_up_after_s is None else give_up_after_s
                if done is not None:
                    await connection.acknowledge(done)
                async for said in connection.messages():
                    token = said.token
                    if said.events is None:  # a heartbeat: nothing of ours lies before its token
                        continue
                    yield ChangeBatch(
                        [_with_rows(event) for event in said.events],
                        said.token,
                        said.position,
                        said.start,
                        http,
                        wanted.name,
                    )
                    if wanted.name is not None:  # the loop has asked for the next one, so it is done with this one
                        done = said.token
                        await connection.acknowledge(done)
        except errors.Unavailable as error:
            now_s = time.monotonic()
            failed_s = now_s if back_off.is_fresh else failed_s
            if now_s - failed_s > patience_s:
                raise
            wait_ms = max(back_off.next_ms(), error.wait_ms if isinstance(error, Interrupted) else 0.0)
            await asyncio.sleep(wait_ms / 1000)


class _Said(msgspec.Struct, rename="camel"):
    type: str = ""
    token: str = ""
    position: Position = 0
    start: Position = msgspec.field(default=0, name="from")
    events: list[ChangeEvent] | None = None
    code: str = ""
    message: str = ""
    hint: str = ""
    retryable: bool = False
    heartbeat_ms: int = 15_000


_decode = msgspec.json.Decoder(_Said).decode


class _Connection:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse[bool], subscribed: _Said) -> None:
        self._socket, self.token = socket, subscribed.token
        self._silence_max_s = max(_QUIET_MIN_S, _QUIET_FACTOR * subscribed.heartbeat_ms / 1000)

    async def messages(self) -> AsyncGenerator[_Said, None]:
        while True:
            said = await _receive(self._socket, self._silence_max_s)
            if said.type in ("batch", "heartbeat"):
                yield said

    async def acknowledge(self, token: str) -> None:
        """Said, and not waited for: if it is lost, so is the connection, and the next one says it again."""
        try:
            await self._socket.send_str(f'{{"type":"ack","token":"{token}"}}')
        except (aiohttp.ClientError, OSError) as error:
            raise Interrupted(f"the connection broke: {error}") from None


@asynccontextmanager
async def _subscribed(transport: Transport, wanted: Wanted, since: str | int) -> AsyncGenerator[_Connection, None]:
    url = transport.address.http + PATH
    async with transport.session() as session:
        try:
            async with asyncio.timeout(_ANSWER_WAIT_S):
                socket = await session.ws_connect(
                    url, timeout=ClientWSTimeout(ws_close=1.0), decode_text=False, max_msg_size=0
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status in (401, 403):
                hint = "pass the token that the server expects: token=..."
                raise errors.InvalidInput(f"{url} refused this client (HTTP {error.status})", hint=hint) from None
            if error.status in (400, 404, 409):
                raise errors.Conflict(f"{url} has no subscriptions (HTTP {error.status})") from None
            raise Interrupted(f"{url} answered HTTP {error.status}") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Interrupted(f"{url} cannot be reached: {error}") from None
        try:
            await socket.send_frame(wanted.message(since), WSMsgType.TEXT)
            yield _Connection(socket, await _receive(socket, _ANSWER_WAIT_S))
        except (aiohttp.ClientError, OSError) as error:
            raise Interrupted(f"the connection broke: {error}") from None
        finally:
            await socket.close()


async def _receive(socket: aiohttp.ClientWebSocketResponse[bool], silence_max_s: float) -> _Said:
    try:
        frame = await socket.receive(timeout=silence_max_s)
    except TimeoutError:
        raise Interrupted(f"nothing came from the server for {silence_max_s:g} s") from None
    if frame.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
        raise Interrupted(f"the server closed the connection (code {socket.close_code})")
    try:
        said = _decode(frame.data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Interrupted(f"the server said something that is not in the protocol: {error}") from None
    if said.type == "error":
        raise _error_of(said)
    return said


_KINDS = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.DoLakeError) and kind is not errors.ConnectionError
}


def _error_of(said: _Said) -> errors.DoLakeError:
    fallback = errors.Unavailable if said.retryable else errors.DoLakeError
    return _KINDS.get(said.code, fallback)(said.message, hint=said.hint)


def _with_rows(event: ChangeEvent) -> ChangeEvent:
    return msgspec.structs.replace(event, before=_row(event.before), after=_row(event.after))


def _row(image: dict[str, Any] | None) -> Row | None:
    return None if image is None else Row(layout_of(list(image)), list(image.values()))
