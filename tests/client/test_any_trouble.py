"""Client and a faithful server with any amount of trouble between them: nothing is lost, doubled or reordered."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dolake.client import connect
from tests.support.aio import run
from tests.support.changes import insert
from tests.support.property import examples
from tests.support.scripted_peer import Message, PeerSocket, scripted_peer


class TroubledServer:
    """Keeps the promises of the protocol, and now and then refuses, forgets to answer or cuts the wire."""

    def __init__(self, chance: random.Random, trouble: float) -> None:
        self.kept: list[tuple[int, Any]] = []
        self.number = 0
        self._chance = chance
        self._trouble = trouble

    async def serve(self, peer: PeerSocket) -> None:
        await peer.welcome(durable=self._last, number=self.number)
        expected = self.number + 1
        while True:
            batch = await peer.batch()
            trouble = self._chance.random() < self._trouble
            if batch["sequenceNumber"] != expected:
                await peer.nack(batch, "invalid_sequence", should_retry=True, expectedSequenceNumber=expected)
            elif trouble and self._chance.random() < 0.5:
                await peer.nack(batch, "buffer_full", should_retry=True, retryDelayMs=self._chance.randrange(3))
            else:
                if not trouble or self._chance.random() < 0.5:
                    self._keep(batch)
                    expected += 1
                if trouble:
                    peer.drop()
                    return
                await peer.ack(batch, position=len(self.kept))

    @property
    def _last(self) -> int:
        return self.kept[-1][0] if self.kept else 0

    def _keep(self, batch: Message) -> None:
        self.number = batch["sequenceNumber"]
        known = dict(self.kept)
        for event in batch["events"]:
            if event["sequence"] in known:
                assert known[event["sequence"]] == event["after"]["id"]
            else:
                assert event["sequence"] > self._last
                self.kept.append((event["sequence"], event["after"]["id"]))


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    trouble=st.floats(0, 0.6),
    window=st.integers(1, 5),
    batch_events_max=st.integers(1, 7),
    queue_events_max=st.integers(1, 30),
)
def test_every_change_arrives_once_and_in_order(
    seed: int, trouble: float, window: int, batch_events_max: int, queue_events_max: int
) -> None:
    server = TroubledServer(random.Random(seed), trouble)

    async def story() -> None:
        async with scripted_peer(server.serve) as peer:
            async with connect(
                peer.url,
                window=window,
                batch_events_max=batch_events_max,
                queue_events_max=queue_events_max,
                retry_wait_max_ms=1,
            ) as lake:
                receipts = await asyncio.gather(*(lake.send(changes_of(sender)) for sender in range(5)))
                for change in changes_of(5):
                    await lake.put(change)
            assert lake.last_durable_sequence == 48
        for sender, receipt in enumerate(receipts):
            ids = [id_ for _, id_ in server.kept[receipt.sequence_first - 1 : receipt.sequence_last]]
            assert ids == [sender * 100 + number for number in range(8)]

    run(story())
    assert [sequence for sequence, _ in server.kept] == list(range(1, 49))


def changes_of(sender: int) -> list[dict[str, Any]]:
    return [insert("t", id_) for id_ in range(sender * 100, sender * 100 + 8)]
