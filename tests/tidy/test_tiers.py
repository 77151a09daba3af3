"""What the tests rest on: no benchmark, a tier for each test, and a test for each promise of the documentation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUARANTEES = ROOT / "docs" / "explain" / "guarantees.md"
OWN_LAKES_MAX = 30


def imported_by(folder: str) -> Iterator[tuple[Path, str]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((path, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield path, node.module


@pytest.mark.parametrize(("folder", "other"), [("tests", "benchmarks"), ("benchmarks", "tests")])
def test_tests_and_benchmarks_do_not_import_each_other(folder: str, other: str) -> None:
    """What both need is in tools/."""
    assert not [f"{path.name} imports {name}" for path, name in imported_by(folder) if name.split(".")[0] == other]


def promises() -> list[tuple[str, list[str]]]:
    """Each row of the table of promises, with the paths that it names as shown by."""
    rows = [line.split("|") for line in GUARANTEES.read_text().splitlines() if line.startswith("| ")]
    return [(cells[1].strip(), re.findall(r"`(tests/[^`]+)`", cells[3])) for cells in rows[1:] if len(cells) >= 5]


@pytest.mark.parametrize(("promise", "shown_by"), promises())
def test_each_promise_has_tests_and_they_exist(promise: str, shown_by: list[str]) -> None:
    assert shown_by, f"no test shows: {promise}"
    for name in shown_by:
        path = ROOT / name
        assert path.is_file() or list(path.glob("test_*.py")), f"{name} is not there"
        assert any(_runs_in_make_test(file) for file in ([path] if path.is_file() else path.glob("test_*.py"))), name


def _runs_in_make_test(file: Path) -> bool:
    """Not every test of the file is left to `make chaos`."""
    marks = re.search(r"^pytestmark = .*", file.read_text(), re.MULTILINE)
    return marks is None or "chaos" not in marks[0]


def test_few_tests_have_a_lake_of_their_own() -> None:
    """Each costs a start of a server, and of Spark where it publishes: think of the shared ones first."""
    found = [path for path in (ROOT / "tests").rglob("test_*.py") if "mark.own_lake" in path.read_text()]
    assert len(found) <= OWN_LAKES_MAX
