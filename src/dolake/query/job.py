"""One query between two worlds: a thread computes its answer, the event loop sends it, piece by piece.

From worker.py. Promise: the thread is never more than a few pieces ahead of the client; when either side gives up, the
other one learns of it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from dolake.errors import DoLakeError, InvalidInput, QueryCancelled
from dolake.identity.grants import EVERYTHING, Grant
from dolake.query.watch import Stop, Watch

logger = logging.getLogger(__name__)

Work = Callable[["Job"], None]
"""What the thread does: first `tell`, then `give` as often as it likes."""
State = Literal["queued", "running", "sending"]
_AHEAD_MAX = 2
_LOOK_S = 0.05
_SQL_LENGTH_MAX = 10_000
_ID = re.compile(r"[A-Za-z0-9-]{1,64}")


@dataclass(frozen=True, slots=True)
class Failure:
    """In place of a piece."""

    error: BaseException


class _End:
    """Behind the last piece."""


@dataclass(eq=False)
class Job:
    """A query from its arrival to its last byte."""

    sql: str
    stop: Stop
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    headers: Mapping[str, str] = field(default_factory=dict)
    """What the answer says before its first piece."""
    abort: Callable[[], None] = lambda: None
    """Cuts off an answer that is being sent."""
    owner: str = EVERYTHING.id
    """Whose token it was asked with."""
    state: State = "queued"
    has_turn: bool = False
    """Whether it counts as one of those that run; the loop alone says so."""
    copying: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Tables that a source had not copied completely when this was asked."""
    progress: tuple[int, int] | None = None
    """Of one that Spark is at: tasks that are done, of those that are known."""
    started_s: float = field(default_factory=time.monotonic)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _pieces: deque[bytes | Failure | _End] = field(default_factory=deque)
    _is_taken: threading.Condition = field(default_factory=threading.Condition)
    _has_more: asyncio.Event = field(default_factory=asyncio.Event)
    _started_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise InvalidInput("the id of a query has up to 64 letters, digits and hyphens", hint="leave it out")

    def as_json(self) -> dict[str, Any]:
        return {
            "queryId": self.id,
            "sql": self.sql[:_SQL_LENGTH_MAX],
            "startedAt": self._started_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "elapsedMs": round(1000 * (time.monotonic() - self.started_s)),
            "state": self.state,
            **({"progress": dict(zip(("done", "total"), self.progress, strict=True))} if self.progress else {}),
        }

    def belongs_to(self, grant: Grant) -> bool:
        """Whether this one may see and end it: who asked it, or who runs the lake."""
        return grant.is_administrator or grant.id == self.owner

    def note_progress(self, done: int, total: int) -> None:
        self.progress = done, total

    def cancel(self, why: str = "the query was cancelled") -> None:
        self.stop.ask(QueryCancelled(why))

    # --- in the thread ------------------------------------------------------------------------------------------------

    def run(self, watch: Watch, work: Work) -> None:
        """All of the work; whatever happens to it, the loop hears of the end."""
        self.state = "running"
        try:
            with watch.over(self.stop):
                self.stop.check()
                work(self)
            self._put(_End())
        except DoLakeError as error:
            self.fail(error)
        except Exception as error:
            logger.exception("query failed by a mistake of ours", extra={"query_id": self.id})
            self.fail(error)

    def soon(self, do: Callable[[Job], None]) -> None:
        """On the loop; from any thread."""
        self._loop.call_soon_threadsafe(do, self)

    def tell(self, headers: Mapping[str, str]) -> None:
        """Once, before the first piece."""
        self.headers = headers

    def give(self, piece: bytes) -> None:
        """Hand this on, and wait where the client is slow."""
        with self._is_taken:
            while len(self._pieces) >= _AHEAD_MAX:
                self._is_taken.wait(_LOOK_S)
                self.stop.check()
            self.stop.check()
            self._put(piece)

    def fail(self, error: BaseException) -> None:
        """The answer ends here. Also for others: what a stuck thread says later nobody hears."""
        self._put(Failure(error))

    def _put(self, piece: bytes | Failure | _End) -> None:
        self._pieces.append(piece)
        self._loop.call_soon_threadsafe(self._has_more.set)

    # --- on the loop --------------------------------------------------------------------------------------------------

    async def pieces(self) -> AsyncIterator[bytes]:
        """The answer. Raises what ended it early."""
        while True:
            while not self._pieces:
                self._has_more.clear()
                await self._has_more.wait()
            with self._is_taken:
                piece = self._pieces.popleft()
                self._is_taken.notify()
            match piece:
                case bytes():
                    yield piece
                case Failure():
                    raise piece.error
                case _:
                    return
