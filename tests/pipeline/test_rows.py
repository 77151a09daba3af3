"""Rows as JSON become typed columns: exactly, or rescued, and by the fast way as by the slow one."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dolake.pipeline import rows as rows_module
from dolake.pipeline.rows import Rows, read_rows, read_rows_slowly
from dolake.tables.schema import grow, grown, timestamp_us
from dolake.tables.types import Columns, Field, ListType, StructType, Type, column_name, source_name
from tests.support.property import examples

ORDERS: Columns = (
    Field("id", "long"),
    Field("amount", "double"),
    Field("paid", "boolean"),
    Field("note", "string"),
    Field("at", "timestamptz"),
    Field("address", StructType((Field("street", "string"), Field("since", "timestamptz")))),
    Field("tags", ListType("string")),
)


def read(*images: bytes, columns: Columns = ORDERS) -> Rows:
    """Read both ways, and show that they agree."""
    fast, slow = read_rows(images, columns), read_rows_slowly(images, columns)
    assert_same(fast, slow)
    return fast


def assert_same(fast: Rows, slow: Rows) -> None:
    assert (fast.columns is None) == (slow.columns is None)
    if fast.columns is not None and slow.columns is not None:
        fast.columns.validate(full=True)
        assert fast.columns.schema == slow.columns.schema
        assert repr(fast.columns.to_pylist()) == repr(slow.columns.to_pylist())  # repr tells 0.0 from -0.0
        assert fast.columns.equals(slow.columns)
    assert fast.rescued.equals(slow.rescued)
    assert fast.unknown == slow.unknown
    assert fast.unreadable == slow.unreadable


def value(image: bytes, column: str) -> Any:
    """What the one row has in this column, where nothing is rescued."""
    rows = read(image)
    assert rows.columns is not None
    assert rows.rescued.to_pylist() == [None]
    (row,) = rows.columns.to_pylist()
    return row[column]


def rescued(image: bytes, columns: Columns = ORDERS) -> str | None:
    (text,) = read(image, columns=columns).rescued.to_pylist()
    return None if text is None else str(text)


def read_growing(images: list[bytes], columns: Columns = (), leaves_max: int = 1_000) -> tuple[Rows, Columns]:
    """What the pipeline does: read, add what is unknown, read again. Once more is never needed."""
    rows = read_rows(images, columns, leaves_max)
    if rows.columns is None:
        additions = grow(columns, rows.unknown, leaves_max=leaves_max)
        assert additions
        columns = grown(columns, additions)
        rows = read_rows(images, columns, leaves_max)
    assert rows.columns is not None
    assert not rows.unknown.fields
    return rows, columns


# --- values in their columns -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        (b"1", "id", 1),
        (b"-0", "id", 0),
        (b"1.0", "id", 1),
        (b"1e3", "id", 1000),
        (b"9223372036854775807", "id", 2**63 - 1),
        (b"-9223372036854775808", "id", -(2**63)),
        (b"0.1", "amount", 0.1),
        (b"7", "amount", 7.0),
        (b"9007199254740992", "amount", 2.0**53),
        (b"1e300", "amount", 1e300),
        (b"true", "paid", True),
        (b"false", "paid", False),
        (b"null", "paid", None),
        (b'""', "note", ""),
        (b'"a\\"b\\\\"', "note", 'a"b\\'),
        (b'"\\u00e9\\ud83d\\ude00\\u0000"', "note", "é😀\0"),
        ('"größe 表"'.encode(), "note", "größe 表"),
        (b'",\\"id\\":5}"', "note", ',"id":5}'),
        (b'":"', "note", ":"),
        (b"1.50", "note", "1.50"),
        (b"true", "note", "true"),
        (b'{"a": 1e999, "b": "\\u0061"}', "note", '{"a":1e999,"b":"\\u0061"}'),
        (b'["a"]', "tags", ["a"]),
        (b'["a",null,1.5,{"b":[]}]', "tags", ["a", None, "1.5", '{"b":[]}']),
        (b"[]", "tags", []),
        (b'{"street":"x"}', "address", {"street": "x", "since": None}),
        (b"{}", "address", {"street": None, "since": None}),
    ],
)
def test_a_value_that_fits_is_in_its_column(text: bytes, column: str, expected: Any) -> None:
    image = b'{"%b":%b}' % (column.encode(), text)
    assert value(image, column) == expected


def test_a_minus_zero_stays_one_where_it_was_a_fraction() -> None:
    assert math.copysign(1, value(b'{"amount":-0.0}', "amount")) == -1
    assert math.copysign(1, value(b'{"amount":-0}', "amount")) == 1


@pytest.mark.parametrize(
    ("text", "column"),
    [
        (b"1.5", "id"),
        (b"9223372036854775808", "id"),
        (b'"1"', "id"),
        (b"true", "id"),
        (b"1e16", "id"),
        (b"9007199254740993", "amount"),
        (b"1e999", "amount"),
        (b'"1"', "amount"),
        (b"1", "paid"),
        (b'"true"', "paid"),
        (b'"yesterday"', "at"),
        (b'"2026-01-01"', "at"),
        (b'"2026-01-01T00"', "at"),
        (b'"2026-01-01T00+01"', "at"),
        (b'"2026-01-01T00:00:00.1234567Z"', "at"),
        (b'"0001-01-01T00:00+01:00"', "at"),
        (b"1767225600", "at"),
        (b'"a"', "tags"),
        (b"{}", "tags"),
        (b"[]", "address"),
        (b'{"since":"soon"}', "address"),
        (b'{"street":"x","a.b":1}', "address"),
        (b'{"street":"x","Street":"y"}', "address"),
        (b'{"new":[]}', "address"),
    ],
)
def test_a_value_that_does_not_fit_is_rescued_as_it_was_written(text: bytes, column: str) -> None:
    assert rescued(b'{"%b":%b}' % (column.encode(), text)) == f'{{"{column}":{text.decode()}}}'


def test_the_other_values_of_a_row_stay_in_their_columns() -> None:
    rows = read(b'{"id":"seven","note":"x","amount":[1, 2]}')
    assert rows.columns is not None
    assert rows.columns["note"].to_pylist() == ["x"]
    assert rows.rescued.to_pylist() == ['{"amount":[1,2],"id":"seven"}']


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-02T03:04",
        "2026-01-02 03:04:05",
        "2026-01-02T03:04:05.6",
        "2026-01-02T03:04:05.678901Z",
        "2026-01-02T03:04:05.678901000Z",
        "2026-01-02 03:04:05+00",
        "2026-01-02 03:04:05.1+0530",
        "2026-01-02T03:04:05-23:59",
        "0001-01-01T00:00Z",
        "9999-12-31T23:59:59.999999Z",
    ],
)
def test_a_timestamp_is_read_with_or_without_zone_alone_and_among_others(text: str) -> None:
    image = msgspec.json.encode({"at": text})
    rows = read(image, b'{"at":"2026-01-01T00:00Z"}', b'{"at":"2026-01-01T00:00"}', image)
    assert rows.columns is not None
    assert rows.columns["at"].cast(pa.int64())[0].as_py() == rows.columns["at"].cast(pa.int64())[3].as_py()
    alone = read(image)
    assert alone.columns is not None
    assert alone.columns["at"].cast(pa.int64()).to_pylist() == [timestamp_us(text)]
    assert rows.rescued.null_count == 4


def test_a_row_without_image_has_no_values() -> None:
    rows = read(b"null", b"", b'{"id":1}', b"{}", b'{"note":null}')
    assert rows.columns is not None
    assert rows.columns["id"].to_pylist() == [None, None, 1, None, None]
    assert rows.rescued.null_count == 5
    assert not rows.unreadable


def test_no_rows_have_all_columns() -> None:
    rows = read()
    assert rows.columns is not None
    assert rows.columns.num_rows == 0
    assert rows.columns.schema.names == [column.name for column in ORDERS]


@pytest.mark.parametrize(
    "image", [b"[1]", b"7", b'"text"', b"{", b'{"id":1', b'{"id":1}}', b'{"note":"\xff"}', b'"\\ud800"']
)
def test_what_is_no_json_object_is_named_and_harms_no_other_row(image: bytes) -> None:
    rows = read(b'{"id":1}', image, b'{"id":3}')
    assert rows.columns is not None
    assert rows.unreadable == [1]
    assert rows.columns["id"].to_pylist() == [1, None, 3]


# --- names -----------------------------------------------------------------------------------------------------------


def test_columns_stand_in_the_tables_order_whatever_the_rows_order() -> None:
    rows = read(b'{"note":"a","id":1}', b'{"id":2,"note":"b"}', b'{"paid":true}')
    assert rows.columns is not None
    assert rows.columns["id"].to_pylist() == [1, 2, None]
    assert rows.columns["note"].to_pylist() == ["a", "b", None]
    assert rows.columns["paid"].to_pylist() == [None, None, True]


def test_of_a_name_written_twice_the_last_value_counts() -> None:
    assert value(b'{"id":1,"id":2}', "id") == 2
    assert rescued(b'{"id":1,"id":"x"}') == '{"id":"x"}'
    assert rescued(b'{"a.b":1,"a.b":2}') == '{"a.b":2}'
    assert value(b'{"id":1,"i\\u0064":2}', "id") == 2


def test_a_reserved_name_gets_an_underscore() -> None:
    columns = (Field("_file_", "long"), Field("_file__", "long"))
    rows = read(b'{"_file":1,"_file_":2}', columns=columns)
    assert rows.columns is not None
    assert rows.columns.to_pylist() == [{"_file_": 1, "_file__": 2}]
    assert rescued(b'{"_before":{},"id":1}') == '{"_before_":{}}', "it is not the row before"


@pytest.mark.parametrize("name", ["", "a.b", "ID", "Note", "x" * 129, "a\nb", "a\u200bb"])
def test_a_value_under_a_name_that_cannot_be_a_column_is_rescued(name: str) -> None:
    text = rescued(msgspec.json.encode({name: 1, "id": 2}))
    assert text is not None
    assert json.loads(text) == {name: 1}


@pytest.mark.parametrize("name", ["a\\b", 'a"b', "a:b", "a,b", "{a}", "größe", "x" * 17, "x" * 128])
def test_a_column_with_an_odd_name_is_found(name: str) -> None:
    columns = (Field(name, "long"), Field("id", "long"))
    rows = read(msgspec.json.encode({name: 1}), msgspec.json.encode({"id": 2, name: 3}), columns=columns)
    assert rows.columns is not None
    assert rows.columns[name].to_pylist() == [1, 3]
    assert rows.rescued.null_count == 2


def test_names_that_share_their_beginning_and_end_are_told_apart() -> None:
    one, two, three = (f"beginning{middle}the_end__" for middle in ("_one_12345_", "_two_12345_", "_six_12345_"))
    columns = (Field(one, "long"), Field(two, "long"))
    rows = read(b'{"%b":1,"%b":2}' % (one.encode(), two.encode()), b'{"%b":3}' % two.encode(), columns=columns)
    assert rows.columns is not None
    assert rows.columns[two].to_pylist() == [2, 3]
    assert list(read(b'{"%b":1}' % three.encode(), columns=columns).unknown.fields) == [three]


# --- columns that the table does not have yet ------------------------------------------------------------------------


def test_unknown_columns_are_named_and_no_data_is_given() -> None:
    rows = read(b'{"id":1,"colour":"red"}', b'{"size":1.5}')
    assert rows.columns is None
    assert {name: seen.type() for name, seen in rows.unknown.fields.items()} == {"colour": "string", "size": "double"}


def test_an_unknown_field_inside_a_struct_is_named_only_if_the_value_would_fit_then() -> None:
    assert list(read(b'{"address":{"city":"Rome"}}').unknown.fields) == ["address"]
    assert rescued(b'{"address":{"city":"Rome","since":"soon"}}') is not None


@pytest.mark.parametrize("text", ["[]", "{}", "[[]]", '{"a":{}}', '{"":1}'])
def test_a_value_that_tells_no_type_waits_in_rescued(text: str) -> None:
    assert rescued(b'{"new":%b}' % text.encode()) == f'{{"new":{text}}}'


def test_a_null_makes_no_column() -> None:
    rows = read(b'{"new":null}')
    assert rows.columns is not None
    assert rows.rescued.null_count == 1


def test_a_full_table_rescues_what_is_new() -> None:
    rows, columns = read_growing([b'{"a":1,"b":{"c":1,"d":2},"e":3}'], leaves_max=2)
    assert [column.name for column in columns] == ["a", "b"]
    assert rows.rescued.to_pylist() == ['{"b":{"c":1,"d":2},"e":3}']


def test_a_value_nested_too_deep_is_json_text() -> None:
    deep = "[" * 30 + "1" + "]" * 30
    rows, _ = read_growing([b'{"a":%b}' % deep.encode()])
    assert rows.columns is not None
    found: Any = rows.columns["a"].to_pylist()[0]
    for _ in range(20):
        (found,) = found
    assert found == "[" * 10 + "1" + "]" * 10


# --- fast ------------------------------------------------------------------------------------------------------------


def test_ordinary_rows_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "_read_slowly", None)
    images = [
        msgspec.json.encode(
            {"id": n, "amount": n / 4, "note": 'a "b" \\ [c', "at": "2026-01-01T00:00:00Z", "tags": ["x"]}
        )
        for n in range(100)
    ]
    loose = [json.dumps(msgspec.json.decode(image)).encode() for image in images]
    sparse = [b'{"id":1}', b'{"note":"x","id":2}', b"null", b'{"paid":true,"strange.name":{"a":[1]}}']
    rows = read_rows([*images, *loose, *sparse], ORDERS)
    assert rows.columns is not None
    assert rows.columns["tags"].null_count == 4
    assert rows.rescued.null_count == 203


def test_an_odd_row_makes_only_its_neighbours_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    slow: list[bytes] = []
    read_slowly = rows_module._read_slowly

    def watched(images: Sequence[bytes], first: int, reading: Any) -> list[pa.Array]:
        slow.extend(images)
        return read_slowly(images, first, reading)

    monkeypatch.setattr(rows_module, "_read_slowly", watched)
    images = [b'{"id":%d}' % n for n in range(10_000)]
    images[5_000] = b'{"id":0,"id":5000}'
    images[7_000] = b'\n{\t"id" : 7000\n}'
    rows = read_rows(images, ORDERS)
    assert rows.columns is not None
    assert rows.columns["id"].to_pylist() == list(range(10_000))
    assert images[5_000] in slow
    assert len(slow) <= 64


# --- any rows at all -------------------------------------------------------------------------------------------------

NAMES = [
    "id",
    "note",
    "ID",
    "_file",
    "a.b",
    "",
    "long_name_number_1",
    "long_name_number_2",
    "ü",
    'q"',
    "b\\",
    "x:",
    "{",
]
TIMES = [
    "2026-01-01T00:00:00Z",
    "2026-01-01 00:00",
    "2026-01-01T00:00:00.123456+02:00",
    "2026-01-01T00Z",
    "0000-01-01T00:00Z",
]
DECLARED = [
    "2026-01-31", "0000-01-01", "0001-01-01", "9999-12-31", "2026-02-30", "2026-1-1", "20260131", "2026-01-31T00:00",
    "0001-01-01T00:00", "0188e0e0-1111-7222-8333-444455556666", "0188E0E0-1111-7222-8333-444455556666",
    "0188e0e0-1111-7222-8333-44445555_666", "AAH/", "AB==", "AA==", "AA", "12.5", "1e2", "NaN", "Infinity", "1_0", " 1",
    "-0.00", "\u0661",
]  # fmt: skip
"""Texts that a declared type takes, and texts that it only seems to."""
NUMBERS = ["0", "-0", "-0.0", "1.0", "1.50", "1e3", "1E-2", "1e999", "9007199254740993", "9223372036854775808", "-1"]
NUMBERS += ["2147483647", "2147483648", "-2147483649", "16777217", "3.5e38", "0.001", "9999.99", "12345.6", "1.000"]
NUMBERS += ["9007199254740993.0", "0.99999999999999999999"]

texts = st.one_of(
    st.sampled_from(NUMBERS),
    st.integers().map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(json.dumps),
    st.sampled_from(
        ["null", "true", "false", "[]", "{}", '"\\u0061\\n"', '"\\\\"', '"\\""', '":"', '","', '"}"', '"["']
    ),
    st.sampled_from(TIMES).map(json.dumps),
    st.sampled_from(DECLARED).map(json.dumps),
    st.text(st.characters(codec="utf-8"), max_size=20).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.text(st.characters(codec="utf-8"), max_size=5).map(json.dumps),
)
spaces = st.sampled_from(["", "", "", "", " ", "  ", "\n"])


def objects(values: st.SearchStrategy[str], *, names: list[str] = NAMES) -> st.SearchStrategy[str]:
    """Objects as somebody writes them: tightly, as Python's json does it, or with spaces anywhere; names may repeat."""
    pairs = st.lists(st.tuples(st.sampled_from(names).map(json.dumps), values), max_size=5)
    tight = pairs.map(lambda found: "{" + ",".join(f"{name}:{value}" for name, value in found) + "}")
    loose = pairs.map(lambda found: "{" + ", ".join(f"{name}: {value}" for name, value in found) + "}")
    whims = st.tuples(pairs, spaces, spaces, spaces, spaces).map(
        lambda made: (
            made[1]
            + "{"
            + f"{made[2]},{made[3]}".join(f"{name}{made[4]}:{made[1]}{v}" for name, v in made[0])
            + "}"
            + made[2]
        )
    )
    return tight | loose | whims


values = st.recursive(
    texts,
    lambda inner: objects(inner) | st.lists(inner, max_size=3).map(lambda parts: "[" + ",".join(parts) + "]"),
    max_leaves=6,
)
images = objects(values).map(str.encode) | st.sampled_from([b"null", b""])
uniform = st.lists(st.sampled_from(NAMES[:8]), min_size=1, max_size=4, unique=True).flatmap(
    lambda names: st.lists(
        st.tuples(*[values] * len(names)).map(
            lambda row: ("{" + ",".join(f"{json.dumps(n)}:{v}" for n, v in zip(names, row, strict=True)) + "}").encode()
        ),
        max_size=6,
    )
)
batches = st.lists(images, max_size=8) | uniform
types: st.SearchStrategy[Type] = st.recursive(
    st.sampled_from(["long", "double", "boolean", "string", "timestamptz", "int", "decimal(6, 2)", "date", "binary"]),
    lambda inner: (
        inner.map(ListType)
        | st.dictionaries(st.sampled_from(["id", "note", "ü"]), inner, min_size=1).map(
            lambda fields: StructType(tuple(Field(name, type_) for name, type_ in fields.items()))
        )
    ),
    max_leaves=4,
)
schemas = st.dictionaries(
    st.sampled_from([column_name(name) for name in NAMES if name not in ("ID", "a.b", "")]), types
).map(lambda found: tuple(Field(name, type_) for name, type_ in found.items()))


declared_types: st.SearchStrategy[Type] = st.sampled_from(
    ["int", "float", "decimal(6, 2)", "decimal(38, 10)", "date", "timestamp", "uuid", "binary"]
)
declared_texts = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from([*DECLARED, *TIMES]).map(json.dumps),
    st.integers(-(2**33), 2**33).map(str),
    st.decimals(-(10**6), 10**6, places=3).map(str),
    st.dates().map(lambda day: f'"{day.isoformat()}"'),
    st.datetimes().map(lambda moment: f'"{moment.isoformat()}"'),
    st.uuids().map(lambda id_: f'"{id_}"'),
    st.sampled_from(["null", "true", '""', "[]", "{}", '"\\u0032026-01-31"', '"2026-01-3\\u0031"']),
)
"""Mostly what one of them takes: so that many rows go the fast way."""


ANY_ROWS = settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@ANY_ROWS
@given(batches, schemas)
@example([b'{"note":"x","id" :"y"}'], (Field("note", "string"),))
@example([b'{"note":1,"id" :2}'], (Field("note", "string"),))
@example([b'{"id":0,"note":0,"id":{}}'], ())
@example([b'{"id":1e999}', b'{"id":-0}'], (Field("id", "double"),))
def test_the_fast_way_gives_what_the_slow_way_gives(batch: list[bytes], columns: Columns) -> None:
    assert_same(read_rows(batch, columns), read_rows_slowly(batch, columns))


@ANY_ROWS
@given(
    st.lists(st.tuples(declared_texts, declared_texts), max_size=8),
    st.tuples(declared_types, declared_types | declared_types.filter(lambda type_: type_ != "uuid").map(ListType)),
)
@example([('"0000-01-01"', '"0000-01-01"')], ("date", ListType("date")))
@example([('"0000-01-01"', "1"), ('"2026-01-31"', "2")], ("date", "int"))
@example([('"NaN"', '"1_0"')], ("decimal(6, 2)", "decimal(6, 2)"))
def test_the_fast_way_gives_what_the_slow_way_gives_for_declared_types(
    rows: list[tuple[str, str]], types: tuple[Type, Type]
) -> None:
    is_list = isinstance(types[1], ListType)
    images = [f'{{"a":{one},"b":{f"[{two}]" if is_list else two}}}'.encode() for one, two in rows]
    columns = (Field("a", types[0]), Field("b", types[1]))
    assert_same(read_rows(images, columns), read_rows_slowly(images, columns))


@ANY_ROWS
@given(st.lists(st.binary(max_size=12) | images, max_size=5), schemas)
@example([b'"":'], ())
@example([b"{}", b'"":'], ())
def test_any_bytes_get_an_answer(batch: list[bytes], columns: Columns) -> None:
    rows = read_rows(batch, columns)
    assert len(rows.rescued) == len(batch)


@ANY_ROWS
@given(batches, batches, st.sampled_from([3, 1_000]))
def test_a_value_is_in_its_column_or_rescued_and_never_lost(
    one: list[bytes], two: list[bytes], leaves_max: int
) -> None:
    _, columns = read_growing(one, leaves_max=leaves_max)
    for batch in (one, two):
        rows, columns = read_growing(batch, columns, leaves_max)
        assert rows.columns is not None
        found = rows.columns.to_pylist() if columns else [{} for _ in batch]
        types = {column.name: column.type for column in columns}
        for image, row, kept in zip(batch, found, rows.rescued.to_pylist(), strict=True):
            sent = msgspec.json.decode(image, type=dict[str, msgspec.Raw]) if image not in (b"", b"null") else {}
            rest = msgspec.json.decode(kept, type=dict[str, msgspec.Raw]) if kept else {}
            rest = {str(source_name(name)): raw for name, raw in rest.items()}
            assert set(rest) <= set(sent)
            for name, raw in sent.items():
                text = bytes(raw)
                if name in rest:
                    assert bytes(rest[name]) == msgspec.json.format(text, indent=-1)
                    assert text != b"null"
                elif text != b"null":
                    assert_holds(row[column_name(name)], text, types[column_name(name)])
                else:
                    assert row.get(column_name(name)) is None


def assert_holds(held: Any, text: bytes, type_: Type) -> None:
    """The column's value says the same as the JSON text."""
    if type_ == "string" and not text.startswith(b'"'):
        assert held == msgspec.json.format(text, indent=-1).decode()
    else:
        assert_equal(held, decode_exactly(text), type_)


decode_exactly = msgspec.json.Decoder(float_hook=Decimal).decode


def assert_equal(held: Any, sent: Any, type_: Type) -> None:
    if sent is None:
        assert held is None
    elif isinstance(type_, StructType):
        parts = {field.name: field.type for field in type_.fields}
        assert {name for name, part in sent.items() if part is not None} <= set(parts)
        for name, part_type in parts.items():
            assert_equal(held[name], sent.get(name), part_type)
    elif isinstance(type_, ListType):
        for one, other in zip(held, sent, strict=True):
            assert_equal(one, other, type_.element)
    elif type_ == "timestamptz":
        assert pa.scalar(held, pa.timestamp("us", tz="UTC")).cast(pa.int64()).as_py() == timestamp_us(sent)
    elif type_ == "string" and not isinstance(sent, str):
        assert decode_exactly(held) == sent
    elif type_ == "double":
        assert held == float(sent)
    else:
        assert held == sent
        assert isinstance(held, bool) == isinstance(sent, bool)
