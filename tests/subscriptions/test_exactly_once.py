"""The pattern of docs/howto/react-to-changes.md, as it stands: killed at any step, it counts each change once."""

from __future__ import annotations

import multiprocessing
import os
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from dolake.client.sync import connect
from tests.support.server import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "react-to-changes.md"
_CITIES = ("Oslo", "Rome", "Lima")
_STEPS = (4, 5, 6, 7, 9, 14, 23)
"""How many statements a run of the program gets through before it is killed: in, between and behind transactions."""


def pattern() -> str:
    """The program in the page's section."""
    section = PAGE.read_text().partition("## Exactly once")[2]
    found = re.search(r"```py\n(.*?)```", section, re.DOTALL)
    assert found
    return found[1]


class _Mortal(sqlite3.Connection):
    """A connection whose process dies instead of its n-th statement, or right after it."""

    left = 0
    dies_after = False

    def execute(self, *args: Any) -> sqlite3.Cursor:
        type(self).left -= 1
        if self.left == 0 and not self.dies_after:
            os._exit(9)
        cursor = super().execute(*args)
        if self.left == 0:
            os._exit(9)
        return cursor


def _program(url: str, table: str, database: Path, steps: int, *, dies_after: bool) -> None:
    _Mortal.left, _Mortal.dies_after = steps, dies_after
    text = pattern().replace('"orders"', repr(table)).replace('"totals.db"', repr(str(database)))
    text = text.replace("sqlite3.connect(", "sqlite3.connect(factory=Mortal, database=")
    exec(text, {"sqlite3": sqlite3, "Mortal": _Mortal, "lake": connect(url)})  # noqa: S102


def test_each_change_counts_once_wherever_the_program_is_killed(
    server: ServerProcess, table: str, tmp_path: Path
) -> None:
    database, wanted, number = tmp_path / "totals.db", dict.fromkeys(_CITIES, 0), 0
    fork = multiprocessing.get_context("fork")
    with connect(server.url) as lake:
        for run, steps in enumerate((*_STEPS, 0)):
            rows = []
            for city in _CITIES:
                number += 1
                wanted[city] += number
                rows.append({"id": number, "city": city, "amount": number})
            lake.send([{"table": table, "operation": "INSERT", "rowId": str(r["id"]), "after": r} for r in rows])
            program = fork.Process(
                target=_program, args=(server.url, table, database, steps), kwargs={"dies_after": run % 2 == 1}
            )
            program.start()
            try:
                _wait(program, database, wanted)
            finally:
                program.kill()
                program.join()
            if steps == 0:
                assert _totals(database) == wanted
            assert all(_totals(database).get(city, 0) <= wanted[city] for city in _CITIES)


def _wait(program: Any, database: Path, wanted: dict[str, int]) -> None:
    """Until it has died, or counted everything."""
    give_up_s = time.monotonic() + 60
    while program.is_alive() and _totals(database) != wanted:
        assert time.monotonic() < give_up_s, _totals(database)
        time.sleep(0.02)


def _totals(database: Path) -> dict[str, int]:
    with closing(sqlite3.connect(database)) as connection:
        try:
            return dict(connection.execute("SELECT city, amount FROM totals").fetchall())
        except sqlite3.OperationalError:
            return {}
