"""Engines read a lake in a store with nothing but the catalog's address and a token; the store looks at all of it."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyspark.sql import SparkSession

from tests.support.spark import add_catalog, rows_of
from tests.support.store_lake import ROLE, StoreLake, store_lake
from tools.duckdb_client import duck_on
from tools.s3_server import KEY, S3Server

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.own_lake]

_ORDERS = pa.table({"id": [1, 2, 3], "item": ["tea", "pot", "cup"]})


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[StoreLake]:
    with store_lake(tmp_path_factory.mktemp("clients"), s3, vending="sts", vending_role_arn=ROLE) as lake:
        for namespace in ("tenant_a", "tenant_b"):
            lake.ask("admin", "POST", "/namespaces", {"namespace": [namespace]})
        with _pyiceberg(lake, "admin") as catalog:
            for name in ("tenant_a.orders", "tenant_b.orders"):
                catalog.create_table(name, _ORDERS.schema).append(_ORDERS)
        lake.adopt("tenant_a", "orders")  # from here on only the pipeline changes it
        yield lake
        # But for the question whether the store looks at headers that are not signed.
        assert [each for each in lake.guard.refused if "x-amz-copy-source" not in each[3]] == []
        assert "dolake-test-secret" not in lake.server.log


def _pyiceberg(lake: StoreLake, who: str) -> RestCatalog:
    return RestCatalog("lake", uri=lake.url, token=lake.tokens[who])


def test_pyiceberg_and_polars_read_with_an_address_and_a_token(
    lake: StoreLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    rest = _pyiceberg(lake, "reader_a")
    with rest as catalog:
        table = catalog.load_table("tenant_a.orders")
        assert table.scan().to_arrow().sort_by("id") == _ORDERS
        given = {name: value for name, value in table.io.properties.items() if name.startswith("s3.")}
        for frame in (
            pl.scan_iceberg(table, storage_options=given),  # which its own reader does not take from the table
            pl.scan_iceberg(table, reader_override="pyiceberg"),
        ):
            assert frame.sort("id").collect()["item"].to_list() == ["tea", "pot", "cup"]
        with pytest.raises(NoSuchTableError):
            catalog.load_table("tenant_b.orders")
        assert rest.load_credentials("tenant_a.orders", table.metadata_location)["s3.access-key-id"]
        assert KEY not in str(table.io.properties)


def test_duckdb_reads_and_writes_its_own_with_an_address_and_a_token(lake: StoreLake) -> None:
    with duck_on(lake.url, secret=f"TOKEN '{lake.tokens['writer_a']}'") as duck:
        assert duck.execute("SELECT count(*), max(id) FROM lake.tenant_a.orders").fetchone() == (3, 3)
        duck.execute("CREATE TABLE lake.tenant_a.by_duck (id BIGINT)")
        duck.execute("INSERT INTO lake.tenant_a.by_duck VALUES (7)")
        assert duck.table("lake.tenant_a.by_duck").fetchall() == [(7,)]


def test_spark_reads_and_writes_its_own_with_an_address_and_a_token(lake: StoreLake, spark: SparkSession) -> None:
    add_catalog(spark, "vended", lake.url, {"token": lake.tokens["writer_a"]})
    asks = {"header.X-Iceberg-Access-Delegation": "remote-signing"}
    add_catalog(spark, "signed", lake.url, {"token": lake.tokens["writer_a"]} | asks)
    for way in ("vended", "signed"):
        before = {key: set(done) for key, done in lake.guard.used.items()}
        assert rows_of(spark, f"TABLE {way}.tenant_a.orders") == [(1, "tea"), (2, "pot"), (3, "cup")]
        mine = f"{way}.tenant_a.by_{way}"
        rows_of(spark, f"CREATE TABLE {mine} (id BIGINT) USING iceberg")
        rows_of(spark, f"INSERT INTO {mine} VALUES (7), (8)")  # noqa: S608
        rows_of(spark, f"DELETE FROM {mine} WHERE id = 8")  # noqa: S608
        assert rows_of(spark, f"TABLE {mine}") == [(7,)]
        data = f"/{lake.bucket}/lake/tenant_a/by_{way}/data/"
        keys = {key for key, done in lake.guard.used.items() for each in done - before.get(key, set()) if data in each}
        assert (KEY in keys) == (way == "signed"), keys  # the server's own key signs, and leaves it never
    usually = _renewed(lake)
    lake.guard.lifetime_s = 60  # so little that Iceberg's library fetches others at once
    try:
        add_catalog(spark, "renewed", lake.url, {"token": lake.tokens["reader"]})
        assert len(rows_of(spark, "TABLE renewed.tenant_b.orders")) == 3
        assert _renewed(lake) > usually
    finally:
        lake.guard.lifetime_s = None


def _renewed(lake: StoreLake) -> int:
    _, text = lake.server.get("/metrics", headers={"Authorization": f"Bearer {lake.tokens['admin']}"})
    return int(float(text.partition('dolake_store_access_total{outcome="renewed"} ')[2].partition("\n")[0]))
