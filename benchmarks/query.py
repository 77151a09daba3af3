"""How long does our SQL take beside DuckDB that reads the same table through the catalog?

Driven by `dolake bench query`. A real server has a table of 10M rows of which 1 % were updated, so that it has position
deletes. Each question is asked in turns: DuckDB in this process, `POST /v1/query` as Arrow, the same as JSON; so a busy
machine slows all of them. Then once more with 10,000 changes that are not published, which DuckDB does not see. At last
travel.py asks for a moment of which no snapshot is left. Promise: server and home are gone afterwards, also after
Ctrl-C.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import numpy as np
import psutil
import pyarrow as pa
import uvloop
from rich.progress import Progress

from benchmarks.asking import Answerer, Asker
from benchmarks.checks import condition
from benchmarks.jobs import run_job
from benchmarks.machine import Run, at_least, at_most, progress_bars, temporary_home
from benchmarks.stream import KEY_FIRST, Json, Keys, ask, running_server
from benchmarks.travel import FLOOR_TRAVEL_S, Journey, travel
from benchmarks.upsert import COLUMNS, send_changes
from benchmarks.upsert import SETTINGS as PUBLISH_WHEN_ASKED
from dolake.cli.child import COMMAND, ChildServer
from dolake.errors import InvalidInput
from tools.duckdb_client import duck_on

FLOOR_RATIO = 1.3
FLOOR_RATIO_UNFLUSHED = 2.0
PACKAGES = ("pyspark", "pyarrow", "duckdb", "sqlglot")
TABLE = "orders"
UPDATED_SHARE = 0.01
UNFLUSHED_INSERTS = 0.2
WARM_UPS = 2
WAYS = ("duckdb", "arrow", "json")
# Upkeep would remove the position deletes that we want to read.
SETTINGS = f"{PUBLISH_WHEN_ASKED}[compaction]\nauto_compact = false\n"


@dataclass(frozen=True, slots=True)
class Load:
    """How much of everything. The smoke test makes all of it small."""

    rows: int = 10_000_000
    unflushed: int = 10_000
    repeats: int = 15
    keys: int = 1_000_000
    changes: int = 10_000_000
    """Of the time travel; 0 leaves that out."""


@dataclass(frozen=True, slots=True)
class Question:
    """A statement with {table} in place of the table; a key is its parameter where it looks one up."""

    name: str
    sql: str
    has_key: bool = False


QUESTIONS = (
    Question("count and sum", "SELECT count(*) AS n, sum(amount) AS amount FROM {table}"),
    Question(
        "group by",
        "SELECT region, status, count(*) AS n, sum(amount) AS amount FROM {table} "
        "GROUP BY region, status ORDER BY region, status",
    ),
    Question(
        "filter by time",
        "SELECT date_trunc('minute', created) AS minute, count(*) AS n, sum(qty) AS qty FROM {table} "
        "WHERE created >= TIMESTAMPTZ '2026-01-01 10:30:00Z' AND created < TIMESTAMPTZ '2026-01-01 10:40:00Z' "
        "GROUP BY date_trunc('minute', created) ORDER BY minute",
    ),
    Question("look-up", "SELECT id, customer, status, amount, note, created FROM {table} WHERE id = ?", has_key=True),
    Question("top 10", "SELECT id, customer, amount, note FROM {table} ORDER BY amount DESC, id LIMIT 10"),
)


def run_query_bench(
    load: Load | None = None, *, out: Path | None = None, home: Path | None = None, command: Sequence[str] = COMMAND
) -> dict[str, Any]:
    """Measure, and return the report; `out` also gets it as JSON. `home` is a folder on the disk to measure."""
    load = load or Load()
    _check(load)
    with temporary_home(home) as folder, progress_bars() as progress:
        run = Run("query", folder, PACKAGES)
        with (
            running_server(folder / "home", settings=SETTINGS, command=command) as server,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            figures = _Bench(load, server, runner, progress).run()
        return run.report(figures, _floors(load, figures), out)


def _check(load: Load) -> None:
    if load.changes and load.changes // 2 <= load.keys:
        raise InvalidInput(
            f"{load.changes} changes are too few for the past of {load.keys} rows",
            hint="take more than twice as many changes as keys, or 0 to leave the past out",
        )


def _floors(load: Load, figures: Json) -> Iterator[Json]:
    for phase, floor in (("published", FLOOR_RATIO), ("unflushed", FLOOR_RATIO_UNFLUSHED)):
        changes = f" with {load.unflushed:,} changes un-flushed" if phase == "unflushed" else ""
        for found in figures[phase]["questions"]:
            slower = max(found["arrow"]["ratio"], found["json"]["ratio"])
            yield at_most(f"{found['name']}{changes}: in times DuckDB's", slower, floor)
    yield at_least("un-flushed rows that answers had", figures["unflushed"]["tail_rows"], load.unflushed)
    yield at_most("wrong answers", figures["published"]["wrong"] + figures["unflushed"]["wrong"], 0)
    if past := figures["time_travel"]:
        yield at_most("a moment without any snapshot: s", max(past["seconds"]), FLOOR_TRAVEL_S)
        yield at_most("a moment without any snapshot: wrong", int(not past["right"]), 0)


class _Bench:
    def __init__(self, load: Load, server: ChildServer, runner: asyncio.Runner, progress: Progress) -> None:
        self._load, self._server, self._runner, self._progress = load, server, runner, progress
        self._chance = np.random.default_rng(1)

    def run(self) -> Json:
        load = self._load
        self._fill()
        table = condition(self._server, TABLE)
        with Asker(self._server) as asker, duck_on(self._server.url) as duck:
            turns = Turns(self._server, asker, duck, load.repeats, self._progress)
            published = turns.take("published", self._some_keys(load.repeats + WARM_UPS))
            before = turns.are_right()
            unflushed = turns.take("un-flushed", self._mixed(self._leave_unflushed(), load.repeats + WARM_UPS))
            tail_rows = asker.json(QUESTIONS[0].sql.format(table=TABLE))["freshness"]["tailRows"]
            ask(self._server, "/flush", "POST")
            after = turns.are_right()  # DuckDB sees now what we saw before
        journey = Journey(load.keys, load.changes)
        return {
            "load": {**asdict(load), "columns": COLUMNS, "updated": UPDATED_SHARE, "settings": SETTINGS.splitlines()},
            "table": table,
            "published": {"questions": published, "answers": len(before), "wrong": before.count(False)},
            "unflushed": {
                "questions": unflushed,
                "tail_rows": tail_rows,
                "answers": len(after),
                "wrong": after.count(False),
            },
            "time_travel": travel(journey, self._server, self._runner, self._progress) if load.changes else None,
        }

    def _fill(self) -> None:
        """All rows as the table has them a little later by itself, then the updates, whose deletes stay."""
        rows = self._load.rows
        self._send("INSERT", KEY_FIRST + np.arange(rows), "load")
        run_job(self._server, table=TABLE)
        self._send("UPDATE", self._some_keys(int(rows * UPDATED_SHARE)), "updates")

    def _leave_unflushed(self) -> Keys:
        """Updates of rows that there are, and new rows; the keys of all."""
        inserts = int(self._load.unflushed * UNFLUSHED_INSERTS)
        new = KEY_FIRST + self._load.rows + np.arange(inserts)
        old = self._some_keys(self._load.unflushed - inserts)
        self._send("UPDATE", old, "unflushed-updates", is_published=False)
        self._send("INSERT", new, "unflushed-inserts", is_published=False)
        return np.concatenate([old, new])

    def _mixed(self, fresh: Keys, count: int) -> Keys:
        """Keys of which every other one has a change that is not published."""
        return np.where(np.arange(count) % 2, self._chance.choice(fresh, count), self._some_keys(count))

    def _some_keys(self, count: int) -> Keys:
        return KEY_FIRST + self._chance.choice(self._load.rows, count, replace=False)

    def _send(self, operation: str, keys: Keys, source: str, *, is_published: bool = True) -> None:
        sending = send_changes(self._server, operation, TABLE, keys, source, self._progress, is_published=is_published)
        self._runner.run(sending)


# --- in turns --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Times:
    """What one way of asking took, turn by turn."""

    ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    told_ms: list[int] = field(default_factory=list)
    """What the answer itself says, in JSON."""


class Turns:
    """Every question again and again, by DuckDB and by us."""

    def __init__(
        self, server: ChildServer, asker: Asker, duck: duckdb.DuckDBPyConnection, repeats: int, progress: Progress
    ) -> None:
        self._asker, self._duck, self._repeats, self._progress = asker, duck, repeats, progress
        self._server, self._answerer = psutil.Process(server.pid), Answerer.of(server)
        self.answers: dict[tuple[str, int | None], pa.Table] = {}
        """Ours of the last `take`, by statement and key."""

    def take(self, what: str, keys: Keys) -> list[Json]:
        """Each question so many times; a key for each of them."""
        self.answers = {}
        bar = self._progress.add_task(what, total=len(QUESTIONS) * len(keys), note="")
        return [self._in_turns(question, keys, bar) for question in QUESTIONS]

    def by_duckdb(self, sql: str, key: int | None) -> pa.Table:
        found = self._duck.execute(sql.format(table=f"lake.default.{TABLE}"), _params(key))
        return found.to_arrow_table()

    def are_right(self) -> list[bool]:
        """Whether DuckDB, asked once more, says the same as we did."""
        return [each.to_pylist() == self.by_duckdb(*asked).to_pylist() for asked, each in self.answers.items()]

    def _in_turns(self, question: Question, keys: Keys, bar: Any) -> Json:
        ways: dict[str, Callable[[int | None], Any]] = {
            "duckdb": lambda key: self.by_duckdb(question.sql, key),
            "arrow": lambda key: self._asker.arrow(question.sql.format(table=TABLE), _params(key)),
            "json": lambda key: self._asker.json(question.sql.format(table=TABLE), _params(key)),
        }
        times = {way: Times() for way in WAYS}
        for number, each in enumerate(keys.tolist()):
            key = each if question.has_key else None
            for way, run in ways.items():
                answer = self._timed(times[way], run, key, does_count=number >= WARM_UPS)
                if way == "arrow":
                    self.answers[question.sql, key] = answer
                elif way == "json" and number >= WARM_UPS:
                    times[way].told_ms.append(answer["elapsedMs"])
            self._progress.update(bar, advance=1, note=question.name)
        return {"name": question.name, "sql": question.sql, **_figures(times)}

    def _timed(self, times: Times, run: Callable[[int | None], Any], key: int | None, *, does_count: bool) -> Any:
        used, began = self._cpu_s(), time.perf_counter()
        answer = run(key)
        took = time.perf_counter() - began
        if does_count:
            times.ms.append(took * 1000)
            times.cpu_ms.append((self._cpu_s() - used) * 1000)
        return answer

    def _cpu_s(self) -> float:
        """Of all who work on an answer: this process, which has DuckDB, the server and the one that answers for it."""
        server = self._server.cpu_times()
        return time.process_time() + server.user + server.system + self._answerer.cpu_s()


def _params(key: int | None) -> list[int]:
    return [] if key is None else [key]


def _figures(times: dict[str, Times]) -> Json:
    theirs_ms = median(times["duckdb"].ms)
    found: Json = {}
    for way, each in times.items():
        found[way] = {
            "ms": round(median(each.ms), 2),
            "fastest_ms": round(min(each.ms), 2),
            "cpu_ms": round(sum(each.cpu_ms) / len(each.cpu_ms), 2),
        }
        if way != "duckdb":
            found[way]["ratio"] = round(median(each.ms) / theirs_ms, 2)
        if each.told_ms:
            found[way]["told_ms"] = median(each.told_ms)
    return found
