"""Tables with partitions on a real server with a real Spark: every engine reads the same rows, whatever moves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyspark.sql import SparkSession

from dolake import tables
from dolake.storage.duck import extension_file
from dolake.storage.local import path_of
from dolake.tables.layout import state_schema
from dolake.tables.types import Field
from tests.support.changes import delete, insert, send, update
from tests.support.server import ServerProcess, post, query, run_job
from tests.support.spark import add_catalog
from tests.support.spark import rows_of as spark_rows_of
from tests.support.tables import files_of, rows_of, verified

pytestmark = pytest.mark.spark
SETTINGS = """\
freshness_target_ms = 300
partition_by = "date"
[tables."shop.orders"]
partition_by = ["day(at)", "bucket(4, customer)"]
sort_by = ["total desc"]
parquet_compression = "none"
[tables."shop.people"]
partition_by = ["region", "truncate(2, name)"]
parquet_compression = "gzip"
[tables."shop.odd"]
partition_by = ["day(nowhere)", "hour(name)", "region"]
sort_by = "nowhere"
[tables."made.items"]
sort_by = "id"
[tables."shop.pinned"]
partition_by = "bucket(2, a)"
sort_by = "b"
[tables."shop.small"]
target_file_size_bytes = 1_024
parquet_row_group_size = 100
partition_by = "none"
parquet_compression = "zstd"
[tables."shop.by_bucket"]
partition_by = "bucket(8, id)"
[tables."shop.by_text"]
partition_by = "truncate(1, name)"
[tables."shop.by_month"]
partition_by = "month(at)"
[tables."shop.by_hour"]
partition_by = "hour(at)"
[tables."shop.by_year"]
partition_by = "year(at)"
[tables."shop.by_region"]
partition_by = "region"
[compaction]
auto_compact = false
min_files_to_compact = 2
[maintenance]
gc_grace_ms = 1
manifests_max = 2
"""


def order(number: int, day: int = 1, **more: Any) -> dict[str, Any]:
    return {"at": f"2026-01-{day:02d}T12:00:00Z", "customer": f"c{number % 7}", "total": number} | more


def partitions_of(lake: ServerProcess, table: str) -> dict[str, dict[str, Any]]:
    namespace, name = table.split(".")
    status, body = lake.get(f"/v1/namespaces/{namespace}/tables/{name}/partition-stats")
    assert status == 200, body
    return {each["name"]: each for each in body["partitions"]}


def spec_of(catalog: RestCatalog, table: str) -> list[tuple[str, str]]:
    return [(field.name, str(field.transform)) for field in catalog.load_table(table).spec().fields]


def in_duckdb(catalog: RestCatalog, table: str) -> dict[str, dict[str, Any]]:
    """The table as DuckDB reads it from its metadata file."""
    with duckdb.connect() as connection:
        for name in ("avro", "iceberg"):
            connection.execute(f"LOAD '{extension_file(name)}'")
        found = connection.execute(
            "SELECT * FROM iceberg_scan(?)", [catalog.load_table(table).metadata_location]
        ).to_arrow_table()
    return {row.pop("_key"): row for row in found.to_pylist()}


def test_rows_go_to_their_partitions_sorted_and_in_folders_of_their_own(
    lake: ServerProcess, catalog: RestCatalog
) -> None:
    send(lake.url, *(insert("shop.orders", str(n), **order(n, n % 3 + 1)) for n in range(60)))
    lake.flush()
    assert spec_of(catalog, "shop.orders") == [("at_day", "day"), ("customer_bucket", "bucket[4]")]
    assert spec_of(catalog, "shop.orders__changes") == []
    rows = rows_of(catalog, "shop.orders")
    assert len(rows) == 60
    assert {key: row["total"] for key, row in rows.items()} == {str(n): n for n in range(60)}
    files = [task.file for task in files_of(catalog, "shop.orders")]
    assert {file.file_path.split("/data/")[1].split("/")[0] for file in files} == {
        f"at_day=2026-01-0{day}" for day in (1, 2, 3)
    }
    order_id = catalog.load_table("shop.orders").sort_order().order_id
    assert order_id
    assert {file.sort_order_id for file in files} == {order_id}
    for task in files_of(catalog, "shop.orders"):
        with pq.ParquetFile(path_of(task.file.file_path)) as file:
            found = file.read(columns=["total"]).column("total").to_pylist()
            assert file.metadata.row_group(0).column(0).compression == "UNCOMPRESSED"
        assert found == sorted(found, reverse=True)


def test_an_update_that_moves_a_row_leaves_no_ghost_and_a_delete_finds_it(
    lake: ServerProcess, catalog: RestCatalog
) -> None:
    changes = [insert("shop.moves", str(n), created_at=f"2026-02-{n % 5 + 1:02d}T00:00:00Z", n=n) for n in range(50)]
    send(lake.url, *changes)
    lake.flush()
    assert spec_of(catalog, "shop.moves") == [("date", "day")]
    paths = [task.file.file_path.split("/data/")[1] for task in files_of(catalog, "shop.moves")]
    assert sorted({path.rpartition("/")[0] for path in paths}) == [
        f"ns=shop/date=2026-02-{day:02d}" for day in range(1, 6)
    ]
    before = {"created_at": "2026-02-01T00:00:00Z", "n": 0}
    send(lake.url, update("shop.moves", "0", before, {"created_at": "2026-02-04T09:00:00Z", "n": 100}))
    send(lake.url, delete("shop.moves", "1", n=1), delete("shop.moves", "5", n=5))
    lake.flush()
    expected = {str(n): n for n in range(50) if n not in (1, 5)} | {"0": 100}
    assert {key: row["n"] for key, row in rows_of(catalog, "shop.moves").items()} == expected
    assert {key: row["n"] for key, row in in_duckdb(catalog, "shop.moves").items()} == expected
    assert {row["_key"]: row["n"] for row in query(lake, "SELECT _key, n FROM shop.moves")} == expected
    for task in files_of(catalog, "shop.moves"):  # a delete file is of the partition of the file that it names
        assert all(tuple(each.partition) == tuple(task.file.partition) for each in task.delete_files)
    send(lake.url, delete("shop.moves", "0", n=100))
    lake.flush()
    assert "0" not in rows_of(catalog, "shop.moves")
    stats = partitions_of(lake, "shop.moves")
    assert sum(each["rowCount"] - each["deletedRowCount"] for each in stats.values()) == 47
    assert stats["date=2026-02-01"]["deleteFileCount"] == 1
    # By SQL over rows that no table has yet: the tail replaces rows in their partitions too.
    send(lake.url, update("shop.moves", "2", {"n": 2}, {"created_at": "2026-02-01T01:00:00Z", "n": 200}))
    send(lake.url, delete("shop.moves", "3", n=3))
    answer = query(lake, "SELECT _key, n FROM shop.moves")
    assert len(answer) == 46
    assert {row["_key"]: row["n"] for row in answer} == {
        key: 200 if key == "2" else n for key, n in expected.items() if key not in ("0", "3")
    }
    by_days = query(
        lake, "SELECT count(*) AS c FROM shop.moves", partition={"dateStart": "2026-02-01", "dateEnd": "2026-02-02"}
    )
    lake.flush()
    kept = [row for row in rows_of(catalog, "shop.moves").values() if row["created_at"].day in (1, 2)]
    assert by_days == [{"c": len(kept)}]


def test_texts_of_any_kind_make_partitions_that_every_engine_reads(lake: ServerProcess, catalog: RestCatalog) -> None:
    regions = ["eu", "a/b", "50% off", "ü ö", "x=y&z", "", None, "+", "a:b?c#d", "x" * 300]
    changes = [insert("shop.people", str(n), region=each, name=f"näme {n}") for n, each in enumerate(regions)]
    send(lake.url, *changes)
    lake.flush()
    send(
        lake.url,
        *(update("shop.people", str(n), {}, {"region": each, "name": f"other {n}"}) for n, each in enumerate(regions)),
    )
    lake.flush()
    expected = {str(n): (each, f"other {n}") for n, each in enumerate(regions)}
    for found in (rows_of(catalog, "shop.people"), in_duckdb(catalog, "shop.people")):
        assert {key: (row["region"], row["name"]) for key, row in found.items()} == expected
    assert len(query(lake, "SELECT * FROM shop.people")) == len(regions)
    assert set(partitions_of(lake, "shop.people")) == {
        f"region={'null' if each is None else each}/name_trunc=ot" for each in regions
    }


def test_what_a_table_cannot_have_is_ignored(lake: ServerProcess, catalog: RestCatalog) -> None:
    send(lake.url, insert("shop.odd", "1", region="eu", name="x", n=1), insert("shop.plain", "1", n=1))
    lake.flush()
    assert spec_of(catalog, "shop.odd") == [("region", "identity")]
    assert spec_of(catalog, "shop.plain") == []
    send(lake.url, insert("shop.odd", "2", region=7, name="y", n=1.5))
    lake.flush()
    assert rows_of(catalog, "shop.odd")["2"]["n"] == 1.5


def test_a_column_that_divides_or_sorts_a_table_keeps_its_type(lake: ServerProcess, catalog: RestCatalog) -> None:
    send(lake.url, insert("shop.pinned", "1", a=1, b=1, c=1))
    lake.flush()
    send(lake.url, insert("shop.pinned", "2", a=1.5, b=2.5, c=3.5))
    lake.flush()
    row = rows_of(catalog, "shop.pinned")["2"]
    assert (row["a"], row["b"], row["c"]) == (None, None, 3.5)
    assert json.loads(row["_rescued"]) == {"a": 1.5, "b": 2.5}


def test_a_column_that_comes_later_makes_partitions_from_then_on(lake: ServerProcess, catalog: RestCatalog) -> None:
    send(lake.url, *(insert("shop.later", str(n), n=n) for n in range(10)))
    lake.flush()
    assert spec_of(catalog, "shop.later") == []
    send(lake.url, *(insert("shop.later", f"b{n}", n=n, created_at=f"2026-03-0{n + 1}T00:00:00Z") for n in range(5)))
    lake.flush()
    assert spec_of(catalog, "shop.later") == [("date", "day")]
    send(lake.url, update("shop.later", "3", {"n": 3}, {"n": 33, "created_at": "2026-03-05T00:00:00Z"}))
    send(lake.url, delete("shop.later", "b4", n=4), delete("shop.later", "4", n=4))
    lake.flush()
    expected = {str(n): n for n in range(10) if n != 4} | {f"b{n}": n for n in range(4)} | {"3": 33}
    for found in (rows_of(catalog, "shop.later"), in_duckdb(catalog, "shop.later")):
        assert {key: row["n"] for key, row in found.items()} == expected
    stats = partitions_of(lake, "shop.later")
    assert {name: (each["specId"], each["rowCount"]) for name, each in stats.items() if each["specId"] == 0} == {
        "": (0, 10)
    }
    assert {each["specId"] for each in stats.values()} == {0, 1}


def test_a_partition_field_gives_way_to_a_column_of_its_name(lake: ServerProcess, catalog: RestCatalog) -> None:
    send(lake.url, *(insert("shop.clash", str(n), created_at=f"2026-03-0{n + 1}T00:00:00Z") for n in range(3)))
    lake.flush()
    assert spec_of(catalog, "shop.clash") == [("date", "day")]
    send(lake.url, update("shop.clash", "1", {}, {"created_at": "2026-03-09T00:00:00Z", "date": "a date"}))
    lake.flush()
    assert spec_of(catalog, "shop.clash") == [("date_partition", "day")]
    for found in (rows_of(catalog, "shop.clash"), in_duckdb(catalog, "shop.clash")):
        assert {key: (row["created_at"].day, row["date"]) for key, row in found.items()} == {
            "0": (1, None),
            "1": (9, "a date"),
            "2": (3, None),
        }
    assert set(partitions_of(lake, "shop.clash")) >= {"date_partition=2026-03-09", "date_partition=2026-03-01"}


def test_settings_change_the_partitions_of_a_table_while_it_lives(lake: ServerProcess, catalog: RestCatalog) -> None:
    def set_partitions(*words: str) -> None:
        known = lake.get("/v1/settings")[1]["lake.tables"]["value"]
        body = {"tables": known | {"shop.evolving": {"partition_by": list(words)}}}
        status, answer = lake.get("/v1/config", method="PATCH", body=body)
        assert status == 200, answer

    def rows(mark: str) -> list[dict[str, Any]]:
        return [insert("shop.evolving", f"{mark}{n}", at=f"2026-04-01T0{n}:00:00Z", n=n) for n in range(6)]

    set_partitions("day(at)")
    send(lake.url, *rows("a"))
    lake.flush()
    expected = {f"a{n}": n for n in range(6)}
    for mark, words in (("b", ("hour(at)", "bucket(2, n)")), ("c", ("none",)), ("d", ("month(at)",))):
        set_partitions(*words)
        send(lake.url, *rows(mark), update("shop.evolving", "a1", {}, {"at": "2026-04-01T05:00:00Z", "n": ord(mark)}))
        lake.flush()
        expected |= {f"{mark}{n}": n for n in range(6)} | {"a1": ord(mark)}
        for found in (rows_of(catalog, "shop.evolving"), in_duckdb(catalog, "shop.evolving")):
            assert {key: row["n"] for key, row in found.items()} == expected
    assert spec_of(catalog, "shop.evolving") == [("at_month", "month")]
    assert len({each["specId"] for each in partitions_of(lake, "shop.evolving").values()}) == 4
    run_job(lake, namespace="shop", table="evolving")
    assert {key: row["n"] for key, row in rows_of(catalog, "shop.evolving").items()} == expected
    run_job(lake, namespace="shop", table="evolving", kinds=["manifests"])
    assert {key: row["n"] for key, row in in_duckdb(catalog, "shop.evolving").items()} == expected


def test_a_compaction_keeps_partitions_apart_and_rows_sorted(lake: ServerProcess, catalog: RestCatalog) -> None:
    for round_ in range(4):
        send(lake.url, *(insert("shop.orders", f"{round_}-{n}", **order(n * 7 % 60, n % 2 + 1)) for n in range(60)))
        lake.flush()
    send(lake.url, *(update("shop.orders", f"0-{n}", {}, order(1_000 + n, 3)) for n in range(30)))
    lake.flush()
    before = rows_of(catalog, "shop.orders")
    count = len(files_of(catalog, "shop.orders"))
    run_job(lake, namespace="shop", table="orders")
    files = files_of(catalog, "shop.orders")
    assert len(files) < count
    assert rows_of(catalog, "shop.orders") == before
    assert in_duckdb(catalog, "shop.orders").keys() == before.keys()
    keys = [tuple(task.file.partition) for task in files]
    assert len(set(keys)) == len(keys), "one file for each partition is left"
    send(lake.url, *(delete("shop.orders", f"0-{n}") for n in range(30)), delete("shop.orders", "1-1"))
    lake.flush()
    assert rows_of(catalog, "shop.orders").keys() == before.keys() - {f"0-{n}" for n in range(30)} - {"1-1"}


def test_a_job_compacts_the_partitions_that_it_names(lake: ServerProcess, catalog: RestCatalog) -> None:
    for n in range(3):
        send(lake.url, *(insert("shop.some", f"{n}-{day}", ts=f"2026-06-0{day}T00:00:00Z", n=n) for day in (1, 2)))
        lake.flush()
    due = lake.get("/v1/compaction/candidates?namespace=shop&table=some")[1]["candidates"]
    found = {each["partition"] for each in due if (each["table"], each["kind"]) == ("some", "files")}
    assert found == {"date=2026-06-01", "date=2026-06-02"}
    run_job(lake, namespace="shop", table="some", partitions=["date=2026-06-02"])
    counts = {name: each["fileCount"] for name, each in partitions_of(lake, "shop.some").items()}
    assert counts == {"date=2026-06-01": 3, "date=2026-06-02": 1}
    assert len(rows_of(catalog, "shop.some")) == 6
    status, answer = lake.get("/v1/compaction/run", method="POST", body={"partitions": "date"})
    assert status == 400, answer


def test_many_small_publishes_are_merged_within_their_partitions(lake: ServerProcess, catalog: RestCatalog) -> None:
    for n in range(14):
        send(lake.url, *(insert("shop.busy", f"{n}-{day}", ts=f"2026-05-0{day}T00:00:00Z", n=n) for day in (1, 2, 3)))
        lake.flush()
    files = files_of(catalog, "shop.busy")
    assert 3 <= len(files) <= 3 * 6
    assert len(rows_of(catalog, "shop.busy")) == 42
    for task in files:
        days = {row["ts"].day for row in rows_of(catalog, "shop.busy").values()}
        assert days == {1, 2, 3}
        assert task.file.file_path.split("/data/")[1].startswith("ns=shop/date=2026-05-0")


def test_a_table_that_somebody_made_with_partitions_keeps_them(lake: ServerProcess, catalog: RestCatalog) -> None:
    schema = state_schema((Field("id", "long"), Field("at", "timestamptz")), has_source=False)
    parts: list[dict[str, Any]] = [
        {"type": "hour", "sourceField": "at"},
        {"type": "bucket", "sourceField": "id", "numBuckets": 4},
    ]
    spec = tables.create_composite_partition_spec(parts).for_schema(schema)
    body = {"name": "items", "schema": schema, "partition-spec": spec, "properties": {"format-version": "2"}}
    lake.get("/v1/namespaces", method="POST", body={"namespace": ["made"]})
    status, answer = lake.get("/v1/namespaces/made/tables", method="POST", body=body)
    assert status == 200, answer
    assert lake.get("/v1/namespaces/made/tables/items/adopt", method="POST")[0] == 200
    send(lake.url, *(insert("made.items", str(n), id=n, at=f"2026-01-01T0{n % 3}:00:00Z") for n in range(30)))
    lake.flush()
    assert spec_of(catalog, "made.items") == [("hr", "hour"), ("bucket", "bucket[4]")]
    send(lake.url, delete("made.items", "3"), update("made.items", "4", {}, {"id": 5, "at": "2026-01-01T09:00:00Z"}))
    lake.flush()
    rows = rows_of(catalog, "made.items")
    assert {key: row["id"] for key, row in rows.items()} == {str(n): n for n in range(30) if n != 3} | {"4": 5}
    assert {name.split("/")[0] for name in partitions_of(lake, "made.items")} == {
        f"hr=2026-01-01-0{hour}" for hour in (0, 1, 2, 9)
    }


def test_files_have_the_size_and_row_groups_that_their_table_wants(lake: ServerProcess, catalog: RestCatalog) -> None:
    send(lake.url, *(insert("shop.small", str(n), text=f"{n * 7919 % 10007}" * 5) for n in range(1_000)))
    lake.flush()
    send(lake.url, *(delete("shop.small", str(n)) for n in range(0, 1_000, 2)))
    lake.flush()
    run_job(lake, namespace="shop", table="small")
    paths = [path_of(task.file.file_path) for task in files_of(catalog, "shop.small")]
    assert len(paths) > 2
    with pq.ParquetFile(paths[0]) as file:
        assert file.metadata.row_group(0).num_rows <= 100
        assert file.metadata.row_group(0).column(0).compression == "ZSTD"


def plan_of(lake: ServerProcess, table: str, where: str) -> dict[str, Any]:
    sql = f"SELECT * FROM {table} WHERE {where}"  # noqa: S608
    found: dict[str, Any] = post(lake, "/v1/query/plan", sql=sql)["tables"][0]
    return found


def opened_by_duckdb(catalog: RestCatalog, table: str, where: str) -> int:
    """How many data files DuckDB opens for it."""
    with duckdb.connect() as connection:
        for name in ("avro", "iceberg"):
            connection.execute(f"LOAD '{extension_file(name)}'")
        connection.execute("SET enable_external_file_cache = false")
        connection.execute("CALL enable_logging('FileSystem', level = 'trace')")
        location = catalog.load_table(table).metadata_location
        connection.execute(f"SELECT count(DISTINCT _key) FROM iceberg_scan('{location}') WHERE {where}").fetchall()  # noqa: S608
        connection.execute("CALL disable_logging()")
        found = connection.execute(
            "SELECT count(DISTINCT path) FROM duckdb_logs_parsed('FileSystem')"
            " WHERE op = 'OPEN' AND path LIKE '%/data/%'"
        ).fetchone()
    assert found
    return int(found[0])


def test_a_plan_names_the_partitions_that_are_not_read(lake: ServerProcess, catalog: RestCatalog) -> None:
    found = plan_of(
        lake,
        "shop.orders",
        "\"at\" >= TIMESTAMPTZ '2026-01-02 00:00:00Z' AND \"at\" < TIMESTAMPTZ '2026-01-03 00:00:00Z'",
    )
    assert {name.split("/")[0] for name in found["partitions"]["kept"]} == {"at_day=2026-01-02"}
    assert {name.split("/")[0] for name in found["partitions"]["pruned"]} == {"at_day=2026-01-01", "at_day=2026-01-03"}
    found = plan_of(lake, "shop.orders", "customer = 'c3'")
    assert len({name.split("/")[1] for name in found["partitions"]["kept"]}) == 1
    assert any("customer_bucket" in each["reason"] for each in found["reasons"])


@pytest.mark.parametrize(
    ("table", "where", "most"),
    [
        ("by_bucket", "id = 150", 1),
        ("by_bucket", "id IN (150, 151)", 8),
        ("by_text", "name = '3-33'", 1),
        ("by_text", "name >= '7'", 3),
        ("by_month", "\"at\" >= TIMESTAMPTZ '2026-08-01 00:00:00Z'", 2),
        ("by_hour", "\"at\" < TIMESTAMPTZ '2026-01-01 01:00:00Z'", 1),
        ("by_year", "\"at\" < TIMESTAMPTZ '2026-01-01 00:00:00Z'", 0),
        ("by_region", "region = 'r2'", 1),
        ("by_region", "region IS NULL", 1),
    ],
)
def test_every_transform_leaves_files_unread_in_the_plan_and_in_duckdb(
    lake: ServerProcess, catalog: RestCatalog, table: str, where: str, most: int
) -> None:
    if not catalog.table_exists(f"shop.{table}"):
        rows = [
            {
                "id": n,
                "name": f"{n % 10}-{n}",
                "at": f"2026-0{n % 9 + 1}-01T0{n % 7}:00:00Z",
                "region": f"r{n % 5}" if n % 7 else None,
            }
            for n in range(300)
        ]
        send(lake.url, *(insert(f"shop.{table}", str(n), **row) for n, row in enumerate(rows)))
        lake.flush()
    count = len(files_of(catalog, f"shop.{table}"))
    found = plan_of(lake, f"shop.{table}", where)
    assert found["files"]["kept"] <= most
    assert found["files"]["kept"] + found["files"]["pruned"] == count
    assert opened_by_duckdb(catalog, f"shop.{table}", where) <= most


def test_garbage_is_found_in_the_folders_of_partitions(lake: ServerProcess, catalog: RestCatalog) -> None:
    data = Path(lake.home, "warehouse", "shop", "moves", "data", "ns=shop", "date=2026-02-01")
    stray = data / "1-0123456789ab-00000000-0000-0000-0000-000000000000.parquet"
    stray.write_bytes(b"x")
    rows = rows_of(catalog, "shop.moves")
    for _ in range(2):
        run_job(lake, namespace="shop", table="moves", kinds=["garbage"])
    assert not stray.exists()
    assert rows_of(catalog, "shop.moves") == rows


def test_everything_is_right_in_the_end_also_for_spark(
    lake: ServerProcess, catalog: RestCatalog, spark: SparkSession
) -> None:
    lake.flush()
    verified(lake.home)
    names = ("orders", "moves", "people", "later", "evolving", "busy", "small", "odd")
    expected = {name: json.dumps(sorted(rows_of(catalog, f"shop.{name}"))) for name in names}
    add_catalog(spark, "divided", lake.url)
    for name in names:
        found = [row[0] for row in spark_rows_of(spark, f"SELECT _key FROM divided.shop.{name}")]  # noqa: S608
        assert json.dumps(sorted(found)) == expected[name]
    days = spark_rows_of(spark, "SELECT count(*) FROM divided.shop.orders WHERE date(at) = date'2026-01-02'")
    assert days[0][0] == sum(row["at"].day == 2 for row in rows_of(catalog, "shop.orders").values())
    assert spark_rows_of(spark, "SELECT count(*) FROM divided.shop.evolving.partitions")[0][0] > 2
