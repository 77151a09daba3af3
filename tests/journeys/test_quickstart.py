"""The first ten minutes of a newcomer, as written: each Python block of the guides runs against a real server.

A guide gets a server of its own, on a home called `lake` in the folder where its blocks run. A block of plain text
right behind a Python block is what that prints. Of the console blocks, `dolake journal` and `kill -9` are done, and a
`dolake serve` behind a kill starts the server again.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import ServerProcess

pytestmark = pytest.mark.own_lake
ROOT = Path(__file__).resolve().parents[2]
GUIDES = (
    "README.md",
    "docs/quickstart.md",
    "docs/reference/client.md",
    "docs/howto/stream-from-your-app.md",
    "docs/howto/time-travel.md",
)
DEFAULT_URL = "http://127.0.0.1:8787"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_TIMESTAMP = re.compile(r"\b\d{13}\b")


def blocks_of(guide: str) -> Iterator[tuple[str, str, str]]:
    """Language and text of each block, and the output that is printed right behind it, if any."""
    text = (ROOT / guide).read_text()
    found = list(_FENCE.finditer(text))
    for index, block in enumerate(found):
        following = found[index + 1] if index + 1 < len(found) else None
        is_output = (
            following is not None and following[1] == "text" and not text[block.end() : following.start()].strip()
        )
        yield block[1], block[2], following[2] if following is not None and is_output else ""


@pytest.mark.parametrize("guide", GUIDES)
def test_what_the_guide_shows_is_what_happens(guide: str, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "lake", has_queries=True) as server:
        for language, text, output in blocks_of(guide):
            if language == "python":
                printed = run_in(tmp_path, ["-c", text.replace(DEFAULT_URL, server.url)])
                assert not output or printed == output, f"{text}\nprinted\n{printed}"
            elif language == "console" and guide.endswith("quickstart.md"):
                follow(text, tmp_path, server)


def test_the_quickstart_has_something_to_run() -> None:
    languages = [language for language, _, _ in blocks_of("docs/quickstart.md")]
    assert languages.count("python") >= 3
    assert "console" in languages


def follow(console: str, folder: Path, server: ServerProcess) -> None:
    """Type what stands behind each `$`, and compare what it prints."""
    for typed in console.split("$ ")[1:] if console.startswith("$ ") else []:
        command, _, output = typed.partition("\n")
        words = shlex.split(command)
        if words[:2] == ["kill", "-9"]:
            server.kill()
        elif words[:2] == ["dolake", "serve"]:
            server.start()
        else:
            assert words[:2] == ["dolake", "journal"], f"the test does not know how to type {command}"
            printed = run_in(folder, ["-m", "dolake.cli", *words[1:]])
            assert without_times(printed) == without_times(output)


def run_in(folder: Path, arguments: list[str]) -> str:
    answer = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def without_times(text: str) -> str:
    return _TIMESTAMP.sub("0", text)
