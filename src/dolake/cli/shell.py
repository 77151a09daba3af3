"""`dolake shell`: run one query after another, with history and completion; or read statements from a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dolake.cli import showing, tables
from dolake.cli.address import HomeOption, UrlOption, lake_at
from dolake.cli.hints import for_commands
from dolake.cli.moments import moment_of
from dolake.cli.query import TABLE_ROWS, AsOfOption, show_answer
from dolake.cli.statements import is_blank, is_command, is_complete, split
from dolake.client.sync import LakeClient
from dolake.errors import DoLakeError, InvalidInput

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.input import Input
    from prompt_toolkit.output import Output

HELP = """\
SELECT ... ;       run it; a statement ends with a semicolon and may have many lines
\\tables            list the tables
\\schema TABLE      show its columns
\\snapshots [TABLE] list snapshots, the newest first
\\asof [TIME]       query as of a point in time, such as '5 minutes ago'; without one, as of now again
\\timing            show, or no longer show, how long it took and how fresh it is
\\help              this
\\q                 leave; so does Ctrl-D. Ctrl-C ends a query, or clears what was typed
"""


def shell(
    home: HomeOption = Path("dolake-home"),
    url: UrlOption = None,
    as_of: AsOfOption = None,
) -> None:
    """Run one query after another."""
    session = Shell(lake_at(home, url))
    if as_of is not None:
        session.run(f"\\asof {as_of}")
    if sys.stdin.isatty():
        session.converse()
    elif not session.read(sys.stdin):
        raise typer.Exit(1)


class Shell:
    """What was set, and what is done with each line. Reading lines is converse()'s, or read()'s."""

    def __init__(self, lake: LakeClient) -> None:
        self._lake = lake
        self._as_of: datetime | None = None
        self._shows_facts = True
        self.is_over = False
        self._commands: dict[str, Callable[[str], None]] = {
            "\\tables": self._list_tables,
            "\\schema": self._show_schema,
            "\\snapshots": self._list_snapshots,
            "\\asof": self._set_moment,
            "\\timing": self._toggle_facts,
            "\\help": self._help,
            "\\?": self._help,
            "\\q": self._leave,
        }

    # --- where text comes from ----------------------------------------------------------------------------------------

    def converse(self, source: Input | None = None, sink: Output | None = None) -> None:
        """Prompt until somebody leaves. `source` and `sink` are the terminal's, unless told otherwise."""
        session = self._prompt(source, sink)
        showing.notes().print("DoLake. Statements end with a semicolon; \\help has the commands.", markup=False)
        while not self.is_over:
            try:
                self.run(session.prompt(self._prompt_text()))
            except KeyboardInterrupt:
                continue
            except EOFError:
                return

    def read(self, lines: Iterable[str]) -> bool:
        """Everything from a pipe; False when something failed. A failure does not keep the rest from being asked."""
        is_fine, waiting = True, ""
        for line in lines:
            if self.is_over:
                return is_fine
            waiting += line
            if is_complete(waiting):
                is_fine &= self.run(waiting)
                waiting = ""
        return (is_blank(waiting) or self.run(waiting + "\n;")) and is_fine

    # --- what is done with it -----------------------------------------------------------------------------------------

    def run(self, text: str) -> bool:
        """One command, or some statements; False when one of them failed."""
        text = text.strip()
        if is_command(text):
            return self._safely(lambda: self._command(text))
        done = [self._safely(lambda sql=sql: self._ask(sql)) for sql in split(text)[0]]  # type: ignore[misc]
        return all(done)

    def _safely(self, work: Callable[[], None]) -> bool:
        console = showing.notes()
        try:
            work()
        except DoLakeError as error:
            console.print(f"error: {error.message}", style="bold red", markup=False, soft_wrap=True)
            if error.hint:
                console.print(f"       {for_commands(error.hint)}", markup=False, soft_wrap=True)
        except KeyboardInterrupt:
            console.print("cancelled")
        else:
            return True
        return False

    def _ask(self, sql: str) -> None:
        show_answer(lambda: self._lake.query(sql, as_of=self._as_of, limit=TABLE_ROWS), with_facts=self._shows_facts)

    def _command(self, text: str) -> None:
        name, _, rest = text.rstrip(";").partition(" ")
        name = {"exit": "\\q", "quit": "\\q", "help": "\\help"}.get(name.lower(), name)
        command = self._commands.get(name)
        if command is None:
            raise InvalidInput(f"{name} is not a command", hint="\\help lists them")
        command(rest.strip())

    def _list_tables(self, _: str) -> None:
        showing.output().print(tables.tables_paper(self._lake.list_tables()))

    def _show_schema(self, table: str) -> None:
        if not table:
            raise InvalidInput("the command needs a table", hint="\\schema orders")
        showing.output().print(tables.schema_paper(self._lake.get_schema(table)))

    def _list_snapshots(self, table: str) -> None:
        showing.output().print(tables.snapshots_paper(self._lake.list_snapshots(table or None)))

    def _set_moment(self, text: str) -> None:
        self._as_of = None if text.lower() in ("", "now") else moment_of(text.strip("'\""))
        showing.notes().print(f"as of {self._as_of or 'now'}", markup=False)

    def _toggle_facts(self, _: str) -> None:
        self._shows_facts = not self._shows_facts
        showing.notes().print(f"timing is {'on' if self._shows_facts else 'off'}")

    def _help(self, _: str) -> None:
        showing.output().print(HELP, end="", markup=False)

    def _leave(self, _: str) -> None:
        self.is_over = True

    # --- the prompt ---------------------------------------------------------------------------------------------------

    def _prompt_text(self) -> str:
        return "dolake> " if self._as_of is None else f"dolake @ {self._as_of:%Y-%m-%d %H:%M:%S}> "

    def _prompt(self, source: Input | None, sink: Output | None) -> PromptSession[str]:
        from prompt_toolkit import PromptSession  # here, because no other command needs it
        from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
        from prompt_toolkit.history import FileHistory
        from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

        from dolake.cli.completing import LakeCompleter

        keys = KeyBindings()

        @keys.add("enter")
        def _(event: KeyPressEvent) -> None:
            """Enter ends a statement that has its semicolon, and makes a new line otherwise."""
            buffer = event.current_buffer
            if buffer.complete_state and buffer.complete_state.current_completion:
                buffer.complete_state = None
            elif is_complete(buffer.text):
                buffer.validate_and_handle()
            else:
                buffer.insert_text("\n")

        return PromptSession(
            history=FileHistory(history_file()),
            completer=LakeCompleter(self._lake, {name: name in ("\\schema", "\\snapshots") for name in self._commands}),
            complete_in_thread=True,
            complete_while_typing=False,
            auto_suggest=AutoSuggestFromHistory(),
            multiline=True,
            prompt_continuation="    ... ",
            key_bindings=keys,
            input=source,
            output=sink,
        )


def history_file() -> Path:
    """In the folder for state of the user's, which is made if it is missing."""
    base = os.environ.get("XDG_STATE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".local" / "state"
    folder = Path(base) / "dolake"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "shell_history"
