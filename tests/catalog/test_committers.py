"""Many writers at once, and a server that is killed while they write: nothing answered is lost, nothing is half."""

from __future__ import annotations

import http.client
import json
import random
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dolake.catalog.register import registered_table_metadata
from tests.catalog.asking import Asker, lineage, main_is, set_properties, snapshot_updates
from tests.catalog.examples import Json
from tests.support.server import ServerProcess

WRITERS = 16
TABLES = ("a", "b", "c")
COMMITS_BETWEEN_KILLS = 25


@pytest.mark.slow
def test_of_sixteen_writers_every_success_is_in_the_lineage_once(ask: Asker, ns: str) -> None:
    ask.table(ns)
    table = f"{ns}/tables/t"

    def write(writer: int) -> list[int]:
        """Six commits: load, add a snapshot on top, and try again from the load when somebody was faster."""
        done: list[int] = []
        while len(done) < 6:
            metadata = ask("GET", table).metadata
            id_ = writer * 1000 + len(done) + 1
            reply = ask.commit(table, *snapshot_updates(metadata, id_), needs=[main_is(metadata)])
            assert reply.status in (200, 409), reply
            if reply.status == 200:
                assert reply.metadata["current-snapshot-id"] == id_
                done.append(id_)
        return done

    with ThreadPoolExecutor(WRITERS) as pool:
        succeeded = [id_ for ids in pool.map(write, range(1, WRITERS + 1)) for id_ in ids]
    metadata = ask("GET", table).metadata
    chain = lineage(metadata)
    assert sorted(chain) == sorted(succeeded)
    assert len(metadata["snapshots"]) == len(chain) == WRITERS * 6
    sequence = {each["snapshot-id"]: each["sequence-number"] for each in metadata["snapshots"]}
    assert [sequence[id_] for id_ in chain] == list(range(1, len(chain) + 1))


def test_writers_who_require_nothing_of_each_other_all_succeed_and_none_is_lost(ask: Asker, ns: str) -> None:
    ask.table(ns)

    def write(writer: int) -> int:
        return ask.commit(f"{ns}/tables/t", set_properties(**{f"writer-{writer}": "was here"})).status

    with ThreadPoolExecutor(WRITERS) as pool:
        statuses = list(pool.map(write, range(WRITERS * 2)))
    assert Counter(statuses) == {200: WRITERS * 2}
    properties = ask("GET", f"{ns}/tables/t").metadata["properties"]
    assert {f"writer-{writer}" for writer in range(WRITERS * 2)} <= set(properties)


def test_of_writers_who_create_the_same_name_one_succeeds(ask: Asker, ns: str) -> None:
    with ThreadPoolExecutor(WRITERS) as pool:
        tables = [pool.submit(ask.table, ns, "same") for _ in range(WRITERS // 2)]
        views = [pool.submit(ask.view, ns, "same") for _ in range(WRITERS // 2)]
        statuses = Counter(each.result().status for each in tables + views)
    assert statuses == {200: 1, 409: WRITERS - 1}


def test_transactions_that_name_tables_in_any_order_do_not_wait_for_each_other_for_ever(ask: Asker, ns: str) -> None:
    names = ["p", "q", "r"]
    for each in names:
        ask.table(ns, each)

    def write(number: int) -> int:
        mixed = random.Random(number).sample(names, 3)
        changes = [
            {
                "identifier": {"namespace": [ns.rpartition("/")[2]], "name": each},
                "updates": [set_properties(**{f"by-{number}": "x"})],
            }
            for each in mixed
        ]
        return ask("POST", "/transactions/commit", {"table-changes": changes}).status

    with ThreadPoolExecutor(WRITERS) as pool:
        assert Counter(pool.map(write, range(30))) == {204: 30}
    for each in names:
        properties = ask("GET", f"{ns}/tables/{each}").metadata["properties"]
        assert {f"by-{number}" for number in range(30)} <= set(properties)


# --- killed while it commits -----------------------------------------------------------------------------------------


class Driver:
    """Commits round after round and remembers what was answered. A round without an answer may have happened or not."""

    def __init__(self, ask: Asker) -> None:
        self.ask, self.ns = ask, ask.namespace("shop")
        self.uuids = {each: ask.table(self.ns, each).metadata["table-uuid"] for each in TABLES}
        self.answered: list[tuple[int, tuple[str, ...]]] = []
        self.unknown: list[tuple[int, tuple[str, ...]]] = []
        self.round = 0

    def commit_one(self) -> None:
        """Odd rounds change one table, even rounds all three."""
        self.round += 1
        names = TABLES if self.round % 2 == 0 else (TABLES[self.round // 2 % 3],)
        try:
            loaded = {each: self.ask("GET", f"{self.ns}/tables/{each}").metadata for each in names}
            status = self._send(names, loaded)
        except (OSError, http.client.HTTPException):
            self.unknown.append((self.round, names))
            raise
        assert status in (200, 204), status
        self.answered.append((self.round, names))

    def _send(self, names: tuple[str, ...], loaded: dict[str, Json]) -> int:
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        bodies = [
            {"requirements": [main_is(loaded[each])], "updates": snapshot_updates(loaded[each], self.round)}
            for each in names
        ]
        if len(names) == 1:
            return self.ask("POST", f"{self.ns}/tables/{names[0]}", bodies[0], headers).status
        changes = [
            body | {"identifier": {"namespace": ["shop"], "name": each}}
            for each, body in zip(names, bodies, strict=True)
        ]
        return self.ask("POST", "/transactions/commit", {"table-changes": changes}, headers).status

    def check(self) -> None:
        """Every pointer names a complete file, every answered round is there once, no round is in some tables only."""
        chains = {}
        for each in TABLES:
            reply = self.ask("GET", f"{self.ns}/tables/{each}")
            on_disk = json.loads(Path(reply.body["metadata-location"].removeprefix("file://")).read_bytes())
            assert on_disk == reply.metadata
            registered_table_metadata(on_disk)
            assert reply.metadata["table-uuid"] == self.uuids[each]
            chain = chains[each] = lineage(reply.metadata)
            assert chain == sorted(set(chain))
            assert len(reply.metadata["snapshots"]) == len(chain)
        for number, names in self.answered:
            assert all(number in chains[each] for each in names), f"round {number} was answered and is lost"
        for number, names in self.unknown:
            assert len({number in chains[each] for each in names}) == 1, f"round {number} is there by half"
        known = {number for number, _ in self.answered + self.unknown}
        assert {number for chain in chains.values() for number in chain} <= known


@pytest.mark.own_lake
@pytest.mark.slow
@pytest.mark.parametrize("kills", [3, pytest.param(8, marks=pytest.mark.chaos)])
def test_a_server_killed_again_and_again_keeps_every_answered_commit_and_no_half(tmp_path: Path, kills: int) -> None:
    chance = random.Random(4)
    with ServerProcess(tmp_path) as process:
        driver = Driver(Asker(process.url))
        for _ in range(kills):
            # The kill comes while round `at` is under way, after a part of a millisecond that only chance knows.
            at = driver.round + COMMITS_BETWEEN_KILLS
            while driver.round < at - 1:
                driver.commit_one()
            killer = threading.Timer(chance.uniform(0, 0.012), process.kill)
            killer.start()
            try:
                while True:
                    driver.commit_one()
            except (OSError, http.client.HTTPException):
                pass
            killer.join()
            process.start()
            driver.check()
        assert driver.round >= COMMITS_BETWEEN_KILLS * kills
        assert len(driver.unknown) == kills
        for _ in range(3):
            driver.commit_one()
        driver.check()
