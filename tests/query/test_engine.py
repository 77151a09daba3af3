"""DuckDB as it may be used: it reads the given folders and nothing else, it can be stopped, and its errors are ours."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dolake.errors import (
    DoLakeError,
    ForbiddenSql,
    InvalidSql,
    QueryCancelled,
    QueryOutOfMemory,
    QueryTimeout,
    QueryUnavailable,
)
from dolake.query.engine import Engine
from dolake.query.watch import Stop, Watch
from dolake.settings import QuerySettings
from tests.support.blocking import wait_until
from tests.verify.lake import HandLake, insert

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
SETTINGS = QuerySettings(memory_max_bytes=256 << 20, spill_max_bytes=16 << 20, threads=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("warehouse")
    pq.write_table(pa.table({"id": range(10_000), "city": ["Oslo", "Rome"] * 5_000}), found / "people.parquet")
    return found


@pytest.fixture(scope="module")
def engine(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = Engine(SETTINGS, [folder], tmp_path_factory.mktemp("scratch"))
    yield engine
    engine.close()


def rows(engine: Engine, sql: str, *args: Any, **options: Any) -> list[tuple[Any, ...]]:
    with engine.start(sql, *args, **options) as running:
        batches = list(running.batches())
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


# --- what it answers -------------------------------------------------------------------------------------------------


def test_files_of_the_folders_are_read(engine: Engine, folder: Path) -> None:
    people = f"read_parquet('{folder}/people.parquet')"
    assert rows(engine, f"SELECT city, count(*) FROM {people} GROUP BY city ORDER BY city") == [  # noqa: S608
        ("Oslo", 5_000),
        ("Rome", 5_000),
    ]


def test_iceberg_tables_of_the_folders_are_read(tmp_path: Path) -> None:
    lake = HandLake(tmp_path / "home")
    lake.publish(insert("a", id=1), insert("b", id=2))
    lake.close()
    engine = Engine(SETTINGS, [tmp_path / "home" / "warehouse"], tmp_path / "scratch")
    (metadata,) = sorted((tmp_path / "home").rglob("warehouse/default/items/metadata/*.metadata.json"))[-1:]
    try:
        assert rows(engine, f"SELECT id FROM iceberg_scan('{metadata}') ORDER BY id") == [(1,), (2,)]  # noqa: S608
    finally:
        engine.close()


def test_columns_have_their_names_and_duckdbs_types(engine: Engine) -> None:
    sql = "SELECT 1::BIGINT AS a, 1.5::DECIMAL(9, 2) AS b, now() AS c, [1] AS d, {'x': 1} AS e"
    with engine.start(sql) as running:
        assert running.columns == [
            ("a", "BIGINT"),
            ("b", "DECIMAL(9,2)"),
            ("c", "TIMESTAMP WITH TIME ZONE"),
            ("d", "INTEGER[]"),
            ("e", "STRUCT(x INTEGER)"),
        ]
        assert running.fields_of(4) == [("x", "INTEGER")]
        assert running.schema.names == ["a", "b", "c", "d", "e"]


def test_parameters_come_by_place_and_by_name(engine: Engine) -> None:
    assert rows(engine, "SELECT $1 + $2", [1, 2]) == [(3,)]
    assert rows(engine, "SELECT $b - $a", {"a": 1, "b": 5}) == [(4,)]
    with pytest.raises(InvalidSql, match="not provided"):
        rows(engine, "SELECT $1 + $2", [1])


def test_arrow_tables_have_their_names_for_one_query_only(engine: Engine) -> None:
    table = pa.table({"id": [1, 2, 3]})
    references = sys.getrefcount(table)
    assert rows(engine, "SELECT sum(id) FROM tail_1", None, {"tail_1": table}) == [(6,)]
    assert sys.getrefcount(table) == references, "it is let go"
    with pytest.raises(InvalidSql, match="tail_1 does not exist"):
        rows(engine, "SELECT sum(id) FROM tail_1")


def test_variables_of_our_own_are_no_tables(engine: Engine) -> None:
    people = pa.table({"id": [1]})
    with pytest.raises(InvalidSql, match="people does not exist"):
        rows(engine, "SELECT * FROM people")
    assert people.num_rows == 1


def test_times_are_utc(engine: Engine) -> None:
    assert rows(
        engine, "SELECT current_setting('TimeZone'), TIMESTAMPTZ '2025-01-14' = make_timestamptz(1736812800000000)"
    ) == [("UTC", True)]


def test_a_long_answer_comes_in_batches_and_may_be_left_early(engine: Engine) -> None:
    with engine.start("SELECT i FROM range(1_000_000_000) t(i)") as running:
        batches = running.batches()
        assert next(batches).num_rows + next(batches).num_rows > 0
    assert rows(engine, "SELECT 1") == [(1,)]


# --- what it refuses -------------------------------------------------------------------------------------------------

OUTSIDE = [
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_blob('/proc/self/environ')",
    "SELECT * FROM '/etc/passwd.parquet'",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM glob('*')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM read_text('{folder}/../outside.txt')",
    "SELECT * FROM read_text('{folder}x/outside.txt')",
    "SELECT * FROM read_text('file:///etc/passwd')",
    "SELECT * FROM read_parquet('http://127.0.0.1:1/x.parquet')",
    "SELECT * FROM read_parquet('https://example.com/x.parquet')",
    "SELECT * FROM read_parquet('s3://bucket/x.parquet')",
    "SELECT * FROM iceberg_scan('/etc')",
    "SELECT * FROM iceberg_scan('s3://bucket/table')",
    "SELECT getenv('HOME')",
    "SELECT * FROM read_duckdb('/etc/x.db')",
    "ATTACH '/tmp/x.db'",
    "ATTACH '{folder}/x.db'",
    "ATTACH 'lake' AS lake (TYPE iceberg, ENDPOINT 'http://127.0.0.1:1', AUTHORIZATION_TYPE 'none')",
    "COPY (SELECT 1) TO '{folder}/x.csv'",
    "COPY (SELECT 1) TO '/tmp/x.csv'",
    "EXPORT DATABASE '{folder}/x'",
    "INSTALL spatial",
    "LOAD spatial",
    "SET threads = 1",
    "SET allowed_directories = ['/']",
    "SET enable_external_access = true",
    "SET VARIABLE x = 1",
    "RESET lock_configuration",
    "PRAGMA enable_profiling",
    "CALL enable_logging()",
    "CREATE TABLE t AS SELECT 1",
    "CREATE SECRET s (TYPE s3)",
    "DROP TABLE t",
    "INSERT INTO t VALUES (1)",
    "CHECKPOINT",
    "EXPLAIN ANALYZE SELECT 1",
    "SELECT 1; SELECT 2",
    "",
]


@pytest.mark.parametrize("statement", OUTSIDE)
def test_nothing_outside_the_folders_can_be_reached_or_changed(engine: Engine, folder: Path, statement: str) -> None:
    (folder.parent / "outside.txt").write_text("secret")
    before = sorted(folder.rglob("*"))
    with pytest.raises((ForbiddenSql, InvalidSql, QueryUnavailable)) as caught:
        rows(engine, statement.format(folder=folder))
    assert "secret" not in str(caught.value)
    assert sorted(folder.rglob("*")) == before
    assert not engine.is_broken
    assert rows(engine, "SELECT 1") == [(1,)]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SELECT nothing FROM range(1)", "nothing"),
        ("SELECT * FROM nowhere", "nowhere does not exist"),
        ("SELEC 1", "syntax error"),
        ("SELECT CAST('x' AS INTEGER)", "Could not convert"),
        ("SELECT nofunction(1)", "nofunction"),
        ("SELECT 1 + 'x'::BLOB", "No function matches"),
        ("SELECT CASE WHEN i > 9000 THEN CAST('x' || i AS INTEGER) ELSE 1 END FROM range(10_000) t(i)", "Could not"),
        ("SELECT '12:00:00+02'::TIMETZ", "TIME WITH TIME ZONE"),
        ("SELECT [1::UHUGEINT]", "UHUGEINT"),
    ],
)
def test_a_wrong_statement_is_told_as_duckdb_tells_it(engine: Engine, statement: str, message: str) -> None:
    with pytest.raises(InvalidSql) as caught:
        rows(engine, statement)
    assert message in caught.value.message
    assert "LINE 1" not in caught.value.message


def test_errors_do_not_show_where_the_lake_is(engine: Engine, folder: Path) -> None:
    with pytest.raises(DoLakeError) as caught:
        rows(engine, f"SELECT nothing FROM read_parquet('{folder}/people.parquet')")  # noqa: S608
    assert str(folder) not in str(caught.value)
    with pytest.raises(QueryUnavailable) as missing:
        rows(engine, f"SELECT * FROM read_parquet('{folder}/gone.parquet')")  # noqa: S608
    assert str(folder) not in str(missing.value)


# --- how it is stopped -----------------------------------------------------------------------------------------------


def test_a_query_that_takes_too_long_is_stopped_and_the_next_one_works(engine: Engine) -> None:
    began = time.monotonic()
    with pytest.raises(QueryTimeout, match="200 ms"):
        rows(engine, ENDLESS, timeout_ms=200)
    assert time.monotonic() - began < 4
    assert rows(engine, "SELECT 1") == [(1,)]


def test_time_also_runs_while_nobody_takes_the_rows(engine: Engine) -> None:
    with engine.start("SELECT i FROM range(1_000_000_000) t(i)", timeout_ms=100) as running:
        batches = running.batches()
        next(batches)
        wait_until(lambda: running.stop.error)
        with pytest.raises(QueryTimeout):
            list(batches)


def test_a_query_is_cancelled_from_another_thread(engine: Engine) -> None:
    stop = Stop()
    threading.Timer(0.2, stop.ask, [QueryCancelled("enough")]).start()
    with engine.watch.over(stop), pytest.raises(QueryCancelled, match="enough"):
        rows(engine, ENDLESS, stop=stop)
    assert rows(engine, "SELECT 1") == [(1,)]


def test_a_query_cancelled_before_it_begins_does_not_begin(engine: Engine) -> None:
    stop = Stop()
    stop.ask(QueryCancelled("never mind"))
    with pytest.raises(QueryCancelled, match="never mind"):
        rows(engine, "SELECT 1", stop=stop)


def test_a_query_that_streams_is_cancelled_between_two_batches(engine: Engine) -> None:
    with engine.start("SELECT i FROM range(1_000_000_000) t(i)") as running:
        batches = running.batches()
        next(batches)
        running.interrupt()
        with pytest.raises(QueryCancelled):
            list(batches)


@pytest.mark.slow
@pytest.mark.parametrize(
    "hungry",
    [
        "SELECT list(i) FROM range(1_000_000_000) t(i)",
        "SELECT i FROM range(20_000_000) t(i) ORDER BY hash(i)",
        "SELECT string_agg('x' || i) FROM range(300_000_000) t(i)",
    ],
)
def test_a_query_that_needs_too_much_memory_and_disk_is_ended(engine: Engine, hungry: str) -> None:
    with pytest.raises(QueryOutOfMemory):
        rows(engine, hungry, timeout_ms=60_000)
    assert rows(engine, "SELECT 1") == [(1,)]


@pytest.mark.slow
def test_what_fits_on_disk_is_not_ended(tmp_path: Path) -> None:
    engine = Engine(QuerySettings(memory_max_bytes=64 << 20, spill_max_bytes=1 << 30, threads=1), [], tmp_path)
    try:
        assert rows(engine, "SELECT count(*) FROM (SELECT DISTINCT i FROM range(8_000_000) t(i))") == [(8_000_000,)]
        assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing is left behind"
    finally:
        engine.close()


# --- the watch -------------------------------------------------------------------------------------------------------


class Memory:
    """As much as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.resident = 0
        monkeypatch.setattr(Watch, "resident_bytes", lambda _: self.resident)


def test_when_memory_runs_out_all_queries_end_before_the_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(monkeypatch)
    told: list[str] = []
    watch = Watch(memory_max_bytes=100, on_full=lambda: told.append("full"))
    with watch.over(Stop()) as one, watch.over(Stop()) as other:
        memory.resident = 120
        wait_until(lambda: one.error is not None and other.error is not None)
        assert isinstance(one.error, QueryOutOfMemory)
        assert not told
        memory.resident = 160
        wait_until(lambda: bool(told))
    watch.close()


def test_memory_that_does_not_come_back_is_told_when_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(monkeypatch)
    told: list[str] = []
    watch = Watch(memory_max_bytes=100, on_full=lambda: told.append("full"))
    memory.resident = 120
    wait_until(lambda: bool(told))
    watch.close()


def test_a_query_that_does_not_stop_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dolake.query.watch.STUCK_AFTER_S", 0.1)
    told: list[Stop] = []
    interrupts: list[int] = []
    watch = Watch(on_stuck=told.append)
    with watch.over(Stop(50)) as stop, stop.reaching(lambda: interrupts.append(1)):
        wait_until(lambda: bool(told))
        asked = len(interrupts)
        wait_until(lambda: len(interrupts) > asked + 3)  # it is asked again and again
    assert told == [stop]
    watch.close()


def test_a_query_outside_duckdb_has_more_time_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dolake.query.watch.STUCK_AFTER_S", 0.05)
    told: list[Stop] = []
    looks_s: list[float] = []

    class SeenStop(Stop):
        def look(self, now_s: float) -> None:
            looks_s.append(now_s)
            super().look(now_s)

    watch = Watch(on_stuck=told.append)
    with watch.over(SeenStop(10)) as stop:
        wait_until(lambda: stop.error and looks_s[-1] > looks_s[0] + 0.2)
    assert not told
    watch.close()
