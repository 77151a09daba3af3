"""Real applications write to SQLite files that are followed: none of their writes fails, and the lake has each row.

They share one server. The programs are in tests/journeys/applications.
"""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
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
    show(Application(program, tmp_path / namespace / file, lake, namespace), tables)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("package", "program", "tables"), [("buku", "buku_bookmarks.py", 1), ("beets", "beets_music.py", 5)]
)
def test_an_application_that_is_installed_for_it_writes_while_it_is_followed(
    package: str, program: str, tables: int, lake: ServerProcess, tmp_path: Path
) -> None:
    libraries = tmp_path / "libraries"
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable]
    done = subprocess.run([*install, "--target", str(libraries), package], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{package} cannot be installed here: {done.stderr[-300:]}")
    show(Application(program, tmp_path / package / f"{package}.db", lake, package, libraries=libraries), tables)


def show(application: Application, tables: int) -> None:
    """It begins, is followed, goes on, and is what the lake has; then there is no trace of us."""
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
