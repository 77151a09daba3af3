"""Subscribers of a running server hear of changes as they become durable."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest

from dolake.client import LakeClient, connect
from tests.support.changes import delete, insert, sent, update
from tests.support.server import ServerProcess
from tests.support.subscriber import Listener


@contextlib.asynccontextmanager
async def sending(server: ServerProcess) -> AsyncIterator[LakeClient]:
    async with connect(server.url) as lake:
        yield lake


async def test_a_change_is_told_with_its_row_before_and_after(server: ServerProcess, table: str) -> None:
    async with sending(server) as lake, Listener(server.url, tables=[table]) as listener:
        assert listener.subscribed["type"] == "subscribed"
        position = await sent(
            lake,
            [
                insert(table, 1, amount=5, note="new"),
                update(table, 1, {"amount": 5, "note": "new"}, {"amount": 7, "note": "new"}, transactionId="t-1"),
                delete(table, 1, amount=7, note="new"),
            ],
        )
        first, second, third = await listener.events(3)
        assert first["operation"] == "INSERT"
        assert first["after"] == {"id": 1, "amount": 5, "note": "new"}
        assert "before" not in first
        assert second["before"]["amount"] == 5
        assert second["after"]["amount"] == 7
        assert second["transactionId"] == "t-1"
        assert third["operation"] == "DELETE"
        assert third["before"] == {"id": 1, "amount": 7, "note": "new"}
        assert "after" not in third
        assert [each["table"] for each in (first, second, third)] == [table] * 3
        assert [each["position"] for each in (first, second, third)] == [position - 3 + at for at in range(3)]
        assert {"timestamp", "commitTimestamp", "source", "sequence", "rowId"} <= first.keys()
        assert listener.batches[-1]["position"] == position


async def test_tables_operations_condition_and_columns_choose_what_is_told(server: ServerProcess, table: str) -> None:
    other = table + "_b"
    wanted = {
        "tables": [table, other],
        "operations": ["insert", "DELETE"],
        "where": "amount >= 10 OR note = 'x'",
        "columns": ["id", "amount"],
    }
    async with sending(server) as lake, Listener(server.url, **wanted) as listener:
        await lake.send(
            [
                insert(table, 1, amount=9, note="a"),
                insert(other, 2, amount=10, note="b"),
                insert(table + "_c", 3, amount=99, note="c"),
                update(table, 1, {"amount": 9}, {"amount": 90}),
                delete(table, 1, amount=90, note="a"),
                insert(table, 4, amount=1, note="x"),
            ]
        )
        events = await listener.events(3)
        assert [(each["table"], each["operation"]) for each in events] == [
            (other, "INSERT"),
            (table, "DELETE"),
            (table, "INSERT"),
        ]
        assert events[0]["after"] == {"id": 2, "amount": 10}
        assert events[1]["before"] == {"id": 1, "amount": 90}


async def test_the_past_of_the_tail_is_told_from_the_beginning_a_position_a_time_or_a_token(
    server: ServerProcess, table: str
) -> None:
    async with sending(server) as lake:
        first = await sent(lake, [insert(table, 1), insert(table, 2)])
        async with Listener(server.url, tables=[table], **{"from": "beginning"}) as listener:
            events = await listener.events(2)
            token = listener.token
        await asyncio.sleep(0.01)
        last = await sent(lake, [insert(table, 3), insert(table, 4)])
        commit_ms = events[0]["commitTimestamp"]
    starts: list[tuple[Any, list[int]]] = [
        (first - 1, [2, 3, 4]),
        (token, [3, 4]),
        (f"{_iso(commit_ms)}", [1, 2, 3, 4]),
        (f"{_iso(commit_ms + 1)}", [3, 4]),
        (last - 1, [4]),
    ]
    for start, ids in starts:
        async with Listener(server.url, tables=[table], **{"from": start}) as listener:
            assert [each["after"]["id"] for each in await listener.events(len(ids))] == ids, start


def _iso(time_ms: int) -> str:

    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


async def test_a_heartbeat_moves_the_token_on_where_nothing_matches(server: ServerProcess, table: str) -> None:
    async with sending(server) as lake, Listener(server.url, tables=[table]) as listener:
        position = await sent(lake, [insert(table + "_other", 1)])
        async with asyncio.timeout(20):
            while (beat := await listener.hear())["position"] < position:
                assert beat["type"] == "heartbeat"
        assert beat["token"]
        await lake.send([insert(table, 2)])
        assert [each["after"]["id"] for each in await listener.events(1)] == [2]


async def test_equal_wishes_get_the_same_bytes_and_different_ones_their_own(server: ServerProcess, table: str) -> None:
    wishes: list[dict[str, Any]] = [{}, {}, {"where": "id % 2 = 0"}, {"operations": ["DELETE"]}]
    async with sending(server) as lake, contextlib.AsyncExitStack() as stack:
        listeners = [await stack.enter_async_context(Listener(server.url, tables=[table], **each)) for each in wishes]
        await lake.send([*(insert(table, id_) for id_ in range(1, 11)), delete(table, 1)])
        one, other = [await each.events(11) for each in listeners[:2]]
        assert one == other
        assert [each["after"]["id"] for each in await listeners[2].events(5)] == [2, 4, 6, 8, 10]
        assert [each["rowId"] for each in await listeners[3].events(1)] == ["1"]


async def test_a_full_page_of_one_wish_takes_nothing_from_another(server: ServerProcess, table: str) -> None:
    other = table + "_b"
    async with (
        sending(server) as lake,
        Listener(server.url, tables=[table, other]) as both,
        Listener(server.url, tables=[other]) as one,
    ):
        await lake.send([insert(other if id_ % 4 == 0 else table, id_) for id_ in range(360)])
        assert [each["after"]["id"] for each in await one.events(90)] == list(range(0, 360, 4))
        assert [each["after"]["id"] for each in await both.events(360)] == list(range(360))


async def test_a_condition_that_fails_ends_its_own_subscription_and_no_other(server: ServerProcess, table: str) -> None:
    async with sending(server) as lake:
        bad = Listener(server.url, tables=[table], where="CAST(note AS INTEGER) > 1")
        async with bad, Listener(server.url, tables=[table], where="id > 0") as good:
            await lake.send([insert(table, 1, note="7")])
            await bad.events(1)
            await good.events(1)
            await lake.send([insert(table, 2, note="seven")])
            error = await bad.hear()
            while error["type"] == "heartbeat":
                error = await bad.hear()
            assert error["type"] == "error"
            assert error["code"] == "invalid_sql"
            assert "seven" in error["message"]
            assert error["token"]
            assert [each["rowId"] for each in await good.events(1)] == ["2"]


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"where": "id = (SELECT 1)"}, "forbidden_sql"),
        ({"where": "true) UNION SELECT * FROM x WHERE (true"}, "invalid_sql"),
        ({"where": "id ="}, "invalid_sql"),
        ({"where": "read_text('/etc/passwd') = ''"}, "forbidden_sql"),
        ({"where": "id = ?"}, "invalid_sql"),
        ({"where": "count(*) > 1"}, "forbidden_sql"),
        ({"where": "row_number() OVER () = 1"}, "forbidden_sql"),
        ({"operations": ["UPSERT"]}, "invalid_input"),
        ({"tables": []}, "invalid_input"),
        ({"tables": ["a/b"]}, "invalid_input"),
        ({"tables": ["orders__changes"]}, "unknown_table"),
        ({"from": "yesterday-ish"}, "invalid_input"),
        ({"from": 10**15}, "invalid_input"),
        ({"from": "r1.nonsense"}, "invalid_resume_token"),
        ({"name": "../../x"}, "invalid_input"),
    ],
)
async def test_a_wish_that_cannot_be_is_refused_in_words(
    server: ServerProcess, wanted: dict[str, Any], code: str
) -> None:
    async with Listener(server.url, **({"tables": ["orders"]} | wanted)) as listener:
        assert listener.subscribed["type"] == "error", listener.subscribed
        assert listener.subscribed["code"] == code, listener.subscribed
        assert (await listener.socket.receive()).type is aiohttp.WSMsgType.CLOSE


async def test_a_column_that_the_table_does_not_have_is_found_at_once(server: ServerProcess, table: str) -> None:
    async with sending(server) as lake:
        await lake.send([insert(table, 1)])
    async with Listener(server.url, tables=[table], where="no_such_column = 1") as listener:
        assert listener.subscribed["code"] == "invalid_sql"
        assert "no_such_column" in listener.subscribed["message"]


async def test_tables_that_are_not_there_yet_cost_nothing_and_are_told_when_they_come(
    server: ServerProcess, table: str
) -> None:
    absent = [f"{table}_{number}" for number in range(100)]
    async with sending(server) as lake, Listener(server.url, tables=absent, where="id > 1") as listener:
        await lake.send([insert(absent[41], 1), insert(absent[41], 2)])
        assert [(each["table"], each["rowId"]) for each in await listener.events(1)] == [(absent[41], "2")]


async def test_a_transaction_is_told_when_it_is_whole_and_holds_what_comes_behind_it(
    server: ServerProcess, table: str
) -> None:
    async with connect(server.url) as one, connect(server.url) as other, Listener(server.url, tables=[table]) as heard:
        begun = insert(table, 1) | {"metadata": {"transactionId": "open"}}
        await one.send([begun])
        await other.send([insert(table, 2)])
        beat = await heard.hear()
        assert beat["type"] == "heartbeat"
        await one.send([insert(table, 3) | {"metadata": {"transactionId": "open", "transactionEnd": True}}])
        assert [each["rowId"] for each in await heard.events(3)] == ["1", "2", "3"]


async def test_a_key_that_moves_and_what_is_done_to_a_table_are_told(server: ServerProcess, table: str) -> None:
    async with sending(server) as lake, Listener(server.url, tables=[table], where="id > 100") as listener:
        moved = update(table, 200, {}, {}, previousRowId="1")
        emptied = {"table": table, "operation": "DELETE", "rowId": "-", "metadata": {"ddl": {"action": "truncate"}}}
        await lake.send([insert(table, 1), moved, emptied, insert(table, 300)])
        update_, truncate, last = await listener.events(3)
        assert (update_["rowId"], update_["previousRowId"]) == ("200", "1")
        assert truncate["operation"] == "TRUNCATE"
        assert not {"rowId", "before", "after"} & truncate.keys()
        assert last["rowId"] == "300"


async def test_server_sent_events_say_the_same_and_go_on_by_their_last_id(server: ServerProcess, table: str) -> None:
    async with sending(server) as lake, aiohttp.ClientSession() as session:
        await lake.send([insert(table, 1), insert(table, 2)])
        url = f"{server.url}/v1/subscribe?tables={table}&from=beginning&where=id%20%3C%2010"
        async with session.get(url, headers={"Accept": "text/event-stream"}) as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            kind, id_, data = await _event(response, "batch")
            assert [each["after"]["id"] for each in data["events"]] == [1, 2]
            assert id_ == data["token"]
        await lake.send([insert(table, 3), insert(table, 30)])
        async with session.get(url, headers={"Last-Event-ID": id_}) as response:
            kind, _, data = await _event(response, "batch")
            assert kind == "batch"
            assert [each["after"]["id"] for each in data["events"]] == [3]
        async with session.get(f"{server.url}/v1/subscribe?tables={table}&where=id%20%3D") as response:
            assert response.status == 400
            assert (await response.json())["error"]["type"] == "invalid_sql"


async def _event(response: aiohttp.ClientResponse, wanted: str) -> tuple[str, str, dict[str, Any]]:

    async with asyncio.timeout(20):
        while True:
            fields: dict[str, str] = {}
            while line := (await response.content.readline()).decode().rstrip("\n"):
                name, _, value = line.partition(": ")
                fields[name] = value
            if fields.get("event") == wanted:
                return fields["event"], fields["id"], json.loads(fields["data"])
