"""Upkeep on a real server with a real Spark: files become few, nothing changes for readers, old files go in time."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table.snapshots import Operation

from tests.support.changes import delete, insert, send, update
from tests.support.server import ServerProcess, job_ended, post, query, run_job, wait_for
from tests.support.tables import changes_of, files_of, rows_of
from tools.duckdb_client import duck_on

pytestmark = pytest.mark.spark
SETTINGS = """\
freshness_target_ms = 300
[compaction]
auto_compact = false
min_files_to_compact = 2
[maintenance]
snapshots_max = 3
manifests_max = 2
"""


def on_disk(lake: ServerProcess, table: str) -> set[str]:
    return {path.name for path in Path(lake.home, "warehouse", "default", table).rglob("*") if path.is_file()}


def test_small_files_and_deleted_rows_go_and_readers_see_the_same(lake: ServerProcess, catalog: RestCatalog) -> None:
    for number in range(6):
        send(lake.url, *(insert("parts", f"{number}-{n}", n=n) for n in range(50)))
        lake.flush()
    send(lake.url, *(update("parts", f"0-{n}", {"n": n}, {"n": -n}) for n in range(20)), delete("parts", "1-1", n=1))
    lake.flush()
    rows, changes = rows_of(catalog, "default.parts"), changes_of(catalog, "default.parts")
    due = lake.get("/v1/compaction/candidates?table=parts")[1]["candidates"]
    assert {each["table"] for each in due} == {"parts", "parts__changes"}
    assert all(each["score"] > 0 and each["reason"] and each["memoryBytes"] > 0 for each in due)

    job = run_job(lake, namespace="default", table="parts")

    assert job["filesAfter"] < job["filesBefore"]
    (state,), (history,) = files_of(catalog, "default.parts"), files_of(catalog, "default.parts__changes")
    assert not state.delete_files
    assert (state.file.record_count, history.file.record_count) == (299, 321)
    assert rows_of(catalog, "default.parts") == rows
    assert changes_of(catalog, "default.parts") == changes
    snapshot = catalog.load_table("default.parts").current_snapshot()
    assert snapshot
    assert snapshot.summary
    assert snapshot.summary.operation is Operation.REPLACE
    due = lake.get("/v1/compaction/candidates?table=parts")[1]["candidates"]
    assert {each["kind"] for each in due} <= {"snapshots", "manifests"}

    send(lake.url, update("parts", "0-1", {"n": -1}, {"n": 100}), delete("parts", "5-5", n=5))
    lake.flush()  # the key index knows where the rows are now
    after = rows_of(catalog, "default.parts")
    assert len(after) == 298
    assert after["0-1"]["n"] == 100


def test_what_is_deleted_while_a_compaction_writes_stays_deleted(lake: ServerProcess, catalog: RestCatalog) -> None:
    for number in range(3):
        send(lake.url, *(insert("beside", f"{number}-{n}", n=n) for n in range(20)))
        lake.flush()
    with lake.holding("rewritten") as wait_until_held:
        job = post(lake, "/v1/compaction/run", table="beside", kinds=["files"])
        wait_until_held()
        send(lake.url, delete("beside", "0-1", n=1), update("beside", "1-1", {"n": 1}, {"n": -1}))
        lake.flush()
    assert job_ended(lake, job["jobId"])["filesAfter"] == 2, "one of the state, one of the changes"
    rows = rows_of(catalog, "default.beside")
    assert (len(rows), rows["1-1"]["n"]) == (59, -1)
    send(lake.url, delete("beside", "1-1", n=-1), delete("beside", "2-1", n=1))
    lake.flush()  # the key index knows where the rows are now
    assert len(rows_of(catalog, "default.beside")) == 57


def test_a_file_whose_last_rows_are_replaced_goes_within_the_publish(lake: ServerProcess, catalog: RestCatalog) -> None:
    for number in range(3):
        send(lake.url, *(insert("hot", str(n), n=number) for n in range(10)))
        lake.flush()
        (task,) = files_of(catalog, "default.hot")
        assert not task.delete_files
    send(lake.url, *(delete("hot", str(n), n=2) for n in range(10)))
    lake.flush()
    assert files_of(catalog, "default.hot") == []
    assert rows_of(catalog, "default.hot") == {}


def test_old_snapshots_go_and_their_files_a_while_later(lake: ServerProcess, catalog: RestCatalog) -> None:
    for number in range(6):
        send(lake.url, insert("old", "1", n=number))
        lake.flush()
    before = on_disk(lake, "old")
    reader = catalog.load_table("default.old").scan()  # began before
    job = run_job(lake, table="old", kinds=["snapshots", "garbage"])
    assert job["snapshotsExpired"] == 6  # three of six in each of the two tables
    assert job["filesRemoved"] == 0
    assert before - on_disk(lake, "old") <= {name for name in before if name.endswith(".metadata.json")}
    assert reader.to_arrow().num_rows == 1
    with lake.configured("maintenance.gc_grace_ms = 0"):
        assert run_job(lake, table="old", kinds=["garbage"])["filesRemoved"] > 0
    assert rows_of(catalog, "default.old")["1"]["n"] == 5
    assert len(catalog.load_table("default.old").metadata.snapshots) == 3
    for snapshot in catalog.load_table("default.old").metadata.snapshots:  # each that is left can be read
        scan = catalog.load_table("default.old").scan(snapshot_id=snapshot.snapshot_id)
        assert scan.to_arrow().num_rows == 1
    left = on_disk(lake, "old")
    with lake.configured("maintenance.gc_grace_ms = 0"):
        run_job(lake, table="old", kinds=["garbage"])
    assert on_disk(lake, "old") == left, "what is needed stays"


def test_snapshots_thin_out_and_no_moment_is_lost(lake: ServerProcess, catalog: RestCatalog) -> None:
    for number in range(8):
        send(lake.url, insert("thin", "1", n=number))
        lake.flush()
    counts = {each.snapshot_id: n for n, each in enumerate(catalog.load_table("default.thin").snapshots())}
    made = catalog.load_table("default.thin").snapshots()
    catalog.load_table("default.thin").manage_snapshots().create_tag(made[2].snapshot_id, "keep").commit()
    assert run_job(lake, table="thin", kinds=["snapshots"])["snapshotsExpired"] == 10

    table = catalog.load_table("default.thin")
    left = [each.snapshot_id for each in table.snapshots()]
    assert left == [made[at].snapshot_id for at in (0, 2, 7)], "coarser, not shorter; a tag is kept"
    assert [entry.snapshot_id for entry in table.history()] == left
    with duck_on(lake.url) as duck:
        for each in table.snapshots():
            text = datetime.fromtimestamp(each.timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
            for at in (f"VERSION => {each.snapshot_id}", f"TIMESTAMP => TIMESTAMP '{text}'"):
                found = duck.execute(f"SELECT n FROM lake.default.thin AT ({at})").fetchall()  # noqa: S608
                assert found == [(counts[each.snapshot_id],)], at
    for number, each in enumerate(made):  # our own SQL needs no snapshot
        assert query(lake, "SELECT n FROM thin", asOf=each.timestamp_ms) == [{"n": number}]
        assert each.summary
        position = each.summary["dolake.published-to"]
        status, answer = lake.get(f"/v1/lake%40{position}/namespaces/default/tables/thin")
        if each.snapshot_id in left:
            assert answer["metadata"]["current-snapshot-id"] == each.snapshot_id
        else:
            assert (status, answer["error"]["type"]) == (400, "IllegalArgumentException"), "refused, not guessed"
    send(lake.url, insert("thin", "1", n=8))
    lake.flush()
    assert rows_of(catalog, "default.thin")["1"]["n"] == 8


def test_many_manifests_become_few_and_the_key_index_stays_right(lake: ServerProcess, catalog: RestCatalog) -> None:
    for number in range(3):
        send(lake.url, insert("pages", str(number), n=number))
        lake.flush()
    before = len(
        catalog.load_table("default.pages").current_snapshot().manifests(catalog.load_table("default.pages").io)
    )
    assert before > 2
    run_job(lake, table="pages", kinds=["manifests"])
    table = catalog.load_table("default.pages")
    assert len(table.current_snapshot().manifests(table.io)) == 1
    log = lake.log
    send(lake.url, update("pages", "1", {"n": 1}, {"n": 11}))
    lake.flush()
    assert {key: row["n"] for key, row in rows_of(catalog, "default.pages").items()} == {
        "0": 0,
        "1": 11,
        "2": 2,
    }
    assert "rebuild" not in lake.log[len(log) :]


def test_a_job_can_be_cancelled_and_bad_requests_say_what_to_do(lake: ServerProcess) -> None:
    assert lake.get("/v1/compaction/run", method="POST", body={"table": "nobody"})[0] == 404
    assert lake.get("/v1/compaction/run", method="POST", body={"kinds": ["magic"]})[0] == 400
    assert lake.get("/v1/compaction/run", method="POST", body={"tabel": "x"})[0] == 400
    assert lake.get("/v1/compaction/run", method="POST", body=b"{")[0] == 400
    assert lake.get("/v1/compaction/jobs/none")[0] == 404
    failed_before = lake.get("/v1/compaction/metrics")[1]["jobsFailed"]
    status, job = lake.get("/v1/compaction/auto", method="POST")
    assert status == 202
    state = lake.get(f"/v1/compaction/jobs/{job['jobId']}", method="DELETE")[1]["state"]
    assert state in ("cancelled", "queued", "running", "done")
    wait_for(lambda: not lake.get("/v1/compaction/metrics")[1]["running"], "nothing runs any more")
    assert lake.get("/v1/compaction/metrics")[1]["jobsFailed"] == failed_before
