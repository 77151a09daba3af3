"""`dolake quarantine`: changes that a running server could not write; send them again, or let them go."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from dolake.cli import showing
from dolake.cli.address import HomeOption, TableName, UrlOption, lake_at
from dolake.cli.tables import JsonOption, show
from dolake.client import Drop, Quarantine, QuarantineEntry, Replay
from dolake.errors import InvalidInput, NotFound
from dolake.positions import Position

app = typer.Typer(
    help="Changes that could not be written: look, send them again, or let them go.", no_args_is_help=True
)
Positions = Annotated[list[Position] | None, typer.Argument(min=0, help="Of entries, as `list` shows them.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command("list")
def list_entries(
    table: Annotated[str | None, typer.Argument(help="A table, `orders` or `shop.orders`; all otherwise.")] = None,
    home: HomeOption = Path("dolake-home"),
    url: UrlOption = None,
    limit: Annotated[int, typer.Option(min=1, help="The first so many.")] = 100,
    as_json: JsonOption = False,
) -> None:
    """List the tables that have entries, or the entries of one table."""
    lake = lake_at(home, url)
    if table is None:
        tables = lake.list_quarantines()
        show(tables, _tables_paper(tables), "no table has changes that could not be written", as_json=as_json)
    else:
        entries = lake.list_quarantine(table, limit=limit)
        show(entries, _entries_paper(entries), f"the quarantine of {table} is empty", as_json=as_json)


@app.command("show")
def show_entry(
    table: TableName,
    position: Annotated[Position, typer.Argument(min=0, help="Of the entry, as `list` shows it.")],
    home: HomeOption = Path("dolake-home"),
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one entry with its whole event."""
    after = position - 1 if position else None
    entries = lake_at(home, url).list_quarantine(table, after=after, limit=1)
    if not entries or entries[0].position != position:
        raise NotFound(f"{position} is not in the quarantine of {table}", hint=f"dolake quarantine list {table}")
    (entry,) = entries
    if as_json:
        sys.stdout.write(showing.pretty(entry))
        return
    for name in ("table", "position", "reason", "operation", "key", "sequence", "source"):
        showing.output().print(f"{name:<10} {getattr(entry, name)}", markup=False, soft_wrap=True)
    showing.output().print(_pretty_event(entry.event), markup=False, soft_wrap=True)


@app.command("replay")
def replay(
    table: TableName,
    positions: Positions = None,
    home: HomeOption = Path("dolake-home"),
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send entries again in their order; all of them where no position is given."""
    done = lake_at(home, url).replay_quarantine(table, positions or None)
    _tell(done, f"{done.table}: {done.replayed:,} sent again; position {done.position:,}", as_json=as_json)


@app.command("drop")
def drop(
    table: TableName,
    positions: Positions = None,
    home: HomeOption = Path("dolake-home"),
    url: UrlOption = None,
    is_all: Annotated[bool, typer.Option("--all", help="All entries of the table.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let entries go for good."""
    if bool(positions) == is_all:
        raise InvalidInput("say which entries: positions, or --all", hint=f"dolake quarantine list {table}")
    if not yes and sys.stdin.isatty():
        what = "all entries" if is_all else f"{len(positions or ()):,} entries"
        typer.confirm(f"Drop {what} of the quarantine of {table}?", abort=True, err=True)
    done = lake_at(home, url).drop_quarantine(table, None if is_all else positions)
    _tell(done, f"{done.table}: {done.dropped:,} dropped; position {done.position:,}", as_json=as_json)


def _tell(done: Replay | Drop, summary: str, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(showing.pretty(done))
    else:
        showing.output().print(summary, markup=False, soft_wrap=True)
        for each in done.refused:
            showing.output().print(f"{each.position:,}: {each.reason}", markup=False, soft_wrap=True)
    if done.refused:
        raise typer.Exit(1)


def _tables_paper(found: Sequence[Quarantine]) -> Any:
    shown = showing.new_table("table", "entries", numbers=["entries"])
    for each in found:
        shown.add_row(*map(showing.cell, (each.full_name, f"{each.entries:,}")))
    return shown


def _entries_paper(found: Sequence[QuarantineEntry]) -> Any:
    shown = showing.new_table("position", "operation", "key", "source", "reason", numbers=["position"])
    for each in found:
        shown.add_row(*map(showing.cell, (str(each.position), each.operation, each.key, each.source, each.reason)))
    return shown


def _pretty_event(text: str) -> str:
    """Indented, where it is JSON."""
    try:
        return msgspec.json.format(text, indent=2)
    except msgspec.DecodeError:
        return text
