"""Two tenants in one lake: by SQL, plans, diffs and subscriptions each finds his own, and no trace of the other."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from dolake.client.sync import connect
from dolake.errors import UnknownTable
from dolake.identity.store import TokenFile
from dolake.identity.tokens import mint
from tests.server.permission_rows import ROUTES
from tests.support.server import ServerProcess, wait_for
from tests.support.speaker import Speaker

pytestmark = pytest.mark.own_lake

TENANTS = ("tenant_a", "tenant_b")


class Lake:
    def __init__(self, server: ServerProcess, tokens: dict[str, str]) -> None:
        self.server, self.tokens = server, tokens

    def ask(self, who: str, path: str, body: Any = None, method: str | None = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        method = method or ("GET" if body is None else "POST")
        status, answer = self.server.get(path, method=method, body=body, headers=headers)
        return status, answer


def tokens_in(home: Path) -> dict[str, str]:
    found, now_ms = {}, time.time_ns() // 1_000_000
    for name, namespaces in (("tenant_a", ["tenant_a"]), ("tenant_b", ["tenant_b"]), ("boss", [])):
        sources = [f"{name}-*"] if namespaces else []
        token, found[name] = mint(name, ["admin"], namespaces, sources, now_ms=now_ms, expires_ms=None)
        TokenFile(home).add(token)
    return found


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    home = tmp_path_factory.mktemp("tenants")
    tokens = tokens_in(home)
    with ServerProcess(home, has_queries=True) as server:
        found = Lake(server, tokens)
        headers = {"Authorization": f"Bearer {tokens['boss']}"}
        path, body = "/v1/query", {"sql": "SELECT 1"}
        wait_for(lambda: bool(server.get(path, method="POST", body=body, headers=headers)[0] == 200), "answers")
        for tenant in TENANTS:
            with connect(server.url, source=f"{tenant}-1", token=tokens[tenant]) as client:
                row = {"table": f"{tenant}.orders", "operation": "INSERT", "rowId": "1", "after": {"who": tenant}}
                client.send([row])
            found.ask("boss", "/v1/namespaces", {"namespace": [tenant]})
        yield found


QUESTIONS = [
    "SELECT * FROM {ns}.orders",
    'SELECT * FROM "{ns}"."orders"',
    "SELECT * FROM lake.{ns}.orders",
    "SELECT * FROM tenant_a.orders AS a JOIN {ns}.orders AS b ON true",
    "SELECT * FROM tenant_a.orders WHERE EXISTS (SELECT 1 FROM {ns}.orders)",
    "WITH w AS (SELECT * FROM {ns}.orders) SELECT * FROM w",
    "SELECT (SELECT count(*) FROM {ns}.orders)",
    "SELECT * FROM tenant_a.orders UNION ALL SELECT * FROM {ns}.orders",
    "SELECT * FROM {ns}.orders__changes",
    "SELECT _operation FROM {ns}.orders",
    "SELECT * FROM {ns}.orders__quarantine",
    "DESCRIBE {ns}.orders",
    "SHOW COLUMNS FROM lake.{ns}.orders",
]


@pytest.mark.parametrize("sql", QUESTIONS)
@pytest.mark.parametrize("path", ["/v1/query", "/v1/query/plan"])
def test_a_question_about_another_tenant_is_answered_as_if_there_was_none(lake: Lake, path: str, sql: str) -> None:
    answers = []
    for ns in ("tenant_b", "tenant_x"):  # one that is there, and one that never was
        status, answer = lake.ask("tenant_a", path, {"sql": sql.replace("{ns}", ns)})
        assert status == 404
        answers.append(json.dumps(answer).replace(ns, "?"))
    assert answers[0] == answers[1]


LISTINGS = [
    "SHOW TABLES",
    "SHOW TABLES FROM {ns}",
    "SHOW NAMESPACES",
    "SHOW SCHEMAS",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM lake.information_schema.columns",
    "SELECT * FROM information_schema.schemata",
    "SELECT * FROM information_schema.columns WHERE table_schema = '{ns}'",
    "SELECT (SELECT count(*) FROM information_schema.tables WHERE table_schema = '{ns}') AS n",
]


@pytest.mark.parametrize("sql", LISTINGS)
def test_listings_have_what_the_token_sees_and_no_trace_of_others(lake: Lake, sql: str) -> None:
    answers = [lake.ask("tenant_a", "/v1/query", {"sql": sql.replace("{ns}", ns)}) for ns in ("tenant_b", "tenant_x")]
    assert [status for status, _ in answers] == [200, 200]
    assert answers[0][1]["rows"] == answers[1][1]["rows"]
    assert "tenant_b" not in json.dumps(answers[0][1])
    status, mine = lake.ask("tenant_b", "/v1/query", {"sql": sql.replace("{ns}", "tenant_b")})
    assert status == 200
    assert "tenant_a" not in json.dumps(mine)
    assert "tenant_b" in json.dumps(mine["rows"]) or mine["rows"][0]["n"] > 0


def test_the_name_that_was_meant_is_one_that_the_token_sees(lake: Lake) -> None:
    for path, body in (
        ("/v1/query", {"sql": "SELECT * FROM tenant_b.ordrs"}),
        ("/v1/diff", {"table": "tenant_b.ordrs", "from": 0}),
        ("/v1/tables/tenant_b/ordrs/schema", None),
    ):
        assert "did you mean tenant_b.orders?" in lake.ask("tenant_b", path, body)[1]["error"]["hint"]
        assert "did you mean tenant_a.orders?" in lake.ask("tenant_a", path, body)[1]["error"]["hint"]


def test_a_default_namespace_opens_no_door(lake: Lake) -> None:
    status, _ = lake.ask("tenant_a", "/v1/query", {"sql": "SELECT * FROM orders", "namespace": "tenant_b"})
    assert status == 404
    status, answer = lake.ask("tenant_a", "/v1/query", {"sql": "SELECT who FROM orders", "namespace": "tenant_a"})
    assert (status, answer["rows"]) == (200, [{"who": "tenant_a"}])
    body = {"table": "tenant_b.orders", "from": "2026-01-01T00:00:00Z"}
    assert lake.ask("tenant_a", "/v1/diff", body)[0] == 404


def looked_at() -> list[str]:
    """Every route that names nothing and answers a tenant, so that a new one is looked at from its first day on."""
    rows = [line.split() for line in ROUTES.strip().splitlines()[1:]]
    paths = [
        path for method, path, _nobody, _ingest, _read, _write, admin, *_ in rows if (method, admin) == ("GET", "200")
    ]
    return [*(path for path in paths if "{" not in path and "?" not in path), "/v1/subscriptions"]


def test_answers_and_figures_have_no_trace_of_others(lake: Lake) -> None:
    asked = lake.ask("tenant_a", "/v1/query", {"sql": "SELECT * FROM tenant_a.orders"})
    answers = {path: lake.ask("tenant_a", path) for path in looked_at()}
    assert {"/status", "/metrics", "/v1/freshness", "/v1/namespaces", "/v1/tables"} <= set(answers)
    for path, (status, answer) in {"/v1/query": asked, **answers}.items():
        assert status == 200, path
        assert "tenant_b" not in json.dumps(answer), path
    assert asked[1]["freshness"]["sources"] == {"tenant_a-1": {"sequence": 1}}
    assert 'dolake_table_lag_changes{table="tenant_a.orders"} 1.0' in answers["/metrics"][1]
    everything = {path: json.dumps(lake.ask("boss", path)[1]) for path in ("/status", "/v1/freshness")}
    assert all("tenant_b.orders" in answer for answer in everything.values())


async def test_a_subscription_to_anothers_table_is_to_one_that_is_not_there(lake: Lake) -> None:
    headers = {"Authorization": f"Bearer {lake.tokens['tenant_a']}"}
    for table, kind in (("tenant_a.orders", "subscribed"), ("tenant_b.orders", "error")):
        async with Speaker(lake.server.url, path="/v1/subscribe", headers=headers) as speaker:
            answer = await speaker.ask({"type": "subscribe", "tables": [table]})
            assert answer["type"] == kind, answer


def test_the_client_asks_with_its_token(lake: Lake) -> None:
    client = connect(lake.server.url, token=lake.tokens["tenant_a"])
    assert client.query("SELECT who FROM tenant_a.orders").rows == [{"who": "tenant_a"}]
    assert [each.name for each in client.list_tables()] == ["orders"]
    with pytest.raises(UnknownTable):
        client.query("SELECT who FROM tenant_b.orders")


def test_a_table_whose_manifests_name_anothers_files_is_not_read(lake: Lake) -> None:
    """The catalog cannot see into manifests, which their writer makes; the query process looks before it reads."""
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    boss = RestCatalog("lake", uri=lake.server.url, token=lake.tokens["boss"])
    mine = RestCatalog("lake", uri=lake.server.url, token=lake.tokens["tenant_a"])
    try:
        secret = boss.create_table("tenant_b.secret", schema)
        secret.append(pa.table({"id": pa.array([42], pa.int64())}))
        stolen = mine.create_table("tenant_a.stolen", schema)
        files = [task.file.file_path for task in secret.scan().plan_files()]
        stolen.add_files(files, check_duplicate_files=False)
    finally:
        boss.close()
        mine.close()
    status, answer = lake.ask("tenant_a", "/v1/query", {"sql": "SELECT id FROM tenant_a.stolen"})
    assert (status, answer["error"]["type"]) == (403, "forbidden")
    assert "tenant_b" not in json.dumps(answer)
    assert lake.ask("boss", "/v1/query", {"sql": "SELECT id FROM tenant_b.secret"})[1]["rows"] == [{"id": 42}]
