"""Every file can be read by a stranger: no paths of one machine, no hosts of a registry, a docstring per module."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "dolake"
MODULES = sorted(SOURCE.rglob("*.py"))
LINES_MAX = 600
NOT_OURS = {".git", ".venv", ".cache", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "__pycache__"}

# The words are put together here, so that this file does not find itself.
MACHINE_PATH = re.compile(r"(?<![\w.~*})\]])/(?:(?:work|root|opt/wheels)(?![\w-])|(?:home|Users)/\w)")
REGISTRY_HOSTS = [
    re.compile(re.escape(".".join(parts)))
    for parts in [
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("maven", "org"),
        ("npmjs", "org"),
        ("crates", "io"),
        ("golang", "org"),
        ("deb", "debian", "org"),
    ]
]


def our_files() -> Iterator[Path]:
    """What git tracks or would track; in a copy without git, everything that is no cache."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode == 0:
        paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    else:
        paths = [path for path in ROOT.rglob("*") if not NOT_OURS & set(path.relative_to(ROOT).parts)]
    return (path for path in paths if path.is_file())


def text_of(path: Path) -> str:
    data = path.read_bytes()
    return "" if b"\0" in data else data.decode(errors="replace")


def test_no_file_names_a_path_of_one_machine_or_the_host_of_a_registry() -> None:
    found = []
    for path in our_files():
        for number, line in enumerate(text_of(path).splitlines(), 1):
            if any(pattern.search(line) for pattern in [MACHINE_PATH, *REGISTRY_HOSTS]):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path.name} has no docstring"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_is_one_idea(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LINES_MAX, "a second idea has moved in: split the file"
