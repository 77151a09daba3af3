"""`dolake tail` and `dolake subscriptions`: changes on the screen as they come, and who else is told of them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table as Paper

from dolake.cli import showing
from dolake.cli.address import HomeOption, UrlOption, lake_at
from dolake.cli.moments import moment_of
from dolake.cli.query import cancelled_by_ctrl_c
from dolake.cli.tables import JsonOption, show
from dolake.client import ChangeEvent, Row
from dolake.client.sync import LakeClient
from dolake.errors import InvalidInput, UnknownTable
from dolake.suggestions import did_you_mean
from dolake.tables.names import plain_table_name

_WORDS = ("now", "beginning")
_SIGNS = {"INSERT": "+", "UPDATE": "~", "DELETE": "-"}


def tail(
    tables: Annotated[list[str], typer.Argument(metavar="TABLE...", help="Tables, `orders` or `shop.orders`.")],
    home: HomeOption = Path("dolake-home"),
    url: UrlOption = None,
    where: Annotated[str | None, typer.Option("--where", help="Only rows that meet this condition.")] = None,
    since: Annotated[
        str, typer.Option("--since", help="now, beginning, a position, a token, 2025-01-14T12:00Z, '5 minutes ago'.")
    ] = "now",
    operation: Annotated[
        list[str] | None, typer.Option("--operation", "-o", help="Only these, such as INSERT; again for more.")
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option("--column", "-c", help="Only this column; again for more.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="A named subscription; it goes on where it was.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="End after so many changes.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for tables that do not exist yet.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each change.")] = False,
) -> None:
    """Print changes as they come; Ctrl-C ends it."""
    lake, beginning = lake_at(home, url), _since(since)
    count = 0
    with cancelled_by_ctrl_c():
        if not wait:
            _refuse_unknown(lake, tables)
        batches = lake.subscribe(tables, operations=operation, where=where, since=beginning, name=name, columns=column)
        for batch in batches:
            for event in batch.events:
                print(_json(event) if as_json else _line(event), flush=True)
                count += 1
                if limit is not None and count >= limit:
                    if name is not None:
                        batch.ack()
                    return


def _refuse_unknown(lake: LakeClient, tables: list[str]) -> None:
    """A subscription waits for a table that comes later; a person has more likely mistyped its name."""
    known = {plain_table_name(each.full_name) for each in lake.list_tables()}
    for table in tables:
        if plain_table_name(table) not in known:
            hint = did_you_mean(table, known, "`dolake tables` lists them; --wait waits for one that comes later")
            raise UnknownTable(f"there is no table {table}", table=table, hint=hint)


def _since(text: str) -> Any:
    plain = text.strip()
    if plain in _WORDS or plain.isdecimal() or plain.startswith("r1."):
        return plain
    return moment_of(plain)


def _line(event: ChangeEvent) -> str:
    time = datetime.fromtimestamp(event.commit_timestamp_ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
    row = event.after if event.after is not None else event.before
    sign = _SIGNS.get(event.operation, event.operation)
    shown = _row_json(row) if row is not None else ""
    key = event.row_id if event.previous_row_id is None else f"{event.previous_row_id} -> {event.row_id}"
    return f"{time} {event.position:>9} {sign} {event.table} {key} {shown}".rstrip()


def _json(event: ChangeEvent) -> str:
    fields = {name: value for name, value in msgspec.structs.asdict(event).items() if value not in (None, "")}
    rows = {name: value.as_dict() for name, value in fields.items() if isinstance(value, Row)}
    return msgspec.json.encode(fields | rows).decode()


def _row_json(row: Row) -> str:
    return msgspec.json.encode(row.as_dict()).decode()


app = typer.Typer(help="Named subscriptions of a running server.", no_args_is_help=True)


@app.command("list")
def list_(home: HomeOption = Path("dolake-home"), url: UrlOption = None, as_json: JsonOption = False) -> None:
    """List named subscriptions, and how far each has come."""
    found = lake_at(home, url).list_subscriptions()
    paper = Paper("name", "tables", "where", "position", "lag", "connected")
    for each in found:
        is_there = "yes" if each.connected else "no"
        paper.add_row(each.name, ", ".join(each.tables), each.where, f"{each.position:,}", f"{each.lag:,}", is_there)
    show(found, paper, "there are no named subscriptions", as_json=as_json)


@app.command("drop")
def drop(
    name: Annotated[str, typer.Argument(help="Its name.")],
    home: HomeOption = Path("dolake-home"),
    url: UrlOption = None,
) -> None:
    """Forget a named subscription; its reader is disconnected."""
    if not name:
        raise InvalidInput("there is no name", hint="`dolake subscriptions list` has them")
    lake_at(home, url).drop_subscription(name)
    showing.notes().print(f"{name} dropped")
