"""Does a table stay fast whose few rows change all the time, and what does keeping it so cost the stream?

Driven by `dolake bench hotkeys`. 100 keys get 1,000 updates a second in all (steady.py), first with upkeep, then on a
new server without; meanwhile checks.py counts files and reads the tables beside clean copies. At the end DuckDB reads
the tables, and they must equal what was sent. Promise: servers, Java and home are gone afterwards, also after Ctrl-C.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from benchmarks.checks import AFTER_JOB, AT_CHECK, Checker, Plan, condition
from benchmarks.jobs import jobs_of
from benchmarks.machine import Run, at_least, at_most, progress_bars, temporary_home, terminate_as_exit
from benchmarks.meter import Meter, memory_of, memory_over_time
from benchmarks.steady import Pace, run_steadily
from benchmarks.stream import KEY, KEY_FIRST, Json, Keys, Template, running_server
from dolake.cli.child import COMMAND, ChildServer
from tools.duckdb_client import duck_on

FLOOR_READ_RATIO = 2.0
FLOOR_READ_RATIO_AFTER_JOB = 1.3
FLOOR_MEMORY_RATIO = 1.15
FLOOR_FILES = 50
FLOOR_SLOWER = 1.2
FLOOR_INGEST = 0.8
PACKAGES = ("pyspark", "pyarrow", "duckdb")
TABLE = "hot"
TEMPLATES = 16
_STATES = ("new", "paid", "packed", "sent", "returned")


@dataclass(frozen=True, slots=True)
class Load:
    """How much of everything. The smoke test makes all of it small."""

    seconds: float = 600.0
    compare_seconds: float = 180.0
    """Length of the run without upkeep; none if 0."""
    warm_up_s: float = 10.0
    keys: int = 100
    rate_events_s: int = 1_000
    check_every_s: float = 30.0
    has_spark: bool = False
    snapshots_max: int = 1_000
    """That the table keeps: engines read the description of each of them before they read a row."""


def run_hotkeys_bench(
    load: Load | None = None, *, out: Path | None = None, home: Path | None = None, command: Sequence[str] = COMMAND
) -> dict[str, Any]:
    """Measure, and return the report; `out` also gets it as JSON. `home` is a folder on the disk to measure."""
    load = load or Load()
    figures: Json = {"load": asdict(load)}
    with temporary_home(home) as folder, terminate_as_exit(), progress_bars() as progress:
        run = Run("hotkeys", folder, PACKAGES)
        for name, seconds in (("with_upkeep", load.seconds), ("without_upkeep", load.compare_seconds)):
            has_upkeep = name == "with_upkeep"
            settings = f"[compaction]\nauto_compact = {str(has_upkeep).lower()}\n"
            settings += f"[maintenance]\nsnapshots_max = {load.snapshots_max}\n"
            figures[name] = None
            if seconds:
                with running_server(folder / name, settings=settings, command=command) as server:
                    figures[name] = _measure(load, seconds, server, folder, progress, has_upkeep=has_upkeep)
        return run.report(figures, _floors(figures), out)


def _measure(
    load: Load, seconds: float, server: ChildServer, folder: Path, progress: Progress, *, has_upkeep: bool
) -> Json:
    scratch = folder / "spark" if load.has_spark and has_upkeep else None
    checker = Checker(server, Plan([TABLE], "amount", load.check_every_s, has_upkeep, scratch))
    hot, meter = HotKeys("bench", load.keys), Meter(server.pid)
    pace = Pace(load.rate_events_s, load.keys, seconds, load.warm_up_s)
    figures = run_steadily(server, hot, pace, meter, progress, [checker])
    return {
        **figures,
        "memory_mb": memory_of(meter, figures["seconds"]),
        "own_memory_over_time_mb": memory_over_time(meter, figures["seconds"]),
        "looks": checker.looks,
        "reads": checker.reads,
        "jobs": jobs_of(server),
        "at_end": [condition(server, table) for table in (TABLE, f"{TABLE}__changes")],
        "book": _compare(server, hot),
    }


# --- what is promised ------------------------------------------------------------------------------------------------


def _floors(figures: Json) -> Iterator[Json]:
    ours, other = figures["with_upkeep"], figures["without_upkeep"]
    yield from read_floors(ours)
    yield from memory_floors(ours)
    for table in sorted({look["table"] for look in ours["looks"]}):
        live = max(look["data_files"] + look["delete_files"] for look in ours["looks"] if look["table"] == table)
        yield at_most(f"{table}: live data and delete files at any check", live, FLOOR_FILES)
    if other:
        for percent in ("p50_s", "p99_s"):
            slower = ours["ack_to_visible"][percent] / other["ack_to_visible"][percent]
            yield at_most(f"ack to visible: {percent[:-2]} / that without upkeep", round(slower, 2), FLOOR_SLOWER)
        ingest = ours["published_events_per_s"] / other["published_events_per_s"]
        yield at_least("published events/s / those without upkeep", round(ingest, 2), FLOOR_INGEST)
    yield at_most("jobs that failed", ours["jobs"]["totals"]["jobsFailed"], 0)
    wrong = sum(not run["book"]["right"] for run in (ours, other) if run)
    yield at_most("runs whose tables differ from what was sent", wrong, 0)


def read_floors(figures: Json) -> Iterator[Json]:
    """The longest of all reads, in times those of a clean copy."""
    for when, floor in ((AT_CHECK, FLOOR_READ_RATIO), (AFTER_JOB, FLOOR_READ_RATIO_AFTER_JOB)):
        reads = [read for read in figures["reads"] if read["when"] == when]
        for table in sorted({read["table"] for read in reads}):
            for engine in ("duckdb", "spark"):
                ratios = [read[engine]["ratio"] for read in reads if read["table"] == table and engine in read]
                if ratios:
                    yield at_most(f"{engine} reads {table} {when}, in times a clean copy", max(ratios), floor)


def memory_floors(figures: Json) -> Iterator[Json]:
    for kind, found in figures["memory_mb"].items():
        if kind != "client":  # which checks and reads
            yield at_most(f"own memory of {kind}, last / first part", found["ratio"], FLOOR_MEMORY_RATIO)


# --- what is sent ----------------------------------------------------------------------------------------------------


class HotKeys:
    """Batches that have one update of each key; `tick` rises with each."""

    tables: Sequence[str] = (TABLE,)
    mark_column = "tick"

    def __init__(self, source: str, keys: int) -> None:
        self._keys = keys
        self._templates = [Template(source, _updates(random.Random(seed), keys)) for seed in range(TEMPLATES)]
        self.batches = 0

    def next(self) -> tuple[Template, Keys]:
        self.batches += 1
        return self._last(), KEY_FIRST + np.arange((self.batches - 1) * self._keys, self.batches * self._keys)

    def marks(self, template: Template, keys: Keys) -> dict[str, int]:
        return {TABLE: int(keys[-1])}

    def _last(self) -> Template:
        return self._templates[self.batches % TEMPLATES]

    def book(self) -> tuple[int, float, int, int]:
        """Rows, their amounts and the highest tick of the state, and the number of changes."""
        amount = sum(change["after"]["amount"] for change in self._last().changes)
        changes = self.batches * self._keys
        return self._keys, amount, KEY_FIRST + changes - 1, changes


def _updates(chance: random.Random, keys: int) -> list[Json]:
    """Amounts are quarters, so that their sums are exact in any order."""
    return [
        {
            "operation": "UPDATE",
            "table": TABLE,
            "rowId": f"key-{key}",
            "after": {
                "name": f"key-{key}",
                "tick": KEY,
                "amount": chance.randrange(1, 40_000) * 0.25,
                "quantity": chance.randrange(1, 100),
                "status": chance.choice(_STATES),
                "note": f"seen {KEY} times",
            },
        }
        for key in chance.sample(range(keys), keys)
    ]


def _compare(server: ChildServer, hot: HotKeys) -> Json:
    with duck_on(server.url) as duck:
        state = duck.execute(f"SELECT count(*), sum(amount), max(tick) FROM lake.default.{TABLE}").fetchone()  # noqa: S608
        changes = duck.execute(f"SELECT count(*) FROM lake.default.{TABLE}__changes").fetchone()  # noqa: S608
    assert state is not None
    assert changes is not None
    found = (*state, *changes)
    return {"found": list(found), "wanted": list(hot.book()), "right": found == hot.book()}
