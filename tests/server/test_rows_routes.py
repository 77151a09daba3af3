"""Rows by key with a real server and its query process: over HTTP, with the client and from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import pytest

from dolake.client.sync import connect
from dolake.errors import InvalidInput, Unavailable, UnknownTable
from tests.support.command import dolake
from tests.support.server import ServerProcess
from tests.verify.lake import HandLake, insert, update

pytestmark = pytest.mark.own_lake  # on a home with published rows

ODD = ("a/b", "50%", "%2F", "ключ/日本", "a b?c#d", "'\"\\")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server on a home with published rows, and a tail."""
    home = tmp_path_factory.mktemp("rows")
    lake = HandLake(home)
    declared = {"metadata": {"schema": [{"name": "total", "type": "decimal(12,2)"}]}}
    lake.publish(insert("1", "orders", total="12.50", city="Oslo") | declared, insert("2", "orders", city="Bern"))
    lake.publish(*(insert(key, "odd", n=at) for at, key in enumerate(ODD)))
    lake.append(update("2", {"city": "Bern"}, {"city": "Rome", "total": "1"}, table="orders"))
    lake.close()
    with ServerProcess(home, has_queries=True) as process:
        yield process


def row_of(server: ServerProcess, table: str, key: str, query: str = "") -> tuple[int, Any]:
    status, answer = server.get(f"/v1/tables/default/{table}/rows/{quote(key, safe='')}{query}")
    return int(status), answer


def test_one_row_is_found_by_its_path(server: ServerProcess) -> None:
    status, answer = row_of(server, "orders", "1")
    assert (status, answer["row"], answer["key"]) == (200, {"total": "12.50", "city": "Oslo"}, "1")
    assert answer["freshness"]["engine"] == "lookup"
    assert row_of(server, "orders", "2")[1]["row"] == {"total": "1.00", "city": "Rome"}
    status, answer = row_of(server, "orders", "3")
    assert (status, answer["error"]["type"]) == (404, "no_such_row")
    status, answer = row_of(server, "nothing", "3")
    assert (status, answer["error"]["type"]) == (404, "unknown_table")
    for query, kind in (("?minPosition=x", "invalid_input"), ("?source=x", "invalid_input")):
        assert row_of(server, "orders", "1", query)[1]["error"]["type"] == kind


@pytest.mark.parametrize("key", ODD)
def test_a_key_in_a_path_may_hold_any_character(server: ServerProcess, key: str) -> None:
    assert row_of(server, "odd", key)[1]["row"] == {"n": ODD.index(key)}


def test_many_rows_are_found_by_one_call(server: ServerProcess) -> None:
    path = "/v1/tables/default/odd/rows"
    status, answer = server.get(path, method="POST", body={"keys": [ODD[3], "none", ODD[0]]})
    assert (status, answer["rows"], answer["found"]) == (200, [{"n": 3}, None, {"n": 0}], 2)
    assert server.get(path, method="POST", body={"keys": ["x"] * 1001})[0] == 400
    assert server.get(path, method="POST", body={"key": "x"})[0] == 400
    assert server.get(path, method="POST", body={"keys": []})[1]["rows"] == []


def test_the_past_is_told_by_sql_in_the_same_form(server: ServerProcess) -> None:
    snapshots = server.get("/v1/tables/default/orders/snapshots")[1]["snapshots"]
    query = f"?snapshotId={snapshots[0]['snapshotId']}"
    status, answer = row_of(server, "orders", "2", query)
    assert (status, answer["row"]) == (200, {"total": None, "city": "Bern"})
    assert answer["freshness"]["engine"] == "duckdb"
    assert answer["columns"] == row_of(server, "orders", "2")[1]["columns"]
    status, answer = row_of(server, "orders", "2", "?asOf=2020-01-01T00:00:00Z")
    assert (status, answer["error"]["type"]) == (404, "no_such_row"), "the table did not exist yet"
    assert row_of(server, "orders", "3", query)[1]["error"]["type"] == "no_such_row"


def test_the_client_has_rows_as_its_queries_have_them(server: ServerProcess) -> None:
    with connect(server.url, source="till") as lake:
        found = lake.get("orders", 1)
        assert found is not None
        assert (found.total, found["city"]) == (Decimal("12.50"), "Oslo")
        assert found.as_dict() == lake.query("SELECT * FROM orders WHERE _key = '1'").rows[0].as_dict()
        assert lake.get("default.orders", "9") is None
        for number in range(3):
            lake.send({"table": "orders", "operation": "INSERT", "row_id": f"n{number}", "after": {"city": "Ulm"}})
            mine = lake.get("orders", f"n{number}")
            assert mine is not None, "read your own writes"
            assert mine.city == "Ulm"
        many = lake.get_many("orders", ["n0", "x", 2])
        assert [row and row.city for row in many] == ["Ulm", None, "Rome"]
        assert many.freshness.position >= 11
        with pytest.raises(UnknownTable):
            lake.get("nothing", 1)
        assert lake.get("orders", 1, as_of=datetime(2020, 1, 1, tzinfo=UTC)) is None
        with pytest.raises(InvalidInput):
            lake.get("orders__changes", 1)
        with pytest.raises(Unavailable, match="not durable"):
            lake.get("orders", 1, position=10**12)


def test_a_table_that_was_never_published_has_rows_too(server: ServerProcess) -> None:
    with connect(server.url, source="new") as lake:
        lake.send({"table": "fresh", "operation": "INSERT", "row_id": "a", "after": {"n": 1, "x": [1.5]}})
        found = lake.get("fresh", "a")
        assert found is not None
        assert found.as_dict() == {"n": 1, "x": [1.5]}
        assert lake.get("fresh", "b") is None


def test_the_command_shows_rows_and_says_which_are_missing(server: ServerProcess) -> None:
    shown = dolake("get", "orders", "1", "--home", str(server.home))
    assert shown.returncode == 0, shown.stderr
    assert "Oslo" in shown.stdout
    shown = dolake("get", "orders", "1", "9", "--json", "--url", server.url)
    assert shown.returncode == 1
    assert [json.loads(line) for line in shown.stdout.splitlines()] == [{"total": "12.50", "city": "Oslo"}, None]
    assert "no row: 9" in shown.stderr


def test_look_ups_are_counted(server: ServerProcess) -> None:
    row_of(server, "orders", "1")
    text = server.get("/metrics")[1]
    assert 'dolake_lookups_total{outcome="ok"}' in text
    assert "dolake_lookup_seconds_bucket" in text


def test_who_looks_up_while_the_process_dies_is_told_or_answered(default_server: ServerProcess) -> None:
    status, answer = row_of(default_server, "orders", "1")
    assert (status, answer["error"]["hint"]) == (409, "set query.enabled and start again")
