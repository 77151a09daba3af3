"""`dolake forget`: a key leaves its table, the table's history and the journal for good."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from dolake.cli import showing
from dolake.cli.address import HomeOption, TableName, UrlOption, lake_at
from dolake.client import Forgotten


def forget(
    table: TableName,
    key: Annotated[str, typer.Argument(help="The key, as the source sends it.")],
    home: HomeOption = Path("dolake-home"),
    url: UrlOption = None,
    source: Annotated[str | None, typer.Option(help="The row's source, where it is a part of the key.")] = None,
    patient: Annotated[bool, typer.Option("--patient", help="Let those who are reading files finish.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Let a key go from a table, its history, its snapshots and the journal. There is no way back."""
    lake = lake_at(home, url)
    if not yes:
        typer.confirm(f"Forget this key of {table} for good, with its whole history?", abort=True, err=True)
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        shown = progress.add_task(f"{table}: waiting")

        def tell(pieces: int) -> None:
            progress.update(shown, completed=pieces, description=f"{table}: {pieces} pieces done")

        done = lake.forget(table, key, source=source, patient=patient, on_progress=tell)
    if as_json:
        sys.stdout.write(showing.pretty(done))
    else:
        _show(done)


def _show(done: Forgotten) -> None:
    console = showing.output()
    counts = ["files rewritten", "snapshots expired", "files removed", "bytes removed"]
    paper = showing.new_table("table", *counts, "tags removed", numbers=counts)
    for each in done.tables:
        numbers = (each.files_rewritten, each.snapshots_expired, each.files_removed, each.bytes_removed)
        tags = ", ".join(each.tags_removed)
        paper.add_row(*map(showing.cell, (each.table, *(f"{number:,}" for number in numbers), tags)))
    console.print(paper)
    lines = [
        f"{done.rows_removed:,} rows went, {done.changes_blanked:,} changes are blank, of {done.keys:,} keys; "
        f"everything before position {done.position:,}",
        f"the journal let {done.journal_bytes_removed:,} bytes go",
        *(f"waits: {each}" for each in done.waits),
        _last_byte(done),
        *(f"not reached: {each}" for each in done.outside),
    ]
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def _last_byte(done: Forgotten) -> str:
    if done.last_byte_ms is None:
        return "the last byte is not gone: see what waits"
    moment = datetime.fromtimestamp(done.last_byte_ms / 1000, UTC)
    return f"the last byte {'goes after' if done.waits else 'was gone at'} {moment:%Y-%m-%d %H:%M:%S} UTC"
