"""Partitions that somebody has moved back to the warm tier: for a while they stay, however old they are.

From pipeline/maintenance.py, which moves; read by the server, too, which says what is due. One small file for each
table in the home. Promise: a file that is lost or damaged costs no row; what was in it moves once more.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from dolake.storage.local import sync_path
from dolake.tables.tiers import WARM, Tier

_DAY_MS = 86_400_000


class Restored:
    """Of the table with this uuid."""

    def __init__(self, home: Path, uuid: str) -> None:
        self._path = home / "upkeep" / f"{uuid}.restored.json"
        self._since_ms: dict[str, int] = {}
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
            self._since_ms = msgspec.json.decode(self._path.read_bytes(), type=dict[str, int])

    def stays(self, partition: str, days: int, now_ms: int) -> bool:
        """Whether it was moved back less than so many days ago."""
        since_ms = self._since_ms.get(partition)
        return since_ms is not None and now_ms - since_ms < days * _DAY_MS

    def note(self, partition: str, to: Tier, now_ms: int) -> None:
        """It was moved there, because somebody wanted it."""
        if to == WARM:
            self._since_ms[partition] = now_ms
        elif self._since_ms.pop(partition, None) is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(self._since_ms))
        sync_path(new)
        new.replace(self._path)
