"""One server with small limits for all tests here that speak to a socket; each test has a stream of its own."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from tests.support.server import ServerProcess

PAYLOAD_MAX, EVENT_MAX, FRAME_MAX = 65_536, 8_192, 262_144
_SETTINGS = f"""
[rate_limit]
max_payload_size = {PAYLOAD_MAX}
max_event_size = {EVENT_MAX}
[server]
message_size_max_bytes = {FRAME_MAX}
"""
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("receiver"), settings=_SETTINGS) as process:
        yield process


@pytest.fixture
def source(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return f"{next(_numbers)}-{re.sub(r'[^A-Za-z0-9]+', '-', request.node.name)[:100]}"


@pytest.fixture
def table(source: str) -> str:
    return f"t{source.lower()}"
