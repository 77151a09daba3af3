"""One real server for all tests of the catalog's routes; each test works in a namespace of its own."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.catalog.asking import Asker
from tests.support.server import ServerProcess

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server(default_server: ServerProcess) -> ServerProcess:
    return default_server


@pytest.fixture(scope="session")
def ask(server: ServerProcess) -> Asker:
    return Asker(server.url)


@pytest.fixture(scope="session")
def warehouse(ask: Asker) -> Path:
    """The warehouse's folder, as the first table tells."""
    namespace = ask.namespace("where")
    return Path(ask.table(namespace).metadata["location"].removeprefix("file://")).parents[1]


@pytest.fixture
def name() -> str:
    """A name that no other test has."""
    return f"n{next(_numbers)}"


@pytest.fixture
def ns(ask: Asker, name: str) -> str:
    """The path of a new namespace."""
    return ask.namespace(name)
