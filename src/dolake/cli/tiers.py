"""`dolake tiers`: what is hot, warm and cold, what it costs, and moving it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table as Paper

from dolake.cli import showing
from dolake.cli.address import HomeOption, TableName, UrlOption, lake_at
from dolake.cli.compact import Server, follow
from dolake.cli.tables import JsonOption, show
from dolake.client import TierList

app = typer.Typer(help="What is hot, warm and cold, and what it costs; move it.")


@app.callback(invoke_without_command=True)
def tiers(
    context: typer.Context,
    table: Annotated[str | None, typer.Option(help="A table, `orders` or `shop.orders`; all otherwise.")] = None,
    home: HomeOption = Path("dolake-home"),
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show rows, bytes and cost of each tier."""
    if context.invoked_subcommand is None:
        found = lake_at(home, url).tiers(table)
        show(found, tiers_paper(found), "", as_json=as_json)


@app.command("move")
def move(
    table: TableName,
    to: Annotated[str, typer.Option(help="`warm` or `cold`.")],
    partition: Annotated[
        list[str] | None,
        typer.Option(
            help="Such as `dt=2024-01-15`; can be given often. Without any: to the cold tier what is old, back all."
        ),
    ] = None,
    home: HomeOption = Path("dolake-home"),
    url: UrlOption = None,
) -> None:
    """Move partitions of a table to the cold tier, or back."""
    namespace, _, name = table.rpartition(".")
    body: dict[str, Any] = {"namespace": namespace or "default", "table": name, "to": to}
    if partition:
        body["partitions"] = partition
    server = Server(home, url)
    follow(server, server.ask("/v1/tiers/move", body))


def tiers_paper(found: TierList) -> Paper:
    """One line for each tier."""
    counted = "files", "rows", "MB", "a month"
    shown = showing.new_table("tier", *counted, numbers=counted)
    for each in found.tiers:
        cells = f"{each.files:,}", f"{each.rows:,}", f"{each.bytes / 1e6:,.1f}", f"{each.cost_per_month:,.4f}"
        shown.add_row(*map(showing.cell, (each.tier, *cells)))
    return shown
