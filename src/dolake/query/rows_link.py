"""The short way between the server and its query process, for look-ups alone: a Unix socket with bare frames.

Here is the server's end: its event loop has as many connections as questions at a time. At the other end are threads of
the query process (rows_threads.py). HTTP over the same way took
longer than the look-up. Promise: a question that only SQL can answer is said to be so, and goes the usual way.

    question    u32 length, JSON (rows.py)
    answer      u16 HTTP status, 0 where SQL must be asked; u32 length, JSON
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from dolake.errors import QueryUnavailable

SLOW = 0
CONNECTIONS_MAX = 32
LENGTH, ANSWER = struct.Struct("<I"), struct.Struct("<HI")
_WAIT_S = 10.0


def link_path(query_socket: Path) -> Path:
    """Beside the socket for everything else."""
    return query_socket.with_name("rows.sock")


class RowsLink:
    """Connections to the query process; each has one question at a time. For one event loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._places = asyncio.Semaphore(CONNECTIONS_MAX)

    async def ask(self, question: bytes) -> tuple[int, bytes]:
        """Status and body; the status is SLOW where SQL must be asked. QueryUnavailable where nobody is there."""
        async with self._places:
            try:
                async with asyncio.timeout(_WAIT_S):
                    reader, writer = self._idle.pop() if self._idle else await asyncio.open_unix_connection(self._path)
                    with _closing_unless_done(writer) as done:
                        writer.write(LENGTH.pack(len(question)) + question)
                        status, length = ANSWER.unpack(await reader.readexactly(ANSWER.size))
                        body = await reader.readexactly(length)
                        done()
            except (OSError, EOFError) as error:  # a timeout is an OSError, too
                raise QueryUnavailable(
                    "the query process did not answer", hint="ask again in a moment; /status shows it"
                ) from error
            self._idle.append((reader, writer))
            return status, body

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()


@contextlib.contextmanager
def _closing_unless_done(writer: asyncio.StreamWriter) -> Iterator[Callable[[], None]]:
    """A connection whose answer was not read to its end cannot be used again."""
    is_done = False

    def done() -> None:
        nonlocal is_done
        is_done = True

    try:
        yield done
    finally:
        if not is_done:
            writer.close()
