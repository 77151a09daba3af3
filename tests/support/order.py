"""Which test file begins when: the long ones first, so that the workers of `make test` end together.

From the root's conftest.py, in each worker. A worker takes a whole file, in the order given here (`--dist loadfile
--no-loadscope-reorder`). Promise: the same order in every worker; the tests of a file stay together and in their own
order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import pytest

from tests.support.durations import file_of, kept_seconds


def longest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """By the seconds that docs/explain/tests.md has; the files that are not there by their marks and their number."""
    seconds = kept_seconds()
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[file_of(item.nodeid)].append(item)

    def rank(file: str) -> tuple[float, bool, bool, int, str]:
        tests = files[file]
        return -seconds.get(file, 0.0), not _has("spark", tests), not _has("slow", tests), -len(tests), file

    return [item for file in sorted(files, key=rank) for item in files[file]]


def _has(mark: str, tests: Iterable[pytest.Item]) -> bool:
    return any(item.get_closest_marker(mark) for item in tests)
