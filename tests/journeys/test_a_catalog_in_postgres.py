"""Two servers share one catalog in Postgres: the lake is made of one journal, and both serve its tables to engines."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dolake.client.sync import connect
from dolake.errors import Unavailable
from tests.support.aio import run
from tests.support.postgres import PostgresServer
from tests.support.server import ServerProcess
from tests.support.speaker import Speaker, batch, events

pytestmark = pytest.mark.own_lake

TABLES = "/v1/namespaces/shop/tables"
SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}
COMMITS = 15


@pytest.fixture
def settings(postgres: PostgresServer) -> str:
    store = postgres.url.replace("dolake@", "dolake:s3cret@")
    return f'[catalog]\nstore = "{store}"\nstore_schema = "{postgres.new_schema()}"\n'


@pytest.fixture
def first(tmp_path: Path, settings: str) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "first", settings=settings) as server:
        yield server


@pytest.fixture
def second(tmp_path: Path, settings: str, first: ServerProcess) -> Iterator[ServerProcess]:
    home = tmp_path / "second"
    home.mkdir()
    (home / "warehouse").symlink_to(first.home / "warehouse")  # as a disk that both of them have
    with ServerProcess(home, settings=settings) as server:
        yield server


def visit(number: int) -> dict[str, Any]:
    return {"table": "shop.visits", "operation": "INSERT", "rowId": str(number), "after": {"id": number}}


async def offered(url: str) -> dict[str, Any]:
    """What a server says to a batch."""
    async with Speaker(url) as speaker:
        answer: dict[str, Any] = await speaker.ask(batch(1, events(1, 2)))
        return answer


def commit(server: ServerProcess, key: str) -> int:
    """Set a property until that has happened; says how often another commit was first."""
    body: dict[str, Any] = {"requirements": [], "updates": [{"action": "set-properties", "updates": {key: "done"}}]}
    conflicts = 0
    while True:
        status, answer = server.get(f"{TABLES}/orders", method="POST", body=body)
        if status == 200:
            return conflicts
        assert status in (409, 503), answer
        conflicts += 1


def test_two_servers_serve_one_catalog_and_survive_the_loss_of_each_other(
    first: ServerProcess, second: ServerProcess, postgres: PostgresServer
) -> None:
    assert first.get("/v1/namespaces", method="POST", body={"namespace": ["shop"]})[0] == 200
    assert second.get(TABLES, method="POST", body={"name": "orders", "schema": SCHEMA})[0] == 200
    taken = first.get(TABLES, method="POST", body={"name": "orders", "schema": SCHEMA})
    assert (taken[0], taken[1]["error"]["type"]) == (409, "AlreadyExistsException")

    keys = [(server, f"{name}{number}") for number in range(COMMITS) for server, name in ((first, "a"), (second, "b"))]
    with ThreadPoolExecutor(4) as threads:
        under_way = [threads.submit(commit, server, key) for server, key in keys]
        assert postgres.end_links() > 0
        for each in under_way:
            each.result()

    with connect(first.url, source="shop-1") as client:
        client.send(visit(1))
    first.kill()
    assert second.get(f"{TABLES}/orders")[0] == 200
    first.start()  # it finds its own journal, and the lake is still made of it
    for server in (first, second):
        _, loaded = server.get(f"{TABLES}/orders")
        properties = loaded["metadata"]["properties"]
        assert [key for _, key in keys if properties.get(key) != "done"] == []
        # One metadata file for each commit and one for the table: none was lost, none was done twice.
        assert loaded["metadata-location"].rpartition("/")[2].startswith(f"{len(keys):05}-")
    with connect(first.url, source="shop-1") as client:
        client.send(visit(2))

    for server in (first, second):
        assert server.stop() == 0
        assert "s3cret" not in server.log


def test_a_second_server_takes_no_changes_and_runs_nothing_that_needs_the_journal(
    first: ServerProcess, second: ServerProcess, tmp_path: Path, settings: str
) -> None:
    assert second.get("/health/ready")[0] == 200
    assert "only the catalog is served" in second.log
    refusal = run(offered(second.url))
    assert refusal["type"] == "nack"
    assert "another one takes the changes" in refusal["errorMessage"]
    with pytest.raises(Unavailable) as refused:
        ServerProcess(tmp_path / "third", settings=settings, environ={"DOLAKE_QUERY_ENABLED": "true"}).start()
    said = " ".join(str(refused.value).split())
    assert "made of another server's journal" in said
    assert "set pipeline.enabled and query.enabled to false" in said


def test_the_settings_are_shown_without_the_password(first: ServerProcess) -> None:
    status, shown = first.get("/v1/settings")
    assert status == 200
    assert shown["catalog.store"]["value"].startswith("postgresql://dolake:***@127.0.0.1:")
    assert "s3cret" not in str(shown)
