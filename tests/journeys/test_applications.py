"""Real applications write to SQLite files that are followed: none of their writes fails, and the lake has each row.

They share one server. The programs are in tests/journeys/applications.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from tests.support.applications import Application
from tests.support.server import ServerProcess, wait_for

SETTINGS = ""

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.mark.parametrize(
    ("program", "file", "tables"),
    [
        ("django_shop/program.py", "db.sqlite3", 13),
        ("sqlite_utils_animals.py", "animals.db", 4),
        ("optuna_study.py", "studies.db", 8),
        ("diskcache_pages.py", "cache.db", 2),
    ],
)
def test_an_application_migrates_and_writes_while_it_is_followed(
    program: str, file: str, tables: int, lake: ServerProcess, tmp_path: Path
) -> None:
    namespace = program.partition("_")[0]
    application = Application(program, tmp_path / namespace / file, lake, namespace)
    application.run("begin")
    with application.followed():
        application.run("work")
        application.wait_until_told()
        application.assert_equal(tables=tables)
    application.unfollow()


def test_a_migration_of_alembic_that_drops_the_outbox_loses_nothing(lake: ServerProcess, tmp_path: Path) -> None:
    application = Application("alembic_notes.py", tmp_path / "notes.db", lake, "alembic")
    application.run("begin")
    with application.followed():
        application.wait_until_told()
        application.run("migrate")
        written = next((tmp_path / "migrations" / "versions").glob("*.py")).read_text()
        assert "drop_table('_dolake_outbox')" in written
        wait_for(lambda: has_outbox(application.path), "the outbox is there again")
        application.run("work")
        application.wait_until_told()
        application.assert_equal(tables=3)
    application.unfollow()


def has_outbox(path: Path) -> bool:
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as db:
        found = db.execute("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = '_dolake_outbox'").fetchall()
        return bool(found)
