"""Which tests run in one worker, and which begin first: the long ones, so that the workers of `make test` end together.

From the root's conftest.py, in each worker. A worker takes a whole group, in the order given here (`--dist loadgroup
--no-loadscope-reorder`). Promise: the same order in every worker; the tests of a file stay together and in their own
order, unless a mark `xdist_group` of theirs names another group, whose tests share a lake.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import pytest

from tests.support.durations import file_of, kept_seconds


def group_by_file(items: Iterable[pytest.Item]) -> None:
    """A file is a group, because its tests share fixtures; pytest-xdist alone would deal out each test for itself."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(file_of(item.nodeid)))


def longest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """By the seconds that docs/explain/tests.md has; the files that are not there by their marks and their number."""
    seconds = kept_seconds()
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        groups[_group_of(item)].append(item)

    def rank(group: list[pytest.Item]) -> tuple[float, bool, bool, int, str]:
        known = sum(seconds.get(file, 0.0) for file in {file_of(item.nodeid) for item in group})
        return -known, not _has("spark", group), not _has("slow", group), -len(group), _group_of(group[0])

    return [item for group in sorted(groups.values(), key=rank) for item in group]


def _group_of(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    return str(mark.args[0]) if mark else file_of(item.nodeid)


def _has(mark: str, group: Iterable[pytest.Item]) -> bool:
    return any(item.get_closest_marker(mark) for item in group)
