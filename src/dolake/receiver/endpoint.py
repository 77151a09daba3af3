"""Sockets: who is connected, who speaks for which stream, and how all of them are told to go.

From aiohttp; to connection.py, one for each socket. Promise: a stream has one speaker; no connection can make the
server hold more than `max_buffer_size` bytes that are not on disk, because who would exceed it is not read from.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from aiohttp import WSCloseCode, WSMsgType, web
from msgspec import UNSET

from dolake.changes import StreamId
from dolake.errors import Conflict, InvalidInput
from dolake.identity.grants import Grant
from dolake.identity.request import grant_of
from dolake.journal.embedded import EmbeddedJournal
from dolake.positions import Position
from dolake.receiver.admission import Refused, TableRegistry
from dolake.receiver.answers import Answers
from dolake.receiver.connection import Connection
from dolake.receiver.limiter import RateLimiter, RateLimitResult
from dolake.receiver.pressure import Pressure
from dolake.receiver.progress import Progress
from dolake.receiver.socket import Socket
from dolake.receiver.stats import ReceiverStats
from dolake.settings import SettingsStore
from dolake.wire.messages import ServerState, encode
from dolake.wire.session import Session, Speakers

logger = logging.getLogger(__name__)
CLIENT_ADDRESS = web.RequestKey("client_address", str)
"""Where a request keeps who sent it."""
_RECEIVING_FOR_MS = 1000
_SHARD_LENGTH_MAX = 256


class Receiver:
    """All connections, and what they share."""

    def __init__(
        self,
        journal: EmbeddedJournal,
        progress: Progress,
        settings: SettingsStore,
        clock_ms: Callable[[], int],
        limiter: RateLimiter | None = None,
    ) -> None:
        self.journal, self.progress, self.settings = journal, progress, settings
        self.limiter = limiter or RateLimiter(settings.current.rate_limit, clock_ms=clock_ms)
        self.pressure = Pressure(settings, lambda: journal.in_flight_bytes)
        self.answers = Answers(journal, progress, clock_ms)
        self.tables = TableRegistry(journal.tables, settings.current.server.tables_max)
        self.speakers = Speakers()
        self.large_messages = asyncio.Lock()
        """Whose turn it is, of limited clients that send much at once."""
        self.stats = ReceiverStats()
        self.is_closing = False
        self.takes_changes = True
        """Not where another server's journal is the lake's."""
        self.last_batch_ms = 0
        self.is_live: Callable[[Grant], bool] = lambda _grant: True
        """Whether a token is still valid."""
        self.clock_ms = clock_ms
        self._connections: dict[Session, Connection] = {}
        journal.on_durable(
            lambda group: progress.add_durable(
                group.end,
                group.batch_count,
                group.byte_count,
                group.commit_timestamp_ms,
                change_count=group.change_count,
            )
        )
        progress.on_published(self._tell_persisted)

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def state(self) -> ServerState:
        if self.journal.failure:
            return "error"
        if self.progress.is_flushing:
            return "flushing"
        is_recent = self.clock_ms() - self.last_batch_ms < _RECEIVING_FOR_MS
        return "receiving" if is_recent or self.journal.in_flight_bytes else "idle"

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        """One connection, from its upgrade to its end."""
        shard = _shard_of(request)
        address = request.get(CLIENT_ADDRESS) or request.remote or ""
        socket = Socket(self.settings.current.server)
        connection = Connection(self, socket, shard=shard, grant=grant_of(request), transport=request.transport)
        result = self.limiter.admit_connection(connection.session, address)
        if result.reason == "rate_limited":
            raise Refused(result)
        try:
            await socket.prepare(request)
            socket.headers.clear()  # they are sent, and are a kilobyte of each idle connection
            if result.allowed:
                await self._run(connection, socket)
            else:
                await self._send_away(socket, result)
        finally:
            self.limiter.release(connection.session)
        return socket

    async def _run(self, connection: Connection, socket: web.WebSocketResponse) -> None:
        self._connections[connection.session] = connection
        self.stats.connection_count += 1
        expiry = self._at_expiry(connection)
        if not self.is_live(connection.grant):  # revoked while it was being opened
            connection.end()
        try:
            await connection.run()
        except* Exception:
            # A mistake of ours. The sender reconnects and learns where its stream stands, so nothing is in doubt.
            logger.exception("connection failed", extra={"stream": str(connection.session.stream)})
            await socket.close(code=1011, message=b"internal error")
        finally:
            if expiry:
                expiry.cancel()
            self._connections.pop(connection.session, None)
            self.speakers.leave(connection.session)

    async def _send_away(self, socket: web.WebSocketResponse, result: RateLimitResult) -> None:
        """Said in the protocol's own words, which WebSocket clients can read; an HTTP status most of them hide."""
        error = Refused(result)
        assert result.reason is not None
        self.stats.count_nack(result.reason)
        nack = self.answers.nack(0, error, UNSET, retry_delay_ms=error.retry_after_ms)
        with contextlib.suppress(ConnectionError):
            await socket.send_frame(encode(nack), WSMsgType.TEXT)
        await socket.close(code=WSCloseCode.TRY_AGAIN_LATER, message=result.reason.encode())

    def refuse_elsewhere(self) -> None:
        """Raise where changes would stay in a journal that nobody publishes."""
        if not self.takes_changes:
            raise Conflict(
                "this server has only the catalog of its lake: another one takes the changes",
                hint="send them to the server whose journal the lake has",
            )

    def admit_source(self, stream: StreamId, session: Session) -> RateLimitResult:
        """Whether one more connection may speak for this source. One that is about to be replaced does not count."""
        if former := self.speakers.speaker_of(stream):
            self.limiter.leave_source(former)
        return self.limiter.admit_source(session, stream.source)

    def _at_expiry(self, connection: Connection) -> asyncio.TimerHandle | None:
        expires_ms = connection.grant.expires_ms
        if expires_ms is None:
            return None
        return asyncio.get_running_loop().call_later((expires_ms - self.clock_ms()) / 1000, connection.end)

    async def take_over(self, stream: StreamId, session: Session) -> None:
        """The newest connection speaks for the stream; the one before it is told and may finish its sentence.

        Without that wait a batch which the former one is just comparing with the journal would be written after the
        newer one was told where its stream stands.
        """
        if former := self.speakers.take(stream, session):
            logger.info("stream taken over", extra={"stream": str(stream)})
            if connection := self._connections.get(former):
                connection.tell_taken_over()
                await connection.is_listening.wait()

    def end_all_but(self, is_live: Callable[[Grant], bool]) -> None:
        """Let those go whose token was revoked or has expired; also who says nothing, and who would not listen."""
        for connection in list(self._connections.values()):
            if not connection.is_ended and not is_live(connection.grant):
                logger.info("connection ended: its token is not valid any more", extra={"token": connection.grant.id})
                connection.end()

    async def close(self, wait_ms: int) -> None:
        """Take no more batches, answer what is on its way, then close every socket."""
        self.is_closing = True
        connections = list(self._connections.values())
        if connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1000):
                    await asyncio.gather(*(connection.close() for connection in connections))

    def _tell_persisted(self, position: Position, path: str) -> None:
        for connection in self._connections.values():
            connection.tell_persisted(position, path)


def _shard_of(request: web.Request) -> str:
    shard = request.headers.get("X-Shard-Name", "")
    # Bytes that are no UTF-8 arrive as surrogates; cut off or replaced, two shards could become one stream.
    if len(shard) > _SHARD_LENGTH_MAX or any("\ud800" <= character <= "\udfff" for character in shard):
        raise InvalidInput("X-Shard-Name cannot name a shard", hint=f"up to {_SHARD_LENGTH_MAX} characters in UTF-8")
    return shard
