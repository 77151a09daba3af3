"""The catalog of a lake whose tables are in a store, as PyIceberg uses it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import RESTError

from tests.support.server import ServerProcess
from tools.s3_server import KEY, SECRET, S3Server

pytestmark = pytest.mark.own_lake

_SCHEMA = pa.schema([("x", pa.int64())])


@pytest.fixture(scope="module")
def bucket(s3: S3Server) -> str:
    return s3.new_bucket()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, s3: S3Server, bucket: str) -> Iterator[ServerProcess]:
    environ = s3.environment("r2://") | {"DOLAKE_R2_BUCKET_NAME": bucket, "DOLAKE_R2_BASE_PATH": "lake"}
    with ServerProcess(tmp_path_factory.mktemp("store"), environ=environ) as running:
        yield running


@pytest.fixture(scope="module")
def catalog(server: ServerProcess) -> Iterator[RestCatalog]:
    """With nothing but its address and keys: where the store is, the catalog says."""
    found = RestCatalog("lake", uri=server.url, **{"s3.access-key-id": KEY, "s3.secret-access-key": SECRET})
    found.create_namespace("ns")
    yield found
    found.close()


def keys(s3: S3Server, bucket: str, prefix: str) -> list[str]:
    client = s3.client()
    found = client.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
    client.close()
    return [each["Key"] for each in found]


def test_a_table_is_made_written_read_and_purged(catalog: RestCatalog, s3: S3Server, bucket: str) -> None:
    table = catalog.create_table("ns.t", schema=_SCHEMA)
    assert table.location() == f"s3://{bucket}/lake/ns/t"
    table.append(pa.table({"x": [1, 2, 3]}))
    table.append(pa.table({"x": [4]}))
    assert sorted(catalog.load_table("ns.t").scan().to_arrow().column("x").to_pylist()) == [1, 2, 3, 4]
    give_up_s = time.monotonic() + 10
    newest = table.metadata_location.rpartition("/")[2].removesuffix(".metadata.json")
    client = s3.client()
    hint = {"Bucket": bucket, "Key": "lake/ns/t/metadata/version-hint.text"}
    while client.get_object(**hint)["Body"].read().decode() != newest:
        assert time.monotonic() < give_up_s
        time.sleep(0.1)
    client.close()
    catalog.purge_table("ns.t")
    while left := keys(s3, bucket, "lake/ns/t/"):
        assert time.monotonic() < give_up_s, left
        time.sleep(0.1)


def test_a_location_may_be_spelled_as_r2(catalog: RestCatalog, bucket: str) -> None:
    table = catalog.create_table("ns.spelled", schema=_SCHEMA, location=f"r2://{bucket}/lake/mine")
    assert table.location() == f"s3://{bucket}/lake/mine"
    table.append(pa.table({"x": [1]}))
    assert table.scan().to_arrow().num_rows == 1


def test_a_location_outside_the_warehouse_is_refused(catalog: RestCatalog, bucket: str) -> None:
    for location in (f"s3://{bucket}/other/t", "s3://elsewhere/lake/t", "/tmp/t", f"s3://{bucket}/lake/../t"):
        with pytest.raises((RESTError, ValueError), match="not inside the warehouse"):
            catalog.create_table("ns.outside", schema=_SCHEMA, location=location)


def test_no_key_is_told_to_anybody(server: ServerProcess) -> None:
    for path in ("/v1/config", "/config", "/status"):
        assert SECRET not in str(server.get(path)), path
    assert SECRET not in server.log


def test_a_store_that_is_down_is_said_and_then_all_is_well(
    server: ServerProcess, catalog: RestCatalog, s3: S3Server, bucket: str
) -> None:
    s3.is_down = True
    try:
        status, answer = server.get(
            "/v1/namespaces/ns/tables",
            method="POST",
            body={"name": "later", "schema": {"type": "struct", "fields": []}},
            headers={"Content-Type": "application/json"},
        )
        assert status == 503, answer
        assert server.get("/health/ready")[0] == 200
    finally:
        s3.is_down = False
    assert catalog.create_table("ns.later", schema=_SCHEMA).location() == f"s3://{bucket}/lake/ns/later"


def test_the_home_has_no_tables(server: ServerProcess) -> None:
    assert not Path(server.home, "lake").exists()
