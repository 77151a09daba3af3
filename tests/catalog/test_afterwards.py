"""What follows a commit's answer: in order, bounded, and never an error of the commit's."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dolake.catalog.afterwards import Afterwards
from dolake.catalog.base import Name
from dolake.catalog.documents import HINT_FILE, Documents
from dolake.catalog.sqlite import SqliteStore
from dolake.catalog.tables import TableCommit, Tables
from dolake.storage.local import LocalStorage
from tests.catalog.asking import set_properties, table_body

NAME = Name(("shop",), "t")


class SlowStorage(LocalStorage):
    """A disk on which hints wait until the test lets them, and then can fail."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.may_replace = threading.Event()
        self.failure: OSError | None = None

    def replace(self, location: str, data: bytes) -> None:
        assert self.may_replace.wait(10)
        if self.failure:
            raise self.failure
        super().replace(location, data)


@pytest.fixture
def storage(tmp_path: Path) -> SlowStorage:
    return SlowStorage(tmp_path / "warehouse")


@pytest.fixture
def tables(tmp_path: Path, storage: SlowStorage) -> Iterator[Tables]:
    store = SqliteStore(tmp_path / "catalog.db")
    store.create_namespace(NAME.namespace, {})
    opened = Tables(store, Documents(storage), lambda: time.time_ns() // 1_000_000)
    yield opened
    storage.may_replace.set()
    opened.close()
    store.close()


def commit(tables: Tables, **properties: str) -> str:
    (document,) = tables.commit([TableCommit(NAME, [], [set_properties(**properties)])], is_pipeline=False)
    return document.name


def test_a_commit_is_answered_before_its_hint_is_written_and_hints_keep_their_order(
    tables: Tables, storage: SlowStorage
) -> None:
    tables.create(NAME, table_body(), is_pipeline=False)
    names = [commit(tables, a=str(number)) for number in range(5)]
    file = Path(tables.load(NAME).location.removeprefix("file://")).parent / HINT_FILE
    assert not file.exists()
    storage.may_replace.set()
    tables.settle()
    assert file.read_text() == names[-1]


def test_a_late_hint_does_not_bring_back_the_folder_of_a_purged_table(tables: Tables, storage: SlowStorage) -> None:
    document, _ = tables.create(NAME, table_body(), is_pipeline=False)
    assert document
    folder = Path(document.metadata["location"].removeprefix("file://"))
    threading.Timer(0.05, storage.may_replace.set).start()
    tables.drop(NAME, is_purging=True, is_forced=False)
    assert not folder.exists()
    tables.settle()
    assert not folder.exists()


def test_what_was_handed_over_is_done_before_the_catalog_is_closed(tables: Tables, storage: SlowStorage) -> None:
    document, _ = tables.create(NAME, table_body(), is_pipeline=False)
    assert document
    threading.Timer(0.05, storage.may_replace.set).start()
    tables.close()
    assert (Path(document.location.removeprefix("file://")).parent / HINT_FILE).read_text() == document.name


def test_a_hint_that_cannot_be_written_is_logged_and_no_error_of_the_commit(
    tables: Tables, storage: SlowStorage, caplog: pytest.LogCaptureFixture
) -> None:
    storage.failure = OSError(5, "the disk is broken")
    storage.may_replace.set()
    tables.create(NAME, table_body(), is_pipeline=False)
    commit(tables, a="1")
    tables.settle()
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert {record.getMessage() for record in warned} == {"what follows a commit failed"}


def test_who_hands_over_too_much_waits_until_some_of_it_is_done() -> None:
    afterwards, gate = Afterwards(waiting_max=2), threading.Event()
    afterwards.do(gate.wait)
    afterwards.do(gate.wait)
    third = threading.Thread(target=afterwards.do, args=(gate.wait,))
    third.start()
    third.join(0.1)
    assert third.is_alive()
    gate.set()
    third.join(5)
    assert not third.is_alive()
    afterwards.close()
