"""What other engines and other commands say of the demo's lake: DuckDB, PyIceberg, compaction, verify.

From demo_acts.py, in threads. They reach the lake as anybody would: through its address, or as commands of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dolake.cli.compact import Server, summary
from dolake.cli.demo_shop import TABLES, rows_of

if TYPE_CHECKING:
    import duckdb

_COMPACT = ["deletes", "files", "manifests"]
_LOOK_EVERY_S = 0.2
_VERIFY_WAIT_S = 300.0


def duck_at(url: str, warehouse: str = "lake") -> duckdb.DuckDBPyConnection:
    """DuckDB with its own Iceberg extension, and the lake's tables under `lake`."""
    import duckdb  # here and below: they take their time to load, and other commands do without

    from dolake.storage.duck import extension_file

    duck = duckdb.connect()
    for name in ("avro", "httpfs", "iceberg"):
        duck.execute(f"LOAD '{extension_file(name)}'")
    duck.execute(f"ATTACH '{warehouse}' AS lake (TYPE iceberg, ENDPOINT '{url}', AUTHORIZATION_TYPE 'none')")
    return duck


def read_by_duckdb(url: str, position: int) -> tuple[int, float]:
    """How many orders there are, and what they are worth."""
    with duck_at(url, f"lake@{position}") as duck:
        found = duck.execute("SELECT count(*), sum(amount) FROM lake.default.orders").fetchone()
    assert found is not None
    return int(found[0]), round(float(found[1]), 2)


def read_by_pyiceberg(url: str, position: int) -> tuple[int, float]:
    """The same, by other code in another language."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("lake", type="rest", uri=url, warehouse=f"lake@{position}")
    amounts = catalog.load_table("default.orders").scan(selected_fields=("amount",)).to_arrow()["amount"]
    return len(amounts), round(sum(amounts.to_pylist()), 2)


def books(url: str, shop: Path) -> list[tuple[str, int, int, int, bool]]:
    """Each table: rows in SQLite, rows in Iceberg, changes kept, and whether every value is the same."""
    found = []
    with duck_at(url) as duck:
        for table in TABLES:
            ours = rows_of(shop, table)
            columns = _columns(duck, table)
            theirs = duck.sql(f"SELECT {columns} FROM lake.default.{table} ORDER BY 1").to_arrow_table()  # noqa: S608
            (changes,) = duck.execute(f"SELECT count(*) FROM lake.default.{table}__changes").fetchall()[0]  # noqa: S608
            rows = zip(*(column.to_pylist() for column in theirs.columns), strict=True)
            is_same = [tuple(map(_plain, row)) for row in rows] == ours
            found.append((table, len(ours), theirs.num_rows, int(changes), is_same))
    return found


def _columns(duck: duckdb.DuckDBPyConnection, table: str) -> str:
    """The source's own, in their order."""
    described = duck.execute(f"DESCRIBE lake.default.{table}").fetchall()
    return ", ".join(name for name, *_ in described if not name.startswith("_"))


def _plain(value: Any) -> Any:
    """SQLite has times as text; DuckDB as times."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value


def compacted(url: str) -> str:
    """Ask for compaction of all tables, wait for its end, and say what it did."""
    server = Server(Path(), url)
    job = server.ask("/v1/compaction/run", {"kinds": _COMPACT})
    while job["state"] in ("queued", "running"):
        time.sleep(_LOOK_EVERY_S)
        job = server.ask(f"/v1/compaction/jobs/{job['jobId']}")
    return (
        summary(job)
        if job["filesBefore"]
        else f"{summary(job)}; nothing was due: publishes keep files few by themselves"
    )


def verified(home: Path) -> tuple[int, list[str]]:
    """The exit code and the lines of `dolake verify`."""
    answer = subprocess.run(
        [sys.executable, "-m", "dolake.cli", "verify", "--home", str(home)],
        env=os.environ | {"COLUMNS": "120", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=_VERIFY_WAIT_S,
        check=False,
    )
    return answer.returncode, (answer.stdout + answer.stderr).strip().splitlines()
