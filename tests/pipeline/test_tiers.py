"""Old partitions move to the cold place and back on a real server with a real Spark; every engine reads on."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyspark.sql import SparkSession

from dolake.client import aio
from dolake.client.sync import connect
from dolake.errors import InvalidInput
from tests.support.aio import run
from tests.support.changes import delete, insert, send, update
from tests.support.command import dolake
from tests.support.server import ServerProcess, job_ended, post, query, run_job
from tests.support.spark import add_catalog
from tests.support.spark import rows_of as spark_rows_of
from tests.support.tables import files_of, rows_of, verified
from tools.duckdb_client import duck_on

pytestmark = pytest.mark.spark
SETTINGS = """\
freshness_target_ms = 300
partition_by = "date"
archive_after_days = 30
[compaction]
auto_compact = false
min_files_to_compact = 2
[maintenance]
gc_grace_ms = 0
snapshots_max = 1
[tables.kept]
archive_after_days = 0
"""
_TODAY = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
_OLD = [f"2024-01-{day:02d}" for day in range(1, 6)]


def visit(day: str, n: int) -> dict[str, Any]:
    return {"created_at": f"{day}T10:00:00Z", "n": n}


def fill(lake: ServerProcess, table: str) -> None:
    """Five old days and one of today, ten rows each, in three files a day."""
    days = [*_OLD, _TODAY.date().isoformat()]
    for number in range(3):
        rows = [(day, at) for day in days for at in range(number, 10, 3)]
        send(lake.url, *(insert(table, f"{day}/{at}", **visit(day, at)) for day, at in rows))
        lake.flush()


def tiers_of(lake: ServerProcess, catalog: RestCatalog, table: str) -> dict[str, set[str]]:
    """Where the files of each partition are."""
    found: dict[str, set[str]] = {}
    for task in files_of(catalog, f"default.{table}"):
        path = task.file.file_path
        tier = "cold" if path.startswith(f"file://{lake.home.resolve()}/cold/default/{table}/data/") else "warm"
        found.setdefault(path.split("date=")[1].split("/")[0], set()).add(tier)
    return found


def move(lake: ServerProcess, table: str, to: str, *partitions: str) -> dict[str, Any]:
    body = {"table": table, "to": to} | ({"partitions": list(partitions)} if partitions else {})
    return job_ended(lake, post(lake, "/v1/tiers/move", **body)["jobId"])


def values(lake: ServerProcess, catalog: RestCatalog, table: str) -> dict[str, int]:
    """What every engine must see: PyIceberg, DuckDB and our own SQL agree on it."""
    found = {key: row["n"] for key, row in rows_of(catalog, f"default.{table}").items()}
    with duck_on(lake.url) as duck:
        assert dict(duck.execute(f"SELECT _key, n FROM lake.default.{table}").fetchall()) == found  # noqa: S608
    assert {row["_key"]: row["n"] for row in query(lake, f"SELECT _key, n FROM {table}")} == found  # noqa: S608
    return found


def test_old_partitions_move_and_every_engine_reads_on(
    lake: ServerProcess, catalog: RestCatalog, spark: SparkSession
) -> None:
    fill(lake, "visits")
    before = values(lake, catalog, "visits")
    assert len(before) == 60
    due = lake.get("/v1/compaction/candidates?table=visits")[1]["candidates"]
    assert {each["partition"] for each in due if each["kind"] == "tiers"} == {f"date={day}" for day in _OLD}

    job = run_job(lake, table="visits", kinds=["tiers"])

    assert (job["piecesDone"], job["filesMoved"]) == (5, 5)
    today = _TODAY.date().isoformat()
    assert tiers_of(lake, catalog, "visits") == {day: {"cold"} for day in _OLD} | {today: {"warm"}}
    assert values(lake, catalog, "visits") == before
    add_catalog(spark, "tiers", lake.url)
    assert dict(spark_rows_of(spark, "SELECT _key, n FROM tiers.default.visits")) == before
    due = lake.get("/v1/compaction/candidates?table=visits")[1]["candidates"]
    assert not [each for each in due if each["kind"] == "tiers"]

    body = {"sql": f"SELECT * FROM visits WHERE created_at < TIMESTAMP '{today}'"}  # noqa: S608
    (plan,) = post(lake, "/v1/query/plan", **body)["tables"]
    assert plan["tiers"]["cold"]["files"] == 5
    assert plan["tiers"]["warm"] == {"files": 0, "bytes": 0}
    assert {each["tier"] for each in plan["reads"]} == {"cold"}
    assert {each["tier"] for each in plan["reasons"]} == {"warm"}


def test_rows_of_a_cold_partition_change_and_go_like_any_other(lake: ServerProcess, catalog: RestCatalog) -> None:
    before = values(lake, catalog, "visits")
    day, other = _OLD[0], _OLD[1]
    send(
        lake.url,
        update("visits", f"{day}/1", visit(day, 1), visit(day, 100)),
        delete("visits", f"{day}/2", **visit(day, 2)),
        update("visits", f"{other}/3", visit(other, 3), visit(_TODAY.date().isoformat(), 300)),
        insert("visits", f"{day}/new", **visit(day, 500)),
    )
    lake.flush()
    expected = before | {f"{day}/1": 100, f"{other}/3": 300, f"{day}/new": 500}
    del expected[f"{day}/2"]
    assert values(lake, catalog, "visits") == expected
    assert tiers_of(lake, catalog, "visits")[day] == {"warm", "cold"}, "what is new is warm"
    status, found = lake.get(f"/v1/tables/default/visits/rows/{_OLD[2]}%2F4")
    assert (status, found["row"]["n"]) == (200, 4), "a look-up by key finds a cold row"

    run_job(lake, table="visits", kinds=["tiers"])
    assert tiers_of(lake, catalog, "visits")[day] == {"cold"}
    run_job(lake, table="visits", kinds=["deletes", "files"])
    assert tiers_of(lake, catalog, "visits")[day] == {"cold"}, "what is cold is compacted where it is"
    assert len([task for task in files_of(catalog, "default.visits") if f"date={day}" in task.file.file_path]) == 1
    assert values(lake, catalog, "visits") == expected

    send(lake.url, *(delete("visits", f"{other}/{n}", **visit(other, n)) for n in range(10) if n != 3))
    lake.flush()
    assert other not in tiers_of(lake, catalog, "visits"), "a cold file without rows goes"


def test_files_that_nothing_names_go_from_both_places(lake: ServerProcess, catalog: RestCatalog) -> None:
    expected = values(lake, catalog, "visits")
    for _ in range(2):
        time.sleep(0.01)
        run_job(lake, table="visits", kinds=["snapshots", "garbage"])
    named = {task.file.file_path for task in files_of(catalog, "default.visits")}
    on_disk = {f"file://{path}" for path in (lake.home.resolve() / "cold").rglob("*.parquet")}
    assert on_disk == {path for path in named if "/cold/" in path}
    folders = {path.parent.name for path in (lake.home / "warehouse/default/visits/data").rglob("*.parquet")}
    assert folders == {f"date={_TODAY.date().isoformat()}"}
    assert values(lake, catalog, "visits") == expected


def test_partitions_move_back_on_demand_and_stay_for_a_while(lake: ServerProcess, catalog: RestCatalog) -> None:
    expected = values(lake, catalog, "visits")
    day = _OLD[3]
    shown = dolake("tiers", "move", "visits", "--to", "warm", "--partition", f"date={day}", "--url", lake.url)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "1 files" in shown.stdout
    assert tiers_of(lake, catalog, "visits")[day] == {"warm"}
    due = lake.get("/v1/compaction/candidates?table=visits")[1]["candidates"]
    assert not [each for each in due if each["kind"] == "tiers"]
    run_job(lake, table="visits", kinds=["tiers"])
    assert tiers_of(lake, catalog, "visits")[day] == {"warm"}, "it was wanted back"
    assert tiers_of(lake, catalog, "visits")[_OLD[4]] == {"cold"}

    assert move(lake, "visits", "warm")["state"] == "done"
    assert set().union(*tiers_of(lake, catalog, "visits").values()) == {"warm"}
    assert values(lake, catalog, "visits") == expected
    assert move(lake, "visits", "cold", f"date={day}")["filesMoved"] == 1
    assert tiers_of(lake, catalog, "visits")[day] == {"cold"}
    assert values(lake, catalog, "visits") == expected


def test_a_pipeline_that_dies_in_the_middle_of_a_move_loses_nothing(lake: ServerProcess, catalog: RestCatalog) -> None:
    fill(lake, "torn")
    before = values(lake, catalog, "torn")
    log = lake.log
    lake.crash_at("landed")
    assert move(lake, "torn", "cold")["state"] == "failed"
    assert not lake.is_crash_due, "it died after the commit, before the key index followed"
    assert sorted(map(sorted, tiers_of(lake, catalog, "torn").values())) == [["cold"], *[["warm"]] * 5]
    assert values(lake, catalog, "torn") == before
    send(lake.url, *(update("torn", f"{day}/0", visit(day, 0), visit(day, -1)) for day in _OLD))
    lake.flush()
    assert move(lake, "torn", "cold")["state"] == "done"
    assert {day for day, tiers in tiers_of(lake, catalog, "torn").items() if tiers == {"cold"}} == set(_OLD)
    assert values(lake, catalog, "torn") == before | {f"{day}/0": -1 for day in _OLD}
    assert "rebuild" not in lake.log[len(log) :], "the key index followed the move"


def test_a_key_is_forgotten_in_a_cold_file_too(lake: ServerProcess, catalog: RestCatalog) -> None:
    key = f"{_OLD[3]}/forgotten-one"
    send(lake.url, insert("erased", key, **visit(_OLD[3], 7)), insert("erased", f"{_OLD[3]}/8", **visit(_OLD[3], 8)))
    lake.flush()
    run_job(lake, table="erased", kinds=["tiers"])
    assert tiers_of(lake, catalog, "erased") == {_OLD[3]: {"cold"}}
    with connect(lake.url, source="shop") as client:
        done = client.forget("erased", key)
    assert (done.rows_removed, done.waits) == (1, [])
    assert values(lake, catalog, "erased") == {f"{_OLD[3]}/8": 8}
    for folder in ("cold", "warehouse"):
        files = (lake.home / folder / "default").glob("erased*/**/*.parquet")
        assert not [path for path in files if "forgotten-one" in str(pq.read_table(path).to_pylist())]


def test_tiers_say_what_they_hold_and_what_that_costs(lake: ServerProcess) -> None:
    configured = aio.connect(lake.url).storage.configure(l3={"archiveAfterDays": 45})
    assert run(configured, timeout_s=60).applied == ["lake.archive_after_days"]
    with connect(lake.url, source="asking") as client:
        changed = client.storage.configure(l3={"archive_after_days": 60, "partition_by": "date"})
        assert changed.needs_restart == []
        assert client.tiers().archive_after_days == 60
        assert client.storage.configure(l3={"bucket": "elsewhere"}).needs_restart
        with pytest.raises(InvalidInput, match="l3 has no"):
            client.storage.configure(l3={"archive_days": 60})
        found = client.tiers("torn")
        assert [each.tier for each in found.tiers] == ["warm", "cold"]
        state, changes = found.tables
        assert (state.table, state.cold.rows, state.warm.rows) == ("torn", 50, 10)
        assert (changes.table, changes.cold.rows, changes.warm.rows) == ("torn__changes", 0, 65)
        warm, cold = found.tiers
        assert cold.bytes == state.cold.bytes > 0
        assert cold.cost_per_month == pytest.approx(cold.bytes / 1e9 * 0.01, abs=1e-6)
        assert (warm.price_per_gb_month, [each.tier for each in client.tiers().tiers]) == (
            0.015,
            ["hot", "warm", "cold"],
        )
        assert client.move("torn", to="cold", partitions=[f"date={_OLD[0]}"]).job_id
    assert "cold" in dolake("tiers", "--url", lake.url).stdout
    assert "dolake_upkeep_files_moved_total 1" in lake.get("/metrics")[1]


def test_a_table_may_have_its_own_age_and_bad_requests_say_what_to_do(
    lake: ServerProcess, catalog: RestCatalog
) -> None:
    send(lake.url, insert("kept", "1", **visit(_OLD[0], 1)))
    lake.flush()
    run_job(lake, table="kept", kinds=["tiers"])
    assert tiers_of(lake, catalog, "kept") == {_OLD[0]: {"warm"}}
    for body in (
        {},
        {"table": "kept"},
        {"table": "kept", "to": "hot"},
        {"table": "kept", "to": "cold"},  # which is never old
        {"table": "kept", "to": "warm", "partitions": "all"},
        {"table": "kept", "to": "warm", "partition": []},
    ):
        status, answer = lake.get("/v1/tiers/move", method="POST", body=body)
        assert (status, bool(answer["error"]["hint"])) == (400, True), answer
    assert lake.get("/v1/tiers/move", method="POST", body={"table": "nobody", "to": "warm"})[0] == 404
    inside = {"name": "mine", "location": f"file://{lake.home}/cold/mine", "schema": {"type": "struct", "fields": []}}
    status, answer = lake.get("/v1/namespaces/default/tables", method="POST", body=inside)
    assert (status, "warehouse" in answer["error"]["message"]) == (400, True), "clients' tables are not put there"


def test_verify_and_a_backup_see_both_places(lake: ServerProcess, tmp_path: Path) -> None:
    lake.flush()
    verified(lake.home)
    copied = dolake("backup", tmp_path / "copy", "--home", lake.home)
    assert copied.returncode == 0, copied.stdout + copied.stderr
    kept = [path for path in (tmp_path / "copy").rglob("*.parquet") if "/cold/" in str(path)]
    assert len(kept) == len({path.name for path in kept}) > 0, "each file is copied once"
