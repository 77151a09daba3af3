"""The client against a server that answers as scripted, over a real socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from itertools import chain, count
from typing import Any

import pytest
from aiohttp import web

from dolake import errors
from dolake.changes import Change
from dolake.client import connect, create_lake_client
from tests.support.aio import until
from tests.support.changes import order, orders
from tests.support.scripted_peer import PeerSocket, Script, scripted_peer


def sequences(batch: dict[str, Any]) -> list[int]:
    return [event["sequence"] for event in batch["events"]]


def keep_all_after(may_answer: asyncio.Event) -> Script:
    """The first answer waits for this event."""

    async def script(peer: PeerSocket) -> None:
        await peer.welcome()
        batch = await peer.batch()
        await may_answer.wait()
        await peer.ack(batch)
        await peer.keep_the_rest()

    return script


# --- sending ---------------------------------------------------------------------------------------------------------


async def test_send_returns_when_all_changes_are_durable() -> None:
    async with scripted_peer(PeerSocket.keep_all) as peer, connect(peer.url, source="shop") as lake:
        receipt = await lake.send(orders(1200))
        assert (receipt.sequence_first, receipt.sequence_last) == (1, 1200)
        assert (receipt.change_count, receipt.duplicate_count, receipt.position) == (1200, 0, 1200)
        assert (lake.last_durable_sequence, lake.last_position, lake.pending_count) == (1200, 1200, 0)
        assert [sequences(batch)[-1] for batch in peer.batches()] == [500, 1000, 1200]
        assert [batch["sequenceNumber"] for batch in peer.batches()] == [1, 2, 3]


async def test_one_change_a_mapping_a_list_a_generator_and_an_async_generator_can_be_sent() -> None:
    def some() -> Iterator[dict[str, Any]]:
        yield from orders(3)

    async def some_later() -> AsyncIterator[dict[str, Any]]:
        for change in orders(3):
            yield change

    async with scripted_peer(PeerSocket.keep_all) as peer, connect(peer.url) as lake:
        assert (await lake.send(Change("orders", "DELETE", "7"))).change_count == 1
        assert (await lake.send(order(7))).change_count == 1
        assert (await lake.send([])).change_count == 0
        assert (await lake.send((order(1), order(2)))).change_count == 2
        assert (await lake.send(some())).change_count == 3
        assert (await lake.send(some_later())).change_count == 3
        assert lake.last_durable_sequence == 10


async def test_the_stream_is_named_in_headers_and_messages() -> None:
    async with (
        scripted_peer(PeerSocket.keep_all) as peer,
        connect(f"{peer.url}/lakehouse", source="shop", shard="eu", token="secret") as lake,
    ):
        await lake.send(order(1))
        (client,) = peer.sockets
        assert client.path == "/lakehouse/ws"
        assert client.headers["X-Client-ID"] == "shop"
        assert client.headers["X-Shard-Name"] == "eu"
        assert client.headers["Authorization"] == "Bearer secret"
        for message in client.received:
            assert (message["sourceDoId"], message["sourceShardName"]) == ("shop", "eu")


def test_a_source_without_a_name_gets_one_of_its_own() -> None:
    names = {connect("http://lake").stream.source for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("client-") for name in names)
    assert create_lake_client is connect


@pytest.mark.parametrize(
    "options", [{"source": "a\nb"}, {"source": "x" * 257}, {"window": 0}, {"batch_events_max": 0}, {"heartbeat_ms": 0}]
)
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidInput):
        connect("http://lake", **options)


async def test_a_stream_goes_on_where_the_server_says() -> None:
    async def script(peer: PeerSocket) -> None:
        await peer.keep_all(durable=41, number=6)

    async with scripted_peer(script) as peer, connect(peer.url, source="shop") as lake:
        assert lake.last_durable_sequence == 41
        assert (await lake.send(order(1))).sequence_first == 42
        assert peer.batches()[0]["sequenceNumber"] == 7


async def test_a_source_may_bring_its_own_sequences_but_not_mix_them_with_ours() -> None:
    async with scripted_peer(PeerSocket.keep_all) as peer, connect(peer.url) as lake:
        await lake.send([order(1) | {"sequence": 10}, order(2) | {"sequence": 20}])
        with pytest.raises(errors.InvalidInput, match="some changes"):
            await lake.send(order(3))
        assert (await lake.send(order(3) | {"sequence": 30})).sequence_last == 30
        assert [sequences(batch) for batch in peer.batches()] == [[10, 20], [30]]


async def test_sending_the_same_again_is_reported_as_duplicate() -> None:
    async def script(peer: PeerSocket) -> None:
        await peer.welcome()
        await peer.ack(await peer.batch(), position=2)
        await peer.ack(await peer.batch(), status="duplicate", position=2)

    async with scripted_peer(script) as peer, connect(peer.url) as lake:
        changes = [order(1) | {"sequence": 1}, order(2) | {"sequence": 2}]
        assert (await lake.send(changes)).duplicate_count == 0
        again = await lake.send(changes)
        assert (again.change_count, again.duplicate_count, again.position) == (2, 2, 2)


async def test_a_bad_change_fails_its_own_send_and_nothing_else() -> None:
    async with scripted_peer(PeerSocket.keep_all) as peer, connect(peer.url) as lake:
        results = await asyncio.gather(
            lake.send(orders(5)),
            lake.send([*orders(600), order(1) | {"operation": "UPSERT"}]),
            lake.send(orders(5)),
            return_exceptions=True,
        )
        assert isinstance(results[1], errors.MessageValidationError)
        assert results[1].path == "changes[600].operation"
        assert not isinstance(results[0], BaseException)
        assert not isinstance(results[2], BaseException)
        assert lake.last_durable_sequence == 10


async def test_a_list_stays_together_while_others_send_too() -> None:
    async with (
        scripted_peer(PeerSocket.keep_all) as peer,
        connect(peer.url, queue_events_max=7, batch_events_max=3) as lake,
    ):
        receipts = await asyncio.gather(*(lake.send(orders(20)) for _ in range(5)))
        spans = sorted((receipt.sequence_first, receipt.sequence_last) for receipt in receipts)
        assert spans == [(first, first + 19) for first in range(1, 100, 20)]
        assert list(chain.from_iterable(map(sequences, peer.batches()))) == list(range(1, 101))


async def test_what_was_put_is_durable_after_drain() -> None:
    async with scripted_peer(PeerSocket.keep_all) as peer, connect(peer.url) as lake:
        for change in orders(50):
            await lake.put(change)
        await lake.drain()
        assert (lake.pending_count, lake.last_durable_sequence) == (0, 50)


async def test_put_waits_for_room_in_the_queue() -> None:
    may_answer = asyncio.Event()
    async with scripted_peer(keep_all_after(may_answer)) as peer, connect(peer.url, queue_events_max=2) as lake:
        await lake.put(order(1))
        await lake.put(order(2))
        third = asyncio.ensure_future(lake.put(order(3)))
        await until(lambda: len(peer.batches()) > 0)
        assert not third.done()
        may_answer.set()
        await third


async def test_no_more_batches_are_un_acknowledged_than_the_window_allows() -> None:
    async def script(peer: PeerSocket) -> None:
        await peer.welcome()
        batches = [await peer.batch() for _ in range(3)]
        assert (await peer.receive())["type"] == "heartbeat"
        for batch in batches:
            await peer.ack(batch)
        await peer.keep_the_rest()

    async with (
        scripted_peer(script) as peer,
        connect(peer.url, window=3, batch_events_max=1, heartbeat_ms=250) as lake,
    ):
        await lake.send(orders(5))


async def test_the_limits_of_the_server_lower_the_size_of_batches() -> None:
    async def script(peer: PeerSocket) -> None:
        await peer.welcome(maxPayloadSize=1000, maxEventSize=300)
        await peer.keep_the_rest()

    async with scripted_peer(script) as peer, connect(peer.url, source="shop") as lake:
        await lake.send(orders(30))
        assert len(peer.batches()) > 1
        with pytest.raises(errors.MessageValidationError, match="the server takes 300 bytes"):
            await lake.send([order(1), order(2) | {"after": {"text": "x" * 300}}])
        assert (await lake.send(order(1))).sequence_first == 31


async def test_a_suggested_delay_holds_back_the_next_batch() -> None:
    async def script(peer: PeerSocket) -> None:
        await peer.welcome()
        await peer.ack(await peer.batch(), suggestedDelayMs=3_600_000, bufferUtilization=0.9)
        for _ in range(3):
            await peer.ack(await peer.expect("heartbeat"), status="ok")
        held_back.set()

    held_back = asyncio.Event()
    async with scripted_peer(script) as peer:
        lake = await connect(peer.url, heartbeat_ms=250, close_wait_ms=10).__aenter__()
        await lake.send(order(1))
        await lake.put(order(2))
        await held_back.wait()
        with pytest.raises(errors.OutcomeUnknown, match="1 changes are un-acknowledged"):
            await lake.__aexit__(None, None, None)
        assert len(peer.batches()) == 1


# --- refusals --------------------------------------------------------------------------------------------------------


async def test_a_batch_refused_for_now_is_sent_again_with_all_that_followed_it() -> None:
    async def script(peer: PeerSocket) -> None:
        await peer.welcome()
        first, second, third = [await peer.batch() for _ in range(3)]
        await peer.ack(first)
        await peer.nack(second, "buffer_full", should_retry=True, retryDelayMs=1)
        # The follow-up nack arrives after the second attempt went out under the same number.
        again = await peer.batch()
        await peer.nack(third, "invalid_sequence", should_retry=True, expectedSequenceNumber=2)
        assert (again["sequenceNumber"], sequences(again)) == (2, [2])
        assert (again["isRetry"], again["retryCount"]) == (True, 1)
        assert not second.get("isRetry")
        await peer.ack(again)
        last = await peer.batch()
        assert (last["sequenceNumber"], sequences(last)) == (3, [3])
        await peer.ack(last)

    async with scripted_peer(script) as peer, connect(peer.url, batch_events_max=1) as lake:
        assert (await lake.send(orders(3))).change_count == 3
        assert len(peer.batches()) == 5


async def test_numbers_follow_the_expectation_of_the_server() -> None:
    async def script(peer: PeerSocket) -> None:
        await peer.welcome()
        await peer.nack(
            await peer.batch(), "invalid_sequence", should_retry=True, expectedSequenceNumber=9, retryDelayMs=1
        )
        again = await peer.batch()
        assert (again["sequenceNumber"], sequences(again)) == (9, [1])
        await peer.ack(again)

    async with scripted_peer(script) as peer, connect(peer.url) as lake:
        await lake.send(order(1))


async def test_a_refusal_for_good_fails_the_send_that_holds_the_named_change() -> None:
    async def script(peer: PeerSocket) -> None:
        await peer.welcome()
        first = await peer.batch()
        await all_queued.wait()  # so that the next batch holds the changes of all three
        await peer.ack(first)
        batch = await peer.batch()
        assert len(batch["events"]) == 3
        problem = {"path": "$.events[1].table", "message": "Orders differs only in case", "hint": ""}
        await peer.nack(batch, "invalid_format", should_retry=False, details=[problem])
        rest = await peer.batch()
        assert (rest["sequenceNumber"], sequences(rest)) == (2, [2, 4])
        await peer.ack(rest)
        await peer.keep_the_rest()

    all_queued = asyncio.Event()
    async with scripted_peer(script) as peer, connect(peer.url, window=1) as lake:
        sends = [asyncio.ensure_future(lake.send(order(0)))]
        await until(lambda: len(peer.batches()) == 1)
        sends += [asyncio.ensure_future(lake.send(order(number))) for number in (1, 2, 3)]
        await until(lambda: lake.pending_count == 4)
        all_queued.set()
        results = await asyncio.gather(*sends, return_exceptions=True)
        assert [isinstance(result, errors.MessageValidationError) for result in results] == [0, 0, 1, 0]
        assert "1 changes from sequence 3 on were not kept" in str(results[2])
        await lake.send(order(5))


async def test_a_failed_put_is_told_once_by_the_next_put_or_drain() -> None:
    async def script(peer: PeerSocket) -> None:
        await peer.welcome()
        await peer.nack(await peer.batch(), "invalid_format", should_retry=False)
        await peer.ack(await peer.batch())
        await peer.nack(await peer.batch(), "event_too_large", should_retry=False)
        await peer.keep_the_rest()

    async with scripted_peer(script) as peer, connect(peer.url) as lake:
        await lake.put(order(1))
        await until(lambda: lake.pending_count == 0)
        with pytest.raises(errors.MessageValidationError, match="invalid_format"):
            await lake.put(order(2))
        await lake.put(order(2))
        await lake.drain()
        await lake.put(order(3))
        with pytest.raises(errors.MessageValidationError, match="event_too_large"):
            await lake.drain()
        await lake.drain()
        await lake.send(order(4))


async def test_a_batch_too_large_is_halved_before_its_sends_fail() -> None:
    async def script(peer: PeerSocket) -> None:
        await peer.welcome()
        while True:
            batch = await peer.batch()
            if len(batch["events"]) > 2 or 7 in sequences(batch):
                await peer.nack(batch, "payload_too_large", should_retry=False, maxSize=100)
            else:
                await peer.ack(batch)

    async with scripted_peer(script) as peer, connect(peer.url, window=1) as lake:
        assert (await lake.send(orders(6))).change_count == 6
        with pytest.raises(errors.MessageValidationError, match="the server takes 100 bytes"):
            await lake.send(order(7))
        assert (await lake.send(order(8))).change_count == 1


@pytest.mark.parametrize("is_named", [True, False])
async def test_a_stream_that_was_taken_over_ends_for_everybody(is_named: bool) -> None:
    async def script(peer: PeerSocket) -> None:
        await peer.welcome()
        batch = await peer.batch()
        await peer.nack(batch if is_named else {}, "invalid_sequence", should_retry=False)

    async with scripted_peer(script) as peer, connect(peer.url) as lake:
        results = await asyncio.gather(lake.send(order(1)), lake.send(orders(3)), return_exceptions=True)
        assert [type(result) for result in results] == [errors.InvalidSequence] * 2
        for use in (lake.send(order(1)), lake.put(order(1)), lake.flush()):
            with pytest.raises(errors.InvalidSequence) as refusal:
                await use
            assert not refusal.value.retryable
        assert len(peer.sockets) == 1


# --- connections -----------------------------------------------------------------------------------------------------


async def test_after_a_lost_connection_only_what_is_not_durable_is_sent_again() -> None:
    async def first(peer: PeerSocket) -> None:
        await peer.welcome()
        one, _, _ = [await peer.batch() for _ in range(3)]
        await peer.ack(one, position=1)
        peer.drop()

    async def second(peer: PeerSocket) -> None:
        greeting = await peer.welcome(durable=2, number=2)
        assert greeting["lastAckSequence"] in (0, 1)  # the ack may have been lost with the connection
        batch = await peer.batch()
        assert (batch["sequenceNumber"], sequences(batch)) == (3, [3])
        await peer.ack(batch, position=3)

    async with scripted_peer(first, second) as peer, connect(peer.url, batch_events_max=1) as lake:
        receipt = await lake.send(orders(3))
        assert (receipt.change_count, receipt.duplicate_count, receipt.position) == (3, 0, 3)


async def test_changes_keep_their_sequences_over_many_lost_connections() -> None:
    attempts = count(1)
    kept: dict[int, Any] = {}

    async def script(peer: PeerSocket) -> None:
        drop_at = next(attempts)
        await peer.welcome(durable=max(kept, default=0), number=drop_at)
        for taken in count(1):
            batch = await peer.batch()
            for event in batch["events"]:
                assert kept.setdefault(event["sequence"], event["after"]) == event["after"]
            if taken == drop_at:
                peer.drop()
                return
            await peer.ack(batch)

    async with scripted_peer(script) as peer, connect(peer.url, batch_events_max=2, retry_wait_max_ms=1) as lake:
        receipts = await asyncio.gather(*(lake.send(order(number)) for number in range(40)))
        assert {receipt.sequence_first: {"id": id_} for id_, receipt in enumerate(receipts)} == kept
        assert len(peer.sockets) > 3


async def test_a_server_that_shuts_down_is_waited_for() -> None:
    async def first(peer: PeerSocket) -> None:
        await peer.welcome()
        await peer.batch()
        await peer.nack({}, "shutting_down", should_retry=True, retryDelayMs=1)

    async def second(peer: PeerSocket) -> None:
        await peer.nack(await peer.expect("connect"), "shutting_down", should_retry=True, retryDelayMs=1)

    async with (
        scripted_peer(first, second, PeerSocket.keep_all) as peer,
        connect(peer.url, retry_wait_max_ms=1) as lake,
    ):
        assert (await lake.send(orders(3))).sequence_last == 3
        assert len(peer.sockets) == 3


async def test_a_server_that_lost_acknowledged_changes_stops_the_client() -> None:
    async def first(peer: PeerSocket) -> None:
        await peer.welcome()
        await peer.ack(await peer.batch())
        await peer.batch()
        peer.drop()

    async def second(peer: PeerSocket) -> None:
        await peer.welcome(durable=1)

    async with scripted_peer(first, second) as peer, connect(peer.url) as lake:
        await lake.send(orders(2))
        for _ in range(2):
            with pytest.raises(errors.Damaged, match="up to sequence 2"):
                await lake.send(order(3))


async def test_a_stream_that_moved_to_another_epoch_stops_the_client() -> None:
    async def first(peer: PeerSocket) -> None:
        greeting = await peer.welcome(sourceEpoch=4)
        assert greeting.get("sourceEpoch") is None
        await peer.batch()
        peer.drop()

    async def second(peer: PeerSocket) -> None:
        greeting = await peer.welcome(sourceEpoch=5)
        assert greeting["sourceEpoch"] == 4

    async with scripted_peer(first, second) as peer, connect(peer.url) as lake:
        with pytest.raises(errors.InvalidSequence, match="epoch 5"):
            await lake.send(order(1))


async def test_words_that_are_new_to_the_client_are_ignored_and_nonsense_starts_a_new_connection() -> None:
    async def first(peer: PeerSocket) -> None:
        await peer.welcome()
        await peer.say(type="congratulations", number=1)
        await peer.ack(await peer.batch(), surprise={"a": 1})
        await peer.batch()
        await peer.say(type="ack", sequenceNumber="two")

    async def second(peer: PeerSocket) -> None:
        await peer.keep_all(durable=1)

    async with scripted_peer(first, second) as peer, connect(peer.url) as lake:
        await lake.send(order(1))
        assert len(peer.sockets) == 1
        await lake.send(order(2))
        assert len(peer.sockets) == 2


async def test_a_nack_for_nobody_knows_what_starts_a_new_connection() -> None:
    async def first(peer: PeerSocket) -> None:
        await peer.welcome()
        await peer.batch()
        await peer.nack({}, "invalid_format", should_retry=False)

    async with scripted_peer(first, PeerSocket.keep_all) as peer, connect(peer.url) as lake:
        await lake.send(order(1))
        assert len(peer.sockets) == 2


async def test_an_idle_client_sends_heartbeats_and_a_silent_server_is_left() -> None:
    async def first(peer: PeerSocket) -> None:
        await peer.welcome()
        for _ in range(3):
            beat = await peer.expect("heartbeat")
            assert (beat["sourceDoId"], beat.get("pendingEvents", 0)) == ("shop", 0)
            await peer.ack(beat, status="ok")
        await peer.swallow()

    async with (
        scripted_peer(first, PeerSocket.keep_all) as peer,
        connect(peer.url, source="shop", heartbeat_ms=250) as lake,
    ):
        await until(lambda: len(peer.sockets) == 2)
        await lake.send(order(1))


async def test_a_bare_ok_for_a_heartbeat_does_not_pass_for_the_ack_of_a_batch() -> None:
    async def script(peer: PeerSocket) -> None:
        await peer.welcome()
        batch = await peer.batch()
        beat = await peer.expect("heartbeat")
        await peer.ack(beat, status="ok", sequenceNumber=batch["sequenceNumber"], correlationId=None)
        await peer.expect("heartbeat")
        assert lakes[0].pending_count == 1
        await peer.ack(batch)

    lakes: list[Any] = []
    async with scripted_peer(script) as peer, connect(peer.url, heartbeat_ms=250) as lake:
        lakes.append(lake)
        await lake.send(order(1))


# --- the beginning and the end ---------------------------------------------------------------------------------------


def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


async def test_a_server_that_cannot_be_reached_is_named_in_the_error() -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    with pytest.raises(errors.ConnectionError, match="no connection to ws://127") as refusal:
        async with connect(url, connect_wait_ms=100):
            pass
    assert refusal.value.retryable
    assert "dolake serve" in refusal.value.hint
    assert "cannot be reached" in refusal.value.message


async def test_a_server_that_never_answers_the_greeting_is_not_waited_for_at_first() -> None:
    async with scripted_peer(PeerSocket.swallow) as peer:
        with pytest.raises(errors.ConnectionError, match=r"within 0\.1 s"):
            async with connect(peer.url, connect_wait_ms=100):
                pass


async def test_a_greeting_refused_for_good_raises_at_once() -> None:
    async def script(peer: PeerSocket) -> None:
        await peer.nack(await peer.expect("connect"), "connection_limit", should_retry=False)

    async with scripted_peer(script) as peer:
        with pytest.raises(errors.Unavailable, match="connection_limit"):
            async with connect(peer.url, connect_wait_ms=60_000):
                pass


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_token_raises_at_once(status: int) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=status)

    app = web.Application()
    app.router.add_get("/ws", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        kind = errors.Unauthorized if status == 401 else errors.Forbidden
        with pytest.raises(kind, match=f"HTTP {status}"):
            async with connect(f"http://127.0.0.1:{runner.addresses[0][1]}", connect_wait_ms=60_000):
                pass
    finally:
        await runner.cleanup()


async def test_leaving_waits_for_what_was_put() -> None:
    async with scripted_peer(PeerSocket.keep_all) as peer:
        async with connect(peer.url) as lake:
            for change in orders(1000):
                await lake.put(change)
        assert lake.last_durable_sequence == 1000
        for use in (lake.send(order(1)), lake.put(order(1)), lake.flush(), lake.status()):
            with pytest.raises(errors.InvalidInput, match="not open"):
                await use
        with pytest.raises(errors.InvalidInput, match="used before"):
            await lake.__aenter__()


async def test_leaving_says_how_many_changes_nobody_acknowledged() -> None:
    async def script(peer: PeerSocket) -> None:
        await peer.welcome()

    async with scripted_peer(script) as peer:
        lake = await connect(peer.url, close_wait_ms=50).__aenter__()
        for change in orders(3):
            await lake.put(change)
        with pytest.raises(errors.OutcomeUnknown, match="3 changes are un-acknowledged"):
            await lake.__aexit__(None, None, None)


async def test_leaving_by_an_exception_waits_for_nothing_and_keeps_the_exception() -> None:
    async def script(peer: PeerSocket) -> None:
        await peer.welcome()

    others: list[asyncio.Future[Any]] = []

    async def body(url: str) -> None:
        async with connect(url, close_wait_ms=60_000) as lake:
            others.append(asyncio.ensure_future(lake.send(order(1))))
            await until(lambda: len(peer.batches()) == 1)
            raise ZeroDivisionError

    async with scripted_peer(script) as peer:
        with pytest.raises(ZeroDivisionError):
            await body(peer.url)
        with pytest.raises(errors.OutcomeUnknown):
            await others[0]


async def test_a_cancelled_send_still_goes_out_and_drain_waits_for_it() -> None:
    may_answer = asyncio.Event()
    async with scripted_peer(keep_all_after(may_answer)) as peer, connect(peer.url) as lake:
        impatient = asyncio.ensure_future(lake.send(orders(3)))
        await until(lambda: len(peer.batches()) == 1)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        draining = asyncio.ensure_future(lake.drain())
        await asyncio.sleep(0)
        assert not draining.done()
        may_answer.set()
        await draining
        assert (await lake.send(order(4))).sequence_first == 4


async def test_a_client_that_gives_up_tells_what_may_have_happened_from_what_has_not() -> None:
    async def script(peer: PeerSocket) -> None:
        await peer.welcome()

    async with (
        scripted_peer(script) as peer,
        connect(peer.url, window=1, give_up_after_ms=100, batch_events_max=1) as lake,
    ):
        sent, waiting = await asyncio.gather(lake.send(order(1)), lake.send(order(2)), return_exceptions=True)
        assert isinstance(sent, errors.OutcomeUnknown)
        assert isinstance(waiting, errors.Unavailable)
        assert (sent.retryable, waiting.retryable) == (False, True)
        with pytest.raises(errors.Unavailable):
            await lake.put(order(3))


async def test_a_full_server_is_named_by_the_client_that_gives_up() -> None:
    async def script(peer: PeerSocket) -> None:
        await peer.welcome()
        while True:
            await peer.nack(await peer.batch(), "buffer_full", should_retry=True, retryDelayMs=60_000)

    async with scripted_peer(script) as peer, connect(peer.url, give_up_after_ms=100) as lake:
        for _ in range(2):  # every try was refused, so nothing is in doubt: the same change may be sent again
            with pytest.raises(errors.BufferOverflowError) as refusal:
                await lake.send(order(1))
            assert refusal.value.retryable


# --- other words -----------------------------------------------------------------------------------------------------


async def test_flush_asks_and_returns_when_the_server_has_understood() -> None:
    async def script(peer: PeerSocket) -> None:
        await peer.welcome()
        request = await peer.expect("flush_request")
        assert (request["reason"], request["sourceDoId"]) == ("shutdown", "shop")
        await peer.ack(request, status="ok")
        await peer.nack(await peer.expect("flush_request"), "rate_limited", should_retry=True)
        await peer.expect("flush_request")
        peer.drop()

    async with scripted_peer(script, PeerSocket.keep_all) as peer, connect(peer.url, source="shop") as lake:
        await lake.flush("shutdown")
        with pytest.raises(errors.Unavailable, match="rate_limited"):
            await lake.flush()
        with pytest.raises(errors.ConnectionError):
            await lake.flush()
        await lake.send(order(1))


async def test_persisted_acks_reach_their_callbacks_and_complete_nothing() -> None:
    async def script(peer: PeerSocket) -> None:
        await peer.welcome()
        batch = await peer.batch()
        await peer.ack(batch, status="persisted", persistedPath="warehouse/orders", correlationId=None)
        assert lakes[0].pending_count == 1
        await peer.ack(batch)

    lakes: list[Any] = []
    heard: list[tuple[int, str]] = []

    def broken(number: int, path: str) -> None:
        raise ZeroDivisionError

    async with scripted_peer(script) as peer, connect(peer.url) as lake:
        lakes.append(lake)
        lake.on_persisted(broken)
        lake.on_persisted(lambda number, path: heard.append((number, path)))
        await lake.send(order(1))
        assert heard == [(1, "warehouse/orders")]


async def test_status_and_health_come_over_http() -> None:
    answers = {"/base/status": (200, {"state": "idle"}), "/base/health": (503, {"ready": False})}
    async with scripted_peer(PeerSocket.keep_all, http=answers) as peer:
        async with connect(peer.url.replace("http", "ws") + "/base/ws") as lake:
            assert await lake.status() == {"state": "idle"}
            assert await lake.health() == {"ready": False}
        async with connect(peer.url) as lake:
            with pytest.raises(errors.NotFound, match="/status"):
                await lake.status()
