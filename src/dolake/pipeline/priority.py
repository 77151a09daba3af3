"""Which process goes first where the machine has too few cores: whoever somebody waits for, and not the pipeline.

From __main__.py, before Java starts, so that Java and all workers have it, too. Danger: Linux divides a machine between
sessions first (autogroups), and between the processes of one by their nice values. The pipeline has a session of its
own, so its nice value alone says nothing; the session has one as well.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_AUTOGROUP = Path("/proc/self/autogroup")


def stand_back(nice: int) -> None:
    """Give way to others this much, from 0 to 19, with all that is started from here; never go ahead of before."""
    if nice <= max(0, os.getpriority(os.PRIO_PROCESS, 0)):
        return
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    with contextlib.suppress(OSError):  # a system without autogroups has nothing to be told
        _AUTOGROUP.write_text(str(nice))
