"""Two processes on one Postgres commit to the same tables, while their connections are ended under them."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing

import pytest

from dolake.catalog.base import Create, Move, Name, Pointer
from dolake.catalog.errors import CommitConflict
from dolake.catalog.postgres import PostgresStore
from tests.support.postgres import PostgresServer

SHOP = ("shop",)
ALONE, LEFT, RIGHT = (Name(SHOP, name) for name in ("alone", "left", "right"))
COMMITS = 300
_END_EVERY_S = 0.25


@pytest.mark.slow
def test_two_processes_lose_and_double_no_commit_while_their_connections_are_ended(postgres: PostgresServer) -> None:
    schema = postgres.new_schema()
    with closing(PostgresStore(postgres.url, schema)) as store:
        store.create_namespace(SHOP, {})
        store.commit([Create(name, "table", str(name), "start") for name in (ALONE, LEFT, RIGHT)])
        command = [sys.executable, "-m", "tests.catalog.test_two_committers", postgres.url, schema]
        writers = [subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in ("a", "b")]
        ended = 0
        try:
            while any(writer.poll() is None for writer in writers):
                ended += postgres.end_links()
                (left, right), _ = store.snapshot([LEFT, RIGHT])
                assert (left.version, left.metadata_location) == (right.version, right.metadata_location)
                time.sleep(_END_EVERY_S)
        finally:
            for writer in writers:
                writer.kill()
        said = [writer.communicate()[0].split() for writer in writers]
        assert [writer.returncode for writer in writers] == [0, 0]
        assert said == [[str(COMMITS), str(COMMITS)]] * 2
        assert ended > 10
        # Each commit counts its table up by one: fewer were lost, more were done twice.
        assert {name: store.find(name, "table").version for name in (ALONE, LEFT, RIGHT)} == dict.fromkeys(
            (ALONE, LEFT, RIGHT), 1 + 2 * COMMITS
        )


def _write(url: str, schema: str, writer: str) -> None:
    """Commit to one table, and to two in one transaction; say how many of each were answered."""
    with closing(PostgresStore(url, schema)) as store:
        for number in range(COMMITS):
            _commit(store, (ALONE,), f"{writer}{number}")
            _commit(store, (LEFT, RIGHT) if number % 2 else (RIGHT, LEFT), f"{writer}{number}")
    print(COMMITS, COMMITS)


def _commit(store: PostgresStore, names: tuple[Name, ...], location: str) -> None:
    while True:
        seen: list[Pointer] = store.snapshot(names)[0]
        try:
            return store.commit([Move(each.name, "table", each.version, location) for each in seen])
        except CommitConflict:
            continue


if __name__ == "__main__":
    _write(*sys.argv[1:])
