"""A lake whose tables are in an S3 store, from the first change to a clean `dolake verify`, through a kill -9."""

from __future__ import annotations

import contextlib
import io
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import RestCatalog

from dolake.client.sync import connect
from tests.journeys.asking_support import wait_for_answers
from tests.support.changes import delete, insert, update
from tests.support.server import ServerProcess, query, run_job, wait_for
from tests.support.tables import verified
from tools.duckdb_client import duck_on
from tools.s3_server import KEY, SECRET, S3Server

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.own_lake]

_REQUESTS_MAX = 8
"""For each Iceberg table and flush: its data file, deletes, their manifests, the list, the metadata and the hint."""
_SETTINGS = """\
freshness_target_ms = 60_000
[compaction]
min_files_to_compact = 2
auto_compact = false
[tables.events]
partition_by = "day(at)"
archive_after_days = 30
[storage]
cold_class = "STANDARD_IA"
[maintenance]
small_files_max = 2
gc_grace_ms = 0
"""


@pytest.fixture
def bucket(s3: S3Server) -> str:
    return s3.new_bucket()


@pytest.fixture
def server(tmp_path: Path, s3: S3Server, bucket: str) -> Iterator[ServerProcess]:
    environ = s3.environment(f"r2://{bucket}/lake")
    with ServerProcess(tmp_path, settings=_SETTINGS, environ=environ, has_pipeline=True) as running:
        wait_for_answers(running)
        yield running


def test_a_lake_in_a_store_tells_the_whole_story(server: ServerProcess, s3: S3Server, bucket: str) -> None:
    with connect(server.url, source="shop") as lake:
        lake.send([insert("orders", str(n), id=n, item="tea", price=2.5) for n in range(100)])
        assert _count(server) == 100  # from the journal: nothing is in the store yet
        server.flush()
        before_ms = time.time_ns() // 1_000_000
        assert _count(server) == 100
        requests = _requests_of_a_flush(server, s3, lake)
        assert set(requests) == {"orders", "orders__changes"}
        assert max(requests.values()) <= _REQUESTS_MAX, requests
        lake.send([delete("orders", "3", id=3), insert("orders", "new", id=100, item="pot")])
        assert query(server, "SELECT count(*) AS n, max(price) AS p FROM orders") == [{"n": 100, "p": 3.5}]
        assert query(server, "SELECT max(price) AS p FROM orders", asOf=before_ms) == [{"p": 2.5}]
        for key, item in (("7", "tea"), ("new", "pot")):  # one in the store, one in the journal
            status, found = server.get(f"/v1/tables/default/orders/rows/{key}")
            assert (status, found["row"]["item"]) == (200, item), found

        _assert_the_lake_goes_on_without_its_store(server, s3, lake)
        server.kill()
        server.start()
        lake.send([insert("orders", "later", id=101, item="cup")])
        server.flush()
    wait_for_answers(server)
    assert _count(server) == 102
    _assert_others_read_it(server, s3)
    _assert_upkeep_leaves_what_is_needed(server, s3, bucket)
    assert _count(server) == 102
    _assert_a_forgotten_key_is_in_no_object(server, s3, bucket)
    assert _count(server) == 102
    _assert_old_partitions_go_cold(server, s3, bucket)
    assert server.stop() == 0
    verified(server.home, environ=s3.environment(f"s3://{bucket}/lake"))
    assert not (server.home / "warehouse").exists()
    assert SECRET not in server.log


def _requests_of_a_flush(server: ServerProcess, s3: S3Server, lake: Any) -> Counter[str]:
    """By table, when everything has been opened once."""
    began = 0
    for price in (3.0, 3.5):
        lake.send([update("orders", str(n), None, {"id": n, "item": "tea", "price": price}) for n in range(0, 100, 10)])
        wait_for(partial(_has_hints_of_now, server, s3), "the flush before has left its hints")
        began = len(s3.log)
        server.flush()
        wait_for(partial(_has_hints_of_now, server, s3), "the hints, which come after the commit")
    ours = [(method, path) for method, path in s3.log[began:] if (method, path[-9:]) != ("GET", "hint.text")]
    return Counter(path.split("/")[4] for _, path in ours)


def _has_hints_of_now(server: ServerProcess, s3: S3Server) -> bool:
    """The last that follows a commit: the server itself reads none of them."""
    client = s3.client()
    with contextlib.closing(client):
        for table in ("orders", "orders__changes"):
            location = server.get(f"/v1/namespaces/default/tables/{table}")[1]["metadata-location"]
            folder, _, name = location.removeprefix("s3://").rpartition("/")
            bucket, _, prefix = folder.partition("/")
            hint = client.get_object(Bucket=bucket, Key=f"{prefix}/version-hint.text")["Body"].read().decode()
            if f"{hint}.metadata.json" != name:
                return False
    return True


def _assert_the_lake_goes_on_without_its_store(server: ServerProcess, s3: S3Server, lake: Any) -> None:
    """Changes are acknowledged, and what is known can be asked for; publishes fail and say so."""
    before = _count(server)
    s3.is_down = True
    try:
        lake.send([insert("orders", "meanwhile", id=102, item="jug")])
        assert _count(server) == before + 1
        server.get("/flush", method="POST")
        wait_for(lambda: "publish failed" in server.log, "a publish fails")
    finally:
        s3.is_down = False


def _assert_others_read_it(server: ServerProcess, s3: S3Server) -> None:
    """With nothing but the catalog's address, and keys of their own."""
    host = s3.endpoint.removeprefix("http://")
    with duck_on(server.url) as duck:
        duck.execute(
            f"CREATE SECRET own (TYPE s3, KEY_ID '{KEY}', SECRET '{SECRET}', ENDPOINT '{host}', URL_STYLE 'path',"
            " USE_SSL false, REGION 'us-east-1')"
        )
        assert duck.execute("SELECT count(*), max(price) FROM lake.default.orders").fetchone() == (102, 3.5)
    keys = {"s3.access-key-id": KEY, "s3.secret-access-key": SECRET}
    catalog = RestCatalog("lake", uri=server.url, **keys)  # where the store is, the catalog says
    try:
        rows = catalog.load_table("default.orders").scan().to_arrow()
        assert rows.num_rows == 102
        assert catalog.load_table("default.orders__changes").scan().to_arrow().num_rows == 124
    finally:
        catalog.close()


def _assert_upkeep_leaves_what_is_needed(server: ServerProcess, s3: S3Server, bucket: str) -> None:
    """Files become fewer, old snapshots go, and then their files."""
    server.get("/v1/config", method="PATCH", body={"maintenance": {"snapshotsMax": 1}})
    before = _data_files(s3, bucket)
    for kinds in (["files", "deletes"], ["snapshots"], ["garbage"], ["garbage"]):
        run_job(server, kinds=kinds)
    after = _data_files(s3, bucket)
    assert len(after) < len(before), (before, after)


def _assert_a_forgotten_key_is_in_no_object(server: ServerProcess, s3: S3Server, bucket: str) -> None:
    with connect(server.url, source="shop") as lake:
        lake.send([insert("orders", "QzMarker", id=103, item="secret")])
        server.flush()
        done = lake.forget("orders", "QzMarker")
    assert (done.rows_removed, done.changes_blanked, done.waits) == (1, 1, [])
    client = s3.client()
    bodies = {key: client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in _data_files(s3, bucket)}
    client.close()
    tables = {key: pq.read_table(io.BytesIO(body)).to_pylist() for key, body in bodies.items()}
    assert tables
    assert not [key for key, rows in tables.items() if "QzMarker" in str(rows)]


def _assert_old_partitions_go_cold(server: ServerProcess, s3: S3Server, bucket: str) -> None:
    """To another prefix and class of the bucket, and every reader finds them there."""
    with connect(server.url, source="shop") as lake:
        lake.send([insert("events", str(n), at=f"2024-01-0{n % 3 + 1}T10:00:00Z", n=n) for n in range(30)])
        server.flush()
        run_job(server, kinds=["tiers"])
        lake.send([delete("events", "3"), update("events", "4", None, {"at": "2024-01-02T10:00:00Z", "n": 400})])
        server.flush()
        assert query(server, "SELECT count(*) AS n, max(n) AS m FROM events") == [{"n": 29, "m": 400}]
        assert server.get("/v1/tables/default/events/rows/5")[1]["row"]["n"] == 5
        (warm, cold) = lake.tiers("events").tiers
        assert (cold.files, warm.rows + cold.rows) == (3, 29 + 32)  # with those of the changes
    client = s3.client()
    found = client.list_objects_v2(Bucket=bucket, Prefix="lake-cold/")["Contents"]
    client.close()
    assert [(each["Key"].split("/")[1:4], each["StorageClass"]) for each in found] == [
        (["default", "events", "data"], "STANDARD_IA")
    ] * 3


def _data_files(s3: S3Server, bucket: str) -> list[str]:
    client = s3.client()
    found = client.list_objects_v2(Bucket=bucket)["Contents"]
    client.close()
    return [each["Key"] for each in found if each["Key"].endswith(".parquet")]


def _count(server: ServerProcess) -> int:
    return int(query(server, "SELECT count(*) AS n FROM orders")[0]["n"])
