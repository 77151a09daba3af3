"""What do 10,000 random updates cost in a table of 1M and of 10M rows, beside Spark's MERGE INTO on the same data?

Driven by `dolake bench upsert`. A real server with its pipeline has the tables; Spark has a copy of each, merge-on-read
in the same catalog, made from what we published. Then both take turns with the same updates, so that a busy machine
slows both: ours is the publish of these changes into state and changes tables, as the pipeline reports it, Spark's is
the statement. Promise: servers, Java and home are gone afterwards, also after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import uvloop
from pyspark.sql import SparkSession
from rich.progress import Progress

from benchmarks.engines import spark_on
from benchmarks.jobs import run_job
from benchmarks.machine import Run, at_least, at_most, progress_bars, temporary_home
from benchmarks.meter import Meter
from benchmarks.stream import (
    BATCH_EVENTS,
    KEY,
    KEY_FIRST,
    Json,
    Keys,
    Sender,
    Template,
    ask,
    key_index_of,
    last_publish,
    running_server,
)
from dolake.cli.child import COMMAND, ChildServer
from tools.duckdb_client import duck_on

FLOOR_TIMES_FASTER = 8.0
FLOOR_GROWTH = 1.3
PACKAGES = ("pyspark", "pyarrow", "duckdb")
COLUMNS = 12
LOAD_TEMPLATES = 16
LOAD_LAG_MAX_EVENTS = 1_000_000
# Publishes of half a million rows leave data files of the size that a compaction aims at, and not hundreds of small
# ones; nothing is published on its own while a round is sent, so that a round is one publish.
SETTINGS = """\
flush_threshold_events = 500_000
flush_threshold_bytes = 1_000_000_000
flush_threshold_ms = 3_600_000
flush_interval_ms = 3_600_000
freshness_target_ms = 3_600_000
pipeline_batch_events_max = 500_000
pipeline_batch_bytes_max = 1_000_000_000
"""
_REGIONS = ("eu-west", "eu-east", "us-west", "us-east", "ap-south", "ap-north", "sa-east", "af-south")
_STATES = ("new", "paid", "packed", "sent", "done", "returned")
_CHANNELS = ("web", "app", "shop", "phone")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 "


@dataclass(frozen=True, slots=True)
class Load:
    """How much of everything. The smoke test makes all of it small."""

    rows: Sequence[int] = (1_000_000, 10_000_000)
    updates: int = 10_000
    rounds: int = 5
    warm_ups: int = 2


def run_upsert_bench(
    load: Load | None = None, *, out: Path | None = None, home: Path | None = None, command: Sequence[str] = COMMAND
) -> dict[str, Any]:
    """Measure, and return the report; `out` also gets it as JSON. `home` is a folder on the disk to measure."""
    load = load or Load()
    with temporary_home(home) as folder, progress_bars() as progress:
        run = Run("upsert", folder, PACKAGES)
        with running_server(folder / "home", settings=SETTINGS, command=command) as server:
            figures = _Bench(load, folder, server, progress).run()
        return run.report(figures, _floors(figures), out)


def _floors(figures: Json) -> Iterator[Json]:
    small, large = figures["tables"][0], figures["tables"][-1]
    name = f"{large['rows']:,} rows: times faster than MERGE INTO"
    yield at_least(name, large["times_faster"], FLOOR_TIMES_FASTER)
    growth = round(large["ours"]["publish_ms"] / small["ours"]["publish_ms"], 2)
    yield at_most(f"publish into {large['rows']:,} rows / into {small['rows']:,}", growth, FLOOR_GROWTH)
    yield at_most("tables with a wrong row", sum(not table["right"] for table in figures["tables"]), 0)


@dataclass(slots=True)
class Table:
    """One table, in both lakes, and what each round took."""

    rows: int
    loaded: Json = field(default_factory=dict)
    data_files: list[int] = field(default_factory=list)
    """Ours and the copy's, before the first update."""
    ours: list[Json] = field(default_factory=list)
    theirs: list[Json] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"orders_{self.rows}"

    @property
    def state(self) -> str:
        return f"lake.default.{self.name}"

    @property
    def copy(self) -> str:
        return f"lake.peer.{self.name}"


class _Bench:
    def __init__(self, load: Load, folder: Path, server: ChildServer, progress: Progress) -> None:
        self._load, self._folder, self._server, self._progress = load, folder, server, progress
        self._chance = np.random.default_rng(1)
        self._meter = Meter(server.pid)

    def run(self) -> Json:
        tables = [Table(rows) for rows in self._load.rows]
        with self._meter.watching(), spark_on(self._server.url, self._folder / "spark") as (spark, java):
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                for table in tables:
                    table.loaded = runner.run(self._insert(table))
                    self._copy(spark, table)
                theirs = Meter(java, root="java")
                rounds = self._load.warm_ups + self._load.rounds
                bar = self._progress.add_task("rounds", total=rounds * len(tables), note="")
                for number in range(rounds):
                    for table in tables:
                        changes = changes_of("UPDATE", table.name, self._load.updates, number)
                        keys = KEY_FIRST + self._chance.choice(table.rows, self._load.updates, replace=False)
                        ours = runner.run(self._publish(f"update-{table.rows}-{number}", changes, keys))
                        merge = self._merge(spark, theirs, table, rows_of(changes, keys))
                        if number >= self._load.warm_ups:
                            table.ours.append(ours)
                            table.theirs.append(merge)
                        note = f"{table.rows:,} rows: {ours['publish_ms']:,} ms, MERGE {merge['ms']:,} ms"
                        self._progress.update(bar, advance=1, note=note)
            are_right = [self._is_right(table) for table in tables]
        return {
            "load": {**asdict(self._load), "columns": COLUMNS, "settings": SETTINGS.splitlines()},
            "tables": [_figures(*each) for each in zip(tables, are_right, strict=True)],
            "key_index": key_index_of(self._server),
        }

    async def _insert(self, table: Table) -> Json:
        """Load the table through the server, as any source would."""
        self._meter.restart()
        keys = np.arange(KEY_FIRST, KEY_FIRST + table.rows)
        await send_changes(self._server, "INSERT", table.name, keys, f"load-{table.rows}", self._progress)
        seconds = self._meter.seconds
        await asyncio.to_thread(run_job, self._server, table=table.name)  # as the table is a little later by itself
        return {
            "seconds": round(seconds, 1),
            "rows_per_s": round(table.rows / seconds),
            "cpu_s": self._meter.cpu_s(),
            "key_index": key_index_of(self._server, table.name),
            "memory_mb": self._meter.memory_mb(seconds / 2),
        }

    def _copy(self, spark: SparkSession, table: Table) -> None:
        bar = self._progress.add_task(f"copy of {table.rows:,} rows", total=1, note="")
        spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.peer")
        modes = ", ".join(f"'write.{verb}.mode' = 'merge-on-read'" for verb in ("merge", "update", "delete"))
        properties = f"'format-version' = '2', {modes}"
        columns = ", ".join(_row(random.Random(0)))
        rows = f"SELECT {columns} FROM {table.state}"  # noqa: S608 - our own names
        spark.sql(f"CREATE TABLE {table.copy} USING iceberg TBLPROPERTIES ({properties}) AS {rows}")
        for name in (table.state, table.copy):
            (count,) = spark.sql(f"SELECT count(*) FROM {name}.data_files").first() or (0,)  # noqa: S608 - our own names
            table.data_files.append(count)
        self._progress.update(bar, completed=1)

    async def _publish(self, source: str, changes: list[Json], keys: Keys) -> Json:
        """Send the updates, and have them published at once."""
        parts = [slice(first, first + BATCH_EVENTS) for first in range(0, len(keys), BATCH_EVENTS)]
        batches = [(Template(source, changes[part]), keys[part]) for part in parts]
        self._meter.restart()
        async with Sender(self._server.url, source) as sender:
            for batch in batches:
                await sender.send(*batch)
            await sender.settle()
            sent_s = self._meter.seconds
            answer = await asyncio.to_thread(ask, self._server, "/flush", "POST")
        seconds = self._meter.seconds
        assert answer["eventsFlushed"] == len(keys), "a round is one publish"
        last = await asyncio.to_thread(last_publish, self._server)
        return {
            "publish_ms": last["tookMs"],
            "steps_ms": last["stepsMs"],
            "send_ms": round(sent_s * 1000),
            "client_to_visible_ms": round(seconds * 1000),
            "cpu_s": self._meter.cpu_s(),
            "memory_mb": self._meter.memory_mb(),
        }

    def _merge(self, spark: SparkSession, meter: Meter, table: Table, updates: pa.Table) -> Json:
        file = self._folder / "updates.parquet"
        pq.write_table(updates, file)
        source = f"(SELECT * FROM parquet.`{file}`) AS new ON old.id = new.id"  # noqa: S608 - our own names
        action = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        meter.restart()
        began = time.perf_counter()
        spark.sql(f"MERGE INTO {table.copy} AS old USING {source} {action}")
        milliseconds = round((time.perf_counter() - began) * 1000)
        return {"ms": milliseconds, "cpu_s": meter.cpu_s(), "memory_mb": meter.memory_mb()}

    def _is_right(self, table: Table) -> bool:
        """Whether both lakes have the same rows, as DuckDB reads them."""
        sums = "count(*), sum(id), sum(amount), sum(qty), sum(hash(note)), max(epoch_us(updated))"
        with duck_on(self._server.url) as duck:
            found = [duck.execute(f"SELECT {sums} FROM {each}").fetchone() for each in (table.state, table.copy)]  # noqa: S608
        assert found[0] is not None
        return found[0] == found[1] and found[0][0] == table.rows


def _figures(table: Table, is_right: bool) -> Json:
    ours_ms, merge_ms = (median(each["publish_ms"] for each in table.ours), median(each["ms"] for each in table.theirs))
    return {
        "rows": table.rows,
        "loaded": table.loaded,
        "times_faster": round(merge_ms / ours_ms, 1),
        "ours": {
            "data_files": table.data_files[0],
            "publish_ms": ours_ms,
            "client_to_visible_ms": median(each["client_to_visible_ms"] for each in table.ours),
            "steps_ms": _medians([each["steps_ms"] for each in table.ours]),
            "cpu_s": _medians([each["cpu_s"] for each in table.ours]),
            "memory_mb": _medians([each["memory_mb"] for each in table.ours]),
            "publishes_ms": [each["publish_ms"] for each in table.ours],
        },
        "merge": {
            "data_files": table.data_files[1],
            "ms": merge_ms,
            "cpu_s": _medians([each["cpu_s"] for each in table.theirs]),
            "memory_mb": _medians([each["memory_mb"] for each in table.theirs]),
            "merges_ms": [each["ms"] for each in table.theirs],
        },
        "right": is_right,
    }


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    names = sorted({name for each in rounds for name in each})
    return {name: round(median(each.get(name, 0) for each in rounds), 2) for name in names}


# --- the rows --------------------------------------------------------------------------------------------------------


async def send_changes(
    server: ChildServer,
    operation: str,
    table: str,
    keys: Keys,
    source: str,
    progress: Progress,
    *,
    is_published: bool = True,
) -> None:
    """A change of each key, in batches of 1,000 if there are as many; all of them published on return, or durable."""
    size = min(BATCH_EVENTS, len(keys))
    templates = [Template(source, changes_of(operation, table, size, seed)) for seed in range(LOAD_TEMPLATES)]
    bar = progress.add_task(f"{len(keys):,} x {operation} {table}", total=len(keys), note="")
    async with Sender(server.url, source, lag_max_events=LOAD_LAG_MAX_EVENTS) as sender:
        for first, template in zip(range(0, len(keys), size), cycle(templates), strict=False):
            part = keys[first : first + size]
            whole = template if len(part) == size else Template(source, template.changes[: len(part)])
            await sender.send(whole, part)
            progress.update(bar, completed=sender.published if is_published else sender.acked)
        await sender.settle()
        if is_published:
            await asyncio.to_thread(ask, server, "/flush", "POST")
            await sender.settle(is_published=True)
        progress.update(bar, completed=len(keys))


def changes_of(operation: str, table: str, count: int, seed: int = 0) -> list[Json]:
    """Changes whose keys are filled in later, with the images that a database sends."""
    chance = random.Random(f"{operation} {seed}")
    head = {"operation": operation, "table": table, "rowId": str(KEY)}
    images = {"UPDATE": ("before", "after"), "INSERT": ("after",)}[operation]
    return [{**head, **{image: _row(chance, 1 + seed) for image in images}} for _ in range(count)]


def _row(chance: random.Random, day: int = 1) -> Json:
    """Twelve columns. Amounts are quarters, so that their sums are exact in any order."""
    return {
        "id": KEY,
        "customer": f"cust-{chance.randrange(50_000)}",
        "region": chance.choice(_REGIONS),
        "status": chance.choice(_STATES),
        "amount": chance.randrange(1, 40_000) * 0.25,
        "qty": chance.randrange(1, 20),
        "sku": f"sku-{chance.randrange(5_000)}",
        "note": "".join(chance.choices(_ALPHABET, k=30)) + str(KEY),
        "channel": chance.choice(_CHANNELS),
        "discount": chance.randrange(40) * 0.25,
        "created": f"2026-01-01T10:{chance.randrange(10, 60)}:{chance.randrange(10, 60)}.250Z",
        "updated": f"2026-02-{10 + day % 18}T00:00:00.000Z",
    }


def rows_of(changes: list[Json], keys: Keys) -> pa.Table:
    """The rows of these changes as Spark's source reads them."""
    rows = [
        {**change["after"], "id": key, "note": change["after"]["note"].replace(str(KEY), str(key))}
        for change, key in zip(changes, keys.tolist(), strict=True)
    ]
    table = pa.Table.from_pylist(rows)
    for name in ("created", "updated"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table[name].cast(pa.timestamp("us", "UTC")))
    return table
