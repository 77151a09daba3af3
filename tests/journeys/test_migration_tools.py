"""The lines for migration tools in the documentation: run on a file that is followed, they leave our table alone."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from pathlib import Path

import pytest

from dolake.sources.sqlite import enable_cdc, is_enabled
from tests.support.applications import PROGRAMS, run_step

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "stream-from-sqlite.md"


def documented_lines(word: str) -> str:
    """The block of Python code of the page that has this word."""
    blocks: list[str] = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return next(block for block in blocks if word in block)


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["include_name", "include_object"])
def test_alembic_writes_no_migration_for_the_outbox_with_the_documented_hook(hook: str, tmp_path: Path) -> None:
    program, path = PROGRAMS / "alembic_notes.py", tmp_path / "notes.db"
    run_step(program, path, "begin")
    enable_cdc(path)
    (tmp_path / "hooks.py").write_text(documented_lines(f"def {hook}"))
    run_step(program, path, hook)
    (written,) = (tmp_path / "migrations" / "versions").glob("*.py")
    assert "labels" in written.read_text()
    assert "_dolake" not in written.read_text()


@pytest.mark.slow
def test_django_prints_no_model_of_the_outbox_with_the_documented_lines(tmp_path: Path) -> None:
    program, path = PROGRAMS / "django_shop" / "program.py", tmp_path / "db.sqlite3"
    run_step(program, path, "begin")
    enable_cdc(path)
    (tmp_path / "lines.py").write_text(documented_lines("inspectdb"))
    every, named = run_step(program, path, "inspect").split("# --- with the lines of the documentation")
    assert "Unable to inspect table '_dolake_outbox'" in every
    assert "class ShopProduct" in named
    assert "olake" not in named
    assert is_enabled(path), "`migrate` has left it alone"


def test_without_the_outbox_writes_fail_until_the_file_is_enabled_again(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        enable_cdc(path)
        db.execute("DROP TABLE _dolake_outbox")
        for statement in ("INSERT INTO t VALUES (1)", "DELETE FROM t", "ALTER TABLE t RENAME TO u"):
            with pytest.raises(sqlite3.OperationalError, match=r"no such table: main\._dolake_outbox"):
                db.execute(statement)
        enable_cdc(path)
        # SQLite looks at the file's schema again when a statement runs, and not when one cannot be prepared.
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            db.execute("INSERT INTO t VALUES (1)")
        db.execute("SELECT count(*) FROM t").fetchall()
        db.execute("INSERT INTO t VALUES (1)")
