"""`dolake tables`, `dolake snapshots`, `dolake schema`, `dolake rollback`: what a running server has, and had."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table as Paper

from dolake.cli import showing
from dolake.cli.address import HomeOption, TableName, UrlOption, lake_at
from dolake.cli.moments import place_of
from dolake.client import Snapshot, Table, TableSchema

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


app = typer.Typer(invoke_without_command=True)


@app.callback()
def tables(
    context: typer.Context,
    home: HomeOption = Path("dolake-home"),
    url: UrlOption = None,
    changes: Annotated[bool, typer.Option("--changes", help="Also those that keep the history of others.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the tables of the lake, and in which columns values did not fit."""
    if context.invoked_subcommand is not None:
        return
    found = lake_at(home, url).list_tables(changes=changes)
    show(found, tables_paper(found), "there are no tables yet", as_json=as_json)


@app.command()
def retype(
    table: TableName,
    column: Annotated[str, typer.Argument(help="A column of the table.")],
    to: Annotated[str, typer.Argument(metavar="TYPE", help="`text`, which every value fits.")],
    home: HomeOption = Path("dolake-home"),
    url: UrlOption = None,
) -> None:
    """Make a column text, with every value that did not fit it."""
    from dolake.cli.compact import Server, follow  # here: a list of tables does without a progress bar

    namespace, _, name = table.rpartition(".")
    server = Server(home, url)
    path = f"/v1/tables/{quote(namespace or 'default', safe='')}/{quote(name, safe='')}/retype"
    follow(server, server.ask(path, {"column": column, "type": to}))


def snapshots(
    table: Annotated[str | None, typer.Argument(help="A table, `orders` or `shop.orders`; all otherwise.")] = None,
    home: HomeOption = Path("dolake-home"),
    url: UrlOption = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The newest so many.")] = 100,
    as_json: JsonOption = False,
) -> None:
    """List snapshots, the newest first."""
    found = lake_at(home, url).list_snapshots(table, limit=limit)
    show(found, snapshots_paper(found), "there are no snapshots yet", as_json=as_json)


def schema(
    table: TableName,
    home: HomeOption = Path("dolake-home"),
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the columns of a table, and since when it has them."""
    found = lake_at(home, url).get_schema(table)
    show(found, schema_paper(found), "", as_json=as_json)


def rollback(
    table: TableName,
    to: Annotated[str, typer.Argument(metavar="SNAPSHOT", help="A snapshot, or a point in time such as '1 hour ago'.")],
    home: HomeOption = Path("dolake-home"),
    url: UrlOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Make a table what it was, by new changes; its history stays."""
    lake, place = lake_at(home, url), place_of(to)
    what = f"the snapshot {to}" if isinstance(place, dict) else f"{place:%Y-%m-%d %H:%M:%S} UTC"
    if not yes:
        typer.confirm(f"Make {table} what it was at {what}?", abort=True, err=True)
    if isinstance(place, dict):
        done = lake.rollback_to(place["snapshot_id"], table)
    else:
        done = lake.rollback_to(table=table, as_of=place)
    counts = done.changes
    showing.output().print(
        f"{done.table} is what it was at {what}: {counts.added:,} rows added, {counts.removed:,} removed, "
        f"{counts.changed:,} changed; position {done.position:,}",
        markup=False,
        soft_wrap=True,
    )


def tables_paper(found: Sequence[Table]) -> Paper:
    has_rescued = any(each.rescued for each in found)
    last = ["rescued"] if has_rescued else []
    shown = showing.new_table("table", "rows", "snapshot", "updated", *last, numbers=["rows"])
    for each in found:
        rows = None if each.rows is None else f"{each.rows:,}"
        cells = [each.full_name, rows, each.snapshot_id, each.updated_at]
        shown.add_row(*map(showing.cell, [*cells, _rescued(each)] if has_rescued else cells))
    return shown


def _rescued(table: Table) -> str:
    """Columns of which values did not fit, each with the number of rows."""
    return ", ".join(f"{name} {'?' if count is None else count}" for name, count in table.rescued.items())


def snapshots_paper(found: Sequence[Snapshot]) -> Paper:
    counts = ["rows", "added", "deleted"]
    shown = showing.new_table(
        "snapshot", "table", "made", "operation", "position", *counts, numbers=["position", *counts]
    )
    for each in found:
        numbers = [
            None if number is None else f"{number:,}"
            for number in (each.position, each.rows, each.added_records, each.deleted_records)
        ]
        name = each.snapshot_id + (" *" if each.is_current else "")
        shown.add_row(*map(showing.cell, (name, each.table, each.timestamp, each.operation, *numbers)))
    return shown


def schema_paper(found: TableSchema) -> Paper:
    """Columns that are and that were, each with the version in which it came and, if it did, went."""
    shown = showing.new_table("column", "type", "since version", "until version", "comment")
    comments = {(field.name, _kind(field.type)): field.comment for field in found.fields}
    now = {(field.name, _kind(field.type)): str(found.version) for field in found.fields}
    first, last = dict(now), dict(now)
    for version in sorted(found.versions, key=lambda each: each.version, reverse=True):
        for field in version.fields:
            column = field.name, _kind(field.type)
            first[column] = str(version.version)
            last.setdefault(column, str(version.version))
    for column, since in first.items():
        until = "" if column in now else last[column]
        shown.add_row(*map(showing.cell, (*column, since, until, comments.get(column, ""))))
    return shown


def _kind(kind: Any) -> str:
    """An Iceberg type; what is nested is described by an object."""
    match kind:
        case {"type": "list", "element": element}:
            return f"list<{_kind(element)}>"
        case {"type": "map", "key": key, "value": value}:
            return f"map<{_kind(key)}, {_kind(value)}>"
        case {"type": "struct", "fields": fields}:
            inside = [f"{field['name']}: {_kind(field['type'])}" for field in fields]
            return f"struct<{', '.join(inside)}>"
        case _:
            return str(kind)


def show(found: Any, paper: Paper, nothing: str, *, as_json: bool) -> None:
    """As a table, or as JSON."""
    if as_json:
        sys.stdout.write(showing.pretty(found))
    else:
        showing.output().print(paper if paper.row_count or not nothing else nothing)
