"""The shared server with queries, and short waits: what is subscribed to is the tail. Each test has its tables."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.support.server import ServerProcess

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(query_server: ServerProcess) -> Iterator[ServerProcess]:
    settings = (
        "[subscriptions]\nheartbeat_ms = 400\ninterval_ms = 10\n"
        "too_slow_after_ms = 4000\nbuffer_max_bytes = 65536\nbatch_events_max = 100\n"
    )
    with query_server.configured(settings):
        yield query_server


@pytest.fixture
def table() -> str:
    """A table that no other test has."""
    return f"orders_{next(_numbers)}"


@pytest.fixture
def source() -> Callable[[], str]:
    return lambda: f"shop-{next(_numbers)}"
