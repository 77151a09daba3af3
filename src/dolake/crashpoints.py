"""Named places in the code where a test lets the process die, as a power failure would: at once, without a word.

From the pipeline and the server, which call `reach`; armed by DOLAKE_CRASH_AT alone, which no user sets. A number after
a colon is how often the place is passed before: `staged:2` dies when it is reached for the third time. A path after an
at sign is a file that arms it: it is removed just before, so that the process that takes over lives.
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

_place, _, _flag = os.environ.get(VARIABLE, "").partition("@")
_name, _, _count = _place.partition(":")
_left = int(_count or 0)


def reach(point: str) -> None:
    """Die here, if a test wants it so."""
    global _left
    if point != _name:
        return
    if _flag and not Path(_flag).exists():
        return
    if _left == 0:
        if _flag:
            Path(_flag).unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    _left -= 1
