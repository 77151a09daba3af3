"""`dolake diff`: which rows of a table came, went and changed between two points in time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dolake.cli import showing
from dolake.cli.address import HomeOption, TableName, UrlOption, lake_at
from dolake.cli.moments import place_of
from dolake.cli.query import cancelled_by_ctrl_c, waiting
from dolake.client import Diff

_ROWS = 100


def diff(
    table: TableName,
    from_: Annotated[str, typer.Option("--from", help="A point in time, such as '1 hour ago', or a snapshot.")],
    home: HomeOption = Path("dolake-home"),
    url: UrlOption = None,
    to: Annotated[str | None, typer.Option("--to", help="The same; now otherwise.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Rows of each kind at most; all are counted.")] = _ROWS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show rows that came (+), went (-) and changed (~) between two points in time."""
    lake = lake_at(home, url)
    with cancelled_by_ctrl_c(), waiting():
        found = lake.diff(table, from_=place_of(from_), to=None if to is None else place_of(to), limit=limit)
    if as_json:
        sys.stdout.write(showing.pretty(found))
    else:
        _show(found)


def _show(found: Diff) -> None:
    console = showing.output()
    rows = [*(("+", "green", row) for row in found.added), *(("-", "red", row) for row in found.removed)]
    if rows:
        names = list(dict.fromkeys(name for _, _, row in rows for name in row.keys()))  # noqa: SIM118 - it gives values
        shown = showing.new_table("", *names)
        for sign, style, row in rows:
            values = row.as_dict()
            shown.add_row(Text(sign), *(showing.cell(values.get(name)) for name in names), style=style)
        console.print(shown)
    if found.changed:
        shown = showing.new_table("", "key", "column", "before", "after")
        for each in found.changed:
            before, after = each.before.as_dict(), each.after.as_dict()
            for name in each.columns:
                cells = map(showing.cell, (each.key, name, before.get(name), after.get(name)))
                shown.add_row(Text("~"), *cells, style="yellow")
        console.print(shown)
    counts = found.counts
    console.print(f"{counts.added:,} added, {counts.removed:,} removed, {counts.changed:,} changed")
    for warning in found.warnings:
        showing.notes().print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)
    if found.truncated:
        showing.notes().print("not all of them are shown; --limit shows more")
