"""What the server says back: every ack, nack and status, field by field."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from dolake.errors import (
    BufferOverflowError,
    Damaged,
    DoLakeError,
    InvalidSequence,
    MessageValidationError,
    OutcomeUnknown,
    Unavailable,
)
from dolake.journal.base import Appended
from dolake.journal.embedded import open_journal
from dolake.receiver.admission import TooLarge
from dolake.receiver.answers import Answers, suggested_delay_ms
from dolake.receiver.limiter import retry_delay_ms
from dolake.receiver.progress import Progress
from dolake.settings import JournalSettings, RateLimitConfig
from dolake.wire.messages import encode
from tests.support.clock import Clock

LIMITS = RateLimitConfig()


@asynccontextmanager
async def answering(directory: Path) -> AsyncIterator[tuple[Answers, Progress, Clock]]:
    clock = Clock()
    journal = open_journal(directory, JournalSettings(segment_size_bytes=65_536), window_ms=1000, clock_ms=clock)
    progress = Progress(clock)
    try:
        yield Answers(journal, progress, clock), progress, clock
    finally:
        await journal.close()


async def ack_of(
    directory: Path, appended: Appended | None, *, correlation_id: Any = UNSET, breaker: Any = "closed"
) -> Any:
    async with answering(directory) as (answers, progress, _):
        progress.breaker = breaker
        return json.loads(encode(answers.ack(7, appended, correlation_id, LIMITS)))


async def nack_of(directory: Path, error: DoLakeError, *, correlation_id: Any = UNSET, is_closing: bool = False) -> Any:
    async with answering(directory) as (answers, _, _clock):
        said = answers.nack(7, error, correlation_id, retry_delay_ms=250, is_closing=is_closing)
        return json.loads(encode(said))


# --- acks ------------------------------------------------------------------------------------------------------------


async def test_new_changes_are_buffered_with_position_and_details(tmp_path: Path) -> None:
    ack = await ack_of(tmp_path, Appended(end=30, change_count=3, duplicate_count=2))
    assert ack["type"] == "ack"
    assert ack["timestamp"] == Clock().now_ms
    assert ack["sequenceNumber"] == 7
    assert ack["status"] == "buffered"
    assert isinstance(ack["batchId"], str)
    assert ack["details"] == {
        "eventsProcessed": 5,
        "bufferUtilization": 0.0,
        "circuitBreakerState": "closed",
        "position": 30,
    }
    assert "correlationId" not in ack


async def test_known_changes_are_a_duplicate(tmp_path: Path) -> None:
    ack = await ack_of(tmp_path, Appended(end=30, change_count=0, duplicate_count=4))
    assert ack["status"] == "duplicate"
    assert ack["details"]["eventsProcessed"] == 4


async def test_what_needed_no_writing_is_ok(tmp_path: Path) -> None:
    ack = await ack_of(tmp_path, None)
    assert ack["status"] == "ok"
    assert ack["details"]["eventsProcessed"] == 0
    assert "batchId" not in ack
    assert "position" not in ack["details"]


@pytest.mark.parametrize("breaker", ["open", "half-open"])
async def test_changes_taken_while_publishing_fails_are_fallback(tmp_path: Path, breaker: str) -> None:
    ack = await ack_of(tmp_path, Appended(end=30, change_count=3), breaker=breaker)
    assert ack["status"] == "fallback"
    assert ack["details"]["circuitBreakerState"] == breaker


async def test_a_duplicate_stays_a_duplicate_while_publishing_fails(tmp_path: Path) -> None:
    assert (await ack_of(tmp_path, Appended(end=30, change_count=0, duplicate_count=1), breaker="open"))[
        "status"
    ] == "duplicate"


@pytest.mark.parametrize("correlation_id", ["c-1", "", "Zoë"])
async def test_the_correlation_id_is_echoed(tmp_path: Path, correlation_id: str) -> None:
    assert (await ack_of(tmp_path, None, correlation_id=correlation_id))["correlationId"] == correlation_id
    assert (await nack_of(tmp_path, Unavailable("x"), correlation_id=correlation_id))["correlationId"] == correlation_id


async def test_an_ack_says_how_long_it_is_until_the_next_flush(tmp_path: Path) -> None:
    async with answering(tmp_path) as (answers, progress, clock):
        progress.next_flush_ms = clock() + 1500
        assert json.loads(encode(answers.ack(1, None, UNSET, LIMITS)))["details"]["timeUntilFlush"] == 1500
        clock.move(2000)
        assert json.loads(encode(answers.ack(1, None, UNSET, LIMITS)))["details"]["timeUntilFlush"] == 0


async def test_persisted_carries_the_path_and_the_committed_position(tmp_path: Path) -> None:
    async with answering(tmp_path) as (answers, progress, _):
        progress.add_durable(30, 1, 1, 1)
        progress.published(20, "warehouse/default/users")
        ack = json.loads(encode(answers.persisted(7, "warehouse/default/users", LIMITS)))
    assert (ack["type"], ack["status"], ack["sequenceNumber"]) == ("ack", "persisted", 7)
    assert ack["details"]["persistedPath"] == "warehouse/default/users"
    assert ack["details"]["position"] == 20


# --- nacks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "reason", "should_retry"),
    [
        (MessageValidationError("bad", path="$.events[1].rowId"), "invalid_format", False),
        (TooLarge("large", size_max=9, is_event=False), "payload_too_large", False),
        (TooLarge("large", size_max=9, is_event=True), "event_too_large", False),
        (BufferOverflowError("full"), "buffer_full", True),
        (InvalidSequence("gap", expected=5), "invalid_sequence", True),
        (InvalidSequence("taken over"), "invalid_sequence", False),
        (OutcomeUnknown("sync failed"), "internal_error", True),
        (Damaged("broken"), "internal_error", True),
        (Unavailable("later"), "internal_error", True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
async def test_every_refusal_has_its_reason_and_says_whether_to_send_again(
    tmp_path: Path, error: DoLakeError, reason: str, should_retry: bool
) -> None:
    nack = await nack_of(tmp_path, error)
    assert nack["type"] == "nack"
    assert nack["timestamp"] == Clock().now_ms
    assert nack["sequenceNumber"] == 7
    assert nack["reason"] == reason
    assert nack["shouldRetry"] is should_retry
    assert error.message in nack["errorMessage"]


async def test_while_the_server_stops_unavailable_means_shutting_down(tmp_path: Path) -> None:
    nack = await nack_of(tmp_path, Unavailable("the journal is closed"), is_closing=True)
    assert nack["reason"] == "shutting_down"
    assert nack["shouldRetry"] is True
    assert nack["retryDelayMs"] == 250


async def test_a_full_journal_is_full_also_while_the_server_stops(tmp_path: Path) -> None:
    assert (await nack_of(tmp_path, BufferOverflowError("full"), is_closing=True))["reason"] == "buffer_full"


async def test_who_may_send_again_is_told_when(tmp_path: Path) -> None:
    assert (await nack_of(tmp_path, BufferOverflowError("full")))["retryDelayMs"] == 250
    assert "retryDelayMs" not in await nack_of(tmp_path, MessageValidationError("bad"))


async def test_a_gap_names_the_expected_number_and_needs_no_delay(tmp_path: Path) -> None:
    nack = await nack_of(tmp_path, InvalidSequence("gap", expected=5))
    assert nack["expectedSequenceNumber"] == 5
    assert "retryDelayMs" not in nack


@pytest.mark.parametrize("is_event", [True, False])
async def test_a_size_violation_names_the_limit(tmp_path: Path, is_event: bool) -> None:
    assert (await nack_of(tmp_path, TooLarge("large", size_max=4096, is_event=is_event)))["maxSize"] == 4096


async def test_a_bad_message_is_told_the_place_the_problem_and_a_hint(tmp_path: Path) -> None:
    nack = await nack_of(tmp_path, MessageValidationError("Expected `str`", path="$.events[3].rowId", hint="send text"))
    assert nack["errorMessage"] == "events[3].rowId: Expected `str` (send text)"
    assert nack["details"] == [{"path": "$.events[3].rowId", "message": "Expected `str`", "hint": "send text"}]


# --- delays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("utilization", [0.0, 0.5, 0.7999])
def test_below_the_threshold_no_delay_is_suggested(utilization: float) -> None:
    assert suggested_delay_ms(utilization, LIMITS) == 0


def test_from_the_threshold_on_the_suggested_delay_grows_to_the_longest() -> None:
    delays = [suggested_delay_ms(percent / 100, LIMITS) for percent in range(80, 101)]
    assert delays[0] == LIMITS.base_retry_delay_ms
    assert delays[-1] == LIMITS.max_retry_delay_ms
    assert delays == sorted(set(delays))


@pytest.mark.parametrize("threshold", [0.1, 0.8, 1.0])
def test_the_threshold_is_a_setting(threshold: float) -> None:
    limits = RateLimitConfig(backpressure_threshold=threshold)
    assert suggested_delay_ms(threshold - 0.01, limits) == 0
    assert suggested_delay_ms(threshold, limits) > 0
    assert suggested_delay_ms(1.0, limits) == limits.max_retry_delay_ms


def test_retry_delays_double_up_to_the_longest() -> None:
    delays = [retry_delay_ms(refusals, LIMITS) for refusals in range(12)]
    assert delays[:4] == [100, 200, 400, 800]
    assert delays[-1] == 30_000
    assert retry_delay_ms(10**6, LIMITS) == 30_000


# --- the status ------------------------------------------------------------------------------------------------------


async def test_the_status_counts_what_waits(tmp_path: Path) -> None:
    async with answering(tmp_path) as (answers, progress, clock):
        empty = json.loads(encode(answers.status("idle", 0)))
        assert empty == {
            "type": "status",
            "timestamp": clock(),
            "state": "idle",
            "buffer": {"batchCount": 0, "eventCount": 0, "totalSizeBytes": 0, "utilization": 0.0},
            "connectedSources": 0,
        }
        progress.add_durable(10, 2, 700, 111)
        progress.published(4, "somewhere")
        progress.next_flush_ms = 222
        full = json.loads(encode(answers.status("receiving", 3)))
        assert full["state"] == "receiving"
        assert full["connectedSources"] == 3
        assert full["buffer"] == {
            "batchCount": 2,
            "eventCount": 6,
            "totalSizeBytes": 700,
            "utilization": 0.0,
            "oldestBatchTime": 111,
            "newestBatchTime": 111,
        }
        assert full["lastFlushTime"] == clock()
        assert full["nextFlushTime"] == 222
