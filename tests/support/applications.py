"""A real application and its SQLite file, which is followed: run step by step, and its rows compared with the lake's.

The applications are the programs of tests/journeys/applications.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import subprocess
import sys
from base64 import b64encode
from collections import Counter
from contextlib import AbstractContextManager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from dolake.client.results import QueryResult
from dolake.client.sync import LakeClient, connect
from tests.support.command import dolake
from tests.support.server import ServerProcess
from tests.support.source_process import following, stream_of, wait_until_told
from tools.duckdb_client import duck_on

PROGRAMS = Path(__file__).parents[1] / "journeys" / "applications"
_STEP_WAIT_S = 200
Row = tuple[Any, ...]


class Application:
    """One program with its file, and its namespace in the lake."""

    def __init__(
        self, program: str, path: Path, lake: ServerProcess, namespace: str, *, libraries: Path | None = None
    ) -> None:
        """`libraries`: where the program's libraries were installed, if they are none of ours."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._libraries = libraries
        self.path = path
        self.namespace = namespace
        self._program = PROGRAMS / program
        self._lake = lake

    def run(self, step: str) -> str:
        """Run this step in a process of its own. None of its writes may fail. Returns what it has printed."""
        return run_step(self._program, self.path, step, self._libraries)

    def followed(self) -> AbstractContextManager[None]:
        """`dolake source sqlite`, as long as the block takes."""
        return following(self.path, self._lake.url, self.namespace)

    def wait_until_told(self) -> None:
        wait_until_told(self.path, self._lake.url)

    def assert_equal(self, *, tables: int) -> None:
        """Each row of each table is the same in SQLite, in live SQL, and in DuckDB on the published tables.

        A column that got values of another kind than those of the copy becomes text with the publish.
        """
        stream = stream_of(self._lake.url, self.namespace)
        assert stream is not None
        assert stream.state is not None
        names = {name: table.lake.partition(".")[2] for name, table in stream.state.tables.items()}
        assert len(names) >= tables, names
        with connect(self._lake.url) as client, duck_on(self._lake.url) as duck:
            for name, table in names.items():
                columns, rows = self._rows(name)
                answer = self._answer(client, columns, table)
                found = [tuple(row[column] for column in columns) for row in answer.rows]
                _assert_same(rows, found, [column.type for column in answer.columns], table)
            self._lake.flush()
            for name, table in names.items():
                columns, rows = self._rows(name)
                cursor = duck.execute(self._select(columns, table, "lake."))
                types = [str(column[1]) for column in cursor.description or ()]
                _assert_same(rows, cursor.fetchall(), types, table)

    def _answer(self, client: LakeClient, columns: list[str], table: str) -> QueryResult:
        """From live SQL, once no value of the table waits for a column of another type."""
        while (answer := client.query(self._select(columns, table))).warnings:
            assert all("did not fit" in each for each in answer.warnings), answer.warnings
            self._lake.flush()
        return answer

    def _select(self, columns: list[str], table: str, catalog: str = "") -> str:
        chosen = ", ".join(f'"{column}"' for column in columns)
        return f'SELECT {chosen} FROM {catalog}"{self.namespace}"."{table}"'  # noqa: S608

    def _rows(self, table: str) -> tuple[list[str], list[Row]]:
        with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as db:
            found = db.execute(f'SELECT * FROM "{table}"')  # noqa: S608
            return [column[0] for column in found.description], found.fetchall()

    def unfollow(self) -> None:
        """`dolake source disable`: what the application has in its schema is what it had, and nothing is ours."""
        before = self._schema()
        done = dolake("source", "disable", self.path, "--to", self._lake.url)
        assert done.returncode == 0, done.stderr
        after = self._schema()
        assert after == [row for row in before if not row[1].startswith("_dolake_")]
        assert not [row for row in after if "_dolake_" in f"{row[3]}"]

    def _schema(self) -> list[tuple[str, ...]]:
        with contextlib.closing(sqlite3.connect(self.path)) as db:
            return db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY 1, 2").fetchall()


def run_step(program: Path, path: Path, step: str, libraries: Path | None = None) -> str:
    more = {"PYTHONPATH": str(libraries)} if libraries else {}
    done = subprocess.run(
        [sys.executable, str(program), str(path), step],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(path.parent), **more},
        capture_output=True,
        text=True,
        timeout=_STEP_WAIT_S,
        check=False,
    )
    assert done.returncode == 0, (step, done.stderr[-3_000:])
    found = json.loads(done.stdout.splitlines()[-1])
    assert not found["failures"], (step, found)
    assert found["done"] > 0
    return done.stdout


# --- what a value of SQLite is in a column of this type --------------------------------------------------------------


def _assert_same(rows: list[Row], found: list[Row], types: list[str], table: str) -> None:
    """In whatever order."""
    columns = zip(*rows, strict=True) if rows else [() for _ in types]
    had = list(zip(*found, strict=True)) if found else [() for _ in types]
    wanted = [_column(list(values), list(have), kind) for values, have, kind in zip(columns, had, types, strict=True)]
    have = [[_as_type(value, kind) for value in values] for values, kind in zip(had, types, strict=True)]
    left, right = Counter(zip(*wanted, strict=True)), Counter(zip(*have, strict=True))
    assert left == right, (table, list((left - right).elements())[:3], list((right - left).elements())[:3])


def _column(values: list[Any], found: list[Any], kind: str) -> list[Any]:
    """Blobs of a column that became text later are Base64 there, and so is text among them."""
    made = [_as_type(value, kind) for value in values]
    if kind.upper() != "VARCHAR" or set(made) == set(found):
        return made
    return [
        _base64(value) if isinstance(value, str | bytes) else text for value, text in zip(values, made, strict=True)
    ]


def _base64(value: str | bytes) -> str:
    return b64encode(value.encode() if isinstance(value, str) else value).decode()


def _as_type(value: Any, kind: str) -> Any:
    if value is None:
        return None
    word = kind.upper().partition("(")[0]
    if word == "BOOLEAN":
        assert value in (0, 1), value
        return bool(value)
    if word in ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE"):
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        return moment.replace(tzinfo=moment.tzinfo or UTC)
    if word == "DATE":
        return value if isinstance(value, date) else date.fromisoformat(value)
    if word == "DECIMAL":
        return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if word == "UUID":
        return UUID(bytes=value) if isinstance(value, bytes) else UUID(str(value))
    if word == "BLOB":
        return value.encode() if isinstance(value, str) else value
    if word == "VARCHAR":
        return f"X'{value.hex().upper()}'" if isinstance(value, bytes) else str(value)
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return value
