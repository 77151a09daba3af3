"""What the reference shows about questions is what happens: its blocks run against a real server that answers SQL."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dolake.client.sync import connect
from dolake.errors import QueryUnavailable
from tests.support.server import ServerProcess

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "client.md"
BLOCKS = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
START_WAIT_S = 180


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """With an order in it, once its query process has started."""
    with ServerProcess(tmp_path_factory.mktemp("docs"), has_queries=True) as process:
        with connect(process.url, source="first") as lake:
            lake.send({"table": "orders", "operation": "INSERT", "rowId": "1", "after": {"id": 1, "city": "Rome"}})
            give_up_s = time.monotonic() + START_WAIT_S
            while True:
                try:
                    lake.query("SELECT 1")
                    break
                except QueryUnavailable:
                    assert time.monotonic() < give_up_s, process.log[-2000:]
                    time.sleep(0.1)
        yield process


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_a_block_of_the_reference_runs_as_it_stands(block: str, server: ServerProcess) -> None:
    script = block.replace("http://127.0.0.1:8787", server.url)
    answer = subprocess.run(
        [sys.executable, "-c", script], input="\n", capture_output=True, text=True, timeout=240, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout


def test_there_are_blocks_to_run() -> None:
    assert len(BLOCKS) >= 3
