"""What the receiver counts: connections, messages, answers and how long they took.

From connection.py; to server/metrics.py, which reads it when /metrics is asked.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

ACK_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass(slots=True)
class ReceiverStats:
    """Counters since the start."""

    connection_count: int = 0
    message_count: int = 0
    byte_count: int = 0
    ack_counts: dict[str, int] = field(default_factory=dict)
    nack_counts: dict[str, int] = field(default_factory=dict)
    duplicate_change_count: int = 0
    ack_seconds: float = 0.0
    ack_buckets: list[int] = field(default_factory=lambda: [0] * (len(ACK_BUCKETS_S) + 1))

    def count_message(self, size: int) -> None:
        self.message_count += 1
        self.byte_count += size

    def count_ack(self, status: str) -> None:
        self.ack_counts[status] = self.ack_counts.get(status, 0) + 1

    def count_nack(self, reason: str) -> None:
        self.nack_counts[reason] = self.nack_counts.get(reason, 0) + 1

    def time_ack(self, seconds: float) -> None:
        self.ack_seconds += seconds
        self.ack_buckets[bisect_left(ACK_BUCKETS_S, seconds)] += 1
