"""`dolake get`: one row of a table by its key, or several."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dolake.cli import showing
from dolake.cli.address import HomeOption, TableName, UrlOption, lake_at
from dolake.cli.moments import moment_of
from dolake.cli.query import cancelled_by_ctrl_c, waiting
from dolake.client import FoundRows


def get(
    table: TableName,
    keys: Annotated[list[str], typer.Argument(help="Keys, as the source sends them.")],
    home: HomeOption = Path("dolake-home"),
    url: UrlOption = None,
    source: Annotated[str | None, typer.Option(help="The rows' source, where it is a part of the key.")] = None,
    as_of: Annotated[str | None, typer.Option(help="The rows at this point in time, such as '1 hour ago'.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one row on a line.")] = False,
) -> None:
    """Show rows by their keys. Where one has none, it says so and ends with 1."""
    lake = lake_at(home, url)
    with cancelled_by_ctrl_c(), waiting():
        found = lake.get_many(table, keys, source=source, as_of=None if as_of is None else moment_of(as_of))
    if as_json:
        for row in found:
            sys.stdout.write(showing.json_line(None if row is None else row.as_dict()))
    else:
        _show(keys, found)
    missing = [key for key, row in zip(keys, found, strict=True) if row is None]
    if missing:
        showing.notes().print(f"no row: {', '.join(missing)}", markup=False)
        raise typer.Exit(1)


def _show(keys: list[str], found: FoundRows) -> None:
    """One row down the page, several as a table."""
    console, rows = showing.output(), [row for row in found if row is not None]
    if len(keys) == 1 and rows:
        shown = showing.new_table("column", "value")
        for name, value in rows[0].as_dict().items():
            shown.add_row(showing.cell(name), showing.cell(value))
        console.print(shown)
    elif rows:
        names = list(dict.fromkeys(name for row in rows for name in row.as_dict()))
        shown = showing.new_table(*names)
        for row in rows:
            values = row.as_dict()
            shown.add_row(*(showing.cell(values.get(name)) for name in names))
        console.print(shown)
