"""Which test file begins when: the long ones first, so that the workers of `make test` end together.

From conftest.py, in each worker. A worker takes a whole file, in the order given here (`--no-loadscope-reorder`; by
itself pytest-xdist begins with the files of many tests, which are the quick ones, and a soak of minutes comes last).
Promise: the same order in every worker; the tests of a file stay together and in their own order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

FIRST = (
    "tests/oracle/test_oracle.py",
    "tests/corpus/test_corpus.py",
    "tests/benchmarks/test_upkeep_benchmarks.py",
    "tests/pipeline/test_publishing.py",
    "tests/journeys/test_the_total_never_changes.py",
)
"""Minutes each. The first is by far the longest: the other worker has all the others meanwhile."""


def longest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """By what their marks say: with Spark, slow, or neither; and then those with many tests."""
    counts = Counter(map(_file_of, items))
    has_spark, is_slow = (_files_with(mark, items) for mark in ("spark", "slow"))

    def rank(item: pytest.Item) -> tuple[int, bool, bool, int, str]:
        file = _file_of(item)
        known = FIRST.index(file) if file in FIRST else len(FIRST)
        return known, file not in has_spark, file not in is_slow, -counts[file], file

    return sorted(items, key=rank)


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _files_with(mark: str, items: Iterable[pytest.Item]) -> frozenset[str]:
    return frozenset(_file_of(item) for item in items if item.get_closest_marker(mark))
