"""A child process of the server: listened to, started again, ended; with small programs as children."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import psutil
import pytest

from dolake.server.child_process import ChildProcess

_ECHO = "import sys; print('hello', sys.stdin.readline().strip(), flush=True); sys.stdin.read()"
_DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"


class Heard:
    """What a child has said, to wait for."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.reasons: list[str] = []
        self._news = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def on_line(self, line: bytes) -> None:
        self._note(self.lines, line.decode().strip())

    def on_end(self, reason: str) -> None:
        self._note(self.reasons, reason)

    def _note(self, notes: list[str], text: str) -> None:
        notes.append(text)
        task = asyncio.ensure_future(self._tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with self._news:
            await self._news.wait_for(is_so)


@asynccontextmanager
async def running(program: str, heard: Heard, *, stop_wait_s: float = 60.0) -> AsyncIterator[ChildProcess]:
    """A child of this program, stopped at the end of the block."""
    child = ChildProcess(
        "source app",
        (sys.executable, "-c", program),
        first_line=lambda: b"you\n",
        on_line=heard.on_line,
        on_end=heard.on_end,
        stop_wait_s=stop_wait_s,
        wait_max_ms=10,
    )
    task = asyncio.create_task(child.supervise())
    try:
        yield child
    finally:
        child.stop()
        await task


async def test_a_child_is_given_its_first_line_and_ends_with_the_block() -> None:
    heard = Heard()
    async with running(_ECHO, heard) as child:
        await heard.until(lambda: heard.lines == ["hello you"])
        process = psutil.Process(child.pid)
    assert (child.state, child.pid, heard.reasons) == ("off", None, [])
    assert not process.is_running()


async def test_a_child_that_is_killed_is_started_again() -> None:
    heard = Heard()
    async with running(_ECHO, heard) as child:
        await heard.until(lambda: len(heard.lines) == 1)
        psutil.Process(child.pid).kill()
        await heard.until(lambda: len(heard.lines) == 2)
        assert (child.start_count, heard.reasons) == (2, ["killed by SIGKILL"])


async def test_a_child_that_cannot_run_is_tried_again_and_again_and_its_last_words_are_the_reason() -> None:
    heard = Heard()
    async with running("import sys; sys.exit('no such database')", heard) as child:
        await heard.until(lambda: len(heard.reasons) >= 3)
        assert heard.reasons[0] == "exit code 1: no such database"
        assert child.start_count >= 3


async def test_what_a_child_says_at_each_try_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    with caplog.at_level(logging.INFO, logger="dolake"):
        async with running("import sys; sys.exit('no such database')", heard):
            await heard.until(lambda: len(heard.reasons) >= 3)
    assert [record.getMessage() for record in caplog.records] == ["source app: no such database", "source app: ended"]


async def test_a_program_that_does_not_exist_is_a_reason_too() -> None:
    heard = Heard()
    child = ChildProcess(
        "source app", ("/no/such/program",), first_line=bytes, on_line=heard.on_line, on_end=heard.on_end
    )
    task = asyncio.create_task(child.supervise())
    await heard.until(lambda: bool(heard.reasons))
    child.stop()
    await task
    assert "it cannot be started" in heard.reasons[0]


async def test_a_child_that_does_not_heed_a_stop_is_killed() -> None:
    heard = Heard()
    async with running(_DEAF, heard, stop_wait_s=0.01) as child:
        await heard.until(lambda: heard.lines == ["ready"])
        process = psutil.Process(child.pid)
    assert not process.is_running()


async def test_the_log_of_a_child_is_logged_under_its_name(caplog: pytest.LogCaptureFixture) -> None:
    program = """
import sys
print('{"time": "t", "level": "info", "logger": "x", "message": "table was copied", "rows": 7}', file=sys.stderr)
print('{"level": "error", "message": "the disk is full"}', file=sys.stderr)
print("Traceback: not of our kind", file=sys.stderr, flush=True)
print("done", flush=True)
sys.stdin.read()
"""
    heard = Heard()
    with caplog.at_level(logging.INFO, logger="dolake"):
        async with running(program, heard):
            await heard.until(lambda: heard.lines == ["done"])
    found = {record.getMessage(): record for record in caplog.records}
    assert found["source app: table was copied"].__dict__["rows"] == 7
    assert found["source app: the disk is full"].levelname == "ERROR"
    assert found["source app: Traceback: not of our kind"].levelname == "WARNING"


async def test_lines_that_are_too_long_or_cannot_be_read_do_not_end_the_child() -> None:
    heard = Heard()

    def fails(line: bytes) -> None:
        if line == b"bad\n":
            raise ValueError("not a line of ours")
        heard.on_line(line)

    program = "import sys; print('x' * 3_000_000); print('bad'); print('good', flush=True); sys.stdin.read()"
    child = ChildProcess("source app", (sys.executable, "-c", program), first_line=bytes, on_line=fails)
    task = asyncio.create_task(child.supervise())
    await heard.until(lambda: "good" in heard.lines)
    assert child.start_count == 1
    child.stop()
    await task
