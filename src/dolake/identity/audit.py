"""What administrators did: a line of JSON for each act, in `audit.log` in the home.

From server/auth.py and cli/token.py. Promise: a line says who, what, when and how it ended, and is appended in one
piece, so that several processes can write; no secret is ever in it. It is opened for each line: move it away at will.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec

AUDIT_FILE = "audit.log"
_TEXT_LENGTH_MAX = 1_000


def write_audit(home: Path, *, who: str, what: str, outcome: str, now_ms: int, **more: str) -> None:
    """Append one act. Blocks."""
    when = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    entry = {"when": when, "who": who, "what": what, "outcome": outcome} | more
    line = msgspec.json.encode({key: _plain(value) for key, value in entry.items()}) + b"\n"
    descriptor = os.open(home / AUDIT_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _plain(text: str) -> str:
    return text[:_TEXT_LENGTH_MAX].encode(errors="replace").decode()
