"""What the shell suggests while somebody types: SQL's words, the lake's tables, the columns of those that are named.

From shell.py. The server is asked when a name is first needed, in a thread of the prompt's; when it does not answer,
there are only words.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from dolake.client.sync import LakeClient
from dolake.errors import DoLakeError

WORDS = re.findall(
    r"\w+",
    """
    SELECT FROM WHERE GROUP BY ORDER HAVING LIMIT OFFSET JOIN LEFT RIGHT FULL INNER CROSS ON USING AS AND OR NOT IN IS
    NULL LIKE ILIKE BETWEEN EXISTS CASE WHEN THEN ELSE END DISTINCT UNION ALL EXCEPT INTERSECT WITH RECURSIVE OVER
    PARTITION WINDOW ROWS RANGE ASC DESC COUNT SUM AVG MIN MAX CAST INTERVAL TIMESTAMP DATE NOW CURRENT_DATE
    CURRENT_TIMESTAMP TRUE FALSE QUALIFY FILTER COALESCE DATE_TRUNC ROW_NUMBER FOR SYSTEM_TIME OF VALUES
    """,
)
_NAME = re.compile(r"[\w.\"]*$")
_AFTER_FROM = re.compile(r"\b(?:from|join)\s+[\w.\"]*$", re.IGNORECASE)
_KNOWN_S = 10.0
Found = TypeVar("Found")


class LakeCompleter(Completer):
    """Suggests names of one lake. `commands` are those that begin with a backslash, and whether a table follows."""

    def __init__(self, lake: LakeClient, commands: dict[str, bool]) -> None:
        self._lake = lake
        self._commands = commands
        self._tables: _Known[list[str]] = _Known()
        self._columns: dict[str, _Known[list[str]]] = {}

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        before = document.text_before_cursor
        typed = re.search(r"\\\w*$", before) if before.lstrip().startswith("\\") else None
        if typed is not None:
            yield from _matching(typed[0], self._commands)
            return
        word = _NAME.search(before)
        assert word is not None
        yield from _matching(word[0], self._names(before, document.text))

    def _names(self, before: str, text: str) -> Iterator[str]:
        command = before.lstrip().partition(" ")[0]
        if command.startswith("\\"):
            yield from self._table_names() if self._commands.get(command) else ()
        elif _AFTER_FROM.search(before):
            yield from self._table_names()
        else:
            mentioned = set(re.findall(r"[\w.]+", text))
            tables = [name for name in self._table_names() if name in mentioned]
            for table in tables:
                yield from self._column_names(table)
            yield from self._table_names()
            yield from WORDS

    def _table_names(self) -> list[str]:
        def ask() -> list[str]:
            found = self._lake.list_tables()
            return [table.name if table.namespace == "default" else table.full_name for table in found]

        return self._tables.get(ask) or []

    def _column_names(self, table: str) -> list[str]:
        known = self._columns.setdefault(table, _Known())
        return known.get(lambda: [field.name for field in self._lake.get_schema(table).fields]) or []


class _Known(Generic[Found]):
    """An answer of the server's that is good for a few seconds, also when there was none."""

    def __init__(self) -> None:
        self._found: Found | None = None
        self._until_s = 0.0

    def get(self, ask: Callable[[], Found]) -> Found | None:
        if time.monotonic() >= self._until_s:
            try:
                self._found = ask()
            except DoLakeError:
                self._found = None
            self._until_s = time.monotonic() + _KNOWN_S
        return self._found


def _matching(typed: str, names: Iterable[str]) -> Iterator[Completion]:
    """Those that begin so, whatever their case, each once."""
    start = typed.lower()
    for name in dict.fromkeys(names):
        if name.lower().startswith(start) and name != typed:
            yield Completion(name, start_position=-len(typed))
