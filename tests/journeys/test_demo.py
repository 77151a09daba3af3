"""`dolake demo`, as a newcomer runs it: through a pipe it ends by itself, on a terminal Ctrl-C ends it at any time."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

COMMAND = [sys.executable, "-m", "dolake.cli", "demo", "--seconds", "4", "--rate", "1000"]
pytestmark = [pytest.mark.slow, pytest.mark.spark]
_WAIT_S = 600.0
_ACTS = ["Copy", "Stream", "Ask", "Travel", "Remember", "Share", "Crash", "Close the books", "Compact", "Verify"]


def environment(scratch: Path) -> dict[str, str]:
    """Without the settings that tests have; whatever the demo makes goes to `scratch`."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("DOLAKE_")}
    return ours | {"TMPDIR": str(scratch), "TERM": "xterm", "COLUMNS": "120"}


def test_without_a_terminal_it_tells_the_whole_story_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        COMMAND, env=environment(tmp_path), capture_output=True, text=True, timeout=_WAIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert re.findall(r"^\d+\. ([A-Z][a-z ]+)\.", done.stdout, re.MULTILINE) == _ACTS
    assert "all 12 rows as the shop had them then: yes" in done.stdout
    assert "the same" in done.stdout
    assert "nothing acknowledged is lost" in done.stdout
    assert done.stdout.count(" same   ") == 4
    assert re.search(r"4 tables, [\d,]+ rows and changes in .* s; 0 differences", done.stdout)
    assert "DIFFERENT" not in done.stdout
    assert "\x1b" not in done.stdout
    assert list(tmp_path.glob("dolake-demo-*")) == []


def test_on_a_terminal_ctrl_c_ends_it_and_every_process_of_it(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    demo = subprocess.Popen(
        [*COMMAND, "--seconds", "600"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(tmp_path),
        start_new_session=True,
    )
    os.close(theirs)
    try:
        _read_until(ours, b"old is the newest event that SQL sees")
        children = psutil.Process(demo.pid).children(recursive=True)
        assert len(children) >= 3
        demo.send_signal(signal.SIGINT)
        shown = _read_until(ours, None)
        assert demo.wait(60) == 0, shown.decode(errors="replace")
        _, alive = psutil.wait_procs(children, timeout=30)
        assert not alive
    finally:
        demo.kill()
        demo.wait()
        os.close(ours)


def _read_until(descriptor: int, wanted: bytes | None) -> bytes:
    """What the terminal shows, up to these words or to the end."""
    shown = b""
    give_up_at = time.monotonic() + _WAIT_S
    while time.monotonic() < give_up_at and (wanted is None or wanted not in shown):
        try:
            piece = os.read(descriptor, 65536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        shown += piece
    assert wanted is None or wanted in shown, shown.decode(errors="replace")
    return shown
