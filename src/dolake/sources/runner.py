"""Brings what sources have to a lake: one stream for each, all in one process, for ever or until all is told.

From the command line or any program, with sources that keep the promise of base.py; through dolake.client, as any user
would. Promise: what a source has committed arrives in the lake once and in order, through restarts of either side;
one stream that fails leaves the others alone.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from dolake import errors
from dolake.changes import Change, StreamId
from dolake.client import connect
from dolake.client.aio import LakeClient, Sending
from dolake.sources.base import Piece, Source, SourceStatus, Standing
from dolake.sources.oversized import fit
from dolake.tables.layout import CHANGES_SUFFIX, NO_KEY

logger = logging.getLogger("dolake.sources")
P = ParamSpec("P")
Result = TypeVar("Result")

LOOK_EVERY_MIN_S = 0.01
LOOK_EVERY_MAX_S = 0.1
REPORT_EVERY_S = 10.0
RETRY_WAIT_MAX_S = 30.0
_PIECES_UNSETTLED_MAX = 32
_BATCH_EVENTS = 2_001
_BATCH_BYTES = 3_500_000
_KEYS_AT_ONCE = 5_000


@dataclass(frozen=True, slots=True)
class Shard:
    """One source with the name of its stream; `open_source` is called in the shard's own thread."""

    stream: StreamId
    open_source: Callable[[], Source]


Report = Callable[[StreamId, SourceStatus], None]


class Runner:
    """Runs shards until it is cancelled; or, with `is_once`, until each has nothing left to tell."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        is_once: bool = False,
        report: Report | None = None,
        report_every_s: float = REPORT_EVERY_S,
    ) -> None:
        self._url = url
        self._token = token
        self._is_once = is_once
        self._report = report or _log_lag
        self._report_every_s = report_every_s

    async def run(self, shards: Sequence[Shard]) -> dict[StreamId, errors.DoLakeError]:
        """Run all of them; returns those that failed for good, with why."""
        failures: dict[StreamId, errors.DoLakeError] = {}
        async with asyncio.TaskGroup() as tasks:
            for shard in shards:
                tasks.create_task(self._run_one(shard, failures), name=f"source {shard.stream}")
        return failures

    async def _run_one(self, shard: Shard, failures: dict[StreamId, errors.DoLakeError]) -> None:
        wait_s = 0.5
        while True:
            began_s = time.monotonic()
            try:
                async with _Thread(shard.open_source) as source:
                    await _Streaming(self, shard, source).run()
                return
            except errors.DoLakeError as error:
                if not _is_worth_another_try(error):
                    logger.error("source stopped", extra={"stream": str(shard.stream), "problem": str(error)})
                    failures[shard.stream] = error
                    return
                logger.warning("source begins again", extra={"stream": str(shard.stream), "problem": str(error)})
            except Exception as error:  # a defect with one file must not end the others
                logger.exception("source failed", extra={"stream": str(shard.stream)})
                failures[shard.stream] = errors.DoLakeError(f"internal error: {error!r}", hint="the log has more")
                return
            wait_s = 0.5 if time.monotonic() - began_s > RETRY_WAIT_MAX_S else min(RETRY_WAIT_MAX_S, wait_s * 2)
            await asyncio.sleep(wait_s)


def _is_worth_another_try(error: errors.DoLakeError) -> bool:
    """A server that is away, or that has lost what it had; not a stream that somebody else has taken over."""
    return error.retryable or isinstance(error, errors.Damaged | errors.OutcomeUnknown)


class _Thread:
    """A source in a thread of its own, which is where it waits for its database."""

    def __init__(self, open_source: Callable[[], Source]) -> None:
        self._open_source = open_source
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="dolake source")
        self._source: Source | None = None

    async def __aenter__(self) -> _Thread:
        try:
            self._source = await self.call(self._open_source)
        except BaseException:
            self._executor.shutdown(wait=False)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.shield(self.call(self.source.close))
        finally:
            self._executor.shutdown(wait=False)

    @property
    def source(self) -> Source:
        assert self._source is not None
        return self._source

    async def call(self, function: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*args, **kwargs))


class _Streaming:
    """One life of a stream: connect, agree where to go on, then look, send and acknowledge."""

    def __init__(self, runner: Runner, shard: Shard, thread: _Thread) -> None:
        self._runner = runner
        self._stream = shard.stream
        self._thread = thread
        self._source = thread.source
        self._unsettled: deque[tuple[Piece, Sending]] = deque()
        self._moved = asyncio.Event()
        self._reported_s = 0.0

    async def run(self) -> None:
        async with self._client() as lake:
            if lake.source_state is None:
                raise errors.InvalidInput(
                    f"the server at {self._runner._url} is too old: it keeps no state of a source",
                    hint="update the server first",
                )
            standing = Standing(lake.epoch or 0, lake.last_durable_sequence, lake.source_state)
            await self._thread.call(self._source.resume, standing)
            await self._stream_to(lake)

    def _client(self) -> LakeClient:
        return connect(
            self._runner._url,
            source=self._stream.source,
            shard=self._stream.shard,
            token=self._runner._token,
            batch_events_max=_BATCH_EVENTS,
            batch_bytes_max=_BATCH_BYTES,
        )

    async def _stream_to(self, lake: LakeClient) -> None:
        settling = asyncio.create_task(self._settle(), name=f"settling {self._stream}")
        looking = asyncio.create_task(self._look_on(lake), name=f"looking {self._stream}")
        try:
            done, _ = await asyncio.wait((settling, looking), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (settling, looking):
                task.cancel()
            await asyncio.wait((settling, looking))

    async def _look_on(self, lake: LakeClient) -> None:
        wait_s = LOOK_EVERY_MIN_S
        while True:
            if await self._thread.call(self._source.has_work):
                piece = await self._thread.call(self._source.look)
            else:
                piece = None
            await self._report_now_and_then()
            if piece is None and (table := await self._thread.call(self._source.table_to_compare)):
                await self._thread.call(self._source.compare, table, await self._keys_in_lake(lake, table))
                continue
            if piece is not None:
                await self._send(lake, piece)
                wait_s = LOOK_EVERY_MIN_S
                continue
            if self._runner._is_once and not self._unsettled and await self._is_all_told():
                return
            await asyncio.sleep(wait_s)
            wait_s = min(LOOK_EVERY_MAX_S, wait_s * 1.5)

    async def _keys_in_lake(self, lake: LakeClient, table: str) -> list[str] | None:
        """Which rows this stream has ever told of; None where the lake cannot say."""
        name = '"."'.join(part.replace('"', '""') for part in f"{table}{CHANGES_SUFFIX}".split("."))
        sql = (
            f'SELECT DISTINCT _key FROM "{name}" WHERE _source = ? AND _key <> ? AND _key > ? '  # noqa: S608 - quoted
            f"ORDER BY _key LIMIT {_KEYS_AT_ONCE}"
        )
        found: list[str] = []
        try:
            while True:
                answer = await lake.query(sql, [str(self._stream), NO_KEY, found[-1] if found else ""])
                keys = [row[0] for row in answer]
                found += keys
                if len(keys) < _KEYS_AT_ONCE and not answer.truncated:
                    return found
                if not keys:
                    return None
        except errors.UnknownTable:
            return None
        except errors.DoLakeError as error:
            logger.warning(
                "rows that were deleted unseen stay in the lake: it cannot be asked for its keys",
                extra={"stream": str(self._stream), "table": table, "problem": str(error)},
            )
            return None

    async def _is_all_told(self) -> bool:
        status = await self._thread.call(self._source.status)
        return not status.pending and not status.is_copying

    async def _send(self, lake: LakeClient, piece: Piece) -> None:
        while len(self._unsettled) >= _PIECES_UNSETTLED_MAX:
            self._moved.clear()
            await self._moved.wait()
        sending = await self._sending(lake, piece)
        self._unsettled.append((piece, sending))
        self._moved.set()

    async def _sending(self, lake: LakeClient, piece: Piece) -> Sending:
        """The piece on its way. Where a change is too large for the lake, what fits of it goes."""
        changes: Sequence[Change] = piece.changes
        size_max = lake.event_bytes_max
        while True:
            sending = lake.begin(piece.state or None)
            try:
                await sending.add(changes, is_all=True)
                return sending
            except errors.MessageValidationError as error:
                fitting = fit(changes, size_max)
                if fitting is None or fitting == changes:
                    raise _refused(error, changes) from error
                changes = fitting

    async def _settle(self) -> None:
        """Tell the source what is durable, piece by piece."""
        while True:
            while not self._unsettled:
                self._moved.clear()
                await self._moved.wait()
            piece, sending = self._unsettled[0]
            await sending.finish()
            self._source.acknowledge(piece)
            self._unsettled.popleft()
            self._moved.set()

    async def _report_now_and_then(self) -> None:
        if time.monotonic() - self._reported_s >= self._runner._report_every_s:
            self._reported_s = time.monotonic()
            self._runner._report(self._stream, await self._thread.call(self._source.status))


def _refused(error: errors.MessageValidationError, changes: Sequence[Change]) -> errors.DoLakeError:
    """The error with the row that it is about: somebody must find it."""
    found = re.match(r"changes\[(\d+)\]", error.path)
    if found is None or int(found[1]) >= len(changes):
        return error
    change = changes[int(found[1])]
    return errors.InvalidInput(
        f"the lake does not take a row of table {change.table!r}, key {change.row_id!r}: {error.message}",
        hint=f"{error.hint}; rate_limit.max_event_size is the server's setting for the largest row",
    )


def _log_lag(stream: StreamId, status: SourceStatus) -> None:
    logger.info(
        "source is at work",
        extra={
            "stream": str(stream),
            "pending": status.pending,
            "lag_ms": status.lag_ms,
            "copying": [table.table for table in status.tables if table.phase != "live"],
        },
    )
