"""`lake.subscribe`: batches in a loop, over reconnects and restarts; names; and the same without async."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dolake import errors
from dolake.client import Subscription, connect
from dolake.client import sync as plain
from tests.support.changes import delete, insert, sent, update
from tests.support.command import invoke
from tests.support.server import ServerProcess


async def test_a_loop_gets_batches_of_typed_events(server: ServerProcess, table: str) -> None:
    async with connect(server.url) as lake:
        changes = lake.subscribe(tables=[table, table + "_b"], operations=["INSERT", "UPDATE"], since="beginning")
        position = await sent(
            lake, [insert(table, 1, n=1), update(table, 1, {"n": 1}, {"n": 2}), delete(table, 1, n=2)]
        )
        async with contextlib.aclosing(changes):
            found = []
            async for batch in changes:
                found += batch.events
                if len(found) == 2:
                    break
        first, second = found
        assert (first.operation, first.table, first.row_id) == ("INSERT", table, "1")
        assert first.after.id == 1
        assert first.before is None
        assert (second.before.n, second.after["n"]) == (1, 2)
        assert second.position == position - 2
        assert abs(datetime.now(UTC).timestamp() * 1000 - second.commit_timestamp_ms) < 60_000


async def test_who_asks_for_what_cannot_be_gets_the_error(server: ServerProcess) -> None:
    lake = connect(server.url)
    with pytest.raises(errors.ForbiddenSql):
        await anext(lake.subscribe("orders", where="x = (SELECT 1)"))
    with pytest.raises(errors.InvalidResumeToken):
        await anext(lake.subscribe("orders", since="r1.AAAA"))


@pytest.mark.own_lake
async def test_a_loop_goes_on_over_kill_and_restart_of_the_server(tmp_path: Path) -> None:
    settings = "[subscriptions]\nheartbeat_ms = 400\n"
    with ServerProcess(tmp_path / "home", settings=settings, has_queries=True) as server:
        seen: list[int] = []
        has_some = asyncio.Event()

        async def listen() -> None:
            async for batch in connect(server.url).subscribe("orders", since="beginning"):
                seen.extend(event.after.id for event in batch.events)
                has_some.set()
                if seen[-1] == 20:
                    return

        listening = asyncio.create_task(listen())
        for first in (1, 11):
            async with connect(server.url, source="shop") as lake:
                await lake.send([insert("orders", id_) for id_ in range(first, first + 10)])
            if first == 1:
                await has_some.wait()
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
        await listening
        assert seen == list(range(1, 21))


async def test_a_named_subscription_goes_on_where_it_was_acknowledged(server: ServerProcess, table: str) -> None:
    async with connect(server.url) as lake:
        await lake.send([insert(table, 1)])
        async with contextlib.aclosing(lake.subscribe(table, name=table, since="beginning")) as batches:
            batch = await anext(batches)
            assert [event.after.id for event in batch.events] == [1]
        # It ended in the middle of the first batch, so that one comes again.
        async with contextlib.aclosing(lake.subscribe(table, name=table)) as batches:
            batch = await anext(batches)
            assert [event.after.id for event in batch.events] == [1]
            await batch.ack()
            await lake.send([insert(table, 2)])
            assert [event.after.id for event in (await anext(batches)).events] == [2]
            await lake.send([insert(table, 3)])
            assert [event.after.id for event in (await anext(batches)).events] == [3]
            while (await _named(server, table)).position < batch.position + 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        async with contextlib.aclosing(lake.subscribe(table, name=table, since="beginning")) as batches:
            assert [event.after.id for event in (await anext(batches)).events] == [3]
        await lake.drop_subscription(table)
        assert table not in [each.name for each in await lake.list_subscriptions()]
        with pytest.raises(errors.NotFound):
            await lake.drop_subscription(table)


async def _named(server: ServerProcess, name: str) -> Subscription:
    (found,) = [each for each in await connect(server.url).list_subscriptions() if each.name == name]
    return found


async def test_a_name_has_one_reader(server: ServerProcess, table: str) -> None:
    async with connect(server.url) as lake:
        first, second = (lake.subscribe(table, name=table, since="beginning") for _ in range(2))
        async with contextlib.aclosing(first), contextlib.aclosing(second):
            await lake.send([insert(table, 1)])
            assert len(await anext(first)) == 1
            assert len(await anext(second)) == 1
            with pytest.raises(errors.SubscriptionTaken):
                await anext(first)


def test_a_plain_loop_gets_the_same(server: ServerProcess, table: str) -> None:
    with plain.connect(server.url) as lake:
        lake.send([insert(table, 1), insert(table, 2)])
        for batch in lake.subscribe(table, name=table, since="beginning"):
            assert [event.after.id for event in batch.events] == [1, 2]
            batch.ack()
            break
        (named,) = [each for each in lake.list_subscriptions() if each.name == table]
        assert named.position == batch.position
        lake.send([insert(table, 3)])
        # Without `with` each call has a connection of its own.
        batch = next(iter(plain.connect(server.url).subscribe(table, since=batch)))
        assert [event.after.id for event in batch.events] == [3]


def test_tail_prints_changes_and_subscriptions_are_listed_and_dropped(server: ServerProcess, table: str) -> None:
    with plain.connect(server.url) as lake:
        lake.send([insert(table, 1, note="a"), delete(table, 1, note="a"), insert(table, 2, note="b")])
    asked = ["tail", table, "--url", server.url, "--since", "beginning"]
    lines = invoke(*asked, "--where", "note = 'a'", "--limit", "2").stdout.splitlines()
    assert [line.split()[2:5] for line in lines] == [["+", table, "1"], ["-", table, "1"]]
    assert '{"id":1,"note":"a"}' in lines[0]
    line = invoke(*asked, "--json", "--limit", "1", "-c", "id", "--name", table).stdout
    assert '"after":{"id":1}' in line
    assert '"operation":"INSERT"' in line
    assert table in invoke("subscriptions", "list", "--url", server.url, "--json").stdout
    assert invoke("subscriptions", "drop", table, "--url", server.url).exit_code == 0
    assert table not in invoke("subscriptions", "list", "--url", server.url, "--json").stdout
    with plain.connect(server.url) as lake:
        lake.send([insert(f"{table}_invoices", 1)])
    mistyped = invoke("tail", f"{table}_invocies", "--url", server.url)
    assert mistyped.exit_code == 1
    assert f"did you mean {table}_invoices? `dolake tables` lists them; --wait" in mistyped.stderr
    refused = invoke("tail", table, "--url", server.url, "--where", "id =")
    assert refused.exit_code == 1
    assert "id =" not in refused.stdout


def test_tail_can_wait_for_a_table_that_comes_later(server: ServerProcess, table: str) -> None:
    asked = ["tail", table, "--url", server.url, "--since", "beginning", "--wait", "--limit", "1"]
    with ThreadPoolExecutor(1) as thread, plain.connect(server.url) as lake:
        tail = thread.submit(invoke, *asked)
        lake.send([insert(table, 1, note="a")])
        assert tail.result(timeout=60).stdout.split()[2:5] == ["+", table, "1"]
