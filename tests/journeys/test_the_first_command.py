"""The documented start, typed into a shell in an empty folder without any setting: a change becomes a row in DuckDB."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

from dolake.client.sync import connect
from tools.duckdb_client import duck_on

pytestmark = [pytest.mark.spark, pytest.mark.slow]
_WAIT_S = 300.0


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


@pytest.mark.parametrize(
    ("command", "home"),
    [
        ("dolake serve --home ./lake", "lake"),
        pytest.param("dolake serve", "dolake-home", marks=pytest.mark.chaos),
        pytest.param("dolake serve --home lake", "lake", marks=pytest.mark.chaos),
    ],
)
def test_a_change_becomes_a_row_in_duckdb(command: str, home: str, tmp_path: Path) -> None:
    with typed(command, tmp_path, home) as url:
        with connect(url, source="shop") as lake:
            lake.send({"table": "orders", "operation": "INSERT", "rowId": "1", "after": {"id": 1, "item": "tea"}})
        give_up_s = time.monotonic() + _WAIT_S
        rows: list[tuple[int, str]] = []
        while not rows:
            assert time.monotonic() < give_up_s, (tmp_path / "said.txt").read_text()[-3_000:]
            with duck_on(url) as duck:
                try:
                    rows = duck.execute("SELECT id, item FROM lake.default.orders").fetchall()
                except duckdb.Error:
                    time.sleep(0.05)  # the table is made with the first publish
        assert rows == [(1, "tea")]
