"""Spark SQL on a running server: everything its Iceberg extensions offer, also under the address of the seeds."""

# ruff: noqa: S608 - the only text that goes into a statement is the name of the test's own namespace, and numbers

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.catalog.rest import RestCatalog
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.support.server import ServerProcess, plans_made
from tests.support.spark import add_catalog, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

Row = tuple[Any, ...]
Sql = Callable[[str], list[Row]]


@pytest.fixture(params=["lake"])
def sql(request: pytest.FixtureRequest, spark: SparkSession, namespace: str) -> Sql:
    """Run a statement inside the test's namespace; its rows come as tuples."""
    spark.sql(f"USE {request.param}.{namespace}")
    return functools.partial(rows_of, spark)


def history(sql: Sql, table: str) -> list[int]:
    """The ids of a table's snapshots, oldest first."""
    return [row[0] for row in sql(f"SELECT snapshot_id FROM {table}.snapshots ORDER BY committed_at")]


# --- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sql", ["lake", "seeds"], indirect=True)
def test_rows_are_inserted_merged_updated_and_deleted(sql: Sql) -> None:
    sql("CREATE TABLE users (id BIGINT NOT NULL, name STRING) USING iceberg TBLPROPERTIES ('team' = 'blue')")
    sql("INSERT INTO users VALUES (1, 'ada'), (2, 'bob'), (3, 'cyd')")
    sql("CREATE TABLE news (id BIGINT, name STRING)")
    sql("INSERT INTO news VALUES (2, NULL), (3, 'cid'), (4, 'dan')")
    sql(
        "MERGE INTO users USING news ON users.id = news.id WHEN MATCHED AND news.name IS NULL THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET name = news.name WHEN NOT MATCHED THEN INSERT *"
    )
    assert sql("SELECT * FROM users ORDER BY id") == [(1, "ada"), (3, "cid"), (4, "dan")]
    sql("UPDATE users SET name = upper(name) WHERE id > 1")
    sql("DELETE FROM users WHERE id = 4")
    assert sql("SELECT * FROM users ORDER BY id") == [(1, "ada"), (3, "CID")]
    sql("INSERT OVERWRITE users VALUES (9, 'zoe')")
    assert sql("SELECT * FROM users") == [(9, "zoe")]
    assert ("team", "blue") in sql("SHOW TBLPROPERTIES users")
    assert {row[1] for row in sql("SHOW TABLES")} == {"users", "news"}
    sql("DROP TABLE news PURGE")
    assert [row[1] for row in sql("SHOW TABLES")] == ["users"]


def test_namespaces_nest_and_keep_their_properties(sql: Sql, namespace: str) -> None:
    inner = f"lake.{namespace}.eu"
    sql(f"CREATE NAMESPACE {inner} WITH PROPERTIES ('region' = 'eu')")
    sql(f"ALTER NAMESPACE {inner} SET PROPERTIES ('team' = 'north')")
    assert sql(f"SHOW NAMESPACES IN lake.{namespace}") == [(f"{namespace}.eu",)]
    (properties,) = (row[1] for row in sql(f"DESCRIBE NAMESPACE EXTENDED {inner}") if row[0] == "Properties")
    assert "(team,north)" in properties
    sql(f"CREATE TABLE {inner}.users AS SELECT 1 AS id")
    assert sql(f"SELECT * FROM {inner}.users") == [(1,)]
    sql(f"DROP TABLE {inner}.users")
    sql(f"DROP NAMESPACE {inner}")
    assert sql(f"SHOW NAMESPACES IN lake.{namespace}") == []


def test_who_forgets_the_namespace_is_told_that_nothing_was_found(sql: Sql) -> None:
    sql("CREATE TABLE users (id BIGINT)")
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        sql("SELECT * FROM users.snapshots")


def test_a_schema_evolves_and_old_rows_follow(sql: Sql) -> None:
    sql("CREATE TABLE users (id INT, name STRING, address STRUCT<city: STRING>)")
    sql("INSERT INTO users VALUES (1, 'ada', struct('London'))")
    sql("ALTER TABLE users ADD COLUMNS (email STRING COMMENT 'where to write to' FIRST, address.zip STRING)")
    sql("ALTER TABLE users RENAME COLUMN name TO full_name")
    sql("ALTER TABLE users ALTER COLUMN id TYPE BIGINT")
    sql("INSERT INTO users VALUES ('g@navy.mil', 1099511627776, 'grace', struct('Arlington', '22201'))")
    assert sql("SELECT email, id, full_name, address.city, address.zip FROM users ORDER BY id") == [
        (None, 1, "ada", "London", None),
        ("g@navy.mil", 2**40, "grace", "Arlington", "22201"),
    ]
    sql("ALTER TABLE users DROP COLUMN email")
    assert [row[0] for row in sql("SHOW COLUMNS IN users")] == ["id", "full_name", "address"]


# --- tables as a whole -----------------------------------------------------------------------------------------------


def test_a_table_is_created_and_replaced_from_a_query_in_one_step(sql: Sql, namespace: str) -> None:
    sql("CREATE TABLE numbers USING iceberg PARTITIONED BY (bucket(2, id)) AS SELECT id FROM range(5)")
    assert sql("SELECT count(*), sum(id) FROM numbers") == [(5, 10)]
    sql("REPLACE TABLE numbers USING iceberg TBLPROPERTIES ('kind' = 'squares') AS SELECT id * id AS sq FROM range(4)")
    assert sql("SELECT sq FROM numbers ORDER BY sq") == [(0,), (1,), (4,), (9,)]
    first, second = history(sql, f"{namespace}.numbers")
    assert sql(f"SELECT count(*) FROM numbers VERSION AS OF {first}") == [(5,)]
    sql("CREATE OR REPLACE TABLE numbers (word STRING)")
    assert sql("SELECT * FROM numbers") == []
    assert history(sql, f"{namespace}.numbers") == [first, second]
    sql("CREATE OR REPLACE TABLE fresh AS SELECT 1 AS id")
    assert sql("SELECT * FROM fresh") == [(1,)]


def test_a_create_from_a_query_that_fails_leaves_no_table(sql: Sql) -> None:
    with pytest.raises(Exception, match="too bad"):
        sql("CREATE TABLE numbers AS SELECT IF(id = 1, raise_error('too bad'), id) AS id FROM range(3)")
    assert sql("SHOW TABLES") == []


def test_a_table_is_renamed_and_its_name_is_free_again(sql: Sql) -> None:
    sql("CREATE TABLE users AS SELECT 1 AS id")
    sql("ALTER TABLE users RENAME TO people")
    sql("CREATE TABLE users AS SELECT 2 AS id")
    assert sql("SELECT * FROM people") == [(1,)]
    assert sql("SELECT * FROM users") == [(2,)]


def test_partitions_change_and_old_files_stay_readable(sql: Sql, namespace: str) -> None:
    sql("CREATE TABLE visits (id BIGINT, seen TIMESTAMP, country STRING) PARTITIONED BY (days(seen))")
    rows = "(1, TIMESTAMP '2026-11-01 12:00:00', 'fr'), (2, TIMESTAMP '2026-11-02 12:00:00', 'de')"
    sql(f"INSERT INTO visits VALUES {rows}")
    sql("ALTER TABLE visits ADD PARTITION FIELD bucket(4, id) AS shard")
    sql("ALTER TABLE visits REPLACE PARTITION FIELD seen_day WITH months(seen)")
    sql("ALTER TABLE visits ADD PARTITION FIELD country")
    sql("ALTER TABLE visits DROP PARTITION FIELD shard")
    sql("ALTER TABLE visits WRITE ORDERED BY id DESC")
    sql(f"INSERT INTO visits VALUES {rows}")
    assert sql("SELECT id, count(*) FROM visits WHERE seen < '2026-11-02' GROUP BY id") == [(1, 2)]
    assert sql(f"SELECT DISTINCT spec_id FROM {namespace}.visits.files ORDER BY spec_id") == [(0,), (4,)]
    assert sql(f"SELECT count(*) FROM {namespace}.visits.partitions") == [(4,)]


# --- time ------------------------------------------------------------------------------------------------------------


def test_time_travel_and_metadata_tables_tell_the_same_story(sql: Sql, namespace: str) -> None:
    sql("CREATE TABLE users (id BIGINT)")
    for id_ in (1, 2, 3):
        sql(f"INSERT INTO users VALUES ({id_})")
    snapshots = sql(
        f"SELECT snapshot_id, committed_at, parent_id, operation FROM {namespace}.users.snapshots ORDER BY committed_at"
    )
    assert [row[3] for row in snapshots] == ["append"] * 3
    assert [row[2] for row in snapshots] == [None, snapshots[0][0], snapshots[1][0]]
    for count, (id_, moment, *_) in enumerate(snapshots, start=1):
        assert sql(f"SELECT count(*) FROM users VERSION AS OF {id_}") == [(count,)]
        # collect() gives moments in the zone of this machine
        instant = moment.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        assert sql(f"SELECT count(*) FROM users TIMESTAMP AS OF '{instant}'") == [(count,)]
    assert sql(f"SELECT count(*) FROM {namespace}.users.files") == [(3,)]
    assert sql(f"SELECT count(*), count_if(is_current_ancestor) FROM {namespace}.users.history") == [(3, 3)]
    assert sql(f"SELECT name, type FROM {namespace}.users.refs") == [("main", "BRANCH")]
    assert sql(f"SELECT sum(added_data_files_count) FROM {namespace}.users.manifests") == [(3,)]
    assert sql(f"SELECT latest_sequence_number FROM {namespace}.users.metadata_log_entries")[-1] == (3,)


def test_where_snapshots_are_gone_in_the_middle_each_that_stays_is_found_by_id_and_time_in_every_engine(
    sql: Sql, spark: SparkSession, namespace: str, duck: DuckDBPyConnection, catalog: RestCatalog
) -> None:
    """Java's own catalogs clear the log up to the last that went: then Spark fails here and DuckDB finds no rows."""
    sql("CREATE TABLE users (id BIGINT)")
    for id_ in range(1, 7):
        sql(f"INSERT INTO users VALUES ({id_})")
        if id_ == 2:
            sql("ALTER TABLE users CREATE TAG second")
    made = catalog.load_table((namespace, "users"))
    counts = {each.snapshot_id: count for count, each in enumerate(made.snapshots(), start=1)}
    gone = [id_ for id_, count in counts.items() if count in (3, 5)]
    made.maintenance.expire_snapshots().by_ids(gone).commit()

    left = catalog.load_table((namespace, "users"))
    assert [counts[each.snapshot_id] for each in left.snapshots()] == [1, 2, 4, 6]
    assert [entry.snapshot_id for entry in left.history()] == [each.snapshot_id for each in left.snapshots()]
    ends_ms = [each.timestamp_ms for each in left.snapshots()[1:]]
    for each, end_ms in zip(left.snapshots(), [*ends_ms, left.snapshots()[-1].timestamp_ms + 1], strict=True):
        count, id_ = counts[each.snapshot_id], each.snapshot_id
        assert left.scan(snapshot_id=id_).count() == count
        assert sql(f"SELECT count(*) FROM users VERSION AS OF {id_}") == [(count,)]
        assert duck.execute(f"SELECT count(*) FROM users AT (VERSION => {id_})").fetchall() == [(count,)]
        for time_ms in (each.timestamp_ms, end_ms - 1):  # up to the next one that is left
            found = left.snapshot_as_of_timestamp(time_ms)
            assert found is not None
            assert found.snapshot_id == id_
            text = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
            assert sql(f"SELECT count(*) FROM users TIMESTAMP AS OF '{text}'") == [(count,)]
            by_time = f"SELECT count(*) FROM users AT (TIMESTAMP => TIMESTAMP '{text}')"
            assert duck.execute(by_time).fetchall() == [(count,)]
    assert sql("SELECT count(*) FROM users VERSION AS OF 'second'") == [(2,)]
    first, last = (left.snapshots()[at].snapshot_id for at in (0, -1))
    between = spark.read.option("start-snapshot-id", first).option("end-snapshot-id", last)
    with pytest.raises(Exception, match="ancestor"):  # and what is gone is not left out silently
        between.table(f"lake.{namespace}.users").collect()
    sql("INSERT INTO users VALUES (7)")  # life goes on behind a gap
    assert sql("SELECT count(*) FROM users") == [(7,)]


def test_branches_and_tags_are_written_read_moved_and_dropped(sql: Sql, namespace: str) -> None:
    sql("CREATE TABLE users AS SELECT 1 AS id")
    sql("ALTER TABLE users CREATE TAG first RETAIN 30 DAYS")
    sql("ALTER TABLE users CREATE BRANCH draft WITH SNAPSHOT RETENTION 2 SNAPSHOTS")
    sql(f"INSERT INTO {namespace}.users.branch_draft VALUES (2)")
    assert sql("SELECT * FROM users") == [(1,)]
    assert sql("SELECT * FROM users VERSION AS OF 'draft' ORDER BY id") == [(1,), (2,)]
    assert sql(
        f"SELECT name, type, max_reference_age_in_ms, min_snapshots_to_keep FROM {namespace}.users.refs ORDER BY name"
    ) == [
        ("draft", "BRANCH", None, 2),
        ("first", "TAG", 30 * 24 * 3600 * 1000, None),
        ("main", "BRANCH", None, None),
    ]
    sql(f"CALL lake.system.fast_forward('{namespace}.users', 'main', 'draft')")
    assert sql("SELECT * FROM users ORDER BY id") == [(1,), (2,)]
    assert sql(f"SELECT * FROM {namespace}.users.tag_first") == [(1,)]
    sql("ALTER TABLE users DROP BRANCH draft")
    sql("ALTER TABLE users DROP TAG first")
    assert sql(f"SELECT name FROM {namespace}.users.refs") == [("main",)]


# --- views -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sql", ["lake", "seeds"], indirect=True)
def test_views_are_created_replaced_described_renamed_and_dropped(
    sql: Sql, catalog: RestCatalog, namespace: str
) -> None:
    sql("CREATE TABLE users AS SELECT id, concat('user ', id) AS name FROM range(3)")
    sql("CREATE VIEW named (who COMMENT 'a name') COMMENT 'all' TBLPROPERTIES ('a' = '1') AS SELECT name FROM users")
    assert sql("SELECT * FROM named ORDER BY who") == [("user 0",), ("user 1",), ("user 2",)]
    sql("CREATE OR REPLACE VIEW named AS SELECT name AS who FROM users WHERE id = 1")
    assert sql("SELECT * FROM named") == [("user 1",)]
    sql("ALTER VIEW named SET TBLPROPERTIES ('b' = '2')")
    assert ("b", "2") in sql("SHOW TBLPROPERTIES named")
    assert [row[1] for row in sql("SHOW VIEWS")] == ["named"]
    assert len(catalog.load_view((namespace, "named")).versions) == 2
    with pytest.raises(Exception, match="already exists"):
        sql("CREATE TABLE named (id BIGINT)")
    sql("ALTER VIEW named RENAME TO called")
    assert sql("SELECT * FROM called") == [("user 1",)]
    sql("DROP VIEW called")
    assert sql("SHOW VIEWS") == []


# --- procedures ------------------------------------------------------------------------------------------------------


def test_a_rollback_brings_back_what_was(sql: Sql, namespace: str) -> None:
    sql("CREATE TABLE users AS SELECT 1 AS id")
    sql("DELETE FROM users")
    first, second = history(sql, f"{namespace}.users")
    assert sql(f"CALL lake.system.rollback_to_snapshot('{namespace}.users', {first})") == [(second, first)]
    assert sql("SELECT * FROM users") == [(1,)]
    assert sql(f"CALL lake.system.set_current_snapshot('{namespace}.users', {second})") == [(first, second)]
    assert sql("SELECT * FROM users") == []


def test_small_files_become_one_and_expired_ones_leave_the_disk(
    sql: Sql, namespace: str, server: ServerProcess
) -> None:
    sql("CREATE TABLE users (id BIGINT)")
    for id_ in (1, 2, 3):
        sql(f"INSERT INTO users VALUES ({id_})")
    data = server.home / "warehouse" / namespace / "users" / "data"
    call = f"CALL lake.system.rewrite_data_files(table => '{namespace}.users', options => map('rewrite-all', 'true'))"
    assert sql(call)[0][:2] == (3, 1)
    assert sql("SELECT * FROM users ORDER BY id") == [(1,), (2,), (3,)]
    assert sql(f"CALL lake.system.rewrite_manifests('{namespace}.users')")
    assert len(list(data.glob("*.parquet"))) == 4
    now = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1)
    expire = f"table => '{namespace}.users', older_than => TIMESTAMP '{now:%Y-%m-%d %H:%M:%S}', retain_last => 1"
    assert sql(f"CALL lake.system.expire_snapshots({expire})")[0][0] == 3
    assert sql("SELECT * FROM users ORDER BY id") == [(1,), (2,), (3,)]
    assert len(history(sql, f"{namespace}.users")) == 1
    assert len(list(data.glob("*.parquet"))) == 1


def test_a_table_is_registered_again_after_it_was_dropped(sql: Sql, namespace: str) -> None:
    sql("CREATE TABLE users AS SELECT 1 AS id")
    file = sql(f"SELECT file FROM {namespace}.users.metadata_log_entries")[-1][0]
    sql("DROP TABLE users")
    sql(f"CALL lake.system.register_table('{namespace}.back', '{file}')")
    assert sql("SELECT * FROM back") == [(1,)]


# --- together with the others ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sql", ["lake", "seeds"], indirect=True)
def test_what_spark_wrote_is_the_same_for_duckdb_and_pyiceberg(
    sql: Sql, duck: DuckDBPyConnection, catalog: RestCatalog, namespace: str
) -> None:
    sql(
        "CREATE TABLE orders (id BIGINT, item STRING, price DECIMAL(10, 2), seen TIMESTAMP_NTZ, tags ARRAY<STRING>, "
        "ship STRUCT<city: STRING, days: INT>) PARTITIONED BY (bucket(4, id)) TBLPROPERTIES "
        "('write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read')"
    )
    sql(
        "INSERT INTO orders SELECT id, concat('item ', id), CAST(id AS DECIMAL(10, 2)) / 4, "
        "TIMESTAMP_NTZ '2026-11-16 00:00:00' + make_interval(0, 0, 0, 0, id), array('a', concat('t', id)), "
        "named_struct('city', IF(id % 2 = 0, 'Paris', NULL), 'days', CAST(id AS INT)) FROM range(20)"
    )
    sql("DELETE FROM orders WHERE id % 5 = 0")
    sql("UPDATE orders SET item = 'changed' WHERE id = 7")
    sql("ALTER TABLE orders RENAME COLUMN item TO thing")
    rows = [(*row[:5], tuple(row[5])) for row in sql("SELECT * FROM orders ORDER BY id")]
    assert len(rows) == 16
    assert rows[0] == (1, "item 1", Decimal("0.25"), dt.datetime(2026, 11, 16, 1), ["a", "t1"], (None, 1))  # noqa: DTZ001
    by_duck = duck.execute("FROM orders ORDER BY id").fetchall()
    assert [(*row[:5], tuple(row[5].values())) for row in by_duck] == rows
    by_pyiceberg = catalog.load_table((namespace, "orders")).scan().to_arrow().sort_by("id").to_pylist()
    assert [(*list(row.values())[:5], tuple(row["ship"].values())) for row in by_pyiceberg] == rows
    assert catalog.load_table((namespace, "orders")).inspect.delete_files().num_rows > 0


def test_spark_reads_at_once_what_the_others_commit(
    sql: Sql, duck: DuckDBPyConnection, catalog: RestCatalog, namespace: str
) -> None:
    sql("CREATE TABLE users (id BIGINT)")
    duck.execute("INSERT INTO users VALUES (1), (2), (3)")
    assert sql("SELECT * FROM users ORDER BY id") == [(1,), (2,), (3,)]
    duck.execute("DELETE FROM users WHERE id = 2")
    catalog.load_table((namespace, "users")).delete("id = 3")
    assert sql("SELECT * FROM users") == [(1,)]


# --- scan planning ---------------------------------------------------------------------------------------------------


@pytest.fixture
def planned(sql: Sql, spark: SparkSession, server: ServerProcess) -> str:
    """The lake once more, as a catalog whose scans the server plans."""
    add_catalog(spark, "planned", server.url, {"scan-planning-mode": "server"})
    return "planned"


def test_scans_that_the_server_plans_find_the_same_rows(
    sql: Sql, planned: str, spark: SparkSession, server: ServerProcess, namespace: str
) -> None:
    sql("CREATE TABLE t (id INT, at TIMESTAMP, name STRING, price DECIMAL(9,2), old STRING) PARTITIONED BY (days(at)) "
        "TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")  # fmt: skip
    moment = "TIMESTAMP '2026-01-01 00:00:00' + make_interval(0, 0, 0, id % 5, id % 24)"
    sql(f"INSERT INTO t SELECT id, {moment}, concat('n', id % 7), id / 4, 'x' FROM range(60)")
    sql("DELETE FROM t WHERE id % 10 = 3")
    sql("ALTER TABLE t ADD PARTITION FIELD bucket(3, id)")
    sql("ALTER TABLE t DROP PARTITION FIELD days(at)")
    sql("ALTER TABLE t ALTER COLUMN id TYPE BIGINT")
    sql("ALTER TABLE t RENAME COLUMN name TO label")
    sql("ALTER TABLE t DROP COLUMN old")
    sql("ALTER TABLE t ADD COLUMN extra DOUBLE")
    sql("ALTER TABLE t ADD PARTITION FIELD label")
    sql(f"INSERT INTO t SELECT id, {moment}, IF(id % 9 = 0, NULL, concat('n', id % 7)), id / 4, id FROM range(60, 120)")
    sql("DELETE FROM t WHERE id IN (77, 78, 99)")
    first, before = history(sql, f"{namespace}.t")[0], plans_made(server)
    for where in (
        "true",
        "id < 20",
        "id IN (5, 13, 77, 80)",
        "label = 'n3' AND extra > 70",
        "label IS NULL OR id = 1",
        "NOT (label LIKE 'n1%') AND at >= TIMESTAMP '2026-01-03 05:00:00'",
        "at < TIMESTAMP '2026-01-02 00:00:00'",
        "price BETWEEN 3.25 AND 4.75",
        "extra IS NULL AND label IN ('n1', 'n2')",
        "lake.system.bucket(3, id) = 1",
        "id > 1000",
    ):
        rows = f"SELECT id, at, label, price, extra FROM {{}}.{namespace}.t WHERE {where} ORDER BY id"
        assert sql(rows.format(planned)) == sql(rows.format("lake")), where
    count = f"SELECT count(*), min(id), max(id) FROM {{}}.{namespace}.t"
    assert sql(count.format(planned)) == sql(count.format("lake")) == [(111, 0, 119)]
    then = f"SELECT id, old FROM {{}}.{namespace}.t VERSION AS OF {first} WHERE id < 20 ORDER BY id"
    assert sql(then.format(planned)) == sql(then.format("lake"))
    assert plans_made(server) >= before + 12


def test_scans_of_format_3_with_deletion_vectors_and_row_ids_are_planned_too(
    sql: Sql, planned: str, server: ServerProcess, namespace: str
) -> None:
    sql("CREATE TABLE t (id BIGINT) TBLPROPERTIES ('format-version' = '3', 'write.delete.mode' = 'merge-on-read')")
    for start in (0, 10):
        sql(f"INSERT INTO t SELECT /*+ COALESCE(1) */ id FROM range({start}, {start + 10})")
    sql("DELETE FROM t WHERE id IN (3, 14, 15)")
    rows, before = f"SELECT id, _row_id FROM {{}}.{namespace}.t WHERE id > 1 ORDER BY id", plans_made(server)
    assert sql(rows.format(planned)) == sql(rows.format("lake"))
    assert len(sql(rows.format(planned))) == 15
    assert plans_made(server) == before + 2
