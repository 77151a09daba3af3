"""All commands joined, and errors shown as one clear line instead of a traceback."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.console import Console

import dolake
from dolake.cli import (
    backup,
    bench,
    catalog,
    compact,
    demo,
    diff,
    doctor,
    forget,
    get,
    journal,
    prepare,
    quarantine,
    query,
    recover,
    serve,
    shell,
    source,
    sources,
    tables,
    tail,
    tiers,
    token,
    verify,
)
from dolake.errors import DoLakeError


class _Group(typer.core.TyperGroup):
    """Shows our own errors in one line; anything else is a bug and keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DoLakeError as error:
            console = Console(stderr=True, highlight=False)
            console.print(f"dolake: {error.message}", style="bold red", markup=False)
            if error.hint:
                console.print(f"        {error.hint}", markup=False)
            sys.exit(1)
        except OSError as error:
            where = f" {error.filename}" if error.filename else ""
            Console(stderr=True, highlight=False).print(
                f"dolake: cannot use{where}: {error.strerror}", style="bold red", markup=False
            )
            sys.exit(1)


app = typer.Typer(
    cls=_Group,
    name="dolake",
    help="DoLake: a real-time Iceberg lakehouse. Start with `dolake demo`, then `dolake serve --home DIR`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("serve")(serve.serve)
app.command("demo")(demo.demo)
app.command("query")(query.query)
app.command("shell")(shell.shell)
app.command("tables")(tables.tables)
app.command("snapshots")(tables.snapshots)
app.command("schema")(tables.schema)
app.command("tail")(tail.tail)
app.command("get")(get.get)
app.command("diff")(diff.diff)
app.command("rollback")(tables.rollback)
app.command("forget")(forget.forget)
app.command("compact")(compact.compact)
app.command("expire")(compact.expire)
app.command("maintain")(compact.maintain)
app.command("verify")(verify.verify)
app.command("doctor")(doctor.doctor)
app.command("prepare")(prepare.prepare)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
app.command("recover")(recover.recover)
app.add_typer(catalog.app, name="catalog")
app.add_typer(source.app, name="source")
app.add_typer(sources.app, name="sources")
app.add_typer(tail.app, name="subscriptions")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(tiers.app, name="tiers")
app.add_typer(token.app, name="token")
app.add_typer(journal.app, name="journal")
app.add_typer(bench.app, name="bench")


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"dolake {dolake.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """DoLake: a real-time Iceberg lakehouse."""
