"""`python -m dolake.sources`: one source as a child process of the server, which server/sources.py starts.

The first line of standard input says what to follow; its end is the end of this process, so that none is left behind
when the server is killed. wire/source_lines.py has the words. The log is JSON, which the server passes on under the
source's name.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, BinaryIO

from dolake.changes import StreamId
from dolake.errors import DoLakeError
from dolake.sources.base import SourceStatus
from dolake.sources.configured import awaited_view_of, files_of, shards_of
from dolake.sources.runner import Runner
from dolake.telemetry import start_logging
from dolake.wire.source_lines import (
    ErrorLine,
    SourceLine,
    StartSource,
    StateLine,
    TableLine,
    WarningLine,
    decode_start,
    to_line,
)

logger = logging.getLogger("dolake.sources")
_REPORT_EVERY_S = 0.5
_END_WAIT_S = 5.0


class _Reports(logging.Handler):
    """Lines to the server; the same state is not sent again. Of the log it sends what is a warning or worse."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(logging.WARNING)
        self._file = file
        self._writing = threading.Lock()
        self._last: dict[str, SourceLine] = {}

    def emit(self, record: logging.LogRecord) -> None:
        stream = str(getattr(record, "stream", ""))
        problem = str(getattr(record, "problem", "") or getattr(record, "reason", ""))
        self._last.pop(stream, None)  # once the stream works again, the server hears of it
        if record.levelno >= logging.ERROR:
            self.say(ErrorLine(message=problem or record.getMessage(), stream=stream))
        else:
            message = f"{record.getMessage()}: {problem}" if problem else record.getMessage()
            self.say(WarningLine(message=message, stream=stream))

    def state(self, stream: StreamId, status: SourceStatus) -> None:
        line = StateLine(
            stream=str(stream),
            pending=status.pending,
            lag_ms=status.lag_ms,
            tables=tuple(
                TableLine(table.table, table.phase == "live", table.copied, table.total) for table in status.tables
            ),
            left_out=tuple(status.left_out),
        )
        if self._last.get(line.stream) != line:
            self._last[line.stream] = line
            self.say(line)

    def error(self, error: DoLakeError, stream: str = "") -> None:
        self.say(ErrorLine(message=error.message, hint=error.hint, stream=stream))

    def say(self, line: SourceLine) -> None:
        with self._writing, contextlib.suppress(BrokenPipeError):  # the end of standard input ends us, too
            self._file.write(to_line(line))
            self._file.flush()


def main() -> int:
    """Follow until the server says stop, or is gone; 1 if nothing can be followed."""
    reports = _Reports(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)  # what a library prints must not be taken for a line of ours
    first = sys.stdin.buffer.readline()
    if not first:
        return 0
    start = decode_start(first)
    start_logging(start.log_level, "json")
    logging.getLogger("dolake").addHandler(reports)
    # Changes by the thousand come and go, none of them in a cycle: looking for cycles cost a quarter of the time.
    gc.set_threshold(200_000, 20, 100)
    try:
        failures = _loop_runner()(_follow(start, reports))
    except DoLakeError as error:
        reports.error(error)
        return 1
    return 1 if failures else 0


def _loop_runner() -> Callable[[Coroutine[Any, Any, bool]], bool]:
    """On uvloop where it is installed."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.run
    return uvloop.run


async def _follow(start: StartSource, reports: _Reports) -> bool:
    """Whether a stream ended with an error."""
    running = asyncio.ensure_future(_run(start, reports))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    threading.Thread(target=_end_with_server, args=(loop, running), name="server", daemon=True).start()
    try:
        return await running
    except asyncio.CancelledError:
        return False


async def _run(start: StartSource, reports: _Reports) -> bool:
    files = await asyncio.to_thread(files_of, start)
    view = await awaited_view_of(start.url, start.token)
    shards = await asyncio.to_thread(shards_of, start, files, view)
    runner = Runner(start.url, token=start.token, report=reports.state, report_every_s=_REPORT_EVERY_S)
    failures = await runner.run(shards)
    for stream, error in failures.items():
        reports.error(error, str(stream))
    return bool(failures)


def _end_with_server(loop: asyncio.AbstractEventLoop, running: asyncio.Future[bool]) -> None:
    """Wait for the end of standard input, then end in order, or after a while in any way."""
    while sys.stdin.buffer.readline():
        pass
    with contextlib.suppress(RuntimeError):  # the loop has ended already
        loop.call_soon_threadsafe(running.cancel)
    threading.Event().wait(_END_WAIT_S)
    os._exit(1)


def run() -> None:
    """Leave without Python's own end, which aborts while the thread above waits for standard input."""
    code = 1
    try:
        code = main()
    except BaseException:
        logger.exception("source stopped by an error that it does not know")
    finally:
        logging.shutdown()
        os._exit(code)


if __name__ == "__main__":
    run()
