"""The runner with what a lake refuses, cuts off or does not know: large rows, wide tables, many keys, old servers."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from dolake.changes import Change, StreamId
from dolake.client.aio import LakeClient
from dolake.sources import runner as runner_module
from dolake.sources.oversized import fit
from dolake.sources.runner import Runner, Shard
from dolake.sources.sqlite import SqliteSource, enable_cdc
from tests.support.followed import Followed
from tests.support.lake import running_lake
from tests.support.mirror import Mirror, events_in

LARGE = 900_000


class Brought:
    """A file, and what a lake has of it."""

    def __init__(self, app: Followed, home: Path, url: str) -> None:
        self.app, self.home, self.url = app, home, url

    async def bring(self) -> list[dict[str, Any]]:
        count = len(list(events_in(self.home)))
        shard = Shard(StreamId("app"), lambda: SqliteSource(self.app.path))
        assert not await Runner(self.url, is_once=True).run([shard])
        return list(events_in(self.home))[count:]

    def lake(self, table: str) -> list[dict[str, Any]]:
        return Mirror.of(self.home).rows(table)


@pytest_asyncio.fixture
async def brought(app: Followed, tmp_path: Path) -> AsyncIterator[Brought]:
    (tmp_path / "home").mkdir()
    async with running_lake(tmp_path / "home") as (_, url):
        yield Brought(app, tmp_path / "home", url)


@pytest.mark.parametrize(
    "value", ["zeroblob(900000)", "hex(zeroblob(600000))", "replace(hex(zeroblob(200000)), '0', char(1))"]
)
async def test_a_value_that_is_too_large_never_stops_its_table(brought: Brought, value: str) -> None:
    app = brought.app
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY, a, b)")
    app.do(f"INSERT INTO t VALUES (1, 'copied', {value})")  # noqa: S608
    enable_cdc(app.path)
    (copied,) = await brought.bring()
    app.do(f"INSERT INTO t VALUES (2, 'inserted', {value}), (3, {value}, {value})")  # noqa: S608
    app.do("UPDATE t SET a = 'changed'")
    app.do(f"UPDATE t SET b = {value} || 'x' WHERE id = 1")  # noqa: S608
    app.do("UPDATE t SET id = 20 WHERE id = 2")
    app.do("UPDATE t SET b = 'small' WHERE id = 3")
    app.do("DELETE FROM t WHERE id = 1")
    app.do("INSERT INTO t VALUES (4, 'last', 4)")
    told = await brought.bring()
    assert copied["metadata"]["rescued"]["b"]["size"] > 0
    assert [event["operation"] for event in told].count("DELETE") == 1
    assert [row["id"] for row in brought.lake("t")] == [20, 3, 4]
    assert {row["a"] for row in brought.lake("t")} == {"changed", "last"}


async def test_a_large_row_of_a_wide_table_fits_with_its_schema(brought: Brought) -> None:
    app = brought.app
    names = [f"a_column_with_a_name_that_is_rather_long_{number}" for number in range(900)]
    app.do(f"CREATE TABLE t (id INTEGER PRIMARY KEY, data, {', '.join(names)})")
    app.do("INSERT INTO t (id, data) VALUES (1, hex(zeroblob(475000)))")
    app.do("INSERT INTO t (id, data) VALUES (2, hex(zeroblob(500000)))")
    enable_cdc(app.path)
    await brought.bring()
    assert sorted(row["id"] for row in brought.lake("t")) == [1, 2]


def test_what_fits_is_left_as_it_is() -> None:
    change = Change("t", "UPDATE", "1", {"id": 1, "a": "x"}, {"id": 1, "a": "y"}, {"transactionId": "1"}, 5, 6)
    assert fit([change], 1_000_000) == [change]
    assert fit([change], None) is None


@pytest.mark.parametrize("limit", [2_000, 20_000, 200_000])
@pytest.mark.parametrize("column", ["a", "ä" * 60])
def test_a_change_is_made_to_fit_whatever_is_large_in_it(limit: int, column: str) -> None:
    after = {f"{column}{number}": "\x01" * 4_000 for number in range(60)}
    change = Change(
        "t", "UPDATE", "k" * 1_000, after, dict(after), {"transactionId": "1", "previousRowId": "k" * 900}, 5, 6
    )
    (fitting,) = fit([change], limit + 30_000) or ()
    size = len(msgspec.json.encode([fitting.row_id, fitting.after, fitting.before, fitting.metadata]))
    assert size <= limit + 30_000
    assert fitting.after is not None
    assert fitting.after.keys() | (fitting.metadata or {}).get("rescued", {}).keys() == after.keys()


async def test_a_file_of_very_many_tables_is_followed(brought: Brought) -> None:
    app = brought.app
    app.do("BEGIN")
    for number in range(600):
        columns = ", ".join(f"column_number_{index} INTEGER" for index in range(25))
        app.do(f"CREATE TABLE table_of_the_application_{number} (id INTEGER PRIMARY KEY, {columns})")
        app.do(f"INSERT INTO table_of_the_application_{number} VALUES (1{', 0' * 25})")  # noqa: S608
    app.do("COMMIT")
    enable_cdc(app.path)
    await brought.bring()
    assert len([rows for rows in Mirror.of(brought.home).tables.values() if rows]) == 600
    app.do("UPDATE table_of_the_application_7 SET column_number_3 = 7")
    assert [event["operation"] for event in await brought.bring()] == ["UPDATE"]


# --- the keys that the lake has --------------------------------------------------------------------------------------


class AnsweringLake:
    """Answers the query for keys as a server does whose `query.rows_max` is smaller than the page."""

    def __init__(self, keys: list[str], rows_max: int) -> None:
        self.keys, self.rows_max, self.asked = sorted(keys), rows_max, 0

    async def query(self, sql: str, values: list[str]) -> Any:
        self.asked += 1
        page = [key for key in self.keys if key > values[2]][: runner_module._KEYS_AT_ONCE]
        rows = [(key,) for key in page[: self.rows_max]]
        return _Answer(rows, len(page) > self.rows_max)


class _Answer(list[Any]):
    def __init__(self, rows: list[Any], truncated: bool) -> None:
        super().__init__(rows)
        self.truncated = truncated


@pytest.mark.parametrize("rows_max", [3, 7, 10_000])
@pytest.mark.parametrize("count", [0, 1, 7, 14, 50])
async def test_all_keys_of_a_table_are_read_page_by_page(
    monkeypatch: pytest.MonkeyPatch, rows_max: int, count: int, app: Followed
) -> None:
    monkeypatch.setattr(runner_module, "_KEYS_AT_ONCE", 7)
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    enable_cdc(app.path)
    source = SqliteSource(app.path)
    keys = [str(number) for number in range(count)]
    thread = runner_module._Thread(lambda: source)
    async with thread:
        shard = Shard(StreamId("app", "one"), lambda: source)
        streaming = runner_module._Streaming(Runner("http://127.0.0.1:1"), shard, thread)
        found = await streaming._keys_in_lake(AnsweringLake(keys, rows_max), "t")  # type: ignore[arg-type]
    assert found == sorted(keys)


# --- a server that keeps no state ------------------------------------------------------------------------------------


async def test_a_server_that_keeps_no_state_is_named_in_the_error(
    brought: Brought, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought.app.do("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    enable_cdc(brought.app.path)
    monkeypatch.setattr(LakeClient, "source_state", property(lambda _: None))
    shard = Shard(StreamId("app"), lambda: SqliteSource(brought.app.path))
    (error,) = (await Runner(brought.url, is_once=True).run([shard])).values()
    assert "too old" in error.message
    assert "update the server" in error.hint


# --- a file that goes away -------------------------------------------------------------------------------------------


def test_a_table_of_large_rows_is_sampled_within_bounds(app: Followed) -> None:
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY, data BLOB, at DATETIME)")
    for number in range(80):
        app.do("INSERT INTO t VALUES (?, zeroblob(500000), '2026-01-01')", number)
    enable_cdc(app.path)
    source = SqliteSource(app.path)
    source.resume(app.standing)
    tracemalloc.start()
    source.look()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    source.close()
    assert peak < 20_000_000
