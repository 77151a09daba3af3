"""How long a test may take before it counts as hanging. From the root's conftest.py."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

import pytest

from tests.support.aio import bounded

_LIMITS_S = {"chaos": 3600, "spark": 900, "slow": 900}
"""By mark, instead of `timeout` in pyproject.toml. A test takes much less: only one that hangs is ended."""


def set_time_limits(items: Iterable[pytest.Item]) -> None:
    """A limit by the marks of a test, unless it has its own; and coroutines end in an orderly way before it."""
    for item in items:
        longest_s = max((limit for mark, limit in _LIMITS_S.items() if item.get_closest_marker(mark)), default=None)
        if longest_s and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(longest_s))
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = bounded(item.obj)
