"""Whole numbers of a large table become fractions beside the stream, on a real server with a real Spark."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog

from tests.support.changes import delete, insert, send, update
from tests.support.server import ServerProcess, is_published, run_job, wait_for
from tests.support.tables import changes_of, rows_of, verified

pytestmark = pytest.mark.spark
SETTINGS = """\
freshness_target_ms = 300
rebuild_rows_max = 0
[compaction]
auto_compact = false
[tables.parted]
partition_by = ["bucket(2, name)"]
"""


def type_of(catalog: RestCatalog, table: str, column: str = "n") -> str:
    return str(catalog.load_table(f"default.{table}").schema().find_field(column).field_type)


def values(catalog: RestCatalog, table: str) -> dict[str, Any]:
    return {key: row["n"] for key, row in rows_of(catalog, f"default.{table}").items()}


def rescued(catalog: RestCatalog, table: str) -> dict[str, str]:
    rows = rows_of(catalog, f"default.{table}")
    return {key: row["_rescued"] for key, row in rows.items() if row["_rescued"] is not None}


def filled(lake: ServerProcess, table: str) -> None:
    """Rows in several files, some of them deleted there; and fractions that found no place."""
    send(lake.url, *(insert(table, str(n), n=n, name=f"n{n}") for n in range(30)))
    lake.flush()
    send(lake.url, *(update(table, str(n), {"n": n}, {"n": n + 100, "name": f"n{n}"}) for n in range(5)))
    send(lake.url, delete(table, "9", n=9, name="n9"), insert(table, "x", n=0.5, name="x"))
    lake.flush()
    send(lake.url, update(table, "6", {"n": 6}, {"n": 6.25, "name": "n6"}))
    send(lake.url, update(table, "6", {"n": 6.25, "name": "n6"}, {"n": 60, "name": "n6"}))
    lake.flush()


EXPECTED = (
    {str(n): float(n) for n in range(30) if n != 9} | {str(n): n + 100.0 for n in range(5)} | {"6": 60.0, "x": 0.5}
)


@pytest.mark.parametrize("table", ["vast", "parted"])
def test_fractions_wait_until_the_column_has_become_one(lake: ServerProcess, catalog: RestCatalog, table: str) -> None:
    filled(lake, table)
    assert (type_of(catalog, table), rescued(catalog, table)) == ("long", {"x": '{"n":0.5}'})
    before = catalog.load_table(f"default.{table}").current_snapshot()
    assert before

    job = run_job(lake, table=table, kinds=["columns"])

    assert job["filesBefore"] == job["filesAfter"] > 1
    assert type_of(catalog, table) == type_of(catalog, f"{table}__changes") == "double"
    assert (values(catalog, table), rescued(catalog, table)) == (EXPECTED, {})
    changes = changes_of(catalog, f"default.{table}")
    assert [each["n"] for each in changes[-3:]] == [0.5, 6.25, 60.0]
    assert [each["_before"] and each["_before"]["n"] for each in changes[-3:]] == [None, 6.0, 6.25]
    assert {each["_rescued"] for each in changes} == {None}
    old = catalog.load_table(f"default.{table}").scan(snapshot_id=before.snapshot_id).to_arrow().to_pylist()
    assert {row["_key"]: row["n"] for row in old} == {**EXPECTED, "x": None}

    send(lake.url, update(table, "x", {"n": 0.5}, {"n": 7.5, "name": "x"}), delete(table, "2", n=102))
    send(lake.url, update(table, "3", {"n": 103}, {"n": 2.5, "name": "moved"}))
    lake.flush()  # the key index knows where the rows are
    expected = {key: value for key, value in EXPECTED.items() if key != "2"} | {"x": 7.5, "3": 2.5}
    assert values(catalog, table) == expected
    run_job(lake, table=table, kinds=["columns", "files", "deletes"])
    assert values(catalog, table) == expected
    verified(lake.home)


def test_an_integer_that_no_fraction_holds_stops_it(lake: ServerProcess, catalog: RestCatalog) -> None:
    send(lake.url, insert("whole", "1", n=2**60 + 1))
    lake.flush()
    send(lake.url, insert("whole", "2", n=0.5))
    lake.flush()
    job = run_job(lake, table="whole", kinds=["columns"])
    assert "survive" in job["reason"]
    assert type_of(catalog, "whole") == "long"
    assert (values(catalog, "whole"), rescued(catalog, "whole")) == ({"1": 2**60 + 1, "2": None}, {"2": '{"n":0.5}'})
    files = [path.name for path in Path(lake.home, "warehouse", "default").rglob("retyped-*") if "whole" in str(path)]
    assert not files
    send(lake.url, insert("whole", "3", n=1.5))
    lake.flush()
    assert rescued(catalog, "whole")["3"] == '{"n":1.5}'


def test_a_column_that_cannot_keeps_no_other_from_it(lake: ServerProcess, catalog: RestCatalog) -> None:
    send(lake.url, insert("two", "1", n=1, exact=2**60 + 1))
    lake.flush()
    send(lake.url, insert("two", "2", n=0.5, exact=0.5))
    lake.flush()
    run_job(lake, table="two", kinds=["columns"])
    assert (type_of(catalog, "two"), type_of(catalog, "two", "exact")) == ("double", "long")
    assert (values(catalog, "two"), rescued(catalog, "two")) == ({"1": 1.0, "2": 0.5}, {"2": '{"exact":0.5}'})


def test_what_waited_moves_with_a_rebuild_within_a_publish_too(lake: ServerProcess, catalog: RestCatalog) -> None:
    send(lake.url, insert("raised", "1", n=1))
    lake.flush()
    send(lake.url, insert("raised", "2", n=0.5))
    lake.flush()
    assert rescued(catalog, "raised") == {"2": '{"n":0.5}'}
    patch = {"tables": {"raised": {"rebuild_rows_max": 1_000}}}
    assert lake.get("/v1/config", method="PATCH", body=patch)[0] == 200
    send(lake.url, insert("raised", "3", n=1.5))
    lake.flush()
    assert (values(catalog, "raised"), rescued(catalog, "raised")) == ({"1": 1.0, "2": 0.5, "3": 1.5}, {})
    assert {each["_rescued"] for each in changes_of(catalog, "default.raised")} == {None}


def test_a_stream_goes_on_meanwhile(lake: ServerProcess, catalog: RestCatalog) -> None:
    filled(lake, "busy")
    is_over = threading.Event()
    sent: list[float] = []

    def stream() -> None:
        while not is_over.is_set():
            value = len(sent) + 0.5 * (len(sent) % 2)
            send(lake.url, *(update("busy", key, {"n": 1}, {"n": value}) for key in ("x", "7", "new")))
            sent.append(value)
            lake.flush()

    thread = threading.Thread(target=stream)
    thread.start()
    try:
        run_job(lake, table="busy", kinds=["columns"])
    finally:
        is_over.set()
        thread.join()
    lake.flush()
    assert type_of(catalog, "busy") == "double"
    found = values(catalog, "busy")
    assert (found, rescued(catalog, "busy")) == (EXPECTED | dict.fromkeys(("x", "7", "new"), sent[-1]), {})
    last = [each for each in changes_of(catalog, "default.busy") if each["_key"] == "new"]
    assert [each["n"] for each in last] == sent
    verified(lake.home)


def test_a_pipeline_that_dies_when_it_has_landed_leaves_it_right(lake: ServerProcess, catalog: RestCatalog) -> None:
    filled(lake, "dying")
    lake.crash_at("landed")
    status, job = lake.get("/v1/compaction/run", method="POST", body={"table": "dying", "kinds": ["columns"]})
    assert status == 202, job
    wait_for(lambda: not lake.is_crash_due, "it dies")
    send(lake.url, update("dying", "x", {"n": 0.5}, {"n": 8.5}), delete("dying", "29", n=29))
    wait_for(lambda: is_published(lake), "another pipeline publishes")
    expected = {key: value for key, value in EXPECTED.items() if key != "29"} | {"x": 8.5}
    assert (values(catalog, "dying"), rescued(catalog, "dying")) == (expected, {})
    assert type_of(catalog, "dying") == "double"
    verified(lake.home)
