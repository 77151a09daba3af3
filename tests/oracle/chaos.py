"""`make chaos`: every crash many times over, each on a lake that goes on through all of them; and a table of results.

    python -m tests.oracle.chaos --runs 10 --minutes 120
    python -m tests.oracle.chaos --warehouse s3 --catalog postgres

Writes docs/explain/chaos.md, with another warehouse or catalog a page of its own beside it. The exit code is 1 when
something differed or there was no time for all runs. The home of a lake with a difference is kept for whoever wants to
look, and the next run begins a new one.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.oracle.backends import Machines, is_other_store
from tests.oracle.changes import TABLES
from tests.oracle.driver import PIPELINE_POINTS, SERVER_POINTS, Lake, Trouble
from tests.oracle.troubles import CrashAt, CutDatabase, KillInUpload, KillPipeline, KillServer, LoseAnswers

PAGE = Path(__file__).parents[2] / "docs" / "explain" / "chaos.md"

_MEANINGS = {
    "before_staging": "the pipeline, before it writes a file",
    "staged": "the pipeline, when all files are written and no table names them",
    "before_publish": "the pipeline, before it sends the publish",
    "publish_unanswered": "the server, when the publish is made and not answered",
    "published": "the pipeline, when the publish is answered and its key index not stored",
    "before_ack": "the server, before it tells senders `persisted`",
    "before_trim": "the server, before it lets go of the published part of the journal",
    "rewritten": "the pipeline, when a compaction has written its files",
    "before_rewrite": "the pipeline, before a compaction lands",
    "landed": "the pipeline, when a compaction has landed and the key index does not know it",
    "expired": "the pipeline, when snapshots have expired",
    "collected": "the pipeline, when files that nothing names are gone and its list of them still has them",
    "pipeline killed": "the pipeline, by `kill -9` at a random moment",
    "server killed": "the server, by `kill -9` at a random moment",
    "upload cut": "the pipeline, by `kill -9` while it uploads a data file",
    "metadata cut": "the server, by `kill -9` while it uploads a table's metadata",
    "answers lost": "nobody: the store does not confirm a fifth of the writes, and sends a fifth of the files half",
    "connections cut": "nobody: the database ends the server's connections again and again",
}


_TROUBLES: dict[str, Callable[[Lake], Trouble]] = {
    **{point: partial(CrashAt, point=point) for point in (*PIPELINE_POINTS, *SERVER_POINTS)},
    "pipeline killed": KillPipeline,
    "server killed": KillServer,
}
_OF_A_STORE: dict[str, Callable[[Lake], Trouble]] = {
    "upload cut": partial(KillInUpload, name=r"/data/.*\.parquet"),
    "metadata cut": partial(KillInUpload, name=r"/metadata/.*\.metadata\.json", is_servers=True),
    "answers lost": LoseAnswers,
}
"""Of moto's store alone, which has a proxy before it."""
_OF_A_DATABASE: dict[str, Callable[[Lake], Trouble]] = {"connections cut": CutDatabase}
_ALL = _TROUBLES | _OF_A_STORE | _OF_A_DATABASE
_STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
_PAGE = """\
# Chaos: what crashes do to the tables

`make chaos` wrote this page. It sends random changes (3 tables, 4 streams, new columns, values that do not fit,
transactions across batches, key changes, batches sent twice) to a real server with Spark, lets a process die in the
middle, waits until another has taken over and everything is published, and compares:

- the state tables, read by DuckDB and PyIceberg through the catalog, with a dictionary that applied the same changes;
- the changes tables with the list of all changes: each once, at the position that its ack gave, with the right images;
- the files: no equality delete, at most one delete file for a data file, and no transaction split by a publish;
- the processes: nothing is left of the dead one after 15 seconds, and no two pipelines ever published side by side.

{place} A lake goes on through all the crashes of its row, so what one of them broke would show in the next comparison.

| Who dies, and where | Runs | Changes | Restarts | Differences |
|---|---:|---:|---:|---:|
{rows}

{end}

Made on {date} with seed {seed} in {minutes:.0f} minutes, on {machine}.
To repeat: `make chaos CHAOS_ARGS="{again}--seed {seed}"`.
"""


@dataclass(slots=True)
class Result:
    """One row of the table."""

    name: str
    run_count: int = 0
    change_count: int = 0
    restart_count: int = 0
    differences: list[str] = field(default_factory=list)

    def as_row(self) -> str:
        figures = (self.run_count, self.change_count, self.restart_count, len(self.differences))
        return f"| `{self.name}`: {_MEANINGS[self.name]} | " + " | ".join(f"{figure:,}" for figure in figures) + " |"


class Chaos:
    """All runs of all rows, as far as the time allows."""

    def __init__(self, options: argparse.Namespace, console: Console, machines: Machines) -> None:
        self._options, self._console, self._machines = options, console, machines
        self._dice = random.Random(options.seed)
        self._stop_at: float = time.monotonic() + 60 * options.minutes
        self._home = Path(tempfile.mkdtemp(prefix="dolake-chaos-", dir=options.folder))

    def run(self) -> list[Result]:
        results = [Result(name) for name in self._options.only or _troubles_of(self._options)]
        columns = (TextColumn("{task.description:20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console) as progress:
            bars = [progress.add_task(result.name, total=self._options.runs, start=False) for result in results]
            for result, bar in zip(results, bars, strict=True):
                progress.start_task(bar)
                while result.run_count < self._options.runs and not self.is_late:
                    self._run_lake(result, partial(progress.advance, bar))
                progress.stop_task(bar)
        if not any(result.differences for result in results):
            shutil.rmtree(self._home, ignore_errors=True)
        return results

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self._stop_at

    def _run_lake(self, result: Result, advance: Callable[[], object]) -> None:
        """One lake through as many runs as are left, or until something differs."""
        home = self._home / f"{result.name.replace(' ', '-')}-{result.run_count}"
        home.mkdir()
        change_count, restart_count = result.change_count, result.restart_count
        seed, place = self._dice.randrange(2**32), (self._options.warehouse, self._options.catalog)
        of_format_3 = TABLES if self._options.format == 3 else ()
        with (
            self._machines.backend(*place) as backend,
            Lake(home, seed=seed, backend=backend, of_format_3=of_format_3) as lake,
        ):
            while result.run_count < self._options.runs and not self.is_late:
                found = self._run_once(lake, result.name)
                result.run_count += 1
                result.change_count = change_count + lake.change_count
                result.restart_count = restart_count + lake.restart_count
                advance()
                if found:
                    self._console.print(f"[red]{result.name}: {len(found)} differences, see {home}")
                    self._console.print(*found[:5], sep="\n", markup=False)
                    result.differences += found
                    return
        shutil.rmtree(home, ignore_errors=True)

    def _run_once(self, lake: Lake, name: str) -> list[str]:
        """What differs after one crash; a run that does not come to its end is a difference, too."""
        try:
            lake.run(self._options.groups, _ALL[name](lake))
            return lake.differences()
        except Exception as error:
            return [f"seed {lake.seed}: " + "".join(traceback.format_exception(error))]


def write_page(results: list[Result], options: argparse.Namespace, minutes: float) -> None:
    is_short = any(result.run_count < options.runs for result in results)
    rows = _rows_of(options.page) | {result.name: result.as_row() for result in results}
    end = f"The time limit of {options.minutes:g} minutes ended it early." if is_short else "All runs were made."
    if options.only:
        names = ", ".join(f"`{name}`" for name in options.only)
        end += f" This time it was {names}; the other rows are of an earlier time."
    page = _PAGE.format(
        rows="\n".join(rows[name] for name in _ALL if name in rows),
        end=end,
        place=_place(options),
        again=_again(options),
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        seed=options.seed,
        minutes=minutes,
        machine=f"{os.cpu_count()} cores ({platform.machine()}, Python {platform.python_version()})",
    )
    options.page.write_text(page)


def _troubles_of(options: argparse.Namespace) -> list[str]:
    """All that can befall a lake in this place."""
    has_proxy = options.warehouse == "s3" and not is_other_store()
    names = [*_TROUBLES, *(_OF_A_STORE if has_proxy else ())]
    return [*names, *(_OF_A_DATABASE if options.catalog == "postgres" else ())]


def _place(options: argparse.Namespace) -> str:
    warehouse = {"local": "a folder", "s3": "an S3 store"}[options.warehouse]
    vectors = " The state tables are of format 3, which DuckDB does not read here." if options.format == 3 else ""
    return f"The files are in {warehouse}, the catalog in {_STORES[options.catalog]}.{vectors}"


def _again(options: argparse.Namespace) -> str:
    if _is_default(options):
        return ""
    return f"--warehouse {options.warehouse} --catalog {options.catalog} --format {options.format} "


def _is_default(options: argparse.Namespace) -> bool:
    return (options.warehouse, options.catalog, options.format) == ("local", "sqlite", 2)


def _page_of(options: argparse.Namespace) -> Path:
    return (
        PAGE
        if _is_default(options)
        else PAGE.with_stem(f"chaos-{options.warehouse}-{options.catalog}-{options.format}")
    )


def _rows_of(page: Path) -> dict[str, str]:
    """Those of an earlier time, by the name of the crash: with `--only` the others stay."""
    lines = page.read_text().splitlines() if page.exists() else []
    return {line.split("`")[1]: line for line in lines if line.startswith("| `")}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.chaos", description="Crash DoLake many times.")
    parser.add_argument("--runs", type=int, default=10, help="crashes of each kind")
    parser.add_argument("--groups", type=int, default=200, help="groups of changes in a run, four or five changes each")
    parser.add_argument("--minutes", type=float, default=120, help="begin no run after so long")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--only", action="append", choices=list(_ALL), help="a kind of crash; may be repeated")
    parser.add_argument(
        "--warehouse", choices=["local", "s3"], default="local", help="s3: see tests/oracle/backends.py"
    )
    parser.add_argument("--catalog", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--format", type=int, choices=[2, 3], default=2, help="of the state tables")
    parser.add_argument(
        "--folder", type=Path, help="where the lakes are made; by default the folder for temporary files"
    )
    parser.add_argument("--page", type=Path, help="the page to write")
    options = parser.parse_args()
    options.page = options.page or _page_of(options)
    if others := set(options.only or ()) - set(_troubles_of(options)):
        parser.error(f"{', '.join(sorted(others))}: not with this warehouse and catalog")
    console, started = Console(), time.monotonic()
    with Machines() as machines:
        results = Chaos(options, console, machines).run()
    write_page(results, options, (time.monotonic() - started) / 60)
    console.print(f"wrote {options.page}")
    is_whole = all(result.run_count >= options.runs and not result.differences for result in results)
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
