"""A real server with a real Spark: declared types, columns that change, rows that cannot be written, what is masked."""
# ruff: noqa: S608 - the names in the statements are the tests' own

from __future__ import annotations

import contextlib
import json
import time
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, IntegerType, NestedField, StringType, TimeType

from tests.support.aio import run
from tests.support.changes import ddl, insert, send, update
from tests.support.server import ServerProcess, job_ended, post, query, wait_for, wait_for_metrics
from tests.support.tables import changes_of, rows_of, types_of, verified

pytestmark = pytest.mark.spark
_WAIT_S = 120.0
SETTINGS = """\
freshness_target_ms = 300_000
flush_interval_ms = 300_000
flush_threshold_ms = 300_000
mask_secret = "salt and pepper"
exclude_tables = ["private.*"]
deduplication_window_ms = 1_000

[tables."typed.declared"]
columns = {price = "decimal(10,2)", born = "date", seen = "timestamp", id = "uuid", photo = "bytea", small = "int"}

[tables."typed.texts"]
infer_timestamps = false

[tables."typed.people"]
exclude_columns = ["password"]
mask = {email = "hash", name = "redact", phone = "truncate(3)"}

[tables."typed.hashed"]
mask = {email = "hash"}

[tables."typed.widths"]
columns = {price = "int"}

[tables."typed.large"]
rebuild_rows_max = 0

[tables."typed.strict"]
fail_stop = true
"""


def ask(lake: ServerProcess, sql: str, **more: Any) -> list[Any]:
    return [list(row.values()) for row in query(lake, sql, **more)]


# --- types that are declared -----------------------------------------------------------------------------------------

ID = "0188e0e0-1111-7222-8333-444455556666"
DECLARED = {
    "price": "decimal(10, 2)",
    "born": "date",
    "seen": "timestamp",
    "id": "uuid",
    "photo": "binary",
    "small": "int",
}


def test_the_settings_declare_types_and_all_engines_read_them(lake: ServerProcess, catalog: RestCatalog) -> None:
    row = {"price": "12.5", "born": "2001-02-03", "seen": "2026-01-02T03:04:05", "id": ID, "photo": "AAH/", "small": 7}
    send(lake.url, insert("typed.declared", "1", **row), insert("typed.declared", "2", price=0.1, extra=5))
    live = ask(lake, "SELECT price, born, seen, id, photo, small FROM typed.declared ORDER BY _key")
    lake.flush()
    assert types_of(catalog, "typed.declared") == DECLARED | {"extra": "long"}
    found = rows_of(catalog, "typed.declared")
    assert found["1"] == {
        "_rescued": None,
        "price": Decimal("12.50"),
        "born": date(2001, 2, 3),
        "seen": datetime.fromisoformat("2026-01-02T03:04:05"),
        "id": UUID(ID),
        "photo": b"\x00\x01\xff",
        "small": 7,
        "extra": None,
    }
    assert found["2"]["price"] == Decimal("0.10")
    assert ask(lake, "SELECT price, born, seen, id, photo, small FROM typed.declared ORDER BY _key") == live
    assert live[0][:2] == ["12.50", "2001-02-03"]


def test_a_value_that_does_not_fit_its_declared_type_is_rescued(lake: ServerProcess, catalog: RestCatalog) -> None:
    odd = {"price": 0.001, "born": "3.2.2001", "seen": "2026-01-02T03:04:05Z", "id": "x", "photo": "?", "small": "7"}
    send(lake.url, insert("typed.declared", "odd", **odd))
    lake.flush()
    row = rows_of(catalog, "typed.declared")["odd"]
    assert json.loads(row.pop("_rescued")) == odd
    assert set(row.values()) == {None}


def test_a_source_declares_types_and_widens_them(lake: ServerProcess, catalog: RestCatalog) -> None:
    schema = [
        {"name": "id", "type": "integer", "key": True, "nullable": False},
        {"name": "price", "type": "numeric(10,2)"},
        {"name": "odd", "type": "geometry"},
        {"name": "never", "type": "timestamp with time zone"},
    ]
    send(lake.url, insert("typed.told", "1", id=1, price=1.5, odd="POINT") | {"metadata": {"schema": schema}})
    lake.flush()
    assert types_of(catalog, "typed.told") == {
        "id": "int",
        "price": "decimal(10, 2)",
        "never": "timestamptz",
        "odd": "string",
    }
    wider = [{"name": "id", "type": "bigint"}, {"name": "price", "type": "numeric(12,2)"}]
    send(lake.url, update("typed.told", "1", None, {"id": 2**40, "price": "1234567890.25"}, schema=wider))
    lake.flush()
    assert types_of(catalog, "typed.told")["id"] == "long"
    assert rows_of(catalog, "typed.told")["1"]["price"] == Decimal("1234567890.25")


def test_the_settings_have_the_last_word_on_a_width(lake: ServerProcess, catalog: RestCatalog) -> None:
    schema = [{"name": "price", "type": "bigint"}]
    send(lake.url, insert("typed.widths", "1", price=1) | {"metadata": {"schema": schema}})
    assert ask(lake, "SELECT price FROM typed.widths") == [[1]]
    lake.flush()
    assert types_of(catalog, "typed.widths") == {"price": "int"}


def test_upkeep_beside_columns_that_get_another_type_loses_nothing(lake: ServerProcess, catalog: RestCatalog) -> None:
    for number in range(3):
        send(lake.url, insert("typed.kept", str(number), n=number))
        lake.flush()
    patch = {"tables": {"typed.kept": {"columns": {"n": "double"}}}}
    assert lake.get("/v1/config", method="PATCH", body=patch)[0] == 200
    job_ended(lake, post(lake, "/v1/compaction/run", namespace="typed", table="kept")["jobId"])
    assert sorted(row["n"] for row in rows_of(catalog, "typed.kept").values()) == [0, 1, 2]
    send(lake.url, insert("typed.kept", "3", n=0.5))
    lake.flush()
    assert sorted(row["n"] for row in rows_of(catalog, "typed.kept").values()) == [0, 0.5, 1, 2]
    assert types_of(catalog, "typed.kept") == {"n": "double"}


def test_a_number_beyond_int_widens_its_column(lake: ServerProcess, catalog: RestCatalog) -> None:
    send(lake.url, insert("typed.declared", "wide", small=2**40))
    lake.flush()
    assert types_of(catalog, "typed.declared")["small"] == "long"
    found = rows_of(catalog, "typed.declared")
    assert (found["wide"]["small"], found["1"]["small"]) == (2**40, 7)


def test_a_table_that_was_made_beforehand_keeps_its_types(lake: ServerProcess, catalog: RestCatalog) -> None:
    catalog.create_namespace_if_not_exists("made")
    catalog.create_table("made.odd", Schema(NestedField(1, "at", TimeType())))
    refused = lake.get("/v1/namespaces/made/tables/odd/adopt", method="POST")
    assert (refused[0], "columns at" in refused[1]["error"]["message"]) == (400, True)

    schema = Schema(
        NestedField(1, "id", IntegerType(), required=True),
        NestedField(2, "price", DecimalType(8, 3)),
        NestedField(4, "note", StringType()),
        identifier_field_ids=[1],
    )
    catalog.create_table("made.before", schema)
    assert lake.get("/v1/namespaces/made/tables/before/adopt", method="POST")[0] == 200
    send(lake.url, insert("made.before", "1", id=5, price=1.125, note="x", more=True))
    lake.flush()
    row = rows_of(catalog, "made.before")["1"]
    assert (row["id"], row["price"], row["note"], row["more"]) == (5, Decimal("1.125"), "x", True)
    assert ask(lake, "SELECT id, note FROM made.before") == [[5, "x"]]


def test_texts_stay_texts_where_that_is_asked_for(lake: ServerProcess, catalog: RestCatalog) -> None:
    send(lake.url, insert("typed.texts", "1", at="2026-01-02T03:04:05Z"))
    lake.flush()
    assert types_of(catalog, "typed.texts") == {"at": "string"}


def test_a_map_that_is_used_as_columns_is_one_column(lake: ServerProcess, catalog: RestCatalog) -> None:
    wide = {"attributes": {f"sku-{number}": number for number in range(1_000)}, "id": 1}
    send(lake.url, insert("typed.maps", "1", **wide))
    lake.flush()
    assert types_of(catalog, "typed.maps") == {"attributes": "string", "id": "long"}
    assert json.loads(rows_of(catalog, "typed.maps")["1"]["attributes"]) == wide["attributes"]


# --- columns that change ---------------------------------------------------------------------------------------------


def test_a_fraction_makes_whole_numbers_fractions_everywhere(lake: ServerProcess, catalog: RestCatalog) -> None:
    table = "typed.prices"
    send(lake.url, *(insert(table, str(n), id=n, price=10 + n, note="old") for n in range(5)))
    send(lake.url, update(table, "1", {"id": 1, "price": 11, "note": "old"}, {"id": 1, "price": 20, "note": "new"}))
    lake.flush()
    old_snapshot = catalog.load_table(table).current_snapshot()
    assert old_snapshot is not None
    before_ms = old_snapshot.timestamp_ms
    send(lake.url, insert(table, "x", id=9, price=10.5), update(table, "2", None, {"id": 2, "price": 7}))
    assert ask(lake, f"SELECT sum(price) AS s FROM {table}") == [[10 + 20 + 7 + 13 + 14 + 10.5]]
    lake.flush()
    assert types_of(catalog, table) == {"id": "long", "price": "double", "note": "string"}
    assert {key: row["price"] for key, row in rows_of(catalog, table).items()} == {
        "0": 10.0, "1": 20.0, "2": 7.0, "3": 13.0, "4": 14.0, "x": 10.5
    }  # fmt: skip
    changes = changes_of(catalog, table)
    assert [each["price"] for each in changes] == [10.0, 11.0, 12.0, 13.0, 14.0, 20.0, 10.5, 7.0]
    assert changes[5]["_before"] == {"id": 1, "price": 11.0, "note": "old"}
    old = catalog.load_table(table).scan(snapshot_id=old_snapshot.snapshot_id).to_arrow().to_pylist()
    assert sorted(row["price"] for row in old) == [10, 12, 13, 14, 20]
    assert ask(lake, f"SELECT price FROM {table} ORDER BY id", asOf=before_ms) == [
        [10.0],
        [20.0],
        [12.0],
        [13.0],
        [14.0],
    ]
    send(lake.url, update(table, "3", None, {"id": 3, "price": 1.25}))
    lake.flush()
    assert rows_of(catalog, table)["3"]["price"] == 1.25
    verified(lake.home)


def test_an_integer_that_no_fraction_holds_keeps_its_column(lake: ServerProcess, catalog: RestCatalog) -> None:
    table = "typed.exact"
    send(lake.url, insert(table, "1", n=2**60 + 1))
    lake.flush()
    send(lake.url, insert(table, "2", n=0.5))
    lake.flush()
    assert types_of(catalog, table) == {"n": "long"}
    found = rows_of(catalog, table)
    assert (found["1"]["n"], found["2"]["n"], found["2"]["_rescued"]) == (2**60 + 1, None, '{"n":0.5}')


def test_a_large_table_gets_its_fractions_by_itself_a_little_later(lake: ServerProcess, catalog: RestCatalog) -> None:
    """More of this in test_retyping.py."""
    send(lake.url, insert("typed.large", "1", n=1))
    lake.flush()
    send(lake.url, insert("typed.large", "2", n=0.5))
    lake.flush()
    wait_for(lambda: types_of(catalog, "typed.large") == {"n": "double"}, "the column becomes one of fractions")
    found = rows_of(catalog, "typed.large")
    assert [(found[key]["n"], found[key]["_rescued"]) for key in ("1", "2")] == [(1.0, None), (0.5, None)]


def test_columns_are_renamed_and_dropped_as_the_source_says(lake: ServerProcess, catalog: RestCatalog) -> None:
    table = "typed.altered"
    send(lake.url, insert(table, "1", a=1, b="x", c=True))
    lake.flush()
    first = catalog.load_table(table).current_snapshot()
    assert first is not None
    send(
        lake.url,
        update(table, "1", {"a": 1, "b": "x", "c": True}, {"a": 2, "b": "y", "c": True}),
        ddl(table, "rename_column", column="a", to="amount"),
        insert(table, "2", amount=3, b="z", c=False),
        ddl(table, "drop_column", column="c"),
        insert(table, "3", amount=4, b="w", c="back with another type"),
    )
    lake.flush()
    assert types_of(catalog, table) == {"amount": "long", "b": "string", "c": "string"}
    found = rows_of(catalog, table)
    assert [found[key]["amount"] for key in "123"] == [2, 3, 4]
    assert [found[key]["c"] for key in "123"] == [None, None, "back with another type"]
    changes = changes_of(catalog, table)
    assert [each["_operation"] for each in changes] == ["INSERT", "UPDATE", "ALTER", "INSERT", "ALTER", "INSERT"]
    assert changes[1]["_before"]["amount"] == 1
    old = catalog.load_table(table).scan(snapshot_id=first.snapshot_id).to_arrow().to_pylist()
    assert [(row["a"], row["c"]) for row in old] == [(1, True)]
    versions = lake.get("/v1/tables/typed/altered/schema")[1]
    assert versions["version"] >= 3
    verified(lake.home)


# --- tables that change ----------------------------------------------------------------------------------------------


def test_a_truncated_table_is_empty_and_keeps_its_history(lake: ServerProcess, catalog: RestCatalog) -> None:
    table = "typed.emptied"
    send(lake.url, *(insert(table, str(n), n=n) for n in range(5)))
    lake.flush()
    before_ms = int(ask(lake, f"SELECT epoch_ms(max(_commit_timestamp)) AS moment FROM {table}")[0][0])
    send(lake.url, insert(table, "5", n=5), ddl(table, "truncate"), insert(table, "1", n=100))
    assert ask(lake, f"SELECT n FROM {table}") == [[100]]
    lake.flush()
    assert ask(lake, f"SELECT n FROM {table}") == [[100]]
    assert rows_of(catalog, table) == {"1": {"n": 100, "_rescued": None}}
    assert [each["_operation"] for each in changes_of(catalog, table)] == [*["INSERT"] * 6, "TRUNCATE", "INSERT"]
    assert ask(lake, f"SELECT n FROM {table} ORDER BY n", asOf=before_ms) == [[n] for n in range(5)]
    send(lake.url, update(table, "1", None, {"n": 101}))
    lake.flush()
    assert rows_of(catalog, table) == {"1": {"n": 101, "_rescued": None}}
    now_ms = int(ask(lake, f"SELECT epoch_ms(max(_commit_timestamp)) AS moment FROM {table}")[0][0])
    assert ask(lake, f"SELECT n FROM {table}", asOf=now_ms) == [[101]]
    verified(lake.home)


def test_a_dropped_table_is_empty_and_can_come_back(lake: ServerProcess, catalog: RestCatalog) -> None:
    table = "typed.dropped"
    send(lake.url, insert(table, "1", n=1))
    lake.flush()
    send(lake.url, ddl(table, "drop"))
    lake.flush()
    assert rows_of(catalog, table) == {}
    send(lake.url, insert(table, "1", n=2))
    lake.flush()
    assert rows_of(catalog, table)["1"]["n"] == 2


def test_a_renamed_table_has_its_rows_and_history_under_the_new_name(lake: ServerProcess, catalog: RestCatalog) -> None:
    send(lake.url, insert("typed.first_name", "1", n=1))
    lake.flush()
    send(
        lake.url,
        update("typed.first_name", "1", None, {"n": 2}),
        ddl("typed.first_name", "rename", to="typed.second_name"),
        insert("typed.second_name", "2", n=3),
    )
    lake.flush()
    assert {key: row["n"] for key, row in rows_of(catalog, "typed.second_name").items()} == {"1": 2, "2": 3}
    assert [each["_operation"] for each in changes_of(catalog, "typed.second_name")] == [
        "INSERT",
        "UPDATE",
        "RENAME",
        "INSERT",
    ]
    assert not catalog.table_exists("typed.first_name")
    assert ask(lake, "SELECT n FROM typed.second_name ORDER BY n") == [[2], [3]]


def test_a_table_of_somebody_else_is_no_new_name(lake: ServerProcess, catalog: RestCatalog) -> None:
    catalog.create_namespace_if_not_exists("made")
    catalog.create_table("made.theirs", Schema(NestedField(1, "id", IntegerType())))
    send(lake.url, insert("typed.stays", "1", n=1))
    lake.flush()
    send(lake.url, ddl("typed.stays", "rename", to="made.theirs"), ddl("typed.stays", "rename", to="typed.stays"))
    lake.flush()
    assert rows_of(catalog, "typed.stays")["1"]["n"] == 1
    assert [each["_operation"] for each in changes_of(catalog, "typed.stays")] == ["INSERT", "RENAME", "RENAME"]


def test_an_action_whose_name_is_written_with_escapes_is_one(lake: ServerProcess, catalog: RestCatalog) -> None:
    send(lake.url, insert("typed.escaped", "1", n=1))
    lake.flush()
    escaped = (
        b'{"type":"cdc_batch","sourceDoId":"escaping","sequenceNumber":1,"events":[{"sequence":1,"timestamp":1,'
        b'"operation":"DELETE","table":"typed.escaped","rowId":"-","metadata":{"\\u0064dl":{"action":"truncate"}}}]}'
    )

    async def speak() -> None:
        async with aiohttp.ClientSession() as session, session.ws_connect(f"{lake.url}/ws") as socket:
            await socket.send_str('{"type":"connect","sourceDoId":"escaping","lastAckSequence":0}')
            await socket.receive()
            await socket.send_str(escaped.decode())
            assert (await socket.receive_json())["type"] == "ack"

    run(speak(), timeout_s=_WAIT_S)
    lake.flush()
    assert rows_of(catalog, "typed.escaped") == {}


# --- columns that were not sent --------------------------------------------------------------------------------------


def test_columns_that_did_not_change_keep_their_value(lake: ServerProcess, catalog: RestCatalog) -> None:
    table = "typed.toast"
    row = {"id": 1, "text": "long " * 100, "place": {"city": "Rome"}}
    send(lake.url, insert(table, "1", **row), insert(table, "2", **row))
    lake.flush()
    send(lake.url, insert(table, "3", **(row | {"id": "odd"})))
    lake.flush()
    send(
        lake.url,
        update(table, "1", None, {"id": 2}, unchanged=["text", "place"]),
        update(table, "1", None, {"id": 3}, unchanged=["text", "place"]),
        update(table, "2", row | {"text": "as it was"}, {"id": 4}, unchanged=["text", "place"]),
        update(table, "3", None, {"text": "short"}, unchanged=["id", "place"]),
        update(table, "moved", None, {"id": 5}, previousRowId="2", unchanged=["text", "place"]),
    )
    live = ask(lake, f"SELECT _key, id, text, place.city AS city FROM {table} ORDER BY _key")
    lake.flush()
    found = rows_of(catalog, table)
    assert found["1"] == row | {"id": 3, "_rescued": None}
    assert found["moved"] == row | {"id": 5, "text": "as it was", "_rescued": None}
    assert (found["3"]["text"], found["3"]["_rescued"]) == ("short", '{"id":"odd"}')
    assert ask(lake, f"SELECT _key, id, text, place.city AS city FROM {table} ORDER BY _key") == live
    assert changes_of(catalog, table)[3]["text"] == row["text"]
    verified(lake.home)


def test_what_cannot_be_a_column_and_did_not_change_stays_rescued(lake: ServerProcess, catalog: RestCatalog) -> None:
    """`id` beside `ID`, and a name with a dot: told by the row before, by an earlier change, or by the table alone."""
    table, rescued = "typed.no_columns", {"id": 7, "a.b": [1]}
    left_out = {"unchanged": ["id", "a.b"]}
    send(lake.url, insert(table, "first", ID=1, n=0))
    lake.flush()
    send(lake.url, *(insert(table, key, **({"n": 1} | rescued)) for key in ("kept", "moving", "gone")))
    lake.flush()
    send(
        lake.url,
        update(table, "told", {"n": 1, "id": 8, "a.b": [2]}, {"n": 2}, **left_out),
        update(table, "half told", {"id": 9, "a.b": None}, {"n": 2}, **left_out),
        update(table, "kept", None, {"n": 2}, **left_out),
        update(table, "kept", {"a.b": [3]}, {"n": 3}, **left_out),
        update(table, "moved", None, {"n": 2, "a.b": [4]}, previousRowId="moving", **left_out),
        update(table, "gone", None, {"n": 2, "id": None}, unchanged=["id"]),
    )
    sql = f"SELECT _key, n, _rescued FROM {table} ORDER BY _key"
    live = ask(lake, sql)
    lake.flush()
    found = {key: json.loads(row["_rescued"] or "{}") for key, row in rows_of(catalog, table).items()}
    assert found == {
        "first": {},
        "told": {"id": 8, "a.b": [2]},
        "half told": {"id": 9},
        "kept": {"id": 7, "a.b": [3]},
        "moved": {"id": 7, "a.b": [4]},
        "gone": {},
    }
    assert types_of(catalog, table) == {"ID": "long", "n": "long"}
    assert ask(lake, sql) == live
    told = json.loads(changes_of(catalog, table)[4]["_rescued"])
    assert told == {"id": 8, "a.b": [2], "_before": {"id": 8, "a.b": [2]}}
    verified(lake.home)


def test_a_column_of_which_nobody_knows_the_value_sends_its_change_to_quarantine(
    lake: ServerProcess, catalog: RestCatalog
) -> None:
    table = "typed.unknown"
    send(lake.url, insert(table, "1", id=1, text="x"))
    lake.flush()
    send(
        lake.url,
        update(table, "nobody", None, {"id": 2}, unchanged=["text"]),
        insert(table, "2", id=3, text="y"),
    )
    live = ask(lake, f"SELECT key, reason FROM {table}__quarantine")
    assert [each[0] for each in live] == ["nobody"]
    assert ask(lake, f"SELECT count(*) AS n FROM {table}") == [[2]]
    lake.flush()
    assert set(rows_of(catalog, table)) == {"1", "2"}
    (row,) = rows_of(catalog, f"{table}__quarantine").values()
    assert "there is no row before" in row["reason"]
    assert json.loads(row["event"])["after"] == {"id": 2}
    assert ask(lake, f"SELECT key, reason FROM {table}__quarantine") == live
    verified(lake.home)


def test_a_replay_writes_what_can_be_written_now(lake: ServerProcess, catalog: RestCatalog) -> None:
    table, path = "typed.mended", "/v1/quarantine/typed/mended"
    # The columns and the quarantine come with one publish.
    send(lake.url, insert(table, "1", id=1, text="x"), update(table, "late", None, {"id": 2}, unchanged=["text"]))
    send(lake.url, update(table, "never", None, {"id": 3}, unchanged=["text"]))
    lake.flush()
    rows = rows_of(catalog, f"{table}__quarantine").values()
    first, second = sorted(row["position"] for row in rows)
    verified(lake.home)
    send(lake.url, insert(table, "late", id=0, text="here now"), insert(table, "odd", id="no number"))
    status, done = lake.get(f"{path}/replay", method="POST", body={})
    assert (status, done["replayed"], done["refused"]) == (200, 2, []), done
    live = ask(lake, f"SELECT _key, id, text FROM {table} ORDER BY _key")
    assert live[1] == ["late", 2, "here now"]
    lake.flush()
    assert ask(lake, f"SELECT _key, id, text FROM {table} ORDER BY _key") == live
    assert rows_of(catalog, table)["late"] == {"id": 2, "text": "here now", "_rescued": None}
    (left,) = rows_of(catalog, f"{table}__quarantine").values()
    assert (left["key"], left["source"]) == ("never", "dolake.quarantine")
    verified(lake.home)

    again = lake.get(f"{path}/replay", method="POST", body={"positions": [first, second]})[1]
    assert (again["replayed"], [each["position"] for each in again["refused"]]) == (0, [first, second])
    dropped = lake.get(f"{path}/drop", method="POST", body={})[1]
    assert dropped["dropped"] == 1
    send(lake.url, update(table, "another", None, {"id": 4}, unchanged=["text"]))
    assert lake.get(f"{path}/drop", method="POST", body={})[1]["dropped"] == 1
    lake.flush()
    assert rows_of(catalog, f"{table}__quarantine") == {}
    assert lake.get(path)[1]["entries"] == []
    history = [(each["_key"], each["_operation"]) for each in changes_of(catalog, f"{table}__quarantine")]
    assert sorted(operation for _, operation in history) == 4 * ["DELETE"] + 4 * ["INSERT"]
    assert [each for each in history if each[0] == str(first)] == [(str(first), "INSERT"), (str(first), "DELETE")]
    late = [each["_operation"] for each in changes_of(catalog, table) if each["_key"] == "late"]
    assert late == ["INSERT", "UPDATE"]
    wait_for_metrics(
        lake,
        f'dolake_quarantined_changes_total{{table="{table}"}} 4.0',
        f'dolake_quarantine_replayed_total{{table="{table}"}} 2.0',
        f'dolake_quarantine_dropped_total{{table="{table}"}} 2.0',
        f'dolake_rescued_changes_total{{table="{table}"}} 1.0',
    )
    verified(lake.home)


def test_what_is_hashed_is_not_hashed_again(lake: ServerProcess, catalog: RestCatalog) -> None:
    table = "typed.hashed"
    person = {"id": 1, "email": "eve@example.org", "text": "x"}
    send(lake.url, insert(table, "eve", **person))
    lake.flush()
    send(lake.url, update(table, "eva", None, {"id": 2, "email": "eve@example.org"}, unchanged=["text"]))
    send(lake.url, insert(table, "eva", id=0, text="y"))
    assert lake.get("/v1/quarantine/typed/hashed/replay", method="POST", body={})[1]["replayed"] == 1
    live = ask(lake, f"SELECT id, email, text FROM {table} WHERE _key = 'eva'")
    lake.flush()
    rows = rows_of(catalog, table)
    assert rows["eva"]["email"] == rows["eve"]["email"]
    assert live == [[2, rows["eve"]["email"], "y"]]
    verified(lake.home)


def test_a_table_that_wants_no_quarantine_stops(lake: ServerProcess, catalog: RestCatalog) -> None:
    send(lake.url, insert("typed.strict", "1", id=1, text="x"))
    lake.flush()
    send(lake.url, update("typed.strict", "nobody", None, {"id": 2}, unchanged=["text"]))
    status, body = lake.get("/flush", method="POST")
    assert status == 200 or status >= 500
    assert not body.get("success"), body
    patch = {"tables": {"typed.strict": {"fail_stop": False}}}
    settings = lake.get("/v1/config")[1]
    assert lake.get("/v1/config", method="PATCH", body=patch)[0] == 200, settings
    lake.flush()
    assert set(rows_of(catalog, "typed.strict__quarantine")) != set()


# --- what the lake does not take -------------------------------------------------------------------------------------


def test_left_out_and_masked_values_are_nowhere_once_the_journal_is_trimmed(
    lake: ServerProcess, catalog: RestCatalog
) -> None:
    secrets = {"email": "ann@example.org", "name": "Ann Secretson", "phone": "555-0123-hidden", "password": "hunter2pw"}
    send(lake.url, insert("typed.people", "1", **({"id": 1} | secrets)))
    send(lake.url, update("typed.people", "1", {"id": 1} | secrets, {"id": 2} | secrets))
    send(lake.url, insert("private.letters", "1", body="a secret letter"))
    live = ask(lake, "SELECT name, phone FROM typed.people")
    lake.flush()
    row = rows_of(catalog, "typed.people")["1"]
    assert (row["name"], row["phone"]) == ("***", "555")
    assert len(row["email"]) == 64
    assert "password" not in row
    assert live == [["***", "555"]]
    assert not catalog.table_exists("private.letters")
    status = lake.get("/status")[1]
    assert status["committedPosition"] == status["durablePosition"]
    assert not files_with(lake.home / "warehouse", (*secrets.values(), "a secret letter"))
    filler = [insert("typed.filler", str(number), text="x" * 1_000) for number in range(200)]
    send(lake.url, *filler)
    lake.flush()
    deadline = time.monotonic() + _WAIT_S
    while found := files_with(lake.home, (*secrets.values(), "a secret letter")):
        assert time.monotonic() < deadline, f"the journal was trimmed, and still in {found}"
        send(lake.url, *filler)
        lake.flush()


def test_a_masked_column_is_masked_in_any_case_and_keeps_its_name(lake: ServerProcess, catalog: RestCatalog) -> None:
    send(
        lake.url,
        insert("typed.people", "9", id=9, EMAIL="bob@example.org", PassWord="letmein"),
        ddl("typed.people", "rename_column", column="email", to="mail"),
    )
    lake.flush()
    columns = types_of(catalog, "typed.people")
    assert "mail" not in columns
    row = rows_of(catalog, "typed.people")["9"]
    assert "bob@example.org" not in str(row)
    assert "letmein" not in str(row)


def test_changes_that_the_lake_does_not_take_are_passed_over(lake: ServerProcess, catalog: RestCatalog) -> None:
    catalog.create_namespace_if_not_exists("private")
    catalog.create_table("private.notes", Schema(NestedField(1, "id", IntegerType())))
    send(lake.url, insert("private.notes", "1", body="x"), ddl("private.notes", "truncate"))
    send(lake.url, insert("private.diary", "1", body="x"), insert("private.diary", "2", body="y"))
    lake.flush()
    status = lake.get("/status")[1]
    assert status["committedPosition"] == status["durablePosition"]
    assert not catalog.table_exists("private.diary")
    verified(lake.home)


def files_with(folder: Path, secrets: tuple[str, ...]) -> list[Path]:
    """The files below this folder in which one of these stands."""
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError, OSError):
            if path.is_file() and any(secret.encode() in path.read_bytes() for secret in secrets):
                found.append(path)
    return found
