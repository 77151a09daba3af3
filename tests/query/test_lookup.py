"""Rows by their keys: the quick way beside SQL, with a tail, moved keys, half transactions and lost indexes."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dolake.errors import InvalidInput, NoSuchRow
from dolake.query.lookup import Slow
from dolake.query.results import Answer, json_pieces
from dolake.query.rows_question import RowsQuestion
from tests.query.asking import Asker, Named, asking
from tests.verify.lake import HandLake, delete, insert, update

WIDE: dict[str, Any] = {
    "n": 1,
    "big": 2**60,
    "price": 1.1,
    "tiny": 5e-324,
    "is_it": True,
    "text": 'ü, "q" and \\ and \u2028',
    "when": "2026-11-15T12:00:00.123456Z",
    "day": "2026-11-15",
    "address": {"city": "Ulm", "zip": None, "Odd Name": 1},
    "tags": [{"x": 1}, {"x": None}],
    "empty": [],
    "nothing": None,
    "_key": "its own",
}
DECLARED = [
    {"name": "amount", "type": "decimal(20,4)"},
    {"name": "id", "type": "uuid"},
    {"name": "raw", "type": "binary"},
    {"name": "i32", "type": "int"},
    {"name": "f32", "type": "float"},
    {"name": "local", "type": "timestamp"},
    {"name": "day", "type": "date"},
    {"name": "when", "type": "timestamptz"},
]
TYPED: dict[str, Any] = {
    "amount": "12345678901234.5678",
    "id": "6f2f1bb4-2f5e-4f4e-9f59-1c8d3c0a9d7e",
    "raw": "AAEC/w==",
    "i32": -5,
    "f32": 1.25,
    "local": "2026-11-15T12:00:00.5",
    "day": "1969-12-31",
    "when": "2026-11-15T12:00:00+02:00",
}


def question(*keys: str, table: str = "items", **more: Any) -> RowsQuestion:
    return RowsQuestion(keys=list(keys), namespace=["default"], table=table, **more).checked()


def found(asker: Asker, *keys: str, **more: Any) -> list[Any]:
    rows: list[Any] = json.loads(asker.reader.lookup.find(question(*keys, **more)).body())["rows"]
    return rows


def as_sql_has_it(asker: Asker, key: str, table: str = "items") -> tuple[list[Any], list[Any]]:
    """Columns and rows of SELECT *, _rescued, as the answer of a query has them."""
    view = asker.view(named := Named(table))
    relation = view.relation(named)
    for name, each in relation.arrow.items():
        asker.connection.register(name, each)
    shown = ", ".join(f'"{name}"' for name in (*relation.columns, "_rescued"))
    result = asker.connection.execute(f"SELECT {shown} FROM ({relation.sql}) WHERE _key = ?", [key])  # noqa: S608
    columns = [(each[0], str(each[1])) for each in result.description]
    told = Answer("q", columns)
    text = b"".join(json_pieces(told, told.cut(result.to_arrow_reader(), 100)))
    view.close()
    answer = msgspec.json.decode(text)
    for row in answer["rows"]:
        if row["_rescued"] is None:
            del row["_rescued"]
    return answer["columns"][:-1], answer["rows"]


def same_as_sql(asker: Asker, *keys: str, table: str = "items") -> None:
    for key in keys:
        answer = json.loads(asker.reader.lookup.find(question(key, table=table)).body())
        columns, rows = as_sql_has_it(asker, key, table)
        assert answer["rows"] == (rows or [None]), key
        assert answer["columns"] == columns


def test_a_row_of_every_type_is_what_sql_shows_published_or_not(hand_lake: HandLake, asker: Asker) -> None:
    declared = insert("typed", **TYPED) | {"metadata": {"schema": DECLARED}}
    hand_lake.publish(insert("a", **WIDE), insert("b", n=None), declared)
    same_as_sql(asker, "a", "b", "typed", "none")
    hand_lake.append(update("b", {"n": None}, WIDE | {"n": 7}), update("typed", TYPED, TYPED | {"i32": 6}))
    hand_lake.append(insert("c", **WIDE), delete("a", WIDE))
    same_as_sql(asker, "a", "b", "c", "typed", "none")


def test_what_did_not_fit_its_column_comes_with_the_row(hand_lake: HandLake, asker: Asker) -> None:
    hand_lake.publish(insert("a", n=1), insert("b", n="two"))
    hand_lake.append(insert("c", n={"x": 1}))
    same_as_sql(asker, "a", "b", "c")


def test_any_text_can_be_a_key(hand_lake: HandLake, asker: Asker) -> None:
    keys = ["a/b", "50%", "%2F", "ключ", "日本", "with space", "'; DROP", '"', "\\", ".", "..", "e\u0301", "é", "\n"]
    hand_lake.publish(*(insert(key, n=at) for at, key in enumerate(keys[::2])))
    hand_lake.append(*(insert(key, n=at) for at, key in enumerate(keys[1::2])))
    assert [row["n"] for row in found(asker, *keys[::2])] == list(range(len(keys[::2])))
    assert [row["n"] for row in found(asker, *keys[1::2])] == list(range(len(keys[1::2])))


def test_many_keys_come_in_their_order_with_nothing_where_there_is_nothing(hand_lake: HandLake, asker: Asker) -> None:
    hand_lake.publish(insert("a", n=1), insert("b", n=2))
    hand_lake.append(insert("c", n=3), delete("a", {"n": 1}))
    assert found(asker, "c", "x", "b", "a", "b") == [{"n": 3}, None, {"n": 2}, None, {"n": 2}]
    with pytest.raises(NoSuchRow):
        asker.reader.lookup.find(question("a", is_single=True)).body()


def test_a_row_that_moved_is_found_by_its_new_key_alone(hand_lake: HandLake, asker: Asker) -> None:
    hand_lake.publish(insert("a", n=1))
    hand_lake.append(update("b", {"n": 1}, {"n": 2}, metadata={"previousRowId": "a"}))
    assert found(asker, "a", "b") == [None, {"n": 2}]
    hand_lake.append(insert("a", n=9))
    assert found(asker, "a", "b") == [{"n": 9}, {"n": 2}]


def test_of_rows_that_were_read_nothing_stays_in_memory_when_a_key_was_forgotten(
    hand_lake: HandLake, asker: Asker
) -> None:
    hand_lake.publish(insert("a", n=1))
    assert found(asker, "a") == [{"n": 1}]
    lookup = asker.reader.lookup
    assert lookup._kept
    lookup.let_go()
    assert not lookup._kept
    assert found(asker, "a") == [{"n": 1}], "it is read again"


def test_half_a_transaction_is_not_found(hand_lake: HandLake, asker: Asker) -> None:
    hand_lake.publish(insert("a", n=1))
    hand_lake.append(update("a", {"n": 1}, {"n": 2}) | {"metadata": {"transactionId": "t"}}, source="bank")
    assert found(asker, "a") == [{"n": 1}]
    hand_lake.append(insert("d", n=4) | {"metadata": {"transactionId": "t", "transactionEnd": True}}, source="bank")
    assert found(asker, "a", "d") == [{"n": 2}, {"n": 4}]


def test_a_table_that_was_emptied_has_only_what_came_after(hand_lake: HandLake, asker: Asker) -> None:
    hand_lake.publish(insert("a", n=1), insert("b", n=2))
    hand_lake.append(insert("c", n=3))
    clearing = {"metadata": {"ddl": {"action": "truncate"}}, "after": None}
    hand_lake.append({"operation": "DELETE", "table": "items", "row_id": "", "before": None} | clearing)
    hand_lake.append(insert("b", n=4))
    assert found(asker, "a", "b", "c") == [None, {"n": 4}, None]


def test_shards_that_reuse_ids_have_rows_of_their_own(tmp_path: Path) -> None:
    lake = HandLake(tmp_path, has_source_in_key=True)
    lake.publish(insert("1", n=1), source="north")
    lake.append(insert("1", n=2), source="south")
    with asking(tmp_path, has_source_in_key=True) as asker:
        assert found(asker, "1", source="north") == [{"n": 1}]
        assert found(asker, "1", source="south") == [{"n": 2}]
        assert found(asker, "1", source="west") == [None]
        with pytest.raises(InvalidInput, match="does not say which row"):
            found(asker, "1")
    lake.close()


def test_what_only_sql_can_tell_is_left_to_it(hand_lake: HandLake, asker: Asker) -> None:
    with pytest.raises(Slow, match="no snapshot yet"):
        found(asker, "a", table="nothing")
    hand_lake.publish(insert("a", n=1))
    with pytest.raises(Slow, match="past"):
        found(asker, "a", as_of=0)
    shutil.move(hand_lake.home / "keyindex", hand_lake.home / "lost")
    with pytest.raises(Slow, match="index"):
        found(asker, "a")
    shutil.move(hand_lake.home / "lost", hand_lake.home / "keyindex")
    assert found(asker, "a") == [{"n": 1}]
    hand_lake.append(insert("b", n=1, new=1))
    with pytest.raises(Slow, match="column"):
        found(asker, "b")
    hand_lake.append(update("a", {}, {"x": 1}, metadata={"unchanged": ["n"]}))
    with pytest.raises(Slow, match="all columns"):
        found(asker, "a")


def test_tables_of_changes_have_no_rows_by_key() -> None:
    for table in ("items__changes", "items__quarantine"):
        with pytest.raises(InvalidInput, match="found by key"):
            question("a", table=table)


@pytest.mark.parametrize("seed", range(3))
def test_at_any_moment_of_any_history_a_row_is_what_sql_shows(hand_lake: HandLake, asker: Asker, seed: int) -> None:
    chance = random.Random(seed)
    living: dict[str, dict[str, Any]] = {}
    for _ in range(12):
        changes = []
        for _ in range(chance.randrange(1, 8)):
            key = f"k{chance.randrange(12)}"
            row: dict[str, Any] = {"n": chance.randrange(100), "text": chance.choice(["a", None, "b"])}
            if key in living and chance.random() < 0.3:
                changes.append(delete(key, living.pop(key)))
            elif key in living:
                changes.append(update(key, living[key], row))
                living[key] = row
            else:
                changes.append(insert(key, **row))
                living[key] = row
        (hand_lake.publish if chance.random() < 0.5 else hand_lake.append)(*changes)
        if hand_lake.files.get("default.items"):
            wanted = [living.get(f"k{number}") for number in range(12)]
            assert found(asker, *(f"k{number}" for number in range(12))) == wanted
