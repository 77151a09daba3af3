"""The order in which the workers of `make test` take the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.order import FIRST

ROOT = Path(__file__).resolve().parents[2]
pytest_plugins = ["pytester"]
_CONFTEST = """
from tests.support.order import longest_first
def pytest_collection_modifyitems(items):
    items[:] = longest_first(items)
"""


def test_files_with_spark_come_first_and_a_file_stays_together(pytester: pytest.Pytester) -> None:
    marks = ("quick", ""), ("slow", "pytest.mark.slow"), ("spark", "pytest.mark.spark"), ("many", "")
    pytester.makeconftest(_CONFTEST)
    pytester.makeini("[pytest]\nmarkers =\n    slow\n    spark\n")
    for name, mark in marks:
        tests = "".join(f"def test_{at}(): pass\n" for at in range(3 if name == "many" else 2))
        pytester.makepyfile(**{f"test_{name}": f"import pytest\npytestmark = [{mark}]\n{tests}"})
    printed = pytester.runpytest_inprocess("-p", "no:asyncio", "--collect-only", "-q").outlines
    wanted = [("spark", 2), ("slow", 2), ("many", 3), ("quick", 2)]
    listed = [line for line in printed if "::" in line]
    assert listed == [f"test_{name}.py::test_{at}" for name, count in wanted for at in range(count)]


@pytest.mark.parametrize("file", FIRST)
def test_the_files_that_are_known_to_be_long_exist(file: str) -> None:
    assert (ROOT / file).is_file()


def test_nothing_else_orders_the_files() -> None:
    """Without this option pytest-xdist sorts them by their number of tests, which puts the long ones last."""
    assert "--dist loadfile --no-loadscope-reorder" in (ROOT / "Makefile").read_text()
