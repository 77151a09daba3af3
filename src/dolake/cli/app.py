"""All commands joined, and errors shown as one clear line instead of a traceback.

A command's module is loaded when the command is called: `dolake tables` does not wait for what `dolake serve` needs.
"""

from __future__ import annotations

import importlib
import sys
from functools import cached_property
from typing import Annotated, Any

import typer

import dolake
from dolake.cli.hints import for_commands
from dolake.errors import DoLakeError

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("serve.serve", "Receive changes, keep them, serve them."),
    "demo": (
        "demo.demo",
        "Stream a shop of four SQLite files into a lake, query it, kill it, and compare every row with the files.",
    ),
    "query": ("query.query", "Run one SELECT and print the answer; Ctrl-C ends it on the server too."),
    "shell": ("shell.shell", "Run one query after another."),
    "tables": ("tables.app", "List the tables of the lake, and in which columns values did not fit."),
    "snapshots": ("tables.snapshots", "List snapshots, the newest first."),
    "schema": ("tables.schema", "Show the columns of a table, and since when it has them."),
    "tail": ("tail.tail", "Print changes as they come; Ctrl-C ends it."),
    "get": ("get.get", "Show rows by their keys. Where one has none, it says so and ends with 1."),
    "diff": ("diff.diff", "Show rows that came (+), went (-) and changed (~) between two points in time."),
    "rollback": ("tables.rollback", "Make a table what it was, by new changes; its history stays."),
    "flush": ("flush.flush", "Publish now, and wait until the Iceberg tables have every change sent before."),
    "forget": (
        "forget.forget",
        "Let a key go from a table, its history, its snapshots and the journal. There is no way back.",
    ),
    "compact": ("compact.compact", "Make small files few and let deleted rows go."),
    "expire": ("compact.expire", "Let old snapshots go, and files that nothing has named for `gc_grace_ms`."),
    "maintain": ("compact.maintain", "Do all maintenance that is due, or say what that is."),
    "verify": (
        "verify.verify",
        "Compare journal, changes, state and key index, and name every difference. Changes nothing.",
    ),
    "doctor": (
        "doctor.doctor",
        "Look at Java, Spark, disk, port, clock and limits, and say what to do about what is not as it should be.",
    ),
    "prepare": (
        "prepare.prepare",
        "Get Java and Iceberg's jar, and make Spark's class archive, with which each start takes half as long.",
    ),
    "backup": (
        "backup.backup",
        "Copy the lake, beside its running server or without one; a second time only what is new.",
    ),
    "restore": (
        "backup.restore",
        "Make a home from a backup. Until it is whole no server starts on it; run it again if it was stopped.",
    ),
    "recover": (
        "recover.recover",
        "Make a new home from the copy in the store, when the machine is lost that `journal.copy` was set on.",
    ),
    "catalog": ("catalog.app", "Where the catalog of a home is kept: its own file, or Postgres."),
    "source": ("source.app", "Follow databases, and bring their changes to a lake."),
    "sources": ("sources.app", "The databases that a running server follows: list, add, pause, resume, remove."),
    "subscriptions": ("tail.app", "Named subscriptions of a running server."),
    "quarantine": ("quarantine.app", "Changes that could not be written: look, send them again, or let them go."),
    "tiers": ("tiers.app", "What is hot, warm and cold, and what it costs; move it."),
    "token": ("token.app", "Who may reach a lake: make tokens, list them, revoke them."),
    "journal": ("journal.app", "Look into the journal, or mend one that is damaged."),
    "bench": ("bench.app", "Measure DoLake on this machine."),
}
"""Each command: where it is in this package, and its line in `dolake --help`."""


class LazyCommand(typer.core.TyperCommand):
    """A command, or a group of them, whose module is loaded when it is called."""

    def __init__(self, name: str, target: str, summary: str) -> None:
        super().__init__(name, help=summary)
        self._target = target

    @cached_property
    def loaded(self) -> Any:
        module, _, attribute = self._target.partition(".")
        found = getattr(importlib.import_module(f"dolake.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            command: Any = typer.main.get_group(found)
        else:
            alone = typer.Typer(add_completion=False)
            alone.command(self.name)(found)
            command = typer.main.get_command(alone)
        command.name = self.name
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        return self.loaded.make_context(*args, **kwargs)


class _Group(typer.core.TyperGroup):
    """Shows our own errors in one line; anything else is a bug and keeps its traceback."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, (target, summary) in COMMANDS.items():
            self.add_command(LazyCommand(name, target, summary))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DoLakeError as error:
            _show(f"dolake: {error.message}", error.hint)
        except OSError as error:
            where = f" {error.filename}" if error.filename else ""
            _show(f"dolake: cannot use{where}: {error.strerror}", "")
        sys.exit(1)


def _show(message: str, hint: str) -> None:
    from rich.console import Console  # here: a command that goes well may do without it

    console = Console(stderr=True, highlight=False)
    console.print(message, style="bold red", markup=False)
    if hint:
        console.print(f"        {for_commands(hint)}", markup=False)


app = typer.Typer(
    cls=_Group,
    name="dolake",
    help="DoLake: a real-time Iceberg lakehouse. Start with `dolake demo`, then `dolake serve --home DIR`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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
