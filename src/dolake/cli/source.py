"""`dolake source`: follow databases and bring their changes to a lake."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from dolake.changes import StreamId
from dolake.cli.serve import run_loop
from dolake.errors import DoLakeError, InvalidInput, NotFound
from dolake.sources import sqlite as sqlite_source
from dolake.sources.base import SourceStatus
from dolake.sources.runner import Report, Runner, Shard
from dolake.sources.sqlite import SqliteSource
from dolake.telemetry import start_logging

app = typer.Typer(help="Follow databases, and bring their changes to a lake.", no_args_is_help=True)
SUFFIXES = (".db", ".sqlite", ".sqlite3")
_REPORT_EVERY_ON_TERMINAL_S = 0.25

FilesArgument = Annotated[
    list[Path], typer.Argument(help="SQLite files, or folders that have some.", metavar="FILE...")
]
TablesOption = Annotated[
    list[str] | None, typer.Option("--tables", help="A table's name, or a pattern with *; give it again for more.")
]


@app.command("sqlite")
def sqlite(
    files: FilesArgument,
    to: Annotated[str, typer.Option("--to", help="The lake's address.", metavar="URL")],
    namespace: Annotated[
        str, typer.Option(help="The lake's namespace for the tables; the default one otherwise.")
    ] = "",
    tables: TablesOption = None,
    source: Annotated[str | None, typer.Option(help="The stream's name; from the file or folder otherwise.")] = None,
    token: Annotated[
        str | None, typer.Option(envvar="DOLAKE_TOKEN", help="The lake's token, if it asks for one.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when everything is told.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    log_format: Annotated[str, typer.Option(help="console or json.")] = "console",
) -> None:
    """Copy what SQLite files have, then bring their changes as they come. Ctrl-C stops it; it goes on where it was."""
    is_terminal = sys.stderr.isatty()
    start_logging("warning" if is_terminal and log_level == "info" else log_level, _log_form(log_format))
    paths = files_of(files)
    for path in paths:
        if tables is not None or not sqlite_source.is_enabled(path):
            sqlite_source.enable_cdc(path, tables or "*")
    shards = shards_of(paths, source, namespace)
    # Changes by the thousand come and go, none of them in a cycle: looking for cycles cost a quarter of the time.
    gc.set_threshold(200_000, 20, 100)
    with _shown_progress(is_terminal) as report:
        runner = Runner(
            to,
            token=token,
            is_once=once,
            report=report,
            **({"report_every_s": _REPORT_EVERY_ON_TERMINAL_S} if report else {}),
        )
        failures: dict[StreamId, DoLakeError] = {}
        run_loop(_until_stopped(runner.run(shards), failures))
    for stream, error in failures.items():
        typer.echo(f"{stream}: {error}", err=True)
    if failures:
        raise typer.Exit(1)


@app.command("enable")
def enable(files: FilesArgument, tables: TablesOption = None) -> None:
    """Put triggers and an outbox into SQLite files: from now on their changes are kept for a lake."""
    for path in files_of(files):
        status = sqlite_source.enable_cdc(path, tables or "*")
        typer.echo(f"{path}: {len(status.tables)} tables are followed")
        for reason in status.left_out:
            typer.echo(f"  left out: {reason}")


@app.command("disable")
def disable(
    files: FilesArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Also where changes wait that no lake has acknowledged.")] = False,
) -> None:
    """Remove every trace of DoLake from SQLite files."""
    for path in files_of(files):
        if not sqlite_source.is_enabled(path):
            typer.echo(f"{path}: is not followed")
            continue
        pending = sqlite_source.status(path).pending
        if pending and not yes:
            raise InvalidInput(
                f"{path} has {pending} changes that no lake has acknowledged",
                hint="bring them with `dolake source sqlite FILE --to URL --once`, or add --yes to lose them",
            )
        sqlite_source.disable_cdc(path)
        typer.echo(f"{path}: is followed no longer")


@app.command("status")
def status(files: FilesArgument) -> None:
    """How far behind the lake is, by what the files know; and which tables are being copied."""
    shown = Table("file", "table", "copied", "pending", "lag", "epoch")
    left_out: list[str] = []
    for path in files_of(files):
        if not sqlite_source.is_enabled(path):
            shown.add_row(path.name, "is not followed")
            continue
        found = sqlite_source.status(path)
        lag = f"{found.lag_ms / 1000:,.1f} s" if found.pending else "none"
        epoch = "" if found.epoch is None else str(found.epoch)
        shown.add_row(path.name, f"{len(found.tables)} tables", "", f"{found.pending:,}", lag, epoch)
        for table in found.tables:
            done = "all" if table.phase == "live" else f"{table.copied:,} of {table.total:,}"
            shown.add_row("", table.table, done)
        left_out += found.left_out
    console = Console(highlight=False)
    console.print(shown)
    for reason in left_out:
        console.print(f"left out: {reason}", markup=False)


@app.command("resync")
def resync(
    file: Annotated[Path, typer.Argument(help="A SQLite file.")],
    table: Annotated[str, typer.Argument(help="The table to copy again.")],
) -> None:
    """Copy one table again. A running source notices, and goes on with the others; otherwise the next one does it."""
    sqlite_source.resync(file, table)
    typer.echo(f"{file}: {table} will be copied again")


# --- files and streams -----------------------------------------------------------------------------------------------


def files_of(named: Sequence[Path]) -> list[Path]:
    """The files that are meant: those that are named, and those in folders that are."""
    found: list[Path] = []
    for path in named:
        if path.is_dir():
            inside = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES and each.is_file())
            if not inside:
                raise NotFound(f"{path} has no SQLite files", hint=f"their names end in {', '.join(SUFFIXES)}")
            found += inside
        else:
            found.append(path)
    return list(dict.fromkeys(found))


def shards_of(paths: Sequence[Path], source: str | None, namespace: str) -> list[Shard]:
    """One file is a source of its own; of several, each is a shard of one that is named like their folder."""
    is_shared = len(paths) > 1
    if is_shared and len({path.stem for path in paths}) < len(paths):
        raise InvalidInput("two files have the same name", hint="a stream is named after its file: run them apart")
    name = source or (paths[0].resolve().parent.name if is_shared else paths[0].stem)
    return [_shard(path, StreamId(name, path.stem if is_shared else ""), namespace, is_shared) for path in paths]


def _shard(path: Path, stream: StreamId, namespace: str, is_shared: bool) -> Shard:
    return Shard(stream, lambda: SqliteSource(path, namespace=namespace, is_shared=is_shared))


def _log_form(word: str) -> Any:
    if word not in ("console", "json"):
        raise InvalidInput(f"--log-format {word!r} is not known", hint="console or json")
    return word


# --- running ---------------------------------------------------------------------------------------------------------


async def _until_stopped(
    running: Coroutine[Any, Any, dict[StreamId, DoLakeError]], failures: dict[StreamId, DoLakeError]
) -> None:
    """SIGTERM and Ctrl-C end it in order: what was acknowledged is written down."""
    task = asyncio.ensure_future(running)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        failures.update(await task)


@contextlib.contextmanager
def _shown_progress(is_terminal: bool) -> Any:
    """On a terminal a bar for each stream; otherwise the log has a line now and then."""
    if not is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[lag]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield _reporter(progress)


def _reporter(progress: Progress) -> Report:
    bars: dict[StreamId, TaskID] = {}

    def show(stream: StreamId, status: SourceStatus) -> None:
        if stream not in bars:
            bars[stream] = progress.add_task(str(stream), total=None, lag="")
        total, copied = sum(table.total for table in status.tables), sum(table.copied for table in status.tables)
        words = f"{status.pending:,} behind, {status.lag_ms / 1000:.1f} s" if status.pending else "up to date"
        doing = "copying" if status.is_copying else "live"
        progress.update(
            bars[stream], description=f"{stream} {doing}", total=total or 1, completed=copied if total else 1, lag=words
        )

    return show
