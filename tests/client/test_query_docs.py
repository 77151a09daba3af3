"""What the reference shows about questions is what happens: its blocks run against a real server that answers SQL."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dolake.client.sync import connect
from tests.support.changes import insert
from tests.support.server import ServerProcess

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "client.md"
BLOCKS = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
pytestmark = pytest.mark.own_lake


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """With an order in it: the blocks name its table, so it is no shared server."""
    with ServerProcess(tmp_path_factory.mktemp("docs"), has_queries=True) as process:
        with connect(process.url, source="first") as lake:
            lake.send(insert("orders", 1, city="Rome"))
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
