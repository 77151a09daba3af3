"""`dolake verify`: compare journal, changes, state and key index, with or without the server running."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dolake.cli.address import HomeOption
from dolake.errors import NotFound
from dolake.settings import DoLakeConfig, load_settings
from dolake.settings.tables import lake_rules
from dolake.storage.opening import place_of
from dolake.verify.base import NAMED_MAX, Report

if TYPE_CHECKING:
    from dolake.verify.moment import LakeFiles

_ALL = "(all tables)"


def verify(
    table: Annotated[
        str | None, typer.Argument(help="A table, `orders` or `shop.orders`; all of them otherwise.")
    ] = None,
    home: HomeOption = Path("dolake-home"),
    config: Annotated[
        Path | None, typer.Option("--config", envvar="DOLAKE_CONFIG", help="Settings file; HOME/dolake.toml otherwise.")
    ] = None,
    scratch: Annotated[
        Path | None, typer.Option(help="A folder for what does not fit into memory; the system's otherwise.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Compare journal, changes, state and key index, and name every difference. Changes nothing."""
    from dolake.verify.moment import opened  # here and below: Arrow takes its time, and other commands do without it

    if not home.is_dir():
        raise NotFound(f"no folder {home}", hint="--home names the server's folder")
    settings = load_settings(home=home, config_file=config, environ=os.environ, flags={}).current
    place = place_of(settings.lake, settings.storage, settings.catalog)
    with opened(home, settings.lake, place, settings.catalog) as lake:
        report = _verify(lake, table, scratch, settings.lake)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(_as_json(report))).decode() + "\n")
    else:
        _show(report)
    if report.difference_count:
        raise typer.Exit(1)


def _verify(lake: LakeFiles, table: str | None, scratch: Path | None, settings: DoLakeConfig) -> Report:
    from dolake.verify.run import verify as run_verify

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=max(total, done))

        return run_verify(
            lake,
            only=table,
            scratch=scratch,
            is_deduplicating=settings.enable_deduplication,
            rules=lake_rules(settings),
            progress=show,
        )


def _as_json(report: Report) -> dict[str, object]:
    found: dict[str, object] = msgspec.to_builtins(report)
    return {"isClean": not report.difference_count, "differenceCount": report.difference_count} | found


def _show(report: Report) -> None:
    console = Console(highlight=False)
    shown = Table("table", "check", box=None)
    shown.add_column("compared", justify="right")
    shown.add_column("differences", justify="right")
    for check in report.checks:
        style = "bold red" if check.difference_count else ""
        shown.add_row(
            check.table or _ALL, check.name, f"{check.compared:,}", f"{check.difference_count:,}", style=style
        )
    console.print(shown)
    for check in report.checks:
        where = f"{check.table or _ALL}, {check.name}"
        for what in check.differences:
            console.print(f"different: {where}: {what}", style="red", markup=False, soft_wrap=True)
        more = check.difference_count - len(check.differences)
        if more > 0 and len(check.differences) >= NAMED_MAX:
            console.print(f"different: {where}: and {more:,} more", style="red", markup=False, soft_wrap=True)
        for note in check.notes:
            console.print(f"note: {where}: {note}", markup=False, soft_wrap=True)
    rows = sum(size.changes + size.rows for size in report.tables)
    took_s = report.took_ms / 1000
    console.print(
        f"position {report.position:,}: {len(report.tables)} tables, {rows:,} rows and changes in {took_s:.1f} s; "
        f"{report.difference_count:,} differences"
    )
