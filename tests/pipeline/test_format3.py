"""Tables of format 3 on a real server with a real Spark: deletion vectors, read by Spark, PyIceberg and our own SQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyspark.sql import SparkSession

from dolake.storage.local import path_of
from tests.support.changes import delete, insert, send, update
from tests.support.command import dolake
from tests.support.server import ServerProcess, query, refusal, run_job
from tests.support.spark import add_catalog
from tests.support.spark import rows_of as spark_rows_of
from tests.support.tables import files_of, rows_of, verified

pytestmark = pytest.mark.spark
SETTINGS = """\
freshness_target_ms = 300
[tables."shop.vectors"]
format_version = 3
[tables."shop.split"]
format_version = 3
partition_by = ["bucket(3, n)"]
sort_by = "n"
[tables."shop.moved"]
format_version = 3
[tables."shop.rebuilt"]
format_version = 3
[compaction]
auto_compact = false
min_files_to_compact = 2
[maintenance]
gc_grace_ms = 1
manifests_max = 2
snapshots_max = 1_000
"""


@pytest.fixture(scope="module")
def reader(lake: ServerProcess, spark: SparkSession) -> SparkSession:
    add_catalog(spark, "format3", lake.url)
    return spark


def write_history(lake: ServerProcess, table: str, publishes: int = 4) -> dict[str, int]:
    """Inserts, updates and deletes over several publishes; what is left by key."""
    left: dict[str, int] = {}
    for number in range(publishes):
        rows = {f"{number}-{n}": n for n in range(40)}
        changes = [insert(table, key, n=n) for key, n in rows.items()]
        for at, (key, n) in enumerate(list(left.items())[::3]):
            if at % 2:
                changes.append(delete(table, key, n=n))
                del left[key]
            else:
                changes.append(update(table, key, {"n": n}, {"n": n + 1000}))
                left[key] = n + 1000
        send(lake.url, *changes)
        lake.flush()
        left |= rows
    return left


def read_by_all(lake: ServerProcess, catalog: RestCatalog, reader: SparkSession, table: str) -> list[dict[str, Any]]:
    """The rows of a table as Spark, PyIceberg and our SQL, with either engine, read them."""
    statement = f"SELECT _key, n FROM {table}"  # noqa: S608
    spark = dict(spark_rows_of(reader, f"SELECT _key, n FROM format3.{table}"))  # noqa: S608
    pyiceberg = {key: row["n"] for key, row in rows_of(catalog, table).items()}
    ours = [{row["_key"]: row["n"] for row in query(lake, statement, engine=name)} for name in ("duckdb", "spark")]
    return [spark, pyiceberg, *ours]


def entries_of(lake: ServerProcess, table: str) -> list[dict[str, Any]]:
    """The delete files of a table as the catalog plans a scan of it."""
    namespace, name = table.split(".")
    status, plan = lake.get(f"/v1/namespaces/{namespace}/tables/{name}/plan", method="POST", body={})
    assert (status, plan["status"]) == (200, "completed"), plan
    found: list[dict[str, Any]] = plan.get("delete-files", [])
    return found


@pytest.mark.parametrize("table", ["shop.vectors", "shop.split"])
def test_every_reader_of_vectors_sees_the_rows_that_are_left(
    lake: ServerProcess, catalog: RestCatalog, reader: SparkSession, table: str
) -> None:
    left = write_history(lake, table)
    assert catalog.load_table(table).metadata.format_version == 3
    assert catalog.load_table(f"{table}__changes").metadata.format_version == 2
    vectors = entries_of(lake, table)
    assert {each["file-format"] for each in vectors} == {"puffin"}
    assert len({each["referenced-data-file"] for each in vectors}) == len(vectors), "a data file has one vector"
    assert len({each["file-path"] for each in vectors}) == 1, "those of a publish are in one file"
    assert all(found == left for found in read_by_all(lake, catalog, reader, table))
    verified(lake.home)


def test_changes_that_are_not_published_yet_replace_rows_behind_vectors(
    lake: ServerProcess, catalog: RestCatalog
) -> None:
    write_history(lake, "shop.vectors")
    before = {row["_key"]: row["n"] for row in query(lake, "SELECT _key, n FROM shop.vectors")}
    keys = list(before)[:7]
    send(
        lake.url,
        *(update("shop.vectors", key, {"n": before[key]}, {"n": -1}) for key in keys[:4]),
        *(delete("shop.vectors", key, n=before[key]) for key in keys[4:]),
    )
    wanted = before | dict.fromkeys(keys[:4], -1)
    for key in keys[4:]:
        del wanted[key]
    assert {row["_key"]: row["n"] for row in query(lake, "SELECT _key, n FROM shop.vectors")} == wanted


def test_the_past_of_a_table_with_vectors_can_be_asked_for(lake: ServerProcess, catalog: RestCatalog) -> None:
    send(lake.url, *(insert("shop.vectors", f"then-{n}", n=n) for n in range(10)))
    lake.flush()
    snapshot = catalog.load_table("shop.vectors").current_snapshot()
    assert snapshot is not None
    send(lake.url, *(delete("shop.vectors", f"then-{n}", n=n) for n in range(10)))
    lake.flush()
    sql = "SELECT count(*) AS rows FROM shop.vectors WHERE starts_with(_key, 'then-')"
    assert query(lake, sql) == [{"rows": 0}]
    assert query(lake, sql, snapshotId=str(snapshot.snapshot_id)) == [{"rows": 10}]


def test_a_compaction_takes_vectors_away_and_rows_keep_where_they_come_from(
    lake: ServerProcess, catalog: RestCatalog, reader: SparkSession
) -> None:
    left = write_history(lake, "shop.moved", publishes=5)
    lineage = "SELECT _key, _row_id, _last_updated_sequence_number FROM format3.shop.moved ORDER BY 1"
    before = spark_rows_of(reader, lineage)
    assert len({row_id for _, row_id, _ in before}) == len(left), "every row has an id of its own"
    run_job(lake, namespace="shop", table="moved")
    assert not entries_of(lake, "shop.moved")
    assert len(files_of(catalog, "shop.moved")) == 1
    assert spark_rows_of(reader, lineage) == before
    assert all(found == left for found in read_by_all(lake, catalog, reader, "shop.moved"))
    # and once more, from a file that says so itself
    send(lake.url, delete("shop.moved", next(iter(left)), n=0), insert("shop.moved", "new", n=1))
    lake.flush()
    run_job(lake, namespace="shop", table="moved")
    after = spark_rows_of(reader, lineage)
    assert set(before) - set(after) == {before[[key for key, *_ in before].index(next(iter(left)))]}
    assert {key for key, *_ in set(after) - set(before)} == {"new"}
    verified(lake.home)


def test_a_column_that_gets_another_type_is_rebuilt_with_vectors(
    lake: ServerProcess, catalog: RestCatalog, reader: SparkSession
) -> None:
    left: dict[str, float] = dict(write_history(lake, "shop.rebuilt"))
    send(lake.url, insert("shop.rebuilt", "half", n=0.5))
    lake.flush()
    left["half"] = 0.5
    assert all(found == left for found in read_by_all(lake, catalog, reader, "shop.rebuilt"))
    verified(lake.home)


def test_a_table_of_format_2_is_raised_by_a_setting_and_keeps_its_deletes(
    lake: ServerProcess, catalog: RestCatalog, reader: SparkSession
) -> None:
    left = write_history(lake, "shop.raised")
    assert {each["file-format"] for each in entries_of(lake, "shop.raised")} == {"parquet"}
    status, body = lake.get("/v1/config", method="PATCH", body={"tables": {"shop.raised": {"format_version": 3}}})
    assert status == 200, body
    left |= write_history(lake, "shop.raised", publishes=1)
    assert catalog.load_table("shop.raised").metadata.format_version == 3
    assert all(found == left for found in read_by_all(lake, catalog, reader, "shop.raised"))
    gone = list(left)[::4]
    send(lake.url, *(delete("shop.raised", key, n=left.pop(key)) for key in gone))
    lake.flush()
    assert "puffin" in {each["file-format"] for each in entries_of(lake, "shop.raised")}
    assert all(found == left for found in read_by_all(lake, catalog, reader, "shop.raised"))
    run_job(lake, namespace="shop", table="raised")
    assert all(found == left for found in read_by_all(lake, catalog, reader, "shop.raised"))
    verified(lake.home)


def test_our_sql_reads_what_spark_has_merged_into_a_table_of_its_own(lake: ServerProcess, reader: SparkSession) -> None:
    """The case in which DuckDB itself returns rows that are gone."""
    for statement in (
        "CREATE NAMESPACE IF NOT EXISTS format3.theirs",
        "CREATE TABLE format3.theirs.merged (id BIGINT, n BIGINT) USING iceberg TBLPROPERTIES ('format-version' = '3', "
        "'write.merge.mode' = 'merge-on-read', 'write.delete.mode' = 'merge-on-read')",
        "INSERT INTO format3.theirs.merged SELECT id, id FROM range(60000)",
    ):
        spark_rows_of(reader, statement)
    for number in range(1, 5):
        spark_rows_of(
            reader,
            "MERGE INTO format3.theirs.merged t USING "  # noqa: S608
            f"(SELECT id * 53 % 60000 AS id, {number} AS n FROM range({number * 7}, {number * 7 + 1000})) s "
            "ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = s.n",
        )
        truth = spark_rows_of(reader, "SELECT count(*), sum(id), sum(n) FROM format3.theirs.merged")
        (found,) = query(lake, "SELECT count(*) AS c, sum(id) AS i, sum(n) AS n FROM theirs.merged", engine="duckdb")
        assert [tuple(map(int, found.values()))] == truth


def test_puffin_files_go_when_no_snapshot_names_them(lake: ServerProcess, catalog: RestCatalog) -> None:
    left = write_history(lake, "shop.vectors")
    run_job(lake, namespace="shop", table="vectors")
    files = Path(lake.home, "warehouse", "shop", "vectors", "data")
    assert len(list(files.rglob("*.puffin"))) > 1
    status, body = lake.get("/v1/config", method="PATCH", body={"maintenance": {"snapshots_max": 1}})
    assert status == 200, body
    run_job(lake, namespace="shop", table="vectors", kinds=["snapshots", "garbage"])
    run_job(lake, namespace="shop", table="vectors", kinds=["garbage"])
    assert not list(files.rglob("*.puffin"))
    assert {key: row["n"] for key, row in rows_of(catalog, "shop.vectors").items()}.items() >= left.items()
    verified(lake.home)


def test_a_damaged_vector_is_named_and_never_guessed(lake: ServerProcess) -> None:
    write_history(lake, "shop.split")
    entry = entries_of(lake, "shop.split")[0]
    path = path_of(entry["file-path"])
    content = bytearray(path.read_bytes())
    at = entry["content-offset"] + entry["content-size-in-bytes"] // 2
    content[at] ^= 1
    path.write_bytes(content)
    done = dolake("verify", "--home", lake.home)
    assert (done.returncode, path.name in done.stdout) == (1, True), done.stdout
    for engine in ("duckdb", "spark"):
        refusal(lake, "/v1/query", sql="FROM shop.split", engine=engine)
    content[at] ^= 1  # others share this lake
    path.write_bytes(content)
    verified(lake.home)


def test_an_empty_table_of_format_3_can_be_adopted(
    lake: ServerProcess, catalog: RestCatalog, reader: SparkSession
) -> None:
    properties = "TBLPROPERTIES ('format-version' = '3')"
    spark_rows_of(reader, "CREATE NAMESPACE IF NOT EXISTS format3.theirs")
    spark_rows_of(reader, f"CREATE TABLE format3.theirs.adopted (n BIGINT) USING iceberg {properties}")
    status, body = lake.get("/v1/namespaces/theirs/tables/adopted/adopt", method="POST", body={})
    assert status == 200, body
    left = write_history(lake, "theirs.adopted", publishes=2)
    assert catalog.load_table("theirs.adopted").metadata.format_version == 3
    assert all(found == left for found in read_by_all(lake, catalog, reader, "theirs.adopted"))
