"""One child process of the server: started, listened to, started again when it ends, stopped.

From sources.py; the other children of the server have supervisors of their own until they join. The child gets its
first line on standard input, which stays open: at its end the child ends, so none is left when the server is killed.
Each line of standard output goes to `on_line`; standard error is its log, which is passed on with the child's name in
front. Promise: a child that ends is replaced after a wait that grows; `stop` returns when the child is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

from dolake.backoff import BackOff

logger = logging.getLogger("dolake.server.child")

ChildState = Literal["off", "starting", "running", "waiting"]
CHILD_STATES: tuple[ChildState, ...] = get_args(ChildState)
_LINE_MAX_BYTES = 1024 * 1024
_WAIT_MAX_MS = 10_000
_GOOD_AFTER_S = 10.0
"""After so long the end of a child is no failure of its start, and the next one is started at once."""
_STOP_WAIT_S = 5.0
_LAST_WORDS_MAX = 500
_TOLD_MAX = 100
_LEVELS = logging.getLevelNamesMapping()


class ChildProcess:
    """See the module."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        first_line: Callable[[], bytes],
        on_line: Callable[[bytes], None],
        on_end: Callable[[str], None] = lambda _reason: None,
        environ: Mapping[str, str] | None = None,
        stop_wait_s: float = _STOP_WAIT_S,
        wait_max_ms: int = _WAIT_MAX_MS,
    ) -> None:
        """`first_line` is asked at each start; `on_end` gets in words how a child ended that nobody stopped."""
        self.name = name
        self.state: ChildState = "off"
        self.start_count = 0
        self.pid: int | None = None
        self.last_words = ""
        """The last line of its log that is a warning or worse, or no log line at all."""
        self._command, self._environ = tuple(command), environ
        self._first_line, self._on_line, self._on_end = first_line, on_line, on_end
        self._stop_wait_s = stop_wait_s
        self._back_off = BackOff(wait_max_ms, first_at_once=True)
        self._stopping = asyncio.Event()
        self._told: set[str] = set()
        """What was logged of children that did not work: the same again is for those who debug."""

    async def supervise(self) -> None:
        """Keep a child at work until `stop`."""
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                reason = await self._run_once()
            except OSError as error:
                reason = f"it cannot be started: {error}"
            except Exception:  # whatever it is, the server and its other children go on
                logger.exception(f"{self.name}: was not understood")
                reason = "it was not understood; the log has the error"
            if self._stopping.is_set():
                break
            if time.monotonic() - began_s > _GOOD_AFTER_S:
                self._back_off.reset()
            wait_ms = self._back_off.next_ms()
            self.state = "waiting"
            values = {"reason": reason, "restart_after_ms": round(wait_ms)}
            logger.log(self._level_of(logging.WARNING, reason), f"{self.name}: ended", extra=values)
            self._on_end(reason)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1000):
                    await self._stopping.wait()
        self.state = "off"

    def note_running(self) -> None:
        """The child does what it is for."""
        if self.state == "starting":
            self.state = "running"
            self._told.clear()

    def stop(self) -> None:
        """Ask the child to end; `supervise` returns when it has, or was killed after a wait."""
        self._stopping.set()

    # --- one child ---------------------------------------------------------------------------------------------------

    async def _run_once(self) -> str:
        """Start it, and return in words how it ended."""
        self.state, self.last_words = "starting", ""
        self.start_count += 1
        child = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=_LINE_MAX_BYTES,
            env=self._environ,
            start_new_session=True,  # Ctrl-C in a terminal is for the server, which stops in order
        )
        self.pid = child.pid
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._listen(child.stdout, self._on_line))
                tasks.create_task(self._listen(child.stderr, self._take_log))
                ending = tasks.create_task(self._end_on_stop(child))
                await self._greet(child)
                code = await child.wait()
                ending.cancel()
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
            self.pid = None
        return _in_words(code, self.last_words)

    async def _greet(self, child: Process) -> None:
        assert child.stdin is not None
        with contextlib.suppress(ConnectionError):  # it is gone already
            child.stdin.write(self._first_line())
            await child.stdin.drain()

    async def _end_on_stop(self, child: Process) -> None:
        await self._stopping.wait()
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        await asyncio.sleep(self._stop_wait_s)
        logger.warning(f"{self.name}: killed, because it did not end in time")
        with contextlib.suppress(ProcessLookupError):
            child.kill()

    async def _listen(self, stream: asyncio.StreamReader | None, take: Callable[[bytes], None]) -> None:
        assert stream is not None
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # longer than any line of ours; what follows is read on
                logger.warning(f"{self.name}: wrote a line that is too long")
                continue
            if not line:
                return
            try:
                take(line)
            except Exception:  # a line of the child must not end the server
                logger.exception(f"{self.name}: wrote a line that was not understood")

    def _take_log(self, line: bytes) -> None:
        """A line of its log is logged here as it was meant; anything else, such as a traceback, as a warning."""
        try:
            said = msgspec.json.decode(line, type=dict[str, Any])
            level, message = _LEVELS[said.pop("level").upper()], said.pop("message")
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, AttributeError):
            self.last_words = line.decode(errors="replace").strip()[:_LAST_WORDS_MAX] or self.last_words
            logger.log(self._level_of(logging.WARNING, self.last_words), f"{self.name}: {self.last_words}")
            return
        if level >= logging.WARNING:
            self.last_words = message
        values = {key: value for key, value in said.items() if key not in ("time", "logger")}
        logger.log(self._level_of(level, f"{message} {values}"), f"{self.name}: {message}", extra=values)

    def _level_of(self, level: int, text: str) -> int:
        """A child that cannot start says why at each try: once is enough until one works."""
        if level < logging.WARNING or self.state == "running":
            return level
        is_new = text not in self._told
        if len(self._told) >= _TOLD_MAX:
            self._told.clear()
        self._told.add(text)
        return level if is_new else logging.DEBUG


def _in_words(code: int, last_words: str) -> str:
    how = f"exit code {code}"
    if code < 0:
        with contextlib.suppress(ValueError):
            how = f"killed by {signal.Signals(-code).name}"
    return f"{how}: {last_words}" if last_words and code > 0 else how
