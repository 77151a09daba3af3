"""Sockets: who is connected, who speaks for which stream, and how all of them are told to go.

From aiohttp; to connection.py, one for each socket. Promise: a stream has one speaker; no connection can make the
server hold more than `max_buffer_size` bytes that are not on disk, because who would exceed it is not read from.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from aiohttp import web

from dolake.changes import StreamId
from dolake.errors import InvalidInput
from dolake.journal.embedded import EmbeddedJournal
from dolake.positions import Position
from dolake.receiver.admission import TableRegistry
from dolake.receiver.answers import Answers
from dolake.receiver.connection import Connection
from dolake.receiver.progress import Progress
from dolake.receiver.stats import ReceiverStats
from dolake.settings import SettingsStore
from dolake.wire.messages import ServerState
from dolake.wire.session import Session, Speakers

logger = logging.getLogger(__name__)
_RECEIVING_FOR_MS = 1000
_SHARD_LENGTH_MAX = 256
_PING_EVERY_S = 60.0  # finds out that a silent peer is gone; 10,000 idle connections cost 170 pings a second


class Receiver:
    """All connections, and what they share."""

    def __init__(
        self,
        journal: EmbeddedJournal,
        progress: Progress,
        settings: SettingsStore,
        clock_ms: Callable[[], int],
    ) -> None:
        self.journal, self.progress, self.settings = journal, progress, settings
        self.answers = Answers(journal, progress, clock_ms)
        self.tables = TableRegistry(journal.tables, settings.current.server.tables_max)
        self.speakers = Speakers()
        self.stats = ReceiverStats()
        self.is_closing = False
        self.last_batch_ms = 0
        self.clock_ms = clock_ms
        self._connections: dict[Session, Connection] = {}
        journal.on_durable(
            lambda group: progress.add_durable(
                group.end, group.batch_count, group.byte_count, group.commit_timestamp_ms
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
        socket = web.WebSocketResponse(
            decode_text=False,
            compress=False,
            heartbeat=_PING_EVERY_S,
            max_msg_size=self.settings.current.server.message_size_max_bytes,
        )
        await socket.prepare(request)
        connection = Connection(self, socket, shard=shard)
        self._connections[connection.session] = connection
        self.stats.connection_count += 1
        try:
            await connection.run()
        except* Exception:
            # A mistake of ours. The sender reconnects and learns where its stream stands, so nothing is in doubt.
            logger.exception("connection failed", extra={"stream": str(connection.session.stream)})
            await socket.close(code=1011, message=b"internal error")
        finally:
            self._connections.pop(connection.session, None)
            self.speakers.leave(connection.session)
        return socket

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
