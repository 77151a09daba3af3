"""What holds for every test of the repo: order, time limits, property tests, and what a failing test prints.

tests/conftest.py has the fixtures.
"""

from __future__ import annotations

import signal
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests.support.durations import Durations, add_options
from tests.support.order import longest_first
from tests.support.server import logs_of_running_servers
from tests.support.timeouts import set_time_limits

# No example has a deadline: its time says more about what else the machine is doing.
settings.register_profile("all", deadline=None, print_blob=True)
# `make test` tries a quarter of the examples, and the same ones each time: a red run is about the change. `make chaos`
# tries all of them, and others each time.
settings.register_profile("quarter", deadline=None, print_blob=True, max_examples=25, derandomize=True, database=None)
settings.load_profile("quarter")

# A shell's background job ignores Ctrl-C, and so would all that tests start: they send it to see what happens.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(config))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort only where workers share the files; one process takes them in their order."""
    set_time_limits(items)
    if hasattr(config, "workerinput"):
        items[:] = longest_first(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections += logs_of_running_servers()
    return report
