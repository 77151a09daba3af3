"""The process that follows a source for the server: what it says of what it cannot follow, and that it ends."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dolake.sources.configured import files_of, shards_of
from dolake.sources.sqlite import enable_cdc, status
from dolake.sources.sqlite.lake_view import LakeView
from dolake.wire.source_lines import ErrorLine, SourceLine, StartSource, decode_line, to_line

_WAIT_S = 30.0
_NOBODY = "http://127.0.0.1:9"  # no server listens on this port


@contextmanager
def child(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A child that was given this file to follow, for a server that is not there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dolake.sources"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdin
    process.stdin.write(to_line(StartSource(name="app", kind="sqlite", path=str(path), url=_NOBODY, token="t")))
    process.stdin.flush()
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines_of(process: subprocess.Popen[bytes]) -> list[SourceLine]:
    """All that it says until its end."""
    assert process.stdout
    found = [decode_line(line) for line in process.stdout]
    process.wait(_WAIT_S)
    return found


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "app.db does not exist"), (b"this is no database" * 100, "app.db is no SQLite file")],
)
def test_a_file_that_cannot_be_followed_is_an_error_in_words(content: bytes | None, words: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "app.db").write_bytes(content)
    with child(tmp_path / "app.db") as process:
        errors = [line for line in lines_of(process) if isinstance(line, ErrorLine)]
        assert process.returncode == 1
    assert errors
    assert all(words in str(line) for line in errors)


def test_a_folder_without_files_is_an_error_in_words(tmp_path: Path) -> None:
    with child(tmp_path) as process:
        (error,) = lines_of(process)
    assert "has no SQLite files (their names end in .db, .sqlite, .sqlite3)" in str(error)


@pytest.mark.parametrize("ends", ["the server is gone", "SIGTERM"])
def test_a_source_ends_with_its_server_and_its_log_is_json(ends: str, tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "app.db").execute("CREATE TABLE t (id INTEGER PRIMARY KEY)").connection.close()
    with child(tmp_path / "app.db") as process:
        assert process.stderr
        assert process.stdin
        logged = json.loads(process.stderr.readline())
        assert logged["logger"].startswith("dolake.")
        if ends == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        else:
            process.stdin.close()
            process.stdin = None
        assert process.wait(_WAIT_S) == 0


def test_a_file_keeps_its_tables_and_masks_where_the_configuration_leaves_them_out(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript("CREATE TABLE users (id INTEGER PRIMARY KEY, password TEXT); CREATE TABLE sessions (id TEXT)")
    enable_cdc(path, exclude=["sessions"], masks={"users.password": "redact"})
    start = StartSource(name="app", kind="sqlite", path=str(path), url=_NOBODY, token="t")
    shards_of(start, files_of(start), LakeView())
    assert [each.table for each in status(path).tables] == ["users"]
    assert head_of(path)["masks"] == {"users.password": "redact"}


def head_of(path: Path) -> dict[str, Any]:
    """The note in the file that says what was chosen."""
    with closing(sqlite3.connect(path)) as db:
        found: dict[str, Any] = json.loads(db.execute("SELECT v0 FROM _dolake_outbox WHERE seq = 0").fetchone()[0])
    return found
