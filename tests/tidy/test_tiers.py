"""What the tests rest on: no benchmark, a tier for each test, and a test for each promise of the documentation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUARANTEES = ROOT / "docs" / "explain" / "guarantees.md"
OWN_LAKES_MAX = 38


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


def _starts_a_server(tree: ast.Module) -> bool:
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any("ServerProcess" in (getattr(call, "id", ""), getattr(call, "attr", "")) for call in calls)


def _is_marked_own_lake(tree: ast.Module) -> bool:
    attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return any(ast.unparse(node) == "pytest.mark.own_lake" for node in attributes)


def _helpers_that_start_a_server(trees: dict[Path, ast.Module]) -> set[str]:
    """Modules beside the tests, such as the oracle's driver; who imports one starts what it starts."""
    found = [path for path, tree in trees.items() if not path.name.startswith("test_") and _starts_a_server(tree)]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in found}


def test_few_tests_have_a_lake_of_their_own() -> None:
    """Each costs a start of a server, and of Spark where it publishes: think of the shared ones first."""
    paths = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path.name != "conftest.py"]
    trees = {path: ast.parse(path.read_text()) for path in paths if path.parent.name != "support"}
    helpers = _helpers_that_start_a_server(trees)
    imported = {path for path, name in imported_by("tests") if name in helpers}
    tests = {path: tree for path, tree in trees.items() if path.name.startswith("test_")}
    own = {path for path, tree in tests.items() if _starts_a_server(tree) or path in imported}
    names = [str(path.relative_to(ROOT)) for path in sorted(own)]
    unmarked = [name for name in names if not _is_marked_own_lake(tests[ROOT / name])]
    assert not unmarked, f"start a server and are not marked own_lake: {unmarked}"
    assert len(own) <= OWN_LAKES_MAX, names
