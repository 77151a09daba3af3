"""Named places in the code where a test lets the process die, as a power failure would: at once, without a word.

From the pipeline and the server, which call `reach`. DOLAKE_CRASH_AT alone, which no user sets, makes them possible: it
is the path of a file. The process that reaches the place named in that file removes it and dies, so that the process
that takes over lives. Where the file says `hold` before the name, the process waits there until the file is removed, so
that a test can order what happens meanwhile.
"""

from __future__ import annotations

import os
import signal
import time
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


HELD = "held"


def reach(point: str) -> None:
    """Die or wait here, if a test wants it so."""
    if not _file:
        return
    file = Path(_file)
    wanted = file.read_text() if file.exists() else ""
    if wanted == point:
        file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    elif wanted == f"hold {point}":
        file.write_text(HELD)
        while file.exists():
            time.sleep(0.01)
