"""The order in which the workers of `make test` take the tests, and that a file stays together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.durations import kept_seconds

ROOT = Path(__file__).resolve().parents[2]
pytest_plugins = ["pytester"]
_CONFTEST = """
from tests.support import order
def pytest_collection_modifyitems(items):
    order.kept_seconds = lambda: {"test_long.py": 60.0, "test_longer.py": 70.0}
    items[:] = order.longest_first(items)
"""
_MARKS = {
    "quick": "",
    "slow": "pytest.mark.slow",
    "spark": "pytest.mark.spark",
    "many": "",
    "long": "",
    "longer": "",
}


def test_what_took_longest_comes_first_and_a_file_stays_together(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(_CONFTEST)
    pytester.makeini("[pytest]\nmarkers =\n    slow\n    spark\n")
    for name, mark in _MARKS.items():
        tests = "".join(f"def test_{at}(): pass\n" for at in range(3 if name == "many" else 2))
        pytester.makepyfile(**{f"test_{name}": f"import pytest\npytestmark = [{mark}]\n{tests}"})
    printed = pytester.runpytest_inprocess("-p", "no:asyncio", "--collect-only", "-q").outlines
    wanted = [("longer", 2), ("long", 2), ("spark", 2), ("slow", 2), ("many", 3), ("quick", 2)]
    listed = [line for line in printed if "::" in line]
    assert listed == [f"test_{name}.py::test_{at}" for name, count in wanted for at in range(count)]


def test_the_files_of_the_kept_durations_exist() -> None:
    files = kept_seconds()
    assert len(files) == 40
    assert not [file for file in files if not (ROOT / file).is_file()]


def test_nothing_else_orders_the_files() -> None:
    """Without this option pytest-xdist sorts them by their number of tests, which puts the long ones last."""
    assert "--dist loadfile --no-loadscope-reorder" in (ROOT / "Makefile").read_text()
