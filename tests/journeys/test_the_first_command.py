"""The documented start, typed into a shell in an empty folder without any setting: a change becomes a row in DuckDB."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

from dolake.client.sync import connect
from tools.duckdb_client import duck_on

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.own_lake]
ROOT = Path(__file__).resolve().parents[2]
_WAIT_S = 300.0
_FOLLOW = re.compile(r"^\$ (dolake serve --follow ([\w.]+))(?= |$)", re.MULTILINE)
_SERVE = re.compile(r"^(?:\$ |.*`)?(dolake serve(?: --home (?!/|HOME\b)([\w./-]+))?)(?= *(?:&|`|$))", re.MULTILINE)


@contextmanager
def typed(command: str, folder: Path, home: str) -> Iterator[str]:
    """This command in a shell of that folder; gives the server's address once it is ready."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DOLAKE_")}
    environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", "")])
    with (folder / "said.txt").open("wb") as said:
        server = subprocess.Popen(f"exec {command} --port 0", shell=True, cwd=folder, env=environ, stderr=said)  # noqa: S602
    try:
        address, give_up_s = folder / home / "server.json", time.monotonic() + _WAIT_S
        while not address.exists():
            assert server.poll() is None, (folder / "said.txt").read_text()
            assert time.monotonic() < give_up_s
            time.sleep(0.05)
        yield json.loads(address.read_text())["url"]
    finally:
        server.terminate()
        server.wait(_WAIT_S)


def documented_commands() -> list[tuple[str, str]]:
    """Each start of a server that README, quickstart and howtos tell people to type, and the home that it makes.

    One command for each home: Path takes `./lake` and `lake` for the same. Commands that need a certificate, a store or
    a folder of the whole machine have tests of their own.
    """
    guides = [ROOT / "README.md", ROOT / "docs" / "quickstart.md", *sorted((ROOT / "docs" / "howto").glob("*.md"))]
    found: dict[str, str] = {}
    for guide in guides:
        for line, home in _SERVE.findall(guide.read_text()):
            found.setdefault(str(Path(home or "dolake-home")), line.strip())
    return sorted((command, home) for home, command in found.items())


@pytest.mark.parametrize(("command", "home"), documented_commands())
def test_a_documented_start_publishes_from_an_empty_folder(command: str, home: str, tmp_path: Path) -> None:
    with typed(command, tmp_path, home) as url:
        with connect(url, source="shop") as lake:
            lake.send({"table": "orders", "operation": "INSERT", "rowId": "1", "after": {"id": 1, "item": "tea"}})
        wait_for_rows(url, [(1, "tea")], tmp_path)
        with urllib.request.urlopen(f"{url}/health") as answer:  # noqa: S310 - a loopback address
            assert json.load(answer)["status"] == "ok"


def test_the_readme_s_first_command_brings_a_sqlite_file_and_its_changes_into_duckdb(tmp_path: Path) -> None:
    found = _FOLLOW.search((ROOT / "README.md").read_text())
    assert found is not None
    with contextlib.closing(sqlite3.connect(tmp_path / found[2])) as db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
        db.execute("INSERT INTO orders VALUES (1, 'tea')")
        db.commit()
        with typed(found[1], tmp_path, "dolake-home") as url:
            wait_for_rows(url, [(1, "tea")], tmp_path)
            db.execute("UPDATE orders SET item = 'cake'")
            db.commit()
            wait_for_rows(url, [(1, "cake")], tmp_path)


def wait_for_rows(url: str, wanted: list[tuple[int, str]], folder: Path) -> None:
    """Until DuckDB reads these rows from the Iceberg table."""
    give_up_s = time.monotonic() + _WAIT_S
    rows: list[tuple[int, str]] = []
    while rows != wanted:
        assert time.monotonic() < give_up_s, f"{rows}\n" + (folder / "said.txt").read_text()[-3_000:]
        with duck_on(url) as duck, contextlib.suppress(duckdb.Error):  # the table is made with the first publish
            rows = duck.execute("SELECT id, item FROM lake.default.orders").fetchall()
        time.sleep(0.05)


def test_the_documented_starts_are_found() -> None:
    assert {"dolake serve", "dolake serve --home ./lake"} <= dict(documented_commands()).keys()
