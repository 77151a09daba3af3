"""Forget a key on a real server with a real Spark: no byte of it is left, whoever looks, and nobody else misses any."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyspark.sql import SparkSession

from dolake.client.sync import connect
from tests.support.changes import delete, insert, send, update
from tests.support.server import ServerProcess, children_of, job_ended, post, query, wait_for
from tests.support.spark import add_catalog
from tests.support.spark import rows_of as spark_rows_of
from tests.support.tables import changes_of, rows_of, verified
from tests.support.traces import hashed_traces, traces
from tools.duckdb_client import duck_on

pytestmark = pytest.mark.spark
MARKS = [f"QzMarker{number}" for number in range(6)]
"""One for each test; shorter than 16 characters, so that bounds in manifests have all of it."""
SETTINGS = """\
freshness_target_ms = 300
parquet_compression = "none"
transaction_wait_max_ms = 60_000
[compaction]
auto_compact = false
"""


def forget(lake: ServerProcess, table: str, key: str, **more: Any) -> dict[str, Any]:
    asked = post(lake, f"/v1/tables/default/{table}/forget", key=key, **more)
    assert asked["kind"] == "forget"
    job = job_ended(lake, asked["jobId"])
    assert job["state"] == "done", job
    found: dict[str, Any] = job["forgotten"]
    return found


def past_of(lake: ServerProcess, table: str, count: int) -> list[str | None]:
    """The keys of the first changes that a subscriber hears of."""
    found: list[str | None] = []
    for batch in connect(lake.url).subscribe([table], since="beginning"):
        found += [event.row_id for event in batch.events]
        if len(found) >= count:
            return found
    raise AssertionError(f"the subscription has ended: {found}")


def test_no_byte_of_a_forgotten_key_is_left(lake: ServerProcess, catalog: RestCatalog) -> None:
    mark = MARKS[0]
    send(lake.url, *(insert("persons", str(n), name=f"name {n}") for n in range(20)))
    lake.flush()
    send(lake.url, insert("persons", mark, name=f"{mark} Smith", mail=f"{mark}@example.org"))
    lake.flush()
    tagged = catalog.load_table("default.persons").current_snapshot()
    assert tagged
    catalog.load_table("default.persons").manage_snapshots().create_tag(tagged.snapshot_id, "closing").commit()
    before, after = {"name": f"{mark} Smith"}, {"name": f"{mark} Jones", "mail": None}
    send(
        lake.url,
        update("persons", mark, before, after),
        update("persons", "3", {"name": "name 3"}, {"name": "other 3"}),
    )
    lake.flush()
    status, found = lake.get(f"/v1/tables/default/persons/rows/{mark}")
    assert (status, found["row"]["name"]) == (200, f"{mark} Jones")
    others = {key: row for key, row in rows_of(catalog, "default.persons").items() if key != mark}
    assert traces(lake.home, mark)
    assert hashed_traces(lake.home, mark)

    report = forget(lake, "persons", mark)

    assert traces(lake.home, mark) == []
    assert hashed_traces(lake.home, mark) == []
    assert (report["rowsRemoved"], report["changesBlanked"], report["keys"], report["waits"]) == (1, 2, 1, [])
    state, changes = report["tables"][:2]
    assert (state["table"], state["tagsRemoved"], changes["table"]) == (
        "default.persons",
        ["closing"],
        "default.persons__changes",
    )
    assert state["snapshotsExpired"] >= 2
    assert changes["filesRewritten"] == 2
    assert changes["snapshotsExpired"] >= 2
    assert report["lastByteMs"]
    assert report["journalBytesRemoved"] > 0
    assert rows_of(catalog, "default.persons") == others
    blank = [each for each in changes_of(catalog, "default.persons") if each["_operation"] == "FORGOTTEN"]
    kept = {"_sequence", "_source", "_timestamp", "_commit_timestamp", "_position", "_operation", "_key"}
    assert [{name for name, value in each.items() if value is not None} for each in blank] == [kept, kept]
    assert lake.get(f"/v1/tables/default/persons/rows/{mark}")[0] == 404
    told = past_of(lake, "persons", 21)
    assert [key for key in told if key not in others] == [], "who hears of the past hears nothing of it"
    assert mark not in lake.log


def test_who_travels_in_time_meets_it_nowhere(lake: ServerProcess, catalog: RestCatalog, spark: SparkSession) -> None:
    mark = MARKS[1]
    moments = []
    for number in range(3):
        send(lake.url, insert("past", f"other {number}", n=number))
        if number == 1:
            send(lake.url, insert("past", mark, n=-1))
        lake.flush()
        moments.append(time.time_ns() // 1_000_000)
    forget(lake, "past", mark)
    assert traces(lake.home, mark) == []
    for number, moment in enumerate(moments):
        rows = query(lake, "SELECT n FROM past ORDER BY n", asOf=moment)
        assert [row["n"] for row in rows] == list(range(number + 1))
    table = catalog.load_table("default.past")
    add_catalog(spark, "forgetful", lake.url)
    assert len(table.snapshots()) >= 2, "the one before the key came is kept"
    with duck_on(lake.url) as duck:
        for each in table.snapshots():
            keys = set(table.scan(snapshot_id=each.snapshot_id).to_arrow().column("_key").to_pylist())
            assert keys
            assert mark not in keys
            found = duck.execute(f"SELECT _key FROM lake.default.past AT (VERSION => {each.snapshot_id})").fetchall()  # noqa: S608
            assert {key for (key,) in found} == keys
            at = f"VERSION AS OF {each.snapshot_id}"
            assert {key for (key,) in spark_rows_of(spark, f"SELECT _key FROM forgetful.default.past {at}")} == keys  # noqa: S608
        text = datetime.fromtimestamp(moments[1] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        found = duck.execute(f"SELECT _key FROM lake.default.past AT (TIMESTAMP => TIMESTAMP '{text}')").fetchall()  # noqa: S608
        assert (mark,) not in found


def test_a_row_is_forgotten_under_all_its_keys_and_who_has_one_of_them_now_stays(
    lake: ServerProcess, catalog: RestCatalog
) -> None:
    mark = MARKS[2]
    send(
        lake.url,
        insert("moved", f"{mark}1", name="old"),
        update("moved", f"{mark}2", {"name": "old"}, {"name": "new"}, previousRowId=f"{mark}1"),
        insert("moved", "neighbour", name="n"),
    )
    lake.flush()
    send(lake.url, insert("moved", f"{mark}1", name="somebody else"))
    lake.flush()
    report = forget(lake, "moved", f"{mark}2")
    assert (report["rowsRemoved"], report["changesBlanked"], report["keys"]) == (1, 2, 2)
    assert traces(lake.home, f"{mark}2") == []
    assert {key: row["name"] for key, row in rows_of(catalog, "default.moved").items()} == {
        "neighbour": "n",
        f"{mark}1": "somebody else",
    }
    verified(lake.home)
    report = forget(lake, "moved", f"{mark}1")
    assert (report["rowsRemoved"], report["changesBlanked"]) == (1, 1)
    assert set(rows_of(catalog, "default.moved")) == {"neighbour"}
    assert traces(lake.home, mark) == []


def test_deleted_rows_and_the_quarantine_are_forgotten_too_and_later_a_row_of_the_key_is_new(
    lake: ServerProcess, catalog: RestCatalog
) -> None:
    mark = MARKS[3]
    unknown = {"unchanged": ["n"]}  # nobody knows the value, because there is no row
    send(lake.url, insert("strange", "1", n=1), insert("strange", mark, n=2), delete("strange", mark, n=2))
    send(lake.url, update("strange", mark, {}, {"x": mark}, **unknown), update("strange", "2", {}, {"x": 2}, **unknown))
    lake.flush()
    entries = lake.get("/v1/quarantine/default/strange")[1]["entries"]
    assert sorted(each["key"] for each in entries) == ["2", mark], "the value cannot be a row"
    report = forget(lake, "strange", mark)
    assert report["changesBlanked"] == 3
    assert report["rowsRemoved"] == 1, "of the quarantine"
    assert traces(lake.home, mark) == []
    assert [each["key"] for each in lake.get("/v1/quarantine/default/strange")[1]["entries"]] == ["2"]
    again = forget(lake, "strange", mark)
    assert (again["rowsRemoved"], again["changesBlanked"]) == (0, 0), "twice is once"
    assert sum(each["snapshotsExpired"] + each["filesRemoved"] for each in again["tables"]) == 0
    send(lake.url, insert("strange", mark, n=4))
    lake.flush()
    assert rows_of(catalog, "default.strange")[mark]["n"] == 4


def test_a_stream_goes_on_meanwhile_and_a_crash_in_the_middle_is_made_good(
    lake: ServerProcess, catalog: RestCatalog
) -> None:
    mark = MARKS[4]
    send(lake.url, *(insert("streamed", str(n), n=0) for n in range(50)), insert("streamed", f"{mark}a", n=0))
    lake.flush()
    send(lake.url, update("streamed", mark, {"n": 0}, {"n": 1}, previousRowId=f"{mark}a"))
    lake.flush()
    stopping = threading.Event()
    rounds = 0

    def stream() -> None:
        nonlocal rounds
        while not stopping.is_set():
            rounds += 1
            send(lake.url, *(update("streamed", str(n), {"n": rounds - 1}, {"n": rounds}) for n in range(0, 50, 5)))
            stopping.wait(0.3)

    sending = threading.Thread(target=stream)
    sending.start()
    try:
        wait_for(lambda: rounds > 3, "the stream runs")
        (first,) = children_of(lake, "dolake.pipeline")
        lake.crash_at("forgotten")
        report = forget(lake, "streamed", mark)
        assert not lake.is_crash_due, "it has died on the way"
        assert [each.pid for each in children_of(lake, "dolake.pipeline")] != [first.pid]
        before = rounds
        wait_for(lambda: rounds > before + 2, "the stream goes on")
    finally:
        stopping.set()
        sending.join()
    assert report["waits"] == []
    assert traces(lake.home, mark) == [], "nor of the key that its row had before"
    lake.flush()
    rows = rows_of(catalog, "default.streamed")
    assert len(rows) == 50
    assert {rows[str(n)]["n"] for n in range(0, 50, 5)} == {rounds}
    verified(lake.home)


def test_what_holds_the_key_back_is_said(lake: ServerProcess) -> None:
    mark = MARKS[5]
    send(lake.url, insert("slow", "1", n=1), insert("slow", mark, n=2))
    lake.flush()
    report = forget(lake, "slow", mark, patient=True)
    assert report["lastByteMs"] > time.time() * 1000 + 3_600_000, "a day, for those who are reading"
    assert len(report["waits"]) == 1
    assert traces(lake.home, mark), "they are there still"
    report = forget(lake, "slow", mark)
    assert report["waits"] == []
    assert traces(lake.home, mark) == []


def test_only_keys_of_tables_of_sources_can_be_forgotten(lake: ServerProcess) -> None:
    def refused(table: str, body: Any) -> tuple[int, str]:
        status, answer = lake.get(f"/v1/tables/default/{table}/forget", method="POST", body=body)
        return status, answer["error"]["type"]

    assert refused("nobody", {"key": "1"}) == (404, "unknown_table")
    assert refused("persons__changes", {"key": "1"})[0] == 400
    assert refused("persons__quarantine", {"key": "1"})[0] == 400
    assert refused("persons", {"key": ""})[0] == 400
    assert refused("persons", {"keys": ["1"]})[0] == 400
    assert refused("persons", {"key": "1", "source": "shop"})[0] == 400
    assert "dolake_upkeep_keys_forgotten_total" in lake.get("/metrics")[1]
    audit = Path(lake.home, "audit.log")
    assert not audit.exists() or MARKS[0][:-1] not in audit.read_text()
