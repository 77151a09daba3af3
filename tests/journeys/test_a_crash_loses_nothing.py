"""Eight senders, and a server that is killed again and again: what was acknowledged is there, once and in order."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from pathlib import Path

import msgspec
import psutil
import pytest

from dolake.changes import Change
from dolake.client import connect
from dolake.journal.reader import JournalReader
from dolake.wire.binary import decode_raw_batch
from tests.support.aio import run
from tests.support.server import ServerProcess

pytestmark = pytest.mark.own_lake

_SENDERS = 8


def test_five_kills_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    _stream_through_kills(tmp_path, kills=5, seed=5)


@pytest.mark.chaos
def test_fifty_kills_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    _stream_through_kills(tmp_path, kills=50, seed=random.SystemRandom().randrange(10**6))


def _stream_through_kills(home: Path, *, kills: int, seed: int) -> None:
    dice = random.Random(seed)
    with ServerProcess(home) as server:
        acked = run(_stream(server, kills, dice), timeout_s=60 + 10 * kills)
        first_pid = server.pid
        assert server.stop() == 0, f"seed {seed}"
    assert not psutil.pid_exists(first_pid)
    kept = _sequences_by_source(home)
    for source, last_acked in acked.items():
        sequences = kept[source]
        assert sequences == list(range(1, len(sequences) + 1)), f"{source}: doubled, lost or out of order; seed {seed}"
        assert len(sequences) >= last_acked > 0, f"{source}: acknowledged and lost; seed {seed}"


async def _stream(server: ServerProcess, kills: int, dice: random.Random) -> dict[str, int]:
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        senders = [tasks.create_task(_send(server.url, f"source-{n}", stopping, dice)) for n in range(_SENDERS)]
        for _ in range(kills):
            await asyncio.sleep(dice.uniform(0.0, 0.6))  # when the kill comes, not how we wait for something
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        stopping.set()
    return dict(sender.result() for sender in senders)


async def _send(url: str, source: str, stopping: asyncio.Event, dice: random.Random) -> tuple[str, int]:
    """Send until told to stop, but once at least; returns the last sequence that was acknowledged."""
    acked = 0
    async with connect(
        url, source=source, batch_events_max=dice.choice([7, 50, 200]), retry_wait_max_ms=200, connect_wait_ms=60_000
    ) as lake:
        while not stopping.is_set() or not acked:  # on a busy machine a server may die before its first ack
            count = dice.randint(1, 400)
            receipt = await lake.send([_change(source, acked + n) for n in range(1, count + 1)])
            acked += count
            assert receipt.sequence_last == acked
    return source, acked


def _change(source: str, sequence: int) -> Change:
    row = {"id": sequence, "source": source}
    return Change("orders", "INSERT", f"{source}-{sequence}", after=row, sequence=sequence)


def _sequences_by_source(home: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    with JournalReader(home / "journal") as reader:
        for record in reader.read():
            for event in decode_raw_batch(record.payload).events:
                assert isinstance(event.after, msgspec.Raw)
                assert msgspec.json.decode(event.after) == {"id": event.sequence, "source": record.stream.source}
                found[record.stream.source].append(event.sequence)
    return found
