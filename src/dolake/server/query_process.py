"""The query process as the server sees it: a child with DuckDB, started, told the settings, watched, restarted.

From lifecycle.py, which runs `supervise`; to query/rest.py, whose routes reach it over its Unix socket. Promise: the
server takes changes whatever the child does; a child that dies is replaced, after a wait that grows if it keeps dying.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal, get_args

import aiohttp

from dolake.errors import QueryUnavailable
from dolake.query.link import Figures, Follow, LetGo, Ready, Sections, Start, decode_report, to_line
from dolake.query.rows_link import RowsLink, link_path
from dolake.server.home import Home
from dolake.settings import Settings, SettingsStore

logger = logging.getLogger(__name__)

QueryState = Literal["off", "starting", "ready", "waiting"]
QUERY_STATES: tuple[QueryState, ...] = get_args(QueryState)
SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LOOKUP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0)
SOCKET_FILE = "query.sock"
_SOCKET_LENGTH_MAX = 100
"""The kernel's limit is 107 bytes, on some systems 103."""
_READY_WAIT_S = 10.0
"""It takes a second or two to start; on a busy machine that is several."""
_CONNECT_WAIT_S = 3.0
_END_WAIT_S = 1.0
_LAST_WORDS_WAIT_S = 3.0
_DELAY_S, _DELAY_MAX_S = 0.1, 10.0
_GOOD_AFTER_S = 10.0
"""A child that was ready for so long is no failure when it ends."""
_LINE_MAX_BYTES = 1024 * 1024


class QueryStats:
    """Figures for /status and /metrics."""

    def __init__(self) -> None:
        self.state: QueryState = "off"
        self.start_count = 0
        self.figures = Figures(0, 0, 0)
        self.outcome_counts: Counter[str] = Counter()
        self.seconds = 0.0
        self.seconds_counts = [0] * (len(SECONDS_BUCKETS) + 1)
        self.lookup_counts: Counter[str] = Counter()
        self.lookup_seconds = 0.0
        self.lookup_seconds_counts = [0] * (len(LOOKUP_BUCKETS) + 1)

    def as_json(self) -> dict[str, Any]:
        """The query process's part of /status."""
        return {
            "state": self.state,
            "starts": self.start_count,
            "running": self.figures.running,
            "queued": self.figures.queued,
            "memoryBytes": self.figures.memory_bytes,
        }

    def note(self, outcome: str, seconds: float) -> None:
        self.outcome_counts[outcome] += 1
        self.seconds += seconds
        self.seconds_counts[bisect_left(SECONDS_BUCKETS, seconds)] += 1

    def note_lookup(self, outcome: str, seconds: float) -> None:
        self.lookup_counts[outcome] += 1
        self.lookup_seconds += seconds
        self.lookup_seconds_counts[bisect_left(LOOKUP_BUCKETS, seconds)] += 1


class QueryProcess:
    """See the module."""

    def __init__(self, home: Home, settings: SettingsStore) -> None:
        self._home, self._settings = home, settings
        self.stats = QueryStats()
        self._child: Process | None = None
        self._session: aiohttp.ClientSession | None = None
        self._rows: RowsLink | None = None
        self._asking = 0
        self._nobody_asks = asyncio.Event()
        self._nobody_asks.set()
        self._is_ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        settings.on_change(self._follow)

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[aiohttp.ClientSession]:
        """Connections to the child, for as long as the block takes; where it is not up, it has a moment to come."""
        session = await self._when_ready()
        self._asking += 1
        self._nobody_asks.clear()
        try:
            yield session
        finally:
            self._asking -= 1
            if not self._asking:
                self._nobody_asks.set()

    async def _when_ready(self) -> aiohttp.ClientSession:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_READY_WAIT_S):
                await self._is_ready.wait()
        if self._session is None or self._stopping.is_set():
            raise QueryUnavailable("the query process is starting", hint="ask again in a moment; /status shows it")
        return self._session

    def count(self, outcome: str, seconds: float) -> None:
        self.stats.note(outcome, seconds)

    async def look_up(self, question: bytes) -> tuple[int, bytes]:
        """Rows by key, by the short way; where the child is not up, it has a moment to come."""
        await self._when_ready()
        assert self._rows is not None, "as long as there is a session"
        return await self._rows.ask(question)

    def count_lookup(self, outcome: str, seconds: float) -> None:
        self.stats.note_lookup(outcome, seconds)

    async def supervise(self) -> None:
        """Keep a child at work until `stop`."""
        delay_s = _DELAY_S
        with contextlib.ExitStack() as stack:
            socket = self._home.path.resolve() / SOCKET_FILE
            if len(bytes(socket)) > _SOCKET_LENGTH_MAX:
                socket = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dolake-")), SOCKET_FILE)
            while not self._stopping.is_set():
                began = time.monotonic()
                try:
                    await self._run_child(socket)
                except OSError as error:
                    logger.warning("query process not started", extra={"reason": str(error)})
                except Exception:  # whatever it is, changes are taken and published without queries
                    logger.exception("query process not understood")
                if self._stopping.is_set():
                    break
                delay_s = _DELAY_S if time.monotonic() - began > _GOOD_AFTER_S else delay_s
                self.stats.state = "waiting"
                logger.warning("query process restarting", extra={"after_ms": round(1000 * delay_s)})
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay_s):
                        await self._stopping.wait()
                delay_s = min(2 * delay_s, _DELAY_MAX_S)
            socket.unlink(missing_ok=True)
            link_path(socket).unlink(missing_ok=True)
        self.stats.state = "off"

    async def stop(self) -> None:
        """Let the child go, and those who wait for its answers with it."""
        self._stopping.set()
        child = self._child
        if child is None or child.stdin is None:
            return
        child.stdin.close()  # it ends by itself when we are gone, and so it does now
        try:
            async with asyncio.timeout(_END_WAIT_S):
                await child.wait()
        except TimeoutError:
            child.kill()

    # --- one child ---------------------------------------------------------------------------------------------------

    async def _run_child(self, socket: Path) -> None:
        child = await self._start_child(socket)
        self._child = child
        rows = self._rows = RowsLink(link_path(socket))
        try:
            async with aiohttp.ClientSession(
                "http://query",
                connector=aiohttp.UnixConnector(str(socket), limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_WAIT_S),
                auto_decompress=False,
            ) as session:
                try:
                    await self._listen(child, session)
                finally:
                    await self._end_child(child)
        finally:
            rows.close()
            self._child = self._session = None
            self._is_ready.clear()

    async def _end_child(self, child: Process) -> None:
        self._session = None
        self._is_ready.clear()
        self.stats.figures = Figures(0, 0, 0)
        with contextlib.suppress(ProcessLookupError):
            child.kill()  # one that says nothing any more is of no use
        code = await child.wait()
        if not self._stopping.is_set():
            logger.warning("query process ended", extra={"exit_code": code})
        # aiohttp lets a reader wait for ever whose session is closed before it has seen the end of its connection.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_WAIT_S):
                await self._nobody_asks.wait()

    async def _start_child(self, socket: Path) -> Process:
        settings = self._settings.current
        self.stats.state = "starting"
        self.stats.start_count += 1
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "dolake.query",
            stdin=PIPE,
            stdout=PIPE,
            limit=_LINE_MAX_BYTES,
            start_new_session=True,  # Ctrl-C in a terminal is for the server, which stops in order
        )
        start = Start(
            home=str(self._home.path),
            socket=str(socket),
            settings=Sections.of(settings),
            log_level=settings.server.log_level,
            log_format=settings.server.log_format,
        )
        assert child.stdin is not None
        child.stdin.write(to_line(start))
        return child

    async def _listen(self, child: Process, session: aiohttp.ClientSession) -> None:
        """Hear what it says, until it says nothing any more."""
        assert child.stdout is not None
        async for line in child.stdout:
            match decode_report(line):
                case Ready() as ready:
                    self._session = session
                    self.stats.state = "ready"
                    self._is_ready.set()
                    logger.info("query process started", extra={"took_ms": ready.start_ms})
                case Figures() as figures:
                    self.stats.figures = figures

    def _follow(self, settings: Settings) -> None:
        """Called in whatever thread changes settings."""
        self._loop.call_soon_threadsafe(self._pass_on, Follow(Sections.of(settings)))

    def let_go(self) -> None:
        """Of rows that were read the child keeps none in memory."""
        self._pass_on(LetGo())

    def _pass_on(self, word: Follow | LetGo) -> None:
        if self._child and self._child.stdin and not self._child.stdin.is_closing():
            self._child.stdin.write(to_line(word))
