"""What can be asked of tables without SQL: which there are, their snapshots and their columns."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from dolake.catalog.base import PUBLISHED_TO, Name
from dolake.catalog.tables import TableCommit
from dolake.server.home import Home
from dolake.server.lake import Lake
from dolake.storage.local import path_of
from dolake.tables import layout
from dolake.tables.types import Field
from tests.catalog.asking import snapshot_updates, table_body, view_body
from tests.support.aio import run
from tests.support.clock import Clock
from tests.support.lake import running_lake, serving, settings_of
from tests.support.speaker import Speaker, batch, event
from tests.verify.lake import HandLake, delete, insert, update

Json = dict[str, Any]
FULL = {"total-records": "10", "total-data-files": "2", "total-position-deletes": "3", "total-equality-deletes": "0"}


class Asked:
    """A running server whose catalog can be filled as the pipeline would do it."""

    def __init__(self, lake: Lake, url: str, session: aiohttp.ClientSession) -> None:
        self.lake, self.url, self._session = lake, url, session

    async def get(self, path: str, status: int = 200, **query: str) -> Json:
        async with self._session.get(self._address(path, query)) as answer:
            body: Json = await answer.json()
            assert answer.status == status, body
            return body

    async def refusal(self, path: str, **query: str) -> tuple[int, str]:
        async with self._session.get(self._address(path, query)) as answer:
            error = (await answer.json())["error"]
            return answer.status, error["type"]

    def _address(self, path: str, query: dict[str, str]) -> URL:
        return URL(self.url + path, encoded=True).with_query(query)

    async def namespace(self, *levels: str) -> None:
        await self.lake.catalog.run(self.lake.catalog.store.create_namespace, levels, {})

    async def table(self, namespace: str, name: str) -> None:
        """A table of somebody's own."""
        full_name = Name(tuple(namespace.split(".")), name)
        await self.lake.catalog.run(self.lake.catalog.tables.create, full_name, table_body(name), is_pipeline=False)

    async def source_table(self, namespace: str, name: str) -> None:
        """Both tables of a source's table."""
        columns = (Field("id", "long"), Field("name", "string"))
        schemas = {
            name: layout.state_schema(columns, has_source=False),
            f"{name}__changes": layout.changes_schema(columns),
        }
        for each, schema in schemas.items():
            body = {"name": each, "schema": schema, "properties": layout.properties(f"{namespace}.{name}")}
            full_name = Name(tuple(namespace.split(".")), each)
            await self.lake.catalog.run(self.lake.catalog.tables.create, full_name, body, is_pipeline=True)

    async def publish(self, at_ms: int, position: int, *names: str) -> None:
        """A snapshot of each of these tables at one moment."""
        tables = self.lake.catalog.tables
        for name in names:
            *namespace, table = name.split(".")
            full_name = Name(tuple(namespace), table)
            updates = snapshot_updates(tables.load(full_name).metadata, None, FULL | {PUBLISHED_TO: str(position)})
            updates[0]["snapshot"]["timestamp-ms"] = at_ms
            await self.lake.catalog.run(tables.commit, [TableCommit(full_name, [], updates)], is_pipeline=True)

    def file_of(self, namespace: str, name: str) -> Path:
        """The table's metadata file, which the catalog has forgotten."""
        location = self.lake.catalog.tables.find(Name((namespace,), name)).metadata_location
        self.lake.catalog.tables._documents.forget(location)
        return path_of(location)


@asynccontextmanager
async def asking(home: Path) -> AsyncIterator[Asked]:
    async with running_lake(home, clock_ms=Clock()) as (lake, url), aiohttp.ClientSession() as session:
        yield Asked(lake, url, session)


def names_in(body: Json) -> list[str]:
    return [f"{each['namespace']}.{each['name']}" for each in body["tables"]]


# --- which tables there are ------------------------------------------------------------------------------------------


async def test_tables_are_listed_with_what_is_in_them(tmp_path: Path) -> None:
    async with asking(tmp_path) as lake:
        await lake.namespace("default")
        await lake.source_table("default", "orders")
        await lake.table("default", "notes")
        await lake.publish(1_763_000_000_123, 1200, "default.orders")
        body = await lake.get("/v1/tables")
        assert body["nextPageToken"] is None
        notes, orders = body["tables"]
        assert (notes["name"], notes["managed"], notes["snapshotId"], notes["rows"]) == ("notes", False, None, 0)
        (snapshot,) = (await lake.get("/v1/tables/default/orders/snapshots"))["snapshots"]
        assert orders == {
            "namespace": "default",
            "name": "orders",
            "managed": True,
            "snapshotId": snapshot["snapshotId"],
            "updatedAt": "2025-11-13T02:13:20.123Z",
            "rows": 7,
        }
        assert await lake.get("/lakehouse/v1/tables") == body


async def test_an_empty_lake_has_no_tables_and_no_snapshots(tmp_path: Path) -> None:
    async with asking(tmp_path) as lake:
        assert await lake.get("/v1/tables") == {"tables": [], "nextPageToken": None}
        assert await lake.get("/v1/snapshots") == {"snapshots": []}


async def test_the_tables_of_changes_are_left_out_unless_they_are_asked_for(tmp_path: Path) -> None:
    async with asking(tmp_path) as lake:
        await lake.namespace("default")
        await lake.source_table("default", "orders")
        await lake.table("default", "own__changes")  # somebody's own table may be called so
        await lake.publish(1_763_000_000_000, 10, "default.orders", "default.orders__changes")
        assert names_in(await lake.get("/v1/tables")) == ["default.orders", "default.own__changes"]
        every = ["default.orders", "default.orders__changes", "default.own__changes"]
        assert names_in(await lake.get("/v1/tables", changes="true")) == every
        shown = [each["table"] for each in (await lake.get("/v1/snapshots"))["snapshots"]]
        assert shown == ["default.orders"]
        shown = [each["table"] for each in (await lake.get("/v1/snapshots", changes="true"))["snapshots"]]
        assert shown == ["default.orders", "default.orders__changes"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_pages_of_any_size_show_every_table_of_every_namespace_once_and_in_order(
    tmp_path: Path, size: int
) -> None:
    async with asking(tmp_path) as lake:
        for levels in (("a",), ("a", "b"), ("a", "b", "c"), ("a", "d"), ("ab",), ("b",), ("empty",), ("z",)):
            await lake.namespace(*levels)
        wanted = ["a.t", "a.u", "a.b.t", "a.b.c.t", "a.d.t", "ab.t", "z.r", "z.s"]
        for name in wanted:
            await lake.table(*name.rsplit(".", 1))
        await lake.lake.catalog.run(lake.lake.catalog.views.create, Name(("b",), "v"), view_body())
        found: list[str] = []
        token, pages = "", 0
        while True:
            pages += 1
            body = await lake.get("/v1/tables", pageSize=str(size), pageToken=token)
            assert len(body["tables"]) <= size
            found += names_in(body)
            if body["nextPageToken"] is None:
                break
            token = body["nextPageToken"]
        assert found == wanted
        assert pages == -(-len(wanted) // size)


async def test_a_page_goes_on_where_the_last_one_ended_though_that_table_and_its_namespace_are_gone(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path) as lake:
        catalog = lake.lake.catalog
        for namespace in ("a", "b", "c"):
            await lake.namespace(namespace)
            await lake.table(namespace, "t")
        token = (await lake.get("/v1/tables", pageSize="2"))["nextPageToken"]
        catalog.tables.drop(Name(("b",), "t"), is_purging=False, is_forced=False)
        catalog.store.drop_namespace(("b",))
        assert names_in(await lake.get("/v1/tables", pageToken=token)) == ["c.t"]


async def test_a_listing_reads_the_metadata_of_its_page_alone(tmp_path: Path) -> None:
    async with asking(tmp_path) as lake:
        await lake.namespace("default")
        for name in ("a", "b", "c"):
            await lake.table("default", name)
        lake.file_of("default", "c").write_bytes(b"no JSON")
        first = await lake.get("/v1/tables", pageSize="2")
        assert names_in(first) == ["default.a", "default.b"]
        assert (await lake.refusal("/v1/tables", pageToken=first["nextPageToken"])) == (500, "damaged")


async def test_a_table_whose_metadata_is_lost_is_still_listed(tmp_path: Path) -> None:
    async with asking(tmp_path) as lake:
        await lake.namespace("default")
        await lake.source_table("default", "orders")
        lake.file_of("default", "orders").unlink()
        unknown = {"snapshotId": None, "updatedAt": None, "rows": None}
        body = await lake.get("/v1/tables")
        assert body["tables"] == [{"namespace": "default", "name": "orders", "managed": True} | unknown]
        assert await lake.get("/v1/snapshots") == {"snapshots": []}


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/v1/tables", {"pageSize": "0"}),
        ("/v1/tables", {"pageSize": "1001"}),
        ("/v1/tables", {"pageSize": "ten"}),
        ("/v1/tables", {"pageToken": "orders"}),
        ("/v1/snapshots", {"limit": "0"}),
        ("/v1/snapshots", {"limit": "10001"}),
        ("/v1/snapshots", {"limit": "-1"}),
        ("/v1/tables/default/orders/snapshots", {"limit": "x"}),
    ],
)
async def test_a_number_that_makes_no_sense_is_refused(tmp_path: Path, path: str, query: dict[str, str]) -> None:
    async with asking(tmp_path) as lake:
        assert await lake.refusal(path, **query) == (400, "invalid_input")


# --- snapshots -------------------------------------------------------------------------------------------------------


async def test_the_snapshots_of_the_lake_come_newest_first_and_those_of_one_publish_by_table(tmp_path: Path) -> None:
    async with asking(tmp_path) as lake:
        await lake.namespace("default")
        for name in ("orders", "users"):
            await lake.source_table("default", name)
        await lake.table("default", "notes")
        await lake.publish(1_763_000_000_000, 10, "default.users")
        await lake.publish(1_763_000_001_000, 20, "default.users", "default.orders")
        await lake.publish(1_763_000_001_000, 30, "default.users")  # in the same millisecond
        await lake.publish(1_763_000_002_000, 40, "default.notes")  # not of a source
        found = (await lake.get("/v1/snapshots"))["snapshots"]
        assert [(each["table"], each["position"], each["isCurrent"]) for each in found] == [
            ("default.users", 30, True),
            ("default.orders", 20, True),
            ("default.users", 20, False),
            ("default.users", 10, False),
        ]
        assert found[0]["timestamp"] == "2025-11-13T02:13:21.000Z"
        assert (await lake.get("/v1/snapshots", limit="3"))["snapshots"] == found[:3]


async def test_the_newest_snapshots_are_found_among_more_tables_than_are_looked_at_together(tmp_path: Path) -> None:
    async with asking(tmp_path) as lake:
        await lake.namespace("default")
        for number in range(120):
            await lake.source_table("default", f"t{number:03}")
        for at, number in enumerate((119, 3, 60, 101)):
            await lake.publish(1_763_000_000_000 + at, at, f"default.t{number:03}")
        found = (await lake.get("/v1/snapshots", limit="3"))["snapshots"]
        assert [each["table"] for each in found] == ["default.t101", "default.t060", "default.t003"]


async def test_the_snapshots_of_one_table_are_those_that_the_lake_shows_of_it(tmp_path: Path) -> None:
    async with asking(tmp_path) as lake:
        await lake.namespace("shop")
        await lake.namespace("shop", "eu")
        await lake.source_table("shop.eu", "orders")
        for number in (1, 2, 3):
            await lake.publish(1_763_000_000_000 + number, number, "shop.eu.orders")
        body = await lake.get("/v1/tables/shop.eu/orders/snapshots")
        assert body == await lake.get("/v1/snapshots")
        assert body == await lake.get("/v1/tables/shop%1Feu/orders/snapshots")
        newest = await lake.get("/v1/tables/shop.eu/orders/snapshots", limit="1")
        assert newest["snapshots"] == body["snapshots"][:1]


def test_what_was_published_is_told_as_it_was(tmp_path: Path) -> None:
    """Tables, files and metadata as the pipeline makes them."""
    lake = HandLake(tmp_path)
    lake.publish(insert("1", n=1, word="one"), insert("2", n=2))
    lake.publish(update("1", {"n": 1}, {"n": 10}), delete("2", {"n": 2}))
    lake.close()

    async def check() -> None:
        async with asking(tmp_path) as server:
            found = (await server.get("/v1/tables/default/items/snapshots"))["snapshots"]
            assert [each["position"] for each in found] == [4, 2]
            schema = await server.get("/v1/tables/default/items/schema")
            assert schema["table"] == "default.items"
            assert [each["name"] for each in schema["fields"]] == ["n", "word"]

    run(check())


# --- columns ---------------------------------------------------------------------------------------------------------


async def test_the_columns_of_a_table_are_told_with_their_versions(tmp_path: Path) -> None:
    async with asking(tmp_path) as lake:
        await lake.namespace("default")
        await lake.source_table("default", "orders")
        await lake.publish(1_763_000_000_000, 10, "default.orders")
        body = await lake.get("/v1/tables/default/orders/schema")
        fields = [
            {"id": 3, "name": "id", "type": "long", "required": False},
            {"id": 4, "name": "name", "type": "string", "required": False},
        ]
        versions = [{"version": 1, "since": "2025-11-13T02:13:20.000Z", "fields": fields}]
        assert body == {"table": "default.orders", "version": 1, "fields": fields, "versions": versions}
        changes = await lake.get("/v1/tables/default/orders__changes/schema")
        assert [each["name"] for each in changes["fields"]] == ["id", "name"]


@pytest.mark.parametrize("what", ["snapshots", "schema"])
async def test_a_table_that_is_not_there_is_unknown_and_one_that_is_only_durable_says_so(
    tmp_path: Path, what: str
) -> None:
    async with asking(tmp_path) as lake, Speaker(lake.url) as speaker:
        assert await lake.refusal(f"/v1/tables/default/orders/{what}") == (404, "unknown_table")
        assert await lake.refusal(f"/v1/tables/no.such/orders/{what}") == (404, "unknown_table")
        await speaker.ask(batch(1, [event(1, table="orders")]))
        body = await lake.get(f"/v1/tables/default/orders/{what}", 404)
        assert "not published yet" in body["error"]["hint"]


@pytest.mark.parametrize(
    "path", ["/v1/tables/%00/orders/schema", "/v1/tables/default/%ff/schema", "/v1/tables/.../t/schema"]
)
async def test_a_name_that_no_table_can_have_is_refused(tmp_path: Path, path: str) -> None:
    async with asking(tmp_path) as lake:
        status, kind = await lake.refusal(path)
        assert (status, kind) in ((400, "invalid_input"), (404, "unknown_table"))


async def test_the_routes_say_that_the_server_is_not_ready_while_it_recovers(tmp_path: Path) -> None:
    with Home(tmp_path) as home:
        async with serving(Lake(home, settings_of())) as url, aiohttp.ClientSession(url) as session:
            for path in (
                "/v1/tables",
                "/v1/snapshots",
                "/v1/tables/default/t/snapshots",
                "/v1/tables/default/t/schema",
            ):
                async with session.get(path) as answer:
                    assert answer.status == 503
