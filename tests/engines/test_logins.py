"""Engines log in to the catalog, by token and by credential, and see the namespaces of their token."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError, RESTError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyspark.sql import SparkSession

from dolake.identity.store import TokenFile
from dolake.identity.tokens import mint
from tests.support.server import ServerProcess
from tests.support.spark import add_catalog, rows_of
from tools.duckdb_client import duck_on

pytestmark = pytest.mark.own_lake

WAYS = ("token", "credential")


class Guarded:
    """A server with tokens, two namespaces, and a token for the first."""

    def __init__(self, server: ServerProcess, token: str) -> None:
        self.server, self.token = server, token
        self.id, self.secret = token.split("_", 2)[1:]

    @property
    def address(self) -> dict[str, str]:
        return {"uri": self.server.url, "oauth2-server-uri": f"{self.server.url}/v1/oauth/tokens"}

    def login(self, way: str) -> str:
        return {"token": self.token, "credential": f"{self.id}:{self.secret}"}[way]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    home, now_ms, texts = tmp_path_factory.mktemp("guarded"), time.time_ns() // 1_000_000, []
    for scope, namespaces in (("admin", []), ("write", ["tenant_a"])):
        token, text = mint(scope, [scope], namespaces, [], now_ms=now_ms, expires_ms=None)
        TokenFile(home).add(token)
        texts.append(text)
    with ServerProcess(home) as server:
        boss = {"Authorization": f"Bearer {texts[0]}"}
        for name in ("tenant_a", "tenant_b"):
            assert server.get("/v1/namespaces", method="POST", body={"namespace": [name]}, headers=boss)[0] == 200
        yield Guarded(server, texts[1])


@pytest.mark.parametrize("way", WAYS)
def test_pyiceberg_logs_in_and_sees_its_own(guarded: Guarded, way: str) -> None:
    catalog = RestCatalog("lake", **guarded.address, **{way: guarded.login(way)})
    try:
        assert catalog.list_namespaces() == [("tenant_a",)]
        schema = Schema(NestedField(1, "id", LongType(), required=False))
        catalog.create_table(f"tenant_a.by_pyiceberg_{way}", schema)
        assert ("tenant_a", f"by_pyiceberg_{way}") in catalog.list_tables("tenant_a")
        with pytest.raises(NoSuchTableError):
            catalog.load_table("tenant_b.orders")
    finally:
        catalog.close()


@pytest.mark.parametrize("wrong", [{}, {"token": "x"}, {"credential": "a:b"}])
def test_pyiceberg_is_told_when_it_may_not(guarded: Guarded, wrong: dict[str, str]) -> None:
    with pytest.raises(RESTError):
        RestCatalog("lake", **guarded.address, **wrong)


@pytest.mark.parametrize("way", WAYS)
def test_duckdb_logs_in_and_sees_its_own(guarded: Guarded, way: str) -> None:
    words = f"TOKEN '{guarded.token}'"
    if way == "credential":
        oauth = f"OAUTH2_SERVER_URI '{guarded.server.url}/v1/oauth/tokens'"
        words = f"CLIENT_ID '{guarded.id}', CLIENT_SECRET '{guarded.secret}', {oauth}"
    with duck_on(guarded.server.url, secret=words) as duck:
        duck.execute(f"CREATE TABLE lake.tenant_a.by_duck_{way} (id BIGINT)")
        duck.execute(f"INSERT INTO lake.tenant_a.by_duck_{way} VALUES (7)")  # noqa: S608
        assert duck.table(f"lake.tenant_a.by_duck_{way}").fetchall() == [(7,)]
        with pytest.raises(Exception, match="tenant_b"):
            duck.execute("CREATE TABLE lake.tenant_b.mine (id BIGINT)")


@pytest.mark.spark
def test_spark_logs_in_by_token_and_by_credential(guarded: Guarded, spark: SparkSession) -> None:
    for way in WAYS:
        add_catalog(spark, f"by_{way}", guarded.server.url, {way: guarded.login(way)})
        assert rows_of(spark, f"SHOW NAMESPACES IN by_{way}") == [("tenant_a",)]
    rows_of(spark, "CREATE TABLE by_token.tenant_a.by_spark (id BIGINT) USING iceberg")
    rows_of(spark, "INSERT INTO by_credential.tenant_a.by_spark VALUES (7)")
    assert rows_of(spark, "SELECT id FROM by_token.tenant_a.by_spark") == [(7,)]
