"""Types that a source has only guessed give way to values, on a real server with a real Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from pyiceberg.catalog.rest import RestCatalog

from dolake.storage.duck import extension_file
from tests.support.changes import Change, ddl, insert, send, update
from tests.support.command import dolake
from tests.support.server import ServerProcess, job_ended, post, query, refusal, run_job
from tests.support.tables import changes_of, rows_of, types_of, verified

pytestmark = pytest.mark.spark
SETTINGS = """\
freshness_target_ms = 300_000
flush_interval_ms = 300_000
flush_threshold_ms = 300_000
[compaction]
auto_compact = false
[tables."guess.large"]
rebuild_rows_max = 0
[tables."guess.parted"]
partition_by = ["kind"]
"""


def column(name: str, type_: str, comment: str | None = None, **more: Any) -> dict[str, Any]:
    """As a source declares a column whose type it guesses."""
    return {"name": name, "type": type_, "isHint": True} | ({} if comment is None else {"comment": comment}) | more


def declaring(change: Change, *columns: dict[str, Any]) -> Change:
    return change | {"metadata": change.get("metadata", {}) | {"schema": list(columns)}}


def published(lake: ServerProcess, *changes: Change) -> None:
    send(lake.url, *changes)
    lake.flush()


def values(catalog: RestCatalog, table: str, name: str = "v") -> dict[str, Any]:
    return {key: row[name] for key, row in rows_of(catalog, f"guess.{table}").items()}


def rescued(catalog: RestCatalog, table: str) -> dict[str, str]:
    rows = rows_of(catalog, f"guess.{table}")
    return {key: row["_rescued"] for key, row in rows.items() if row["_rescued"] is not None}


def comment(catalog: RestCatalog, table: str, name: str = "v") -> str | None:
    found: str | None = catalog.load_table(f"guess.{table}").schema().find_field(name).doc
    return found


def null_count_in_duckdb(catalog: RestCatalog, table: str, name: str) -> int:
    """As another engine finds it in the Iceberg table."""
    with duckdb.connect() as connection:
        for extension in ("avro", "iceberg"):
            connection.execute(f"LOAD '{extension_file(extension)}'")
        location = catalog.load_table(f"guess.{table}").metadata_location
        sql = f'SELECT count(*) FROM iceberg_scan(?) WHERE "{name}" IS NULL'  # noqa: S608 - the test's own names
        (count,) = connection.execute(sql, [location]).fetchone() or (0,)
    return int(count)


def test_a_soft_delete_column_of_an_empty_table_gets_the_type_of_its_first_values(
    lake: ServerProcess, catalog: RestCatalog
) -> None:
    hint = column("deletedAt", "timestamp")
    published(lake, declaring(insert("guess.soft", 1, deletedAt=None), column("id", "long", key=True), hint))
    assert types_of(catalog, "guess.soft")["deletedAt"] == "timestamp"
    rows = [insert("guess.soft", number, deletedAt=None) for number in (2, 3)]
    rows += [insert("guess.soft", number, deletedAt=f"2026-01-0{number}T10:00:00.000+00:00") for number in (4, 5)]
    rows[0] = declaring(rows[0], column("deletedAt", "timestamptz", "ISO 8601 times with a zone"))
    send(lake.url, *rows)
    not_deleted = "SELECT count(*) AS n FROM guess.soft WHERE deletedAt IS NULL"
    assert query(lake, not_deleted) == [{"n": 3}], "before it is published, too"
    lake.flush()

    assert types_of(catalog, "guess.soft")["deletedAt"] == "timestamptz"
    assert comment(catalog, "soft", "deletedAt") == "ISO 8601 times with a zone"
    assert query(lake, not_deleted) == [{"n": 3}]
    assert null_count_in_duckdb(catalog, "soft", "deletedAt") == 3
    assert values(catalog, "soft", "deletedAt")["4"] == datetime(2026, 1, 4, 10, tzinfo=UTC)
    assert rescued(catalog, "soft") == {}


def test_a_small_table_becomes_text_at_once_and_nothing_is_rescued(lake: ServerProcess, catalog: RestCatalog) -> None:
    published(
        lake,
        declaring(
            insert("guess.small", "a", v="2026-01-01T10:00:00Z", n=1), column("v", "timestamptz", "as the app has it")
        ),
        insert("guess.small", "b", v="2026-01-01T10:00:00.25Z", n=2),
        insert("guess.small", "c", v=None, n=3),
    )
    assert comment(catalog, "small") == "as the app has it"
    send(lake.url, update("guess.small", "a", {"v": "2026-01-01T10:00:00Z", "n": 1}, {"v": "tomorrow", "n": 1}))
    as_text = [{"v": "tomorrow"}, {"v": "2026-01-01T10:00:00.25Z"}, {"v": None}]
    assert query(lake, "SELECT v FROM guess.small ORDER BY n") == as_text, "before it is published, too"
    lake.flush()
    assert query(lake, "SELECT v FROM guess.small ORDER BY n") == as_text
    assert types_of(catalog, "guess.small") == {"v": "string", "n": "long"}
    assert types_of(catalog, "guess.small__changes")["v"] == "string"
    assert values(catalog, "small") == {"a": "tomorrow", "b": "2026-01-01T10:00:00.25Z", "c": None}
    assert rescued(catalog, "small") == {}
    assert comment(catalog, "small") == "values did not fit timestamptz"
    history = [(each["v"], each["_before"] and each["_before"]["v"]) for each in changes_of(catalog, "guess.small")]
    assert history[0] == ("2026-01-01T10:00:00Z", None)
    assert history[-1] == ("tomorrow", "2026-01-01T10:00:00Z")

    again = declaring(
        insert("guess.small", "d", v="2026-01-02T10:00:00Z", n=4), column("v", "timestamptz", "as the app has it")
    )
    published(lake, again)
    assert values(catalog, "small")["d"] == "2026-01-02T10:00:00Z"
    assert comment(catalog, "small") == "values did not fit timestamptz"


@pytest.mark.parametrize(
    ("name", "type_", "first", "later", "wanted", "expected"),
    [
        ("flags", "boolean", True, "t", "string", ["true", "t"]),
        ("days", "date", "2026-01-31", 1769853600123, "string", ["2026-01-31", "1769853600123"]),
        ("money", "decimal(10,2)", 1.5, 12.345, "decimal(11, 3)", [Decimal("1.500"), Decimal("12.345")]),
        ("blobs", "binary", "AP8=", 7, "string", ["AP8=", "7"]),
        ("sizes", "long", 1, "large", "string", ["1", "large"]),
    ],
)
def test_every_kind_of_guess_gives_way(
    lake: ServerProcess,
    catalog: RestCatalog,
    name: str,
    type_: str,
    first: Any,
    later: Any,
    wanted: str,
    expected: list[Any],
) -> None:
    published(lake, declaring(insert(f"guess.{name}", "1", v=first), column("v", type_)))
    send(lake.url, insert(f"guess.{name}", "2", v=later))
    live = query(lake, f"SELECT v FROM guess.{name} ORDER BY _key")  # noqa: S608 - the test's own names
    lake.flush()
    assert query(lake, f"SELECT v FROM guess.{name} ORDER BY _key") == live  # noqa: S608 - the test's own names
    assert types_of(catalog, f"guess.{name}")["v"] == wanted
    assert values(catalog, name) == dict(zip(("1", "2"), expected, strict=True))
    assert rescued(catalog, name) == {}


def test_values_of_one_publish_may_contradict_the_guess_that_came_with_them(
    lake: ServerProcess, catalog: RestCatalog
) -> None:
    published(
        lake,
        declaring(insert("guess.fresh", "1", v="2026-01-31"), column("v", "date")),
        insert("guess.fresh", "2", v="x"),
    )
    assert values(catalog, "fresh") == {"1": "2026-01-31", "2": "x"}
    assert rescued(catalog, "fresh") == {}


def warnings(lake: ServerProcess, sql: str, **more: Any) -> list[str]:
    found: list[str] = post(lake, "/v1/query", sql=sql, **more)["warnings"]
    return found


def test_a_declared_type_that_is_no_guess_stays_strict_and_queries_warn(
    lake: ServerProcess, catalog: RestCatalog
) -> None:
    strict = {"name": "v", "type": "date"}
    published(
        lake,
        declaring(insert("guess.strict", "1", v="2026-01-31", n=1), strict),
        insert("guess.strict", "2", v="x", n=2),
    )
    assert types_of(catalog, "guess.strict")["v"] == "date"
    assert rescued(catalog, "strict") == {"2": '{"v":"x"}'}

    said = ["guess.strict: 1 row has a value of v that did not fit; v is NULL there, look in _rescued"]
    assert warnings(lake, "SELECT count(*) FROM guess.strict WHERE V IS NULL") == said
    assert warnings(lake, "SELECT * FROM guess.strict") == said
    assert warnings(lake, "SELECT n FROM guess.strict") == warnings(lake, "SELECT count(*) FROM guess.strict") == []

    send(lake.url, insert("guess.strict", "3", v="y", n=3), insert("guess.strict", "2", v="2026-02-01", n=2))
    assert warnings(lake, "FROM guess.strict") == said, "row 2 fits now, and row 3 is not published yet"
    send(lake.url, insert("guess.strict", "4", v="z", n=4))
    assert warnings(lake, "SELECT a.v FROM guess.strict a") == [
        said[0].replace("1 row has a value", "2 rows have values")
    ]


def test_a_key_and_a_column_that_divides_the_table_keep_their_types(lake: ServerProcess, catalog: RestCatalog) -> None:
    columns = column("v", "long", key=True), column("kind", "date")
    published(lake, declaring(insert("guess.parted", "1", v=1, kind="2026-01-31"), *columns))
    published(lake, insert("guess.parted", "2", v="two", kind="none"))
    assert types_of(catalog, "guess.parted") == {"v": "long", "kind": "date"}
    assert rescued(catalog, "parted") == {"2": '{"kind":"none","v":"two"}'}


def test_a_large_table_becomes_text_beside_the_stream_with_what_was_rescued(
    lake: ServerProcess, catalog: RestCatalog
) -> None:
    published(lake, declaring(insert("guess.large", "1", v="2026-01-31"), column("v", "date")))
    published(
        lake,
        insert("guess.large", "2", v="2026-02-01"),
        insert("guess.large", "3", v=7),
        insert("guess.large", "4", v=[1]),
    )
    assert types_of(catalog, "guess.large")["v"] == "date"
    assert rescued(catalog, "large") == {"3": '{"v":7}', "4": '{"v":[1]}'}
    run_job(lake, namespace="guess", table="large", kinds=["columns"])
    assert types_of(catalog, "guess.large")["v"] == types_of(catalog, "guess.large__changes")["v"] == "string"
    assert values(catalog, "large") == {"1": "2026-01-31", "2": "2026-02-01", "3": "7", "4": "[1]"}
    assert rescued(catalog, "large") == {}


def listed(lake: ServerProcess, name: str) -> dict[str, Any]:
    found = {each["name"]: each for each in lake.get("/v1/tables")[1]["tables"] if each["namespace"] == "guess"}
    described: dict[str, Any] = found[name]
    return described


def test_the_list_of_tables_counts_what_was_rescued(lake: ServerProcess) -> None:
    assert listed(lake, "strict")["rescued"] == {"v": 2}
    assert "rescued" not in listed(lake, "small")
    shown = dolake("tables", "--home", lake.home)
    assert (shown.returncode, "v 2" in shown.stdout) == (0, True), shown


def test_a_table_that_its_source_creates_exists_with_its_columns(lake: ServerProcess, catalog: RestCatalog) -> None:
    columns = column("id", "long", key=True), column("at", "timestamp"), column("ok", "boolean", "0 and 1")
    published(lake, declaring(ddl("guess.empty", "create"), *columns))
    assert types_of(catalog, "guess.empty") == {"id": "long", "at": "timestamp", "ok": "boolean"}
    assert comment(catalog, "empty", "ok") == "0 and 1"
    assert query(lake, "SELECT * FROM guess.empty") == []
    assert [each["_operation"] for each in changes_of(catalog, "guess.empty")] == ["CREATE"]
    fields = {each["name"]: each for each in lake.get("/v1/tables/guess/empty/schema")[1]["fields"]}
    assert (fields["ok"]["comment"], fields["ok"]["type"]) == ("0 and 1", "boolean")

    published(
        lake,
        declaring(ddl("guess.empty", "create"), *columns),
        insert("guess.empty", 1, at="2026-01-31 10:00:00", ok=True),
    )
    assert query(lake, "SELECT id, ok FROM guess.empty") == [{"id": 1, "ok": True}]
    assert null_count_in_duckdb(catalog, "empty", "at") == 0


def test_a_value_that_was_too_large_to_send_is_named_in_its_row(lake: ServerProcess, catalog: RestCatalog) -> None:
    absent = {"size": 1_200_164, "sha256": "0" * 64, "reason": "larger than max_event_size"}
    change = declaring(insert("guess.files", "1", name="film.mp4"), column("body", "binary"), column("name", "string"))
    change["metadata"]["rescued"] = {"body": absent}
    published(lake, change, insert("guess.files", "2", name="text.txt", body="AP8="))
    assert values(catalog, "files", "body") == {"1": None, "2": b"\x00\xff"}
    assert json.loads(rescued(catalog, "files")["1"]) == {"body": absent}
    (said,) = warnings(lake, "SELECT body FROM guess.files")
    assert said == "guess.files: 1 row has a value of body that did not fit; body is NULL there, look in _rescued"

    published(lake, insert("guess.files", "3", name="n", body=7))  # no blob, so the column becomes text
    assert values(catalog, "files", "body") == {"1": None, "2": "AP8=", "3": "7"}
    assert json.loads(rescued(catalog, "files")["1"]) == {"body": absent}, "it is still not here"


def test_a_column_becomes_text_when_somebody_asks_for_it(lake: ServerProcess, catalog: RestCatalog) -> None:
    path = "/v1/tables/guess/strict/retype"
    assert listed(lake, "strict")["rescued"] == {"v": 2}
    status, error = refusal(lake, path, column="w", type="text")
    assert (status, error["message"]) == (400, "guess.strict has no column 'w'")
    assert refusal(lake, path, column="v", type="date")[0] == 400
    done = dolake("tables", "retype", "guess.strict", "v", "text", "--home", lake.home)
    assert (done.returncode, done.stdout.startswith("done in")) == (0, True), done
    assert "rescued" not in listed(lake, "strict")
    assert values(catalog, "strict") == {"1": "2026-01-31", "2": "2026-02-01", "3": "y", "4": "z"}
    assert (rescued(catalog, "strict"), warnings(lake, "FROM guess.strict")) == ({}, [])
    assert refusal(lake, path, column="v", type="text")[1]["message"] == "v of guess.strict is text already"

    fixed = post(lake, "/v1/tables/guess/parted/retype", column="kind", type="text")
    job = job_ended(lake, fixed["jobId"])
    assert job["state"] == "failed"
    assert "cannot change" in job["reason"]


def test_the_lake_is_still_what_its_journal_says(lake: ServerProcess) -> None:
    verified(lake.home)
