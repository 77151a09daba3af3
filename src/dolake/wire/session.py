"""Who may say what, and when: one connection's place in the protocol. No I/O.

From receiver/endpoint.py, which asks before it hands a batch to the journal. Promise: a connection speaks for one
stream, a stream has one speaker (the newest connection), and batch numbers rise by one: a refused number is expected
again, so a later batch can never overtake it.
"""

from __future__ import annotations

from collections.abc import Callable

from dolake.changes import StreamId
from dolake.errors import InvalidSequence, MessageValidationError


class Session:
    """The state of one connection."""

    __slots__ = ("epoch", "expected", "is_taken_over", "stream")

    def __init__(self) -> None:
        self.stream: StreamId | None = None
        self.epoch: int | None = None
        self.expected: int | None = None
        """The next batch number; None until the first batch says where this connection begins."""
        self.is_taken_over = False

    def bind(self, stream: StreamId) -> bool:
        """Speak for this stream from now on; True when that is news."""
        self._refuse_if_taken_over()
        if self.stream is None:
            self.stream = stream
            return True
        if self.stream != stream:
            raise MessageValidationError(
                f"this connection speaks for {self.stream}, the message for {stream}",
                path="$.sourceDoId",
                hint="open one connection per stream (sourceDoId and shard)",
            )
        return False

    def expect(self, number: int) -> bool:
        """Check a batch's number; True when it is the next one. A lower one is a retry, judged by the journal."""
        self._refuse_if_taken_over()
        if self.expected is not None and number > self.expected:
            raise InvalidSequence(
                f"batch {number} arrived where {self.expected} was expected",
                expected=self.expected,
                hint="send again from the expected number",
            )
        is_next = self.expected is None or number == self.expected
        if is_next:
            self.expected = number + 1
        return is_next

    def refuse(self, number: int) -> None:
        """This batch was not kept: its number is expected again."""
        self.expected = number if self.expected is None else min(self.expected, number)

    def _refuse_if_taken_over(self) -> None:
        if self.is_taken_over:
            raise InvalidSequence(
                f"a newer connection speaks for {self.stream} now", hint="one writer at a time: close this connection"
            )


class Speakers:
    """Which connection speaks for each stream: the newest one that asked."""

    def __init__(self) -> None:
        self._sessions: dict[StreamId, Session] = {}

    def take(self, stream: StreamId, session: Session) -> Session | None:
        """Make this session the speaker; returns the one that lost the stream, if there was another."""
        former = self._sessions.get(stream)
        self._sessions[stream] = session
        if former is None or former is session:
            return None
        former.is_taken_over = True
        return former

    def speaker_of(self, stream: StreamId) -> Session | None:
        return self._sessions.get(stream)

    def leave(self, session: Session) -> None:
        """The connection is gone."""
        if session.stream is not None and self._sessions.get(session.stream) is session:
            del self._sessions[session.stream]

    @property
    def source_count(self) -> int:
        return len({stream.source for stream in self._sessions})

    def count_known(self, is_known: Callable[[str], bool]) -> int:
        """How many sources are connected, of those that somebody may know of."""
        return sum(is_known(source) for source in {stream.source for stream in self._sessions})

    def __len__(self) -> int:
        return len(self._sessions)
