"""The sources that this server runs, each in a child process of its own: started, watched, paused, changed at run time.

From lifecycle.py, which runs `run`; to sources_rest.py, operations.py and metrics.py. source_list.py says which there
are, child_process.py keeps a child at work, wire/source_lines.py is what the child says. Promise: a source that cannot
run makes the server `degraded` and nothing else; what was changed holds after a restart; no child outlives the server.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from dolake.errors import Unavailable
from dolake.server.auth import Doorkeeper
from dolake.server.child_process import ChildProcess
from dolake.server.source_list import Entry, SourceList
from dolake.settings import SettingsStore, SourceSettings
from dolake.settings.sources import checked_source
from dolake.wire.source_lines import ErrorLine, StartSource, StateLine, WarningLine, decode_line, to_line

logger = logging.getLogger(__name__)
COMMAND = (sys.executable, "-m", "dolake.sources")

SourceState = Literal["starting", "copying", "following", "waiting", "paused"]
SOURCE_STATES: tuple[SourceState, ...] = get_args(SourceState)
Json = dict[str, Any]
Say = Callable[[str], None]


class RunningSource:
    """One source, running or paused, and what its child has said."""

    def __init__(self, entry: Entry, start: Callable[[SourceSettings], StartSource], say: Say) -> None:
        self.entry = entry
        self.streams: dict[str, StateLine] = {}
        self.last_warning = ""
        self._errors: dict[str, str] = {}
        """By stream, why it does not go on; of the empty name, why the whole source does not."""
        self._stale: set[str] = set()
        """Those of a child that has ended; gone as soon as the next one works and does not name them again."""
        self._say = say
        self._told: dict[str, set[str]] = {}
        """By stream, the tables that were said to be complete."""
        self.child = ChildProcess(
            f"source {entry.settings.name}",
            COMMAND,
            first_line=lambda: to_line(start(entry.settings)),
            on_line=self._take,
            on_end=self._note_end,
        )

    @property
    def name(self) -> str:
        return self.entry.settings.name

    @property
    def state(self) -> SourceState:
        if self.entry.is_paused:
            return "paused"
        if self.child.state == "waiting" or self.problem:
            return "waiting"
        if self.child.state != "running":
            return "starting"
        return "copying" if any(each.is_copying for each in self.streams.values()) else "following"

    @property
    def problem(self) -> str:
        """Why it cannot run, or not all of it; empty when it can."""
        return "; ".join(dict.fromkeys(self._errors.values())) if not self.entry.is_paused else ""

    @property
    def pending(self) -> int:
        return sum(each.pending for each in self.streams.values())

    @property
    def lag_ms(self) -> int:
        return max((each.lag_ms for each in self.streams.values()), default=0)

    @property
    def copying_count(self) -> int:
        """Tables whose copy is not complete."""
        return sum(not table.is_complete for stream in self.streams.values() for table in stream.tables)

    def summary(self) -> Json:
        """Its part of /status."""
        return {
            "name": self.name,
            "kind": self.entry.settings.kind,
            "state": self.state,
            "pending": self.pending,
            "lagMs": self.lag_ms,
            "tables": sum(len(stream.tables) for stream in self.streams.values()),
            "tablesCopying": self.copying_count,
            "starts": self.child.start_count,
        }

    def as_json(self) -> Json:
        """All of it, for administrators."""
        settings = self.entry.settings
        found = self.summary() | {
            "path": settings.path,
            "origin": self.entry.origin,
            "namespace": settings.namespace or "default",
            "include": list(settings.tables),
            "exclude": list(settings.exclude),
            "mask": dict(settings.mask),
            "pid": self.child.pid,
            "problem": self.problem,
            "lastWarning": self.last_warning,
        }
        found["streams"] = [
            {
                "stream": each.stream,
                "pending": each.pending,
                "lagMs": each.lag_ms,
                "tables": [
                    {
                        "table": table.table,
                        "state": "complete" if table.is_complete else "copying",
                        "copied": table.copied,
                        "total": table.total,
                    }
                    for table in each.tables
                ],
                "leftOut": list(each.left_out),
            }
            for each in sorted(self.streams.values(), key=lambda each: each.stream)
        ]
        return found

    def _take(self, line: bytes) -> None:
        match decode_line(line):
            case StateLine() as state:
                self.child.note_running()
                for stream in self._stale | {"", state.stream}:
                    self._errors.pop(stream, None)
                self._stale.clear()
                self._tell_progress(state)
                self.streams[state.stream] = state
            case WarningLine() as warning:
                self.last_warning = warning.message
                if warning.stream:  # it begins again, and says so with its next state
                    self._errors[warning.stream] = warning.message
            case ErrorLine() as error:
                self._note_error(error.stream, str(error))

    def _note_error(self, stream: str, reason: str) -> None:
        if self._errors.get(stream) != reason:
            self._say(f"{self.entry.settings.path} cannot be followed: {reason}")
        self._errors[stream] = reason
        self._stale.discard(stream)

    def _note_end(self, reason: str) -> None:
        """The reasons that the child gave for its streams are better than that it has ended."""
        if not self._errors:
            self._note_error("", reason)
        self._stale = set(self._errors)

    def _tell_progress(self, state: StateLine) -> None:
        """What a person at the terminal waits for: what is followed, and when each table is complete."""
        before = self._told.get(state.stream)
        complete = {table.table for table in state.tables if table.is_complete}
        if before is None:
            values = {"stream": state.stream, "tables": len(state.tables), "complete": len(complete)}
            logger.info(f"{self.child.name}: connected", extra=values)
            self._say(f"following {self.entry.settings.path}: {_in_words(state)}")
        else:
            for table in state.tables:
                if table.table in complete - before:
                    values = {"table": table.table, "rows": table.copied}
                    logger.info(f"{self.child.name}: table is complete", extra=values)
                    self._say(f"  {table.table} is complete: {table.copied:,} rows")
        self._told[state.stream] = complete


def _in_words(state: StateLine) -> str:
    """Such as `2 tables with 1,320 rows, complete`."""
    count, left = len(state.tables), sum(not table.is_complete for table in state.tables)
    rows = sum(table.copied for table in state.tables)
    tables = f"{count:,} table{'' if count == 1 else 's'} with {rows:,} row{'' if rows == 1 else 's'}"
    return f"{tables}, {count - left:,} complete" if left else f"{tables}, complete"


class Sources:
    """See the module."""

    def __init__(
        self, home: Path, settings: SettingsStore, doorkeeper: Doorkeeper, followed: tuple[SourceSettings, ...] = ()
    ) -> None:
        self._settings, self._doorkeeper = settings, doorkeeper
        self._list = SourceList(home, settings.sources, followed)
        self._running: dict[str, RunningSource] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._supervised: dict[str, asyncio.Task[None]] = {}
        self._changing = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._url = ""
        self.say: Say = lambda _text: None
        """For the terminal of the server."""

    def __iter__(self) -> Iterator[RunningSource]:
        return iter(sorted(self._running.values(), key=lambda each: each.name))

    def problems(self) -> list[str]:
        """Which sources cannot run. With tokens it is not said which, nor why: /health is open to all."""
        failing = [each for each in self if each.problem]
        if self._doorkeeper.book.is_required:
            count = len(failing)
            are = "source cannot" if count == 1 else "sources cannot"
            return [f"{count} {are} run; `dolake sources` says why"] if failing else []
        return [f"the source {each.name} cannot run: {each.problem}" for each in failing]

    async def run(self, url: str) -> None:
        """Keep all that are not paused at work until `stop`."""
        self._url = url
        async with asyncio.TaskGroup() as self._tasks:
            for entry in self._list.entries():
                self._start(entry)
            await self._stopping.wait()
            for each in self._running.values():
                each.child.stop()

    async def stop(self) -> None:
        """Returns when no child is left."""
        self._stopping.set()
        for each in self._running.values():
            each.child.stop()
        if self._supervised:
            await asyncio.wait(self._supervised.values())

    async def add(self, body: Any) -> RunningSource:
        settings = checked_source(body, None, "POST /v1/sources")
        async with self._changing:
            self._refuse_if_stopping()
            return self._start(await asyncio.to_thread(self._list.add, settings))

    async def remove(self, name: str) -> None:
        async with self._changing:
            await asyncio.to_thread(self._list.remove, name)
            await self._end(name)
            self._running.pop(name, None)

    async def pause(self, name: str) -> RunningSource:
        async with self._changing:
            entry = await asyncio.to_thread(self._list.pause, name, is_paused=True)
            await self._end(name)
            return self._start(entry)

    async def resume(self, name: str) -> RunningSource:
        async with self._changing:
            self._refuse_if_stopping()
            if not self._list.entry(name).is_paused:
                return self._running[name]
            return self._start(await asyncio.to_thread(self._list.pause, name, is_paused=False))

    def _refuse_if_stopping(self) -> None:
        if self._tasks is None or self._stopping.is_set():
            raise Unavailable("the server is starting or shutting down", hint="try again in a moment")

    def _start(self, entry: Entry) -> RunningSource:
        running = self._running[entry.settings.name] = RunningSource(entry, self._start_line, self._tell)
        if not entry.is_paused and self._tasks is not None:
            task = self._tasks.create_task(running.child.supervise(), name=running.child.name)
            self._supervised[running.name] = task
        return running

    def _tell(self, text: str) -> None:
        self.say(text)

    async def _end(self, name: str) -> None:
        """Ask the child to end, and wait until it has."""
        if running := self._running.get(name):
            running.child.stop()
        if task := self._supervised.pop(name, None):
            await asyncio.wait([task])

    def _start_line(self, settings: SourceSettings) -> StartSource:
        return StartSource(
            name=settings.name,
            kind=settings.kind,
            path=settings.path,
            tables=settings.tables,
            exclude=settings.exclude,
            mask=settings.mask,
            namespace=settings.namespace,
            source=settings.source,
            outbox_max_bytes=settings.outbox_max_bytes,
            url=self._url,
            token=self._doorkeeper.book.own_token(f"source {settings.name}"),
            log_level=self._settings.current.server.log_level,
        )
