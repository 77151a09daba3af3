"""The pipeline stands back, with its whole session and all that it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_SAYS = """
import os, subprocess, sys
from dolake.pipeline.priority import stand_back
stand_back(int(sys.argv[1]))
group = "/proc/self/autogroup"
said = open(group).read().split()[-1] if os.path.exists(group) else "none"
mine = os.getpriority(os.PRIO_PROCESS, 0)
child = [sys.executable, "-c", "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"]
print(mine, said, subprocess.run(child, capture_output=True, text=True, check=True).stdout)
"""


def said_by(nice: int) -> list[str]:
    command = [sys.executable, "-c", _SAYS, str(nice)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=True)
    return done.stdout.split()


def test_a_session_and_its_children_give_way() -> None:
    nice = os.getpriority(os.PRIO_PROCESS, 0) + 3
    if nice > 19:
        pytest.skip("these tests have the lowest priority already")
    mine, group, child = said_by(nice)
    assert (mine, child) == (str(nice), str(nice))
    if Path("/proc/self/autogroup").exists():
        assert group == str(nice)


def test_0_changes_nothing() -> None:
    mine, _, child = said_by(0)
    assert mine == child == str(os.getpriority(os.PRIO_PROCESS, 0))
