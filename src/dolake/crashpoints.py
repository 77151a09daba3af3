"""Named places in the code where a test lets the process die, as a power failure would: at once, without a word.

From the pipeline and the server, which call `reach`. DOLAKE_CRASH_AT alone, which no user sets, makes them possible: it
is the path of a file. The process that reaches the place named in that file removes it and dies, so that the process
that takes over lives.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

VARIABLE = "DOLAKE_CRASH_AT"
POINTS = (
    "before_staging",
    "half_grown",
    "staged",
    "before_publish",
    "publish_unanswered",
    "published",
    "before_ack",
    "before_trim",
    "rewritten",
    "before_rewrite",
    "landed",
    "expired",
    "collected",
    "forgotten",
)

_file = os.environ.get(VARIABLE)


def reach(point: str) -> None:
    """Die here, if a test wants it so."""
    if _file and _wanted(Path(_file)) == point:
        Path(_file).unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def _wanted(file: Path) -> str:
    return file.read_text() if file.exists() else ""
