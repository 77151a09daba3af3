"""What the server says back: acks, nacks and the status, built from what is known at that moment.

From receiver/endpoint.py; to the socket. Promise: every refusal of ours has one nack reason here, and a nack says
whether and when to send again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import UNSET, UnsetType

from dolake.errors import BufferOverflowError, DoLakeError, InvalidSequence, MessageValidationError, Unavailable
from dolake.journal.base import Appended
from dolake.journal.embedded import EmbeddedJournal
from dolake.receiver.admission import Refused, TooLarge
from dolake.receiver.limiter import RateLimitResult
from dolake.receiver.progress import Progress
from dolake.settings import RateLimitConfig
from dolake.wire.messages import (
    AckDetails,
    AckMessage,
    AckStatus,
    BufferStats,
    NackMessage,
    NackReason,
    RateLimitInfo,
    ServerState,
    StatusMessage,
)

CorrelationId = str | UnsetType
_FINAL: tuple[NackReason, ...] = ("invalid_format", "payload_too_large", "event_too_large")


class Answers:
    """Builds the server's messages."""

    def __init__(self, journal: EmbeddedJournal, progress: Progress, clock_ms: Callable[[], int]) -> None:
        self._journal, self._progress, self._clock_ms = journal, progress, clock_ms

    def ack(
        self,
        number: int,
        appended: Appended | None,
        correlation_id: CorrelationId,
        limits: RateLimitConfig,
        budget: RateLimitResult | None = None,
    ) -> AckMessage:
        """`buffered` for what is durable now, `duplicate` for what had been before, `ok` for what needed no writing."""
        details = self._details(appended, limits)
        rate_limit: RateLimitInfo | UnsetType = UNSET
        if budget is not None:
            details.remaining_tokens = _or_unset(budget.remaining_tokens)
            details.bucket_capacity = _or_unset(budget.bucket_capacity)
            rate_limit = UNSET if budget.rate_limit is None else budget.rate_limit
        status: AckStatus = "ok"
        if appended and appended.is_duplicate:
            status = "duplicate"
        elif appended:
            status = "buffered" if self._progress.breaker == "closed" else "fallback"
        return AckMessage(
            timestamp=self._clock_ms(),
            correlation_id=correlation_id,
            sequence_number=number,
            status=status,
            batch_id=f"{appended.end:x}" if appended else UNSET,
            details=details,
            rate_limit=rate_limit,
        )

    def persisted(self, number: int, path: str, limits: RateLimitConfig) -> AckMessage:
        """Everything up to this batch of the connection is in the Iceberg tables."""
        details = self._details(None, limits)
        details.persisted_path = path
        details.position = self._progress.tail.committed
        return AckMessage(timestamp=self._clock_ms(), sequence_number=number, status="persisted", details=details)

    def nack(
        self,
        number: int,
        error: DoLakeError,
        correlation_id: CorrelationId,
        *,
        retry_delay_ms: int,
        is_closing: bool = False,
    ) -> NackMessage:
        reason = reason_of(error, is_closing=is_closing)
        should_retry = reason not in _FINAL
        expected: int | UnsetType = UNSET
        if isinstance(error, InvalidSequence):
            should_retry = error.expected is not None
            expected = UNSET if error.expected is None else error.expected
        return NackMessage(
            timestamp=self._clock_ms(),
            correlation_id=correlation_id,
            sequence_number=number,
            reason=reason,
            error_message=str(error),
            should_retry=should_retry,
            retry_delay_ms=retry_delay_ms if should_retry and expected is UNSET else UNSET,
            max_size=error.size_max if isinstance(error, TooLarge) else UNSET,
            expected_sequence_number=expected,
            details=error.error_details() if isinstance(error, MessageValidationError) else UNSET,
        )

    def status(self, state: ServerState, source_count: int) -> StatusMessage:
        progress = self._progress
        return StatusMessage(
            timestamp=self._clock_ms(),
            state=state,
            buffer=self.buffer(),
            connected_sources=source_count,
            last_flush_time=UNSET if progress.last_flush_ms is None else progress.last_flush_ms,
            next_flush_time=UNSET if progress.next_flush_ms is None else progress.next_flush_ms,
        )

    def buffer(self) -> BufferStats:
        tail = self._progress.tail
        return BufferStats(
            batch_count=tail.batch_count,
            event_count=tail.change_count,
            total_size_bytes=tail.byte_count,
            utilization=round(self._journal.utilization, 4),
            oldest_batch_time=UNSET if tail.oldest_ms is None else tail.oldest_ms,
            newest_batch_time=UNSET if tail.newest_ms is None else tail.newest_ms,
        )

    def _details(self, appended: Appended | None, limits: RateLimitConfig) -> AckDetails:
        utilization = self._journal.utilization
        next_flush_ms = self._progress.next_flush_ms
        return AckDetails(
            events_processed=appended.change_count + appended.duplicate_count if appended else 0,
            buffer_utilization=round(utilization, 4),
            time_until_flush=UNSET if next_flush_ms is None else max(0, next_flush_ms - self._clock_ms()),
            suggested_delay_ms=suggested_delay_ms(utilization, limits) or UNSET,
            circuit_breaker_state=self._progress.breaker,
            position=appended.end if appended else UNSET,
        )


def suggested_delay_ms(utilization: float, limits: RateLimitConfig) -> int:
    """From nothing below the threshold to the longest delay when full, growing by a constant factor."""
    threshold = limits.backpressure_threshold
    if utilization < threshold:
        return 0
    fullness = (utilization - threshold) / (1 - threshold) if threshold < 1 else 1.0
    shortest = max(1, limits.base_retry_delay_ms)
    return round(shortest * math.pow(limits.max_retry_delay_ms / shortest, fullness))


def reason_of(error: DoLakeError, *, is_closing: bool) -> NackReason:
    """The protocol's word for this error."""
    match error:
        case MessageValidationError():
            return "invalid_format"
        case InvalidSequence():
            return "invalid_sequence"
        case BufferOverflowError():
            return "buffer_full"
        case Refused(result=result) if result.reason:
            return result.reason
        case TooLarge():
            return "event_too_large" if error.is_event else "payload_too_large"
        case Unavailable() if is_closing:
            return "shutting_down"
        case _:
            return "internal_error"


def _or_unset(value: int | None) -> int | UnsetType:
    return UNSET if value is None else value
