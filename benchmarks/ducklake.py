"""Tiny batches, and changes that must be visible one by one: our SQL beside DuckLake, in turns.

From live.py. Tiny batches go into an empty table, each when the one before is durable; then nine aggregates are asked
at once. Batches of updates and deletes go into a large table, and after each we ask until it is seen. Ours are sent by
our client and asked over HTTP; DuckLake works in this process on Arrow tables, with its catalog in SQLite. Promise:
counts and sums are compared with what was sent, and DuckLake's answers with ours.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from statistics import median
from typing import Any, Protocol
from urllib.error import HTTPError

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.progress import Progress

from benchmarks.asking import Asker
from benchmarks.contenders import attach_ducklake, change_of, insert_of, merge_into_ducklake, split
from benchmarks.load import LoadError
from benchmarks.meter import Meter
from benchmarks.stream import Json, ask
from benchmarks.workload import (
    AGGREGATES,
    Totals,
    as_dicts,
    batch_file,
    inserts_file,
    tiny_batches,
    updated_by,
    write_workload,
)
from dolake.cli.child import ChildServer
from dolake.client import LakeClient
from dolake.tables.layout import CHANGES_SUFFIX

TABLE = "large"
TINY_ROWS = 10
LOOKS = 10
"""How often it is asked, among the tiny batches, how many rows there are."""
_INSERT_ROWS = 10_000
_SEEN_TIME_MAX_S = 60.0

Work = Callable[[], None]
"""Brings a batch in; durable on return."""
Rows = list[tuple[Any, ...]]


class Lake(Protocol):
    """One of the two."""

    name: str

    def create(self, table: str, schema: pa.Schema) -> None:
        """Where that is done beforehand."""

    def inserting(self, table: str, rows: pa.Table) -> Work: ...

    def changing(self, table: str, batch: pa.Table) -> Work: ...

    def fill(self, table: str, file: Path) -> None:
        """Insert all rows of a Parquet file, and come to rest."""

    def ask(self, sql: str) -> Rows:
        """The answer's values as JSON has them, but whole numbers as such."""

    def rest(self) -> None:
        """Until nothing of it is at work any more."""

    def commits(self, table: str) -> int:
        """So far."""

    def cpu_s(self, meter: Meter) -> float:
        """Used by all that is its own, with the client that sends."""


class Ours:
    """A server with its pipeline, our client, and questions over HTTP."""

    name = "dolake"

    def __init__(self, server: ChildServer, runner: asyncio.Runner, client: LakeClient, asker: Asker) -> None:
        self._server, self._runner, self._client, self._asker = server, runner, client, asker

    def create(self, table: str, schema: pa.Schema) -> None:
        """Tables come with their first row."""

    def inserting(self, table: str, rows: pa.Table) -> Work:
        changes = [insert_of(row, table) for row in as_dicts(rows)]
        return lambda: self._send(changes)

    def changing(self, table: str, batch: pa.Table) -> Work:
        changes = [change_of(row, table) for row in as_dicts(batch)]
        return lambda: self._send(changes)

    def fill(self, table: str, file: Path) -> None:
        batches = pq.ParquetFile(file).iter_batches(_INSERT_ROWS)
        tables = (pa.Table.from_batches([batch]) for batch in batches)
        self._send(insert_of(row, table) for rows in tables for row in as_dicts(rows))
        self.rest()

    def _send(self, changes: Any) -> None:
        self._runner.run(self._client.send(changes))

    def ask(self, sql: str) -> Rows:
        answer = self._asker.json(sql)
        is_huge = [column["type"] == "HUGEINT" for column in answer["columns"]]
        return [
            tuple(int(value) if huge else value for value, huge in zip(row.values(), is_huge, strict=True))
            for row in answer["rows"]
        ]

    def rest(self) -> None:
        """Published, so that what is measured next has the machine for itself."""
        ask(self._server, "/flush", "POST")

    def commits(self, table: str) -> int:
        """Snapshots of the state table and of its changes."""
        try:
            metadata = [
                ask(self._server, f"/v1/namespaces/default/tables/{each}")["metadata"]
                for each in (table, table + CHANGES_SUFFIX)
            ]
        except HTTPError as error:
            with error:
                if error.code != HTTPStatus.NOT_FOUND:
                    raise
            return 0
        return sum(len(each["snapshots"]) for each in metadata)

    def cpu_s(self, meter: Meter) -> float:
        return sum(meter.cpu_s().values())


class DuckLake:
    """DuckDB with a lake of its own format; a batch is one transaction."""

    name = "ducklake"

    def __init__(self, home: Path) -> None:
        (home / "data").mkdir(parents=True)
        self._duck = duckdb.connect()
        attach_ducklake(self._duck, home)

    def create(self, table: str, schema: pa.Schema) -> None:
        self._duck.register("like_this", schema.empty_table())
        self._duck.execute(f"CREATE TABLE {table} AS FROM like_this")

    def inserting(self, table: str, rows: pa.Table) -> Work:
        def insert() -> None:
            self._duck.register("rows", rows)
            self._duck.execute(f"INSERT INTO {table} FROM rows")

        return insert

    def changing(self, table: str, batch: pa.Table) -> Work:
        updates, deletes = split(batch)
        return lambda: merge_into_ducklake(self._duck, table, updates, deletes)

    def fill(self, table: str, file: Path) -> None:
        self.create(table, pq.read_schema(file))
        self.inserting(table, pq.read_table(file))()

    def ask(self, sql: str) -> Rows:
        return [tuple(map(_as_json, row)) for row in self._duck.execute(sql).fetchall()]

    def rest(self) -> None:
        """It does nothing unasked."""

    def commits(self, table: str) -> int:
        """Of the whole lake."""
        (count,) = self._duck.execute("SELECT count(*) FROM ducklake_snapshots('lake')").fetchone() or (0,)
        return int(count)

    def cpu_s(self, meter: Meter) -> float:
        return meter.cpu_s()["client"]

    def close(self) -> None:
        self._duck.close()


def _as_json(value: Any) -> Any:
    return f"{value.isoformat(timespec='microseconds')}Z" if isinstance(value, datetime) else value


# --- tiny batches, then nine aggregates ------------------------------------------------------------------------------


def compare_tiny_batches(
    lakes: Sequence[Lake], count: int, rounds: int, meter: Meter, progress: Progress
) -> dict[str, Json]:
    """In each round a new table for each of them, one after the other."""
    batches = tiny_batches(count, TINY_ROWS)
    bar = progress.add_task(f"{count:,} batches of {TINY_ROWS} rows", total=rounds * len(lakes), note="")
    found: dict[str, list[Json]] = {lake.name: [] for lake in lakes}
    for number in range(rounds):
        answers = []
        for lake in lakes:
            measured, aggregates = _tiny_round(lake, f"tiny_{number}", batches, meter)
            found[lake.name].append(measured)
            answers.append(aggregates)
            note = f"{lake.name}: {measured['wall_s']} s, aggregates {measured['aggregates_s']} s"
            progress.update(bar, advance=1, note=note)
        for lake in lakes[1:]:
            found[lake.name][-1]["same_answers"] = all(answer == answers[0] for answer in answers)
    return {name: _tiny_figures(each) for name, each in found.items()}


def _tiny_round(lake: Lake, table: str, batches: Sequence[pa.Table], meter: Meter) -> tuple[Json, list[Rows]]:
    lake.create(table, batches[0].schema)
    works = [lake.inserting(table, batch) for batch in batches]
    look_every = -(-len(works) // LOOKS)
    commits = lake.commits(table)
    times_s, wrong = list[float](), 0
    meter.restart()
    began = time.perf_counter()
    for number, work in enumerate(works, 1):
        started = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - started)
        if number % look_every == 0 or number == len(works):
            wrong += lake.ask(f"SELECT count(*) FROM {table}") != [(number * TINY_ROWS,)]  # noqa: S608 - our own name
    wall_s, cpu_s = time.perf_counter() - began, lake.cpu_s(meter)
    aggregates_s, answers = _nine(lake, table)
    lake.rest()
    return {
        "wall_s": round(wall_s, 3),
        "cpu_s": round(cpu_s, 2),
        "batch_ms": _percentiles_ms(times_s),
        "aggregates_s": round(sum(aggregates_s), 4),
        "each_aggregate_ms": [round(each * 1000, 2) for each in aggregates_s],
        "commits": lake.commits(table) - commits,
        "wrong": wrong,
    }, answers


def _nine(lake: Lake, table: str) -> tuple[list[float], list[Rows]]:
    times_s, answers = [], []
    for sql in AGGREGATES:
        began = time.perf_counter()
        answer = lake.ask(sql.format(table=table))
        times_s.append(time.perf_counter() - began)
        answers.append(sorted(answer))
    return times_s, answers


def _tiny_figures(rounds: list[Json]) -> Json:
    return {
        "wall_s": round(median(each["wall_s"] for each in rounds), 3),
        "aggregates_s": round(median(each["aggregates_s"] for each in rounds), 4),
        "commits": max(each["commits"] for each in rounds),
        "wrong": sum(each["wrong"] for each in rounds),
        "rounds": rounds,
    }


# --- changes that must be visible ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Seen:
    """How long a batch took, and how often we looked for it."""

    durable_s: float
    visible_s: float
    looks: int


def compare_changes(
    lakes: Sequence[Lake], folder: Path, rows: int, batches: int, meter: Meter, progress: Progress
) -> dict[str, Json]:
    """Batches of updates and deletes: each is brought into one of them and seen there, then into the next."""
    workload = write_workload(folder, events=rows, batches=batches)
    bar = progress.add_task(f"{batches} batches of changes", total=batches, note=f"{rows:,} rows")
    for lake in lakes:
        lake.fill(TABLE, inserts_file(folder))
    seen: dict[str, list[_Seen]] = {lake.name: [] for lake in lakes}
    wrong = dict.fromkeys(seen, 0)
    meter.restart()
    for number in range(batches):
        batch = pq.read_table(batch_file(folder, number))
        for lake in lakes:
            seen[lake.name].append(_see(lake, lake.changing(TABLE, batch), updated_by(number)))
            wrong[lake.name] += not _is_right(lake, workload.expected[number + 1])
        progress.update(bar, advance=1, note=", ".join(_last_words(name, each) for name, each in seen.items()))
    nine = {lake.name: _nine(lake, TABLE) for lake in lakes}
    return {
        lake.name: {
            "durable_ms": _percentiles_ms([each.durable_s for each in seen[lake.name]]),
            "visible_after_ack_ms": _percentiles_ms([each.visible_s - each.durable_s for each in seen[lake.name]]),
            "visible_after_send_ms": _percentiles_ms([each.visible_s for each in seen[lake.name]]),
            "seen_at_first_look": sum(each.looks == 1 for each in seen[lake.name]),
            "batches": batches,
            "wrong": wrong[lake.name],
            "aggregates_s": round(sum(nine[lake.name][0]), 4),
            "same_answers": nine[lake.name][1] == nine[lakes[0].name][1],
        }
        for lake in lakes
    }


def _see(lake: Lake, work: Work, mark: str) -> _Seen:
    """Bring it in, and ask until the newest row is one of it."""
    sql = f"SELECT max(updated) FROM {TABLE}"  # noqa: S608 - our own name
    began = time.perf_counter()
    work()
    durable_s, looks = time.perf_counter() - began, 1
    while lake.ask(sql)[0][0] < mark:
        looks += 1
        if time.perf_counter() - began > _SEEN_TIME_MAX_S:
            raise LoadError(f"{lake.name} did not show a batch within {_SEEN_TIME_MAX_S:.0f} s")
    return _Seen(durable_s, time.perf_counter() - began, looks)


def _is_right(lake: Lake, expected: Totals) -> bool:
    found = lake.ask(f"SELECT count(*), sum(amount), sum(qty) FROM {TABLE}")  # noqa: S608 - our own name
    return found == [(expected.count, expected.amount, expected.qty)]


def _last_words(name: str, seen: Sequence[_Seen]) -> str:
    return f"{name} {seen[-1].visible_s * 1000:.0f} ms"


def _percentiles_ms(times_s: Sequence[float]) -> Json:
    times_ms = np.array(times_s) * 1000
    found = {f"p{percent}": round(float(np.percentile(times_ms, percent)), 2) for percent in (50, 95, 99)}
    return {**found, "max": round(float(times_ms.max()), 2)}
