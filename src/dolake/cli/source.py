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
from dolake.cli.masks import MaskOption, masks_of
from dolake.cli.serve import run_loop
from dolake.errors import Conflict, DoLakeError, InvalidInput
from dolake.sources import sqlite as sqlite_source
from dolake.sources.base import SourceStatus
from dolake.sources.configured import awaited_view_of, files_in, view_of
from dolake.sources.runner import Report, Runner
from dolake.sources.sqlite.attachment import Choice, Plan, is_being_followed, plan_all
from dolake.sources.sqlite.lake_view import LakeView
from dolake.sources.sqlite.naming import lake_name
from dolake.telemetry import start_logging
from dolake.wire.source_lines import OUTBOX_MAX_BYTES

app = typer.Typer(help="Follow databases, and bring their changes to a lake.", no_args_is_help=True)
_NAMES_SHOWN = 20
_REPORT_EVERY_ON_TERMINAL_S = 0.25

FilesArgument = Annotated[
    list[Path], typer.Argument(help="SQLite files, or folders that have some.", metavar="FILE...")
]
TablesOption = Annotated[
    list[str] | None, typer.Option("--tables", help="A table's name, or a pattern with *; give it again for more.")
]
ExcludeOption = Annotated[
    list[str] | None, typer.Option("--exclude", help="A table, or a pattern, to leave out; give it again for more.")
]
TokenOption = Annotated[str | None, typer.Option(envvar="DOLAKE_TOKEN", help="The lake's token, if it asks for one.")]
ToOption = Annotated[str | None, typer.Option("--to", help="The lake's address, to ask how far it is.", metavar="URL")]


@app.command("sqlite")
def sqlite(
    files: FilesArgument,
    to: Annotated[str, typer.Option("--to", help="The lake's address.", metavar="URL")],
    namespace: Annotated[
        str, typer.Option(help="The lake's namespace for the tables; the default one otherwise.")
    ] = "",
    tables: TablesOption = None,
    exclude: ExcludeOption = None,
    mask: MaskOption = None,
    source: Annotated[str | None, typer.Option(help="The stream's name; from the file otherwise.")] = None,
    shards: Annotated[
        bool, typer.Option("--shards", help="The files have one schema: tables of one name are one table in the lake.")
    ] = False,
    as_copy: Annotated[
        bool, typer.Option("--as-copy", help="The file is a copy of a followed one: make it a database of its own.")
    ] = False,
    restored: Annotated[
        bool, typer.Option("--restored", help="The file was restored from a backup, in the place of the followed one.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be followed, and change nothing.")
    ] = False,
    outbox_max_bytes: Annotated[
        int, typer.Option("--outbox-max-bytes", min=0, help="With WAL, trim the outbox beyond this size at any time.")
    ] = OUTBOX_MAX_BYTES,
    token: TokenOption = None,
    once: Annotated[bool, typer.Option("--once", help="End when everything is told.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    log_format: Annotated[str, typer.Option(help="console or json.")] = "console",
) -> None:
    """Copy what SQLite files have, then bring their changes as they come. Ctrl-C stops it; it goes on where it was."""
    is_terminal = sys.stderr.isatty()
    start_logging("warning" if is_terminal and log_level == "info" else log_level, _log_form(log_format))
    paths = files_of(files)
    choice = Choice(
        namespace,
        tables,
        exclude,
        masks_of(mask),
        source,
        (source or paths[0].resolve().parent.name) if shards else None,
        as_copy,
        restored,
        outbox_max_bytes,
    )
    plans = plan_all(paths, choice, asyncio.run(_view(paths, to, token, is_patient=not (once or dry_run))))
    for plan in plans:
        _show_plan(plan, is_dry_run=dry_run)
    if dry_run:
        return
    ready = [plan.carry_out() for plan in plans]
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
        run_loop(_until_stopped(runner.run(ready), failures))
    for stream, error in failures.items():
        typer.echo(f"{stream}: {error}", err=True)
    if failures:
        raise typer.Exit(1)


@app.command("enable")
def enable(
    files: FilesArgument, tables: TablesOption = None, exclude: ExcludeOption = None, mask: MaskOption = None
) -> None:
    """Put triggers and an outbox into SQLite files: they keep their changes for a lake from now on. Repairs, too."""
    for path in files_of(files):
        status = sqlite_source.enable_cdc(path, tables, exclude=exclude, masks=masks_of(mask))
        typer.echo(
            f"{path}: {_counted(len(status.tables))} followed: {_listed([each.table for each in status.tables])}"
        )
        for reason in status.left_out:
            typer.echo(f"  left out: {reason}")


@app.command("disable")
def disable(
    files: FilesArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Also where changes may wait that no lake has.")] = False,
    to: ToOption = None,
    token: TokenOption = None,
) -> None:
    """Remove every trace of DoLake from SQLite files, whatever is left of it there."""
    view = asyncio.run(view_of(to, token)) if to else None
    for path in files_of(files):
        if not sqlite_source.has_traces(path):
            typer.echo(f"{path}: is not followed")
            continue
        if view and is_being_followed(path, view):
            raise Conflict(
                f"{path} is being followed now: its source would put the triggers back",
                hint="stop it first: `dolake sources pause NAME`, or Ctrl-C where `dolake source sqlite` runs",
            )
        if sqlite_source.is_enabled(path) and not yes:
            _refuse_to_lose(path, sqlite_source.status(path, view))
        sqlite_source.disable_cdc(path)
        typer.echo(f"{path}: is followed no longer")


def _refuse_to_lose(path: Path, found: SourceStatus) -> None:
    """What a lake has not acknowledged would be lost; without the lake it is not known which changes these are."""
    if not found.pending:
        return
    changes = "1 change" if found.pending == 1 else f"{found.pending:,} changes"
    if found.is_known:
        words, hint = "that no lake has acknowledged", "bring them with `dolake source sqlite FILE --to URL --once`"
    else:
        words, hint = "in its outbox, and only the lake knows what it has of them", "add --to URL to ask it"
    raise InvalidInput(f"{path} has {changes} {words}", hint=f"{hint}, or add --yes to lose them")


@app.command("status")
def status(files: FilesArgument, to: ToOption = None, token: TokenOption = None) -> None:
    """What is followed in the files. With --to also how far behind the lake is, and which tables are being copied."""
    view = asyncio.run(view_of(to, token)) if to else None
    shown = Table("file", "table", "copied", "pending" if view else "kept", "lag")
    left_out: list[str] = []
    for path in files_of(files):
        if not sqlite_source.is_enabled(path):
            shown.add_row(path.name, "is not followed")
            continue
        found = sqlite_source.status(path, view)
        lag = f"{found.lag_ms / 1000:,.1f} s" if found.pending and found.is_known else "none" if found.is_known else ""
        shown.add_row(path.name, _counted(len(found.tables)), "", f"{found.pending:,}", lag)
        for table in found.tables:
            done = {"live": "all", "copying": f"{table.copied:,} of {table.total:,}"}.get(table.phase, "")
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


# --- files and what is chosen ----------------------------------------------------------------------------------------


def files_of(named: Sequence[Path]) -> list[Path]:
    """The files that are meant: those that are named, and those in folders that are."""
    found: list[Path] = []
    for path in named:
        found += files_in(path) if path.is_dir() else [path]
    return list(dict.fromkeys(found))


async def _view(paths: Sequence[Path], url: str, token: str | None, *, is_patient: bool) -> LakeView:
    """What the lake knows. A file that agreed with a lake before waits for it; a first start reaches it, or fails."""
    if is_patient and all(sqlite_source.is_attached(path) for path in paths):
        return await awaited_view_of(url, token)
    return await view_of(url, token)


def _show_plan(plan: Plan, *, is_dry_run: bool) -> None:
    """What was chosen, so that a wrong choice is seen at once."""
    word = "would follow" if is_dry_run else "follows"
    named = [name if table in (name, lake_name(name)) else f"{name} as {table}" for name, table in plan.tables.items()]
    typer.echo(f"{plan.path}: {word} {_counted(len(named))} as stream {plan.stream}: {_listed(named)}", err=True)
    for warning in plan.warnings:
        typer.echo(f"  warning: {warning}", err=True)
    for reason in plan.left_out:
        typer.echo(f"  left out: {reason}", err=True)


def _counted(count: int) -> str:
    return f"{count} table" if count == 1 else f"{count} tables"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    return f"{shown} and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else shown or "none"


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
