"""DuckDB as it may be used here: one database in memory, which reads files of the lake and nothing else.

From job.py, which starts a statement that guard.py has read; to results.py, which takes the batches. Promise: what
DuckDB could open beside the given folders is closed for good, whatever a statement says; a query that is stopped, or
needs more than its share, ends with an error of ours and leaves the others alone.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import duckdb
import pyarrow as pa

from dolake.errors import DoLakeError, ForbiddenSql, InvalidSql, QueryCancelled, QueryOutOfMemory, QueryUnavailable
from dolake.query.watch import Stop, Watch
from dolake.settings import QuerySettings
from dolake.storage.duck import DuckStore, extension_file, quoted

Params = Sequence[Any] | Mapping[str, Any]

# httpfs comes only where tables are in a store: without it DuckDB has no way to any network.
_EXTENSIONS = ("avro", "iceberg")
_BATCH_ROWS = 2048
"""As many as DuckDB works on at a time: long values make even such a batch large."""
_OTHERS_WAIT_S = 10.0
_LOOK_S = 0.05
_MESSAGE_LENGTH_MAX = 1000
_LOSSY = re.compile(r"\b(TIME WITH TIME ZONE|BIGNUM|UHUGEINT|BIT|VARIANT|GEOMETRY)\b")


class Engine:
    """One DuckDB; each query has a connection of its own to it."""

    def __init__(
        self,
        settings: QuerySettings,
        directories: Sequence[Path],
        scratch: Path,
        watch: Watch | None = None,
        store: DuckStore | None = None,
    ) -> None:
        spill = scratch / "spill"
        spill.mkdir(parents=True, exist_ok=True)
        places = [*map(str, (*directories, scratch)), *(f"{root}/" for root in (store.roots if store else ()))]
        self._hidden = sorted((place.rstrip("/") for place in places), key=len, reverse=True)
        self._has_own_watch = watch is None
        self.watch = watch or Watch()
        self._changed = threading.Condition()
        self._at_work = self._ended = 0
        self.is_broken = False
        """DuckDB has given up on itself: nothing can be asked any more."""
        config: dict[str, Any] = {
            "memory_limit": f"{settings.memory_max_bytes // 1024}KiB",
            "temp_directory": str(spill),
            "preserve_insertion_order": False,  # who wants an order says so, and everybody else has it faster
            "allocator_background_threads": True,  # or what a large query took is never given back
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "allow_persistent_secrets": False,
            "extension_directory": str(spill),
            "python_enable_replacements": False,
        }
        if settings.threads:
            config["threads"] = settings.threads
        self._database = duckdb.connect(config=config)
        for name in _EXTENSIONS:
            self._database.execute(f"LOAD {quoted(extension_file(name))}")
        # Among the options of a new database this one is shown and not kept to.
        self._database.execute(f"SET GLOBAL max_temp_directory_size = '{settings.spill_max_bytes // 1024}KiB'")
        self._store = store
        if store:
            store.open(self._database)
        self._close_the_doors(places)

    def _close_the_doors(self, directories: Sequence[str]) -> None:
        allowed = ", ".join(map(quoted, directories))
        for statement in (
            "SET GLOBAL TimeZone = 'UTC'",
            "SET GLOBAL parquet_metadata_cache = true",
            f"SET GLOBAL allowed_directories = [{allowed}]",
            "SET GLOBAL enable_external_access = false",
            "SET GLOBAL lock_configuration = true",
        ):
            self._database.execute(statement)

    def start(
        self,
        sql: str,
        params: Params | None = None,
        arrow: Mapping[str, pa.Table] | None = None,
        timeout_ms: int | None = None,
        *,
        stop: Stop | None = None,
    ) -> Running:
        """Run one SELECT up to its first rows. With `stop`, whoever made it decides how long that may take."""
        stop, is_watched = stop or Stop(timeout_ms), stop is not None
        try:
            return self._start(sql, params or (), arrow or {}, stop, is_watched=is_watched)
        except QueryOutOfMemory:
            # All queries share the memory, so whoever asks last is told, and that need not be who has taken most.
            if not self._another_ends(stop):
                raise
            return self._start(sql, params or (), arrow or {}, stop, is_watched=is_watched)

    def _start(
        self, sql: str, params: Params, arrow: Mapping[str, pa.Table], stop: Stop, *, is_watched: bool
    ) -> Running:
        if self._store:
            self._store.renew(self._database)
        running = Running(self, self._database.cursor(), stop, is_watched=is_watched)
        try:
            running.begin(sql, params, arrow)
        except BaseException:
            running.close()
            raise
        return running

    def _another_ends(self, stop: Stop) -> bool:
        """Wait for one of the others; False where this query has the memory for itself."""
        give_up_s = time.monotonic() + _OTHERS_WAIT_S
        with self._changed:
            before = self._ended
            while self._at_work and self._ended == before and time.monotonic() < give_up_s:
                self._changed.wait(_LOOK_S)
                stop.check()
            return self._ended != before

    def count_begin(self) -> None:
        with self._changed:
            self._at_work += 1

    def count_end(self) -> None:
        with self._changed:
            self._at_work -= 1
            self._ended += 1
            self._changed.notify_all()

    def close(self) -> None:
        self._database.close()
        if self._has_own_watch:
            self.watch.close()

    @contextlib.contextmanager
    def errors_as_ours(self, stop: Stop) -> Iterator[None]:
        """Once rows flow, DuckDB's errors come through Arrow, which keeps only their text."""
        try:
            yield
        except (duckdb.Error, OSError, pa.ArrowException) as error:
            raise self._translated(str(error), stop) from error

    def _translated(self, text: str, stop: Stop) -> DoLakeError:
        kind = text.partition(" Error: ")[0]
        message = self._for_people(text)
        match kind.lower():
            case "interrupt":
                return stop.error or QueryCancelled("the query was cancelled")
            case "out of memory":
                hint = "ask for less at a time; query.memory_max_bytes and query.spill_max_bytes are the bounds"
                return QueryOutOfMemory("the query needs more memory than queries may have", hint=hint)
            case "internal" | "fatal":
                self.is_broken = True
                return QueryUnavailable(
                    f"DuckDB met an error of its own and starts anew: {message}", hint="put the question differently"
                )
            case "io" | "http":
                return QueryUnavailable(f"a file of the lake could not be read: {message}", hint="ask again")
            case "permission":
                return ForbiddenSql(
                    "a statement reads the lake's tables and nothing else", hint="name tables, not files"
                )
            case _:
                return InvalidSql(message)

    def _for_people(self, text: str) -> str:
        """What is wrong, without the statement that was made of the question, and without our folders."""
        text = re.split(r"\n\s*(?:LINE \d+:|Possible solutions)", text)[0].strip()
        for folder in self._hidden:
            text = text.replace(folder, "")
        return text[:_MESSAGE_LENGTH_MAX]


class Running:
    """A query at work, as its thread sees it. `interrupt` may be called from any other one."""

    def __init__(
        self, engine: Engine, cursor: duckdb.DuckDBPyConnection, stop: Stop, *, is_watched: bool = False
    ) -> None:
        self._engine, self._cursor, self.stop = engine, cursor, stop
        self._first: pa.RecordBatch | None = None
        self._reader: Any = None
        self._types: list[Any] = []
        self._watching = contextlib.ExitStack()
        engine.count_begin()
        self._watching.callback(engine.count_end)
        if not is_watched:
            self._watching.enter_context(engine.watch.over(stop))
        self.columns: list[tuple[str, str]] = []
        """Name and DuckDB's type."""

    def begin(self, sql: str, params: Params, arrow: Mapping[str, pa.Table]) -> None:
        with self._engine.errors_as_ours(self.stop), self.stop.reaching(self._cursor.interrupt):
            for name, table in arrow.items():
                self._cursor.register(name, table)
            self._execute(self._only_select(sql), params)
            self._types = [kind for _, kind, *_ in self._cursor.description]
            self.columns = [(str(name), str(kind)) for name, kind, *_ in self._cursor.description]
            self._refuse_lossy_types()
            self._reader = self._cursor.to_arrow_reader(_BATCH_ROWS)
            self._first = self._next()

    def _execute(self, statement: duckdb.Statement, params: Params) -> None:
        try:
            self._cursor.execute(statement, params)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidSql(f"a parameter has a value that cannot be used: {error}") from error

    def _refuse_lossy_types(self) -> None:
        """Arrow would carry these without their zone, or as bytes that nobody can read."""
        for name, kind in self.columns:
            if found := _LOSSY.search(kind):
                raise InvalidSql(f"the column {name} is a {found[0]}", hint="cast it to VARCHAR, or to another type")

    def fields_of(self, column: int) -> list[tuple[str, str]]:
        """Name and type of the parts of a column that is a STRUCT."""
        return [(str(name), str(kind)) for name, kind in self._types[column].children]

    def _only_select(self, sql: str) -> duckdb.Statement:
        """What DuckDB itself takes for one question, whatever came to be in the relations that the guard has put in."""
        statements = self._cursor.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise ForbiddenSql("only a single SELECT can be asked", hint="send one statement that reads")
        return statements[0]

    @property
    def schema(self) -> pa.Schema:
        return self._reader.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, as they come; to be taken once."""
        batch, self._first = self._first, None
        while batch is not None:
            yield batch
            with self._engine.errors_as_ours(self.stop), self.stop.reaching(self._cursor.interrupt):
                batch = self._next()

    def _next(self) -> pa.RecordBatch | None:
        try:
            return self._reader.read_next_batch()
        except StopIteration:
            return None

    def interrupt(self) -> None:
        """End it soon, with QueryCancelled."""
        self.stop.ask(QueryCancelled("the query was cancelled"))

    def close(self) -> None:
        """Give back what it holds; what it has not yet computed it never will."""
        self._reader = self._first = None
        self._cursor.close()  # and what was registered is forgotten with it
        self._watching.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
