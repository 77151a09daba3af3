"""Spark as the query process sees it: a child that comes when a large question does, and goes when none comes.

From routing.py, in the question's own thread; to pipeline/sql.py, over a pipe (pipeline/sql_link.py has the words).
Promise: who waits hears of the end, whatever becomes of the child; a question that is stopped stops in Spark, too; the
files that were made for a question go with it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from dolake.errors import QueryUnavailable
from dolake.pipeline.sql_link import (
    Answered,
    Ask,
    Cancel,
    Failed,
    Progress,
    Ready,
    Report,
    Scan,
    Start,
    Word,
    decode_report,
    to_line,
)
from dolake.query.spark_text import SparkStatement
from dolake.query.watch import Stop
from dolake.settings import PipelineSettings

logger = logging.getLogger(__name__)

_LOOK_S = 0.05
_AGAIN_S = 60.0
"""How long nobody tries after Spark could not be started: what is missing does not come at once."""


class SparkFailed(Exception):
    """Spark has no answer to this; DuckDB may have."""


@dataclass
class _Waiting:
    """A question that Spark is at."""

    progress: Callable[[int, int], None]
    is_over: threading.Event = field(default_factory=threading.Event)
    reason: str | None = None


class SparkEngine:
    """One child at a time; any thread may ask."""

    def __init__(
        self,
        scratch: Path,
        settings: PipelineSettings,
        memory_max_bytes: int,
        idle_ms: int,
        *,
        log_level: str = "info",
        log_format: str = "console",
    ) -> None:
        self._scratch = scratch / "spark"
        self._files = scratch / "questions"
        self._files.mkdir(parents=True, exist_ok=True)
        self.idle_ms = idle_ms
        own = msgspec.structs.replace(settings, driver_memory_bytes=memory_max_bytes)
        self._start = Start(str(self._scratch), own, log_level, "json" if log_format == "json" else "console")
        self._numbers = itertools.count(1)
        self._changing = threading.Lock()
        self._child: _Child | None = None
        self._failed_s: float | None = None
        self._failure = ""
        self._idle: threading.Timer | None = None

    @property
    def state(self) -> str:
        """For people: `asleep`, `starting` or `ready`."""
        child = self._child
        return "asleep" if child is None or child.is_over else "ready" if child.is_ready.is_set() else "starting"

    def answer(
        self,
        statement: SparkStatement,
        scans: Mapping[str, Scan],
        arrow: Mapping[str, pa.Table],
        rows_max: int,
        stop: Stop,
        progress: Callable[[int, int], None],
    ) -> pa.Table:
        """The rows, with the names that Spark's side gives them. Raises SparkFailed."""
        number = next(self._numbers)
        with self._given(number, arrow, statement.tables) as (tables, out):
            child = self._ready_child(stop)
            ask = Ask(f"q{number}", statement.sql, dict(scans), tables, rows_max, str(out))
            try:
                child.ask(ask, stop, progress)
            finally:
                self._rest_later()
            with pa.memory_map(str(out)) as source:
                return pyarrow.ipc.open_stream(source).read_all()

    @contextlib.contextmanager
    def _given(
        self, number: int, arrow: Mapping[str, pa.Table], wanted: frozenset[str]
    ) -> Iterator[tuple[dict[str, str], Path]]:
        """What is in memory alone, as files; and the place of the answer."""
        out = self._files / f"{number}.arrow"
        paths = {name: self._files / f"{number}.{place}.parquet" for place, name in enumerate(sorted(wanted))}
        try:
            for name, path in paths.items():
                pq.write_table(arrow[name], path, compression="none")
            yield {name: str(path) for name, path in paths.items()}, out
        except (OSError, pa.ArrowException) as error:
            raise SparkFailed(f"its rows cannot be handed over: {error}") from error
        finally:
            for path in (*paths.values(), out):
                path.unlink(missing_ok=True)

    def _ready_child(self, stop: Stop) -> _Child:
        with self._changing:
            if self._idle:
                self._idle.cancel()
            if self._child is None or self._child.is_over:
                if self._failed_s is not None and time.monotonic() - self._failed_s < _AGAIN_S:
                    raise SparkFailed(f"Spark could not be started: {self._failure}")
                self._failed_s = None
                logger.info("spark for questions starting")
                self._child = _Child(self._start)
            child = self._child
        while not child.is_ready.wait(_LOOK_S):
            stop.check()
            if child.is_over:
                with self._changing:
                    self._failed_s, self._failure = time.monotonic(), child.failure or "the log has more"
                raise SparkFailed(f"Spark could not be started: {self._failure}")
        return child

    def _rest_later(self) -> None:
        with self._changing:
            if self._idle:
                self._idle.cancel()
            self._idle = threading.Timer(self.idle_ms / 1000, self._rest)
            self._idle.daemon = True
            self._idle.start()

    def _rest(self) -> None:
        with self._changing:
            if self._child and not self._child.is_over and not self._child.is_busy:
                logger.info("spark for questions put to sleep")
                self._child.end()
                self._child = None

    def close(self) -> None:
        with self._changing:
            if self._idle:
                self._idle.cancel()
            if self._child:
                self._child.end()


class _Child:
    """One process, from its start to its end."""

    def __init__(self, start: Start) -> None:
        self.is_ready = threading.Event()
        self.is_over = False
        self.failure = ""
        self._waiting: dict[str, _Waiting] = {}
        self._saying = threading.Lock()
        command = [sys.executable, "-m", "dolake.pipeline.sql"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._say(start)
        threading.Thread(target=self._listen, name="spark-reports", daemon=True).start()

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting)

    def ask(self, ask: Ask, stop: Stop, progress: Callable[[int, int], None]) -> None:
        """Until the answer is in its file."""
        waiting = self._waiting[ask.id] = _Waiting(progress)
        try:
            self._say(ask)
            while not waiting.is_over.wait(_LOOK_S):
                stop.check()
                if self.is_over:
                    raise SparkFailed("Spark's process has ended")
        except BaseException:
            self._say(Cancel(ask.id))
            raise
        finally:
            del self._waiting[ask.id]
        if waiting.reason is not None:
            raise SparkFailed(waiting.reason)

    def end(self) -> None:
        """It ends by itself when nothing can come any more."""
        with self._saying, contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
            return
        self._process.kill()

    def _say(self, word: Word) -> None:
        with self._saying, contextlib.suppress(OSError, ValueError):  # gone: `is_over` says so soon
            assert self._process.stdin is not None
            self._process.stdin.write(to_line(word))
            self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._hear(decode_report(line))
        except msgspec.DecodeError:
            logger.exception("spark for questions said something that is no report")
        finally:
            self.is_over = True
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def _hear(self, report: Report) -> None:
        match report:
            case Ready(version):
                logger.info("spark for questions ready", extra={"version": version})
                self.is_ready.set()
            case Failed("", reason):
                self.failure = reason
            case Progress(id_, done, total) if waiting := self._waiting.get(id_):
                waiting.progress(done, total)
            case Answered(id_) if waiting := self._waiting.get(id_):
                waiting.is_over.set()
            case Failed(id_, reason) if waiting := self._waiting.get(id_):
                waiting.reason = reason
                waiting.is_over.set()


def refuse(reason: str) -> QueryUnavailable:
    """Where Spark was asked for by name and has failed."""
    return QueryUnavailable(f"Spark cannot answer this: {reason}", hint="leave `engine` out, or say duckdb")
