"""The outbox is trimmed rarely: a write to the file can hurt the application's own transactions.

Without WAL it is done when no other connection uses the file: an exclusive lock is tried, and not waited for. With
WAL a transaction that has only read so far cannot be seen, and would fail when it writes after us. So it is done when
nothing was committed for minutes, or when the outbox has become too large. From source.py, between two looks.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from dataclasses import dataclass

from dolake.sources.sqlite.store import Store, is_busy
from dolake.sources.sqlite.triggers import OUTBOX

logger = logging.getLogger("dolake.sources.sqlite")
_TRY_EVERY_S = 5.0
_ROWS_MAX = 50_000
_EVENT_SIZE_MIN = 300


@dataclass(frozen=True, slots=True)
class TrimRules:
    """When the outbox may be trimmed in WAL mode."""

    idle_s: float = 120.0
    size_max_bytes: int = 256 * 1024 * 1024


class Trimmer:
    """Knows what may be removed, and when it was tried last."""

    def __init__(self, rules: TrimRules) -> None:
        self._rules = rules
        self._tried_s = time.monotonic()
        self._changed_s = time.monotonic()
        self._event_size = _EVENT_SIZE_MIN

    def note_size(self, event_size: int) -> None:
        """How large the events are, on the average."""
        self._event_size = max(_EVENT_SIZE_MIN, event_size)

    def note_change(self) -> None:
        """The file was written to."""
        self._changed_s = time.monotonic()

    def is_due(self, acked: int, trimmed: int) -> bool:
        """Whether it is time to try."""
        now_s = time.monotonic()
        return acked > trimmed + 1 and now_s - self._tried_s >= min(_TRY_EVERY_S, self._rules.idle_s)

    def trim(self, store: Store, acked: int) -> bool:
        """Remove events before number `acked`, if nothing speaks against it now; whether the file was written."""
        self._tried_s = time.monotonic()
        mode = store.db.execute("PRAGMA journal_mode").fetchone()[0]
        if mode == "wal" and not self._is_allowed_in_wal(store):
            return False
        try:
            with store.writing(begin="EXCLUSIVE", busy_wait_ms=0) as db:
                head = store.head()
                if head is None:
                    return False
                upto = min(acked, head.acked + _ROWS_MAX)
                # The event at the place stays: by it the file is known, and SQLite makes the next number from it.
                db.execute(f"DELETE FROM {OUTBOX} WHERE seq > 0 AND seq < ?", (upto,))
                head.acked = upto
                store.save_head(head)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            return False
        logger.debug("outbox trimmed", extra={"upto": upto, "file": str(store.path)})
        return True

    def _is_allowed_in_wal(self, store: Store) -> bool:
        if time.monotonic() - self._changed_s >= self._rules.idle_s:
            return True
        low, high = store.db.execute(f"SELECT min(seq), max(seq) FROM {OUTBOX} WHERE seq > 0").fetchone()
        return (high or 0) - (low or 0) > self._rules.size_max_bytes // self._event_size
