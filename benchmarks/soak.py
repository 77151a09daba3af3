"""Does the lake stay as it is for half an hour of mixed changes, and is everything in it right at the end?

Driven by `dolake bench soak`, as `make soak` does. A shop with five tables sends at a steady pace (steady.py) while
upkeep compacts, expires and removes, all of it many times in a run; checks.py counts files and reads the tables beside
clean copies. In the end DuckDB compares the tables with the shop's books, and `dolake verify` everything with
everything. Promise: server and home are gone afterwards, also after Ctrl-C.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.progress import Progress

from benchmarks.books import compare_books
from benchmarks.checks import Checker, Plan, condition
from benchmarks.hotkeys import memory_floors, read_floors
from benchmarks.jobs import jobs_of
from benchmarks.machine import Run, at_least, at_most, progress_bars, temporary_home, terminate_as_exit
from benchmarks.meter import Meter, memory_of, memory_over_time
from benchmarks.plot import Panel, Points, write_svg
from benchmarks.shop import COLUMNS, Shop
from benchmarks.steady import Pace, run_steadily
from benchmarks.stream import Json, key_index_of, running_server
from dolake.cli.child import COMMAND, ChildServer

FLOOR_FILES = 100
FLOOR_METADATA_BYTES = 2_000_000
FLOOR_INGEST = 0.98
PACKAGES = ("pyspark", "pyarrow", "duckdb")
TABLES = ("orders", "items", "payments", "visits", "parcels")
# A look at all tables often, few snapshots and no patience: in half an hour all that upkeep does happens many times.
SETTINGS = """\
[compaction]
compaction_interval_ms = {look_every_ms}
[maintenance]
snapshots_max = {snapshots_max}
gc_grace_ms = {gc_grace_ms}
"""
_VERIFY_TIME_MAX_S = 1_800.0
_DOLAKE = (sys.executable, "-m", "dolake.cli")
_LAST_WORDS = 2_000


@dataclass(frozen=True, slots=True)
class Load:
    """How much of everything. The smoke test makes all of it small."""

    seconds: float = 1_800.0
    warm_up_s: float = 20.0
    rate_events_s: int = 5_000
    batch_events: int = 250
    check_every_s: float = 60.0
    look_every_ms: int = 30_000
    snapshots_max: int = 100
    gc_grace_ms: int = 30_000
    has_spark: bool = False


def run_soak_bench(
    load: Load | None = None,
    *,
    out: Path | None = None,
    plot: Path | None = None,
    home: Path | None = None,
    command: Sequence[str] = COMMAND,
) -> dict[str, Any]:
    """Measure, and return the report; `out` also gets it as JSON, `plot` a picture of it as SVG."""
    load = load or Load()
    settings = SETTINGS.format(**asdict(load))
    with temporary_home(home) as folder, terminate_as_exit(), progress_bars() as progress:
        run = Run("soak", folder, PACKAGES)
        with running_server(folder / "home", settings=settings, command=command) as server:
            figures = _measure(load, server, folder, progress)
        figures["verify"] = _verify(folder / "home", progress)
        if plot:
            _plot(plot, load, figures)
        return run.report(figures, _floors(load, figures), out)


def _measure(load: Load, server: ChildServer, folder: Path, progress: Progress) -> Json:
    shop = Shop("bench", batch_events=load.batch_events, tables=TABLES)
    scratch = folder / "spark" if load.has_spark else None
    checker = Checker(server, Plan(TABLES, "amount", load.check_every_s, spark_scratch=scratch))
    meter = Meter(server.pid)
    pace = Pace(load.rate_events_s, load.batch_events, load.seconds, load.warm_up_s)
    figures = run_steadily(server, shop, pace, meter, progress, [checker])
    return {
        "load": {**asdict(load), "columns": COLUMNS, "tables": len(TABLES)},
        **figures,
        "memory_mb": memory_of(meter, figures["seconds"]),
        "own_memory_over_time_mb": memory_over_time(meter, figures["seconds"]),
        "looks": checker.looks,
        "reads": checker.reads,
        "jobs": jobs_of(server),
        "at_end": [condition(server, name) for table in TABLES for name in (table, f"{table}__changes")],
        "key_index": key_index_of(server),
        "books": compare_books(server, shop),
    }


def _verify(home: Path, progress: Progress) -> Json:
    """What `dolake verify` says of the home, whose server has ended."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("DOLAKE_")}
    if subprocess.run([*_DOLAKE, "verify", "--help"], env=environ, capture_output=True, check=False).returncode:
        return {"ran": False, "note": "this release has no `dolake verify`"}
    bar = progress.add_task("dolake verify", total=1, note="")
    command = [*_DOLAKE, "verify", "--home", str(home), "--json"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_VERIFY_TIME_MAX_S, check=False)
    progress.advance(bar)
    try:
        said = json.loads(done.stdout)
    except ValueError:
        said = (done.stdout + done.stderr)[-_LAST_WORDS:]
    return {"ran": True, "exit_code": done.returncode, "report": said}


# --- what is promised ------------------------------------------------------------------------------------------------


def _floors(load: Load, figures: Json) -> Iterator[Json]:
    yield at_least("published events/s", figures["published_events_per_s"], round(load.rate_events_s * FLOOR_INGEST))
    yield from read_floors(figures)
    yield from memory_floors(figures)
    looks = [*figures["looks"], *figures["at_end"]]
    live = max(look["data_files"] + look["delete_files"] for look in looks)
    yield at_most("live data and delete files of any table at any check", live, FLOOR_FILES)
    largest = max(look["metadata_file_bytes"] for look in looks)
    yield at_most("bytes of any metadata file at any check", largest, FLOOR_METADATA_BYTES)
    snapshots = max(look["snapshots"] for look in figures["at_end"])
    yield at_most("snapshots of any table at the end", snapshots, 2 * load.snapshots_max)
    totals = figures["jobs"]["totals"]
    yield at_least("snapshots that expired", totals["snapshotsExpired"], 1)
    yield at_least("files that were removed", totals["filesRemoved"], 1)
    yield at_most("jobs that failed", totals["jobsFailed"], 0)
    wrong = sum(not book["right"] for book in figures["books"].values())
    yield at_most("tables that differ from the books", wrong, 0)
    if figures["verify"]["ran"]:
        yield at_most("exit code of dolake verify", figures["verify"]["exit_code"], 0)


# --- the picture -----------------------------------------------------------------------------------------------------


def _plot(path: Path, load: Load, figures: Json) -> None:
    looks = figures["looks"]

    def over_time(*keys: str, per: float = 1.0) -> dict[str, Points]:
        tables = sorted({look["table"] for look in looks})
        state, changes = ([name for name in tables if name.endswith("__changes") == is_it] for is_it in (False, True))
        return {
            f"{kind}: {key.replace('_', ' ')}": _summed(looks, names, key, per)
            for kind, names in (("state", state), ("changes", changes))
            for key in keys
        }

    memory = figures["own_memory_over_time_mb"]
    kinds = [kind for kind in memory[-1] if kind not in ("until_s", "client")]
    panels = [
        Panel("live files, all tables", over_time("data_files", "delete_files")),
        Panel("files on disk, all tables", over_time("files_on_disk")),
        Panel("metadata on disk, MB, all tables", over_time("metadata_folder_bytes", "metadata_file_bytes", per=1e6)),
        Panel("snapshots, all tables", over_time("snapshots")),
        Panel("own memory, MB", {kind: [(part["until_s"], part.get(kind, 0)) for part in memory] for kind in kinds}),
        Panel("DuckDB's read in times a clean copy", _ratios(figures["reads"])),
    ]
    title = f"{load.rate_events_s:,} events/s over {len(TABLES)} tables with upkeep"
    write_svg(path, title, panels)


def _summed(looks: Sequence[Json], tables: Sequence[str], key: str, per: float) -> Points:
    sums: dict[float, float] = {}
    for look in looks:
        if look["table"] in tables:
            sums[look["at_s"]] = sums.get(look["at_s"], 0) + look[key] / per
    return sorted(sums.items())


def _ratios(reads: Sequence[Json]) -> dict[str, Points]:
    found: dict[str, list[tuple[float, float]]] = {}
    for read in reads:
        kind = "changes" if read["table"].endswith("__changes") else "state"
        found.setdefault(f"{kind} {read['when']}", []).append((read["at_s"], read["duckdb"]["ratio"]))
    return dict(sorted(found.items()))
