"""One server without Spark for all tests here: what is subscribed to is the tail. Each test has tables of its own."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.server import ServerProcess

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = (
        "[subscriptions]\nheartbeat_ms = 400\ninterval_ms = 10\n"
        "too_slow_after_ms = 4000\nbuffer_max_bytes = 65536\nbatch_events_max = 100\n"
    )
    with ServerProcess(tmp_path_factory.mktemp("subscriptions"), settings=settings, has_queries=True) as found:
        wait_for_queries(found)
        yield found


def wait_for_queries(server: ServerProcess) -> None:
    """Until the query process answers; on a busy machine that takes its time."""
    give_up_s = time.monotonic() + 120
    while server.get("/v1/query", method="POST", body={"sql": "SELECT 1"})[0] != 200:
        assert time.monotonic() < give_up_s, server.log[-2000:]
        time.sleep(0.2)


@pytest.fixture
def table() -> str:
    """A table that no other test has."""
    return f"orders_{next(_numbers)}"


@pytest.fixture
def source() -> Callable[[], str]:
    return lambda: f"shop-{next(_numbers)}"
