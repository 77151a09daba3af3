"""A test that hangs fails alone, with the stack of every thread, and the tests after it run."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

_ROOT = Path(__file__).parents[2]
_TESTS = """
import asyncio
import time
import pytest

async def test_coroutine_that_hangs():
    while True:
        await asyncio.sleep(0.2)

@pytest.mark.timeout(1)
def test_function_that_hangs():
    time.sleep(60)

async def test_next():
    assert asyncio.get_running_loop().get_debug()
"""
_CONFTEST = """
from tests.support.timeouts import set_time_limits

def pytest_collection_modifyitems(items):
    set_time_limits(items)
"""


def test_a_test_that_hangs_fails_alone(pytester: pytest.Pytester) -> None:
    # The coroutine sleeps while the stacks are printed: CPython may crash when it prints that of a running thread.
    pytester.makeconftest(_CONFTEST)
    pytester.makepyfile(_TESTS)
    pytester.makefile(".toml", pyproject=(_ROOT / "pyproject.toml").read_text())
    changed = (f"pythonpath={_ROOT}", "timeout=6", "faulthandler_timeout=0.5")
    found = pytester.runpytest_subprocess(".", "-n", "1", *(f"-o{each}" for each in changed))
    found.assert_outcomes(failed=2, passed=1)
    found.stdout.fnmatch_lines(["E *TimeoutError", "E *Failed: Timeout (>1.0s)*"])
    assert found.stderr.str().count("most recent call first") >= 2
