"""One stream of changes: it sends batches over a real socket, hears the acks, and sends again what has none.

From driver.py, which runs four of them at once. Not our client, so that this test depends on the protocol alone.
Promise: when `deliver` returns, each change was acknowledged, and the acks never contradicted each other.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import aiohttp

from tests.oracle.changes import Group, Step
from tests.oracle.model import Id, Sent

_IN_FLIGHT_MAX = 3
_BATCH_EVENTS_MAX = 40
_ANSWER_WAIT_S = 300.0
_KEPT = ("buffered", "fallback", "duplicate")
_TABLE_OF_NOTES, _EPOCH_MS = "users", 1_763_000_000_000


class Gone(Exception):
    """The server is not there, or not any more."""


@dataclass(frozen=True, slots=True)
class Batch:
    number: int
    changes: Sequence[Sent]
    is_ascii: bool


class _Flying(NamedTuple):
    """A batch without an ack; sent again when its number went out on this connection before."""

    batch: Batch
    is_again: bool


class Stream:
    """See the module. Its sequences and batch numbers go on from run to run, as a database's do."""

    def __init__(self, source: str, shard: str, dice: random.Random, url: Callable[[], str]) -> None:
        self._source, self._shard, self._dice, self._url = source, shard, dice, url
        self.name = f"{source}/{shard}" if shard else source
        self.acked_count = 0
        self.ends: dict[Id, int] = {}
        """The journal's position after some changes, as their acks gave it."""
        self.persisted_number = 0
        self._sequence = self._number = self._transaction = 0

    # --- what to send ------------------------------------------------------------------------------------------------

    def number(self, groups: Iterable[Group], *, is_ended: bool = True) -> list[Sent]:
        """Give these changes their sequences and transactions. A plain change comes last and ends what is open."""
        changes = []
        for group in groups:
            self._transaction += 1
            for at, step in enumerate(group.steps, start=1):
                is_end = at == len(group.steps) and group.transaction == "ended"
                changes.append(self._sent(step, is_in_transaction=group.transaction != "none", is_end=is_end))
        if is_ended:
            note = {"id": self._sequence, "name": f"n{self.name}"}
            changes.append(self._sent(Step(_TABLE_OF_NOTES, "UPDATE", f"note of {self.name}", note, None, None)))
        return changes

    def cut(self, changes: Sequence[Sent], size_max: int = _BATCH_EVENTS_MAX) -> list[Batch]:
        """Batches of many sizes; they know nothing of transactions."""
        batches, at = [], 0
        while at < len(changes):
            size = self._dice.randint(1, size_max)
            self._number += 1
            batches.append(Batch(self._number, changes[at : at + size], is_ascii=self._dice.random() < 0.5))
            at += size
        return batches

    def _sent(self, step: Step, *, is_in_transaction: bool = False, is_end: bool = False) -> Sent:
        self._sequence += 1
        metadata: dict[str, Any] = {}
        if is_in_transaction:  # a number or a text, both are allowed
            metadata["transactionId"] = (
                self._transaction if self._transaction % 2 else f"{self.name}:{self._transaction}"
            )
        if is_end:
            metadata["transactionEnd"] = True
        if step.previous_key is not None:
            metadata["previousRowId"] = step.previous_key
        if step.unchanged:
            metadata["unchanged"] = list(step.unchanged)
        if step.ddl:
            metadata["ddl"] = {"action": step.ddl}
        event = {
            "sequence": self._sequence,
            "timestamp": _EPOCH_MS + self._sequence,
            "operation": step.operation,
            "table": step.table,
            "rowId": step.key,
        }
        images = {"after": step.after, "before": step.before, "metadata": metadata or None}
        return Sent(self.name, event | {name: image for name, image in images.items() if image is not None})

    # --- sending -----------------------------------------------------------------------------------------------------

    async def deliver(self, batches: Sequence[Batch], *, pause_max_s: float = 0.1, is_persisted: bool = True) -> None:
        """Send all of it, through as many connections as that takes, until it is durable, and called `persisted`."""
        waiting = deque(batches)
        async with aiohttp.ClientSession() as session:
            while waiting:
                try:
                    await self._converse(session, waiting, pause_max_s, batches[-1].number if is_persisted else 0)
                except TimeoutError:
                    raise  # a server that is there and says nothing for so long is no crash
                except (Gone, aiohttp.ClientError, OSError):
                    await asyncio.sleep(0.05)

    async def _converse(
        self, session: aiohttp.ClientSession, waiting: deque[Batch], pause_max_s: float, persisted: int
    ) -> None:
        """One connection. It begins with whatever has no ack yet, durable or not: the server must know which it is."""
        async with session.ws_connect(f"{self._url()}/ws", max_msg_size=0) as socket:
            await self._say(socket, {"type": "connect", "lastAckSequence": 0})
            status = await self._hear(socket)
            assert status["type"] == "status", status
            flying: deque[_Flying] = deque()
            while waiting:
                sent_count = sum(not each.is_again for each in flying)
                if sent_count < min(_IN_FLIGHT_MAX, len(waiting)):
                    await self._send(socket, waiting[sent_count], flying)
                    await asyncio.sleep(self._dice.uniform(0, pause_max_s))
                elif self._take(await self._hear(socket), flying):
                    waiting.popleft()
            while self.persisted_number < persisted:
                self._take(await self._hear(socket), flying)

    def _take(self, answer: dict[str, Any], flying: deque[_Flying]) -> bool:
        """Note an answer; True when it is the first ack of the oldest batch on its way."""
        assert answer["type"] == "ack", f"{self.name} was refused: {answer}"
        if answer["status"] == "persisted":
            self.persisted_number = max(self.persisted_number, answer["sequenceNumber"])
            return False
        batch, is_again = flying.popleft()
        assert answer["status"] in (("duplicate",) if is_again else _KEPT), answer
        assert answer["sequenceNumber"] == batch.number, answer
        if is_again:
            return False
        if answer["status"] != "duplicate":
            self.ends[batch.changes[-1].id] = answer["details"]["position"]
        self.acked_count += len(batch.changes)
        return True

    async def _send(self, socket: aiohttp.ClientWebSocketResponse, batch: Batch, flying: deque[_Flying]) -> None:
        """Now and then twice, as a sender does that lost its patience."""
        events = [change.event for change in batch.changes]
        message = {"type": "cdc_batch", "sequenceNumber": batch.number, "events": events}
        for is_again in (False, True)[: 1 + (self._dice.random() < 0.1)]:
            await self._say(socket, message, is_ascii=batch.is_ascii)
            flying.append(_Flying(batch, is_again))

    async def _say(
        self, socket: aiohttp.ClientWebSocketResponse, message: dict[str, Any], *, is_ascii: bool = True
    ) -> None:
        whole = message | {"sourceDoId": self._source} | ({"sourceShardName": self._shard} if self._shard else {})
        separators = (", ", ": ") if is_ascii else (",", ":")
        await socket.send_str(json.dumps(whole, ensure_ascii=is_ascii, separators=separators))

    async def _hear(self, socket: aiohttp.ClientWebSocketResponse) -> dict[str, Any]:
        async with asyncio.timeout(_ANSWER_WAIT_S):
            message = await socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise Gone
        answer: dict[str, Any] = json.loads(message.data)
        return answer
