"""`dolake catalog`: where a home's catalog is kept."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from dolake.cli.address import HomeOption
from dolake.cli.backup import ConfigOption
from dolake.errors import InvalidInput, NotFound
from dolake.server.home import Home
from dolake.settings import CatalogSettings, load_settings
from dolake.settings.names import without_passwords

if TYPE_CHECKING:
    from dolake.catalog.moving import Moved

app = typer.Typer(no_args_is_help=True, help="Where the catalog of a home is kept: its own file, or Postgres.")


@app.callback()
def catalog() -> None:
    """Where the catalog of a home is kept: its own file, or Postgres."""


@app.command("move")
def move(
    to: Annotated[str, typer.Option("--to", help="`postgresql://user:password@host/database`, or `sqlite`.")],
    schema: Annotated[str | None, typer.Option(help="Schema in Postgres; catalog.store_schema otherwise.")] = None,
    home: HomeOption = Path("dolake-home"),
    config: ConfigOption = None,
) -> None:
    """Bring the whole catalog into Postgres, or back into the home's file. The server must be stopped."""
    from dolake.catalog.moving import move_to_postgres, move_to_sqlite  # other commands do without the driver
    from dolake.catalog.postgres import PostgresStore
    from dolake.catalog.stores import FILE, SQLITE
    from dolake.journal.repair import journal_id_of

    if not home.is_dir():
        raise NotFound(f"no folder {home}", hint="--home names the server's folder")
    settings = load_settings(home=home, config_file=config, environ=os.environ, flags={}).current.catalog
    # The same rules as for the settings that will hold it.
    wanted = load_settings(
        home=None,
        config_file=None,
        environ={},
        flags={"catalog.store": to, "catalog.store_schema": schema or settings.store_schema},
    ).current.catalog
    with Home(home):
        journal = (journal_id_of(home / "journal") or b"").hex() if (home / "journal").is_dir() else ""
        if wanted.store == SQLITE:
            if settings.store == SQLITE:
                raise InvalidInput(
                    "catalog.store names no Postgres to move from", hint="set it to where the catalog is now"
                )
            with contextlib.closing(PostgresStore(settings.store, wanted.store_schema)) as store:
                moved = move_to_sqlite(home, store, journal)
        else:
            if not (home / FILE).is_file():
                raise NotFound(f"no {FILE} in {home}", hint="from one Postgres to another it goes through --to sqlite")
            with contextlib.closing(PostgresStore(wanted.store, wanted.store_schema)) as store:
                moved = move_to_postgres(home, store, journal)
    _show(moved, wanted, settings)


def _show(moved: Moved, wanted: CatalogSettings, settings: CatalogSettings) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"moved: {moved.namespaces:,} namespaces, {moved.tables_and_views:,} tables and views,"
        f" {moved.publishes:,} publishes, {moved.answers:,} kept answers; published position {moved.position:,}",
        markup=False,
    )
    if (wanted.store, wanted.store_schema) == (settings.store, settings.store_schema):
        console.print("The settings name it already: start the server.")
        return
    console.print("Now set this before you start the server, in dolake.toml or as DOLAKE_CATALOG_STORE:")
    console.print(f'  [catalog]\n  store = "{without_passwords(wanted.store)}"', markup=False)
    if wanted.store_schema != settings.store_schema:
        console.print(f'  store_schema = "{wanted.store_schema}"', markup=False)
