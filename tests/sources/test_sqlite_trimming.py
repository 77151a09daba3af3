"""The outbox is trimmed rarely, and never so that a transaction of the application fails."""

from __future__ import annotations

import sqlite3
import threading

import pytest

from dolake.sources.base import Standing
from dolake.sources.sqlite import SqliteSource, enable_cdc
from dolake.sources.sqlite import trimming as trimming_module
from dolake.sources.sqlite.trimming import TrimRules
from tests.support.followed import Followed, merged
from tests.support.mirror import Mirror

NOW = TrimRules(idle_s=0)
NEVER = TrimRules(idle_s=1e9)


@pytest.fixture(params=["WAL", "DELETE"])
def app(app: Followed, request: pytest.FixtureRequest) -> Followed:
    app.do(f"PRAGMA journal_mode = {request.param}")
    app.do("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    enable_cdc(app.path)
    app.do("INSERT INTO t VALUES (1, 1), (2, 2)")
    app.listen()
    return app


def is_wal(app: Followed) -> bool:
    return bool(app.do("PRAGMA journal_mode")[0][0] == "wal")


def opened(app: Followed, rules: TrimRules) -> SqliteSource:
    source = SqliteSource(app.path, trim_rules=rules)
    source.resume(app.standing)
    return source


def run(app: Followed, source: SqliteSource, *, looks: int = 20) -> None:
    for _ in range(looks):
        if source.has_work() and (piece := source.look()):
            app.take(piece)
            source.acknowledge(piece)


def kept(app: Followed) -> list[int]:
    return [number for (number,) in app.do("SELECT seq FROM _dolake_outbox WHERE seq > 0 ORDER BY seq")]


def test_what_the_lake_has_goes_and_the_event_at_the_place_stays(app: Followed) -> None:
    highest = kept(app)[-1]
    source = opened(app, NOW)
    run(app, source)
    assert kept(app) == [highest]
    app.do("INSERT INTO t VALUES (3, 3), (4, 4)")
    assert kept(app) == [highest, highest + 1, highest + 2], "numbers are never used again"
    run(app, source)
    assert kept(app) == [highest + 2]
    source.close()
    app.do("DELETE FROM t")
    app.assert_same("t")
    assert kept(app)[-1] == highest + 6


def test_what_the_lake_has_not_acknowledged_stays(app: Followed) -> None:
    source = opened(app, NOW)
    before = kept(app)
    app.do("INSERT INTO t VALUES (3, 3), (4, 4)")
    for _ in range(20):
        if source.has_work():
            source.look()
    source.close()
    assert kept(app)[-3:] == [before[-1], before[-1] + 1, before[-1] + 2]


def test_a_file_that_is_in_use_is_trimmed_in_wal_only_when_it_is_quiet_or_large(app: Followed) -> None:
    source = opened(app, NEVER)
    before = kept(app)
    assert source._trimmer.trim(source._store, source._acked) != is_wal(app)
    if is_wal(app):
        assert kept(app) == before
        source._trimmer._rules = TrimRules(idle_s=1e9, size_max_bytes=1)
        assert source._trimmer.trim(source._store, source._acked)
    assert len(kept(app)) == 1
    source.close()


@pytest.mark.parametrize("rows", [1, 40])
def test_an_outbox_is_large_by_its_bytes_and_not_by_its_events(app: Followed, rows: int) -> None:
    if not is_wal(app):
        pytest.skip("without WAL the size does not matter")
    source = opened(app, TrimRules(idle_s=1e9, size_max_bytes=20_000_000))
    for number in range(rows):
        app.do("INSERT INTO t VALUES (?, zeroblob(1000000))", 100 + number)
    run(app, source, looks=100)
    assert source._trimmer.trim(source._store, source._acked) == (rows == 40)
    source.close()


@pytest.mark.parametrize("statement", ["SELECT * FROM t", "INSERT INTO t VALUES (7, 7)"], ids=["reads", "writes"])
def test_it_is_never_trimmed_while_another_transaction_can_be_seen(app: Followed, statement: str) -> None:
    if is_wal(app) and statement.startswith("SELECT"):
        pytest.skip("with WAL a transaction that has only read cannot be seen")
    source = opened(app, NOW)
    before = kept(app)
    other = sqlite3.connect(app.path, isolation_level=None, timeout=0)
    other.execute("BEGIN")
    other.execute(statement).fetchall()
    source._trimmer.trim(source._store, source._acked)
    other.execute("INSERT INTO t VALUES (8, 8)")
    other.execute("COMMIT")
    assert kept(app)[: len(before)] == before
    source._trimmer.trim(source._store, source._acked)
    assert kept(app)[0] == before[-1]
    other.close()
    source.close()


def test_trimming_never_waits_for_a_writer(app: Followed) -> None:
    source = opened(app, NOW)
    other = sqlite3.connect(app.path, isolation_level=None, timeout=0)
    other.execute("BEGIN IMMEDIATE")
    done = threading.Event()

    def trim() -> None:
        source._trimmer.trim(source._store, source._acked)
        done.set()

    thread = threading.Thread(target=trim)
    thread.start()
    assert done.wait(20), "a lock is tried, and not waited for"
    other.execute("COMMIT")
    thread.join()
    other.close()
    source.close()


def test_large_outboxes_are_trimmed_in_parts(app: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trimming_module, "_ROWS_MAX", 10)
    for number in range(10, 60):
        app.do("INSERT INTO t VALUES (?, 1)", number)
    app.listen()
    source = opened(app, NOW)
    count = len(kept(app))
    assert source._trimmer.trim(source._store, source._acked)
    assert count - 12 <= len(kept(app)) <= count - 9
    source._read_head()
    run(app, source)
    assert len(kept(app)) == 1
    source.close()
    app.assert_same("t")


def test_a_lake_restored_to_its_very_first_state_is_noticed_when_the_outbox_was_trimmed(app: Followed) -> None:
    source = SqliteSource(app.path, trim_rules=NOW)
    source.resume(Standing(0, 0))
    first = source.look()
    assert first is not None
    source.close()
    source = opened(app, NOW)
    run(app, source)
    source.close()
    app.mirror, app.standing = Mirror(), Standing(0, 0, merged({}, first.state))
    app.do("INSERT INTO t VALUES (5, 5)")
    app.assert_same("t")
