"""`dolake demo`, as a newcomer runs it: through a pipe it ends by itself, on a terminal it serves until Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

COMMAND = [sys.executable, "-m", "dolake.cli", "demo"]
pytestmark = pytest.mark.slow


def test_without_a_terminal_it_shows_that_nothing_is_lost_and_ends() -> None:
    done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "nothing acknowledged is lost" in done.stdout
    assert "sent 22,000, kept 22,000, each once and in order: yes" in done.stdout
    assert "different" not in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("options", [[], ["--once"]])
def test_on_a_terminal_it_serves_until_ctrl_c_unless_told_to_end(options: list[str]) -> None:
    ours, theirs = pty.openpty()
    environ = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    demo = subprocess.Popen(
        [*COMMAND, *options], stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True
    )
    os.close(theirs)
    try:
        shown = _read_until(ours, b"until Ctrl-C" if not options else b"in order: yes")
        if not options:
            url = re.search(rb"http://127\.0\.0\.1:\d+", shown)
            assert url is not None
            with urllib.request.urlopen(url[0].decode() + "/health", timeout=10) as answer:  # noqa: S310
                assert answer.status == 200
            demo.send_signal(signal.SIGINT)
        _read_until(ours, None)
        assert demo.wait(60) == 0, shown.decode(errors="replace")
    finally:
        demo.kill()
        demo.wait()
        os.close(ours)


def _read_until(descriptor: int, wanted: bytes | None) -> bytes:
    """What the terminal shows, up to these words or to the end."""
    shown = b""
    give_up_at = time.monotonic() + 120
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
