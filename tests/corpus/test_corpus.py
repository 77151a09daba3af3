"""Awkward streams become the tables that the rules promise, whoever reads them.

All streams go to one server. In each round every stream sends its next batch, and everything is published; so Spark
starts once, and a publish has many tables in it. Then each stream is compared with the table that is written down.
"""
# ruff: noqa: S608 - the names in the statements are the tests' own

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import zip_longest
from typing import Any
from uuid import UUID

import msgspec
import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.types import IcebergType, ListType, NestedField, StructType

from dolake.errors import DoLakeError
from dolake.tables.names import split_table_name
from tests.corpus.shape import Change, Row, Stream
from tests.corpus.streams import STREAMS
from tests.support.changes import send
from tests.support.server import ServerProcess, query
from tests.support.tables import verified
from tools.duckdb_client import duck_on

pytestmark = pytest.mark.spark
SETTINGS = """\
freshness_target_ms = 300_000
flush_interval_ms = 300_000
flush_threshold_ms = 300_000
""" + "".join(f'[tables."{stream.table_name}"]\n{stream.settings}\n' for stream in STREAMS if stream.settings)
_KEY, _RESCUED = "_key", "_rescued"
Rows = dict[str, Row]

each_stream = pytest.mark.parametrize("stream", STREAMS, ids=[stream.name for stream in STREAMS])


class Corpus:
    """A server with all streams in its tables, and what our own SQL said on the way: before and after each publish."""

    def __init__(self, lake: ServerProcess) -> None:
        self.lake = lake
        self.asked: dict[str, list[tuple[Rows, Rows]]] = {stream.name: [] for stream in STREAMS}

    def fill(self) -> None:
        for number in range(max(len(stream.batches) for stream in STREAMS)):
            streams = [stream for stream in STREAMS if number < len(stream.batches)]
            send_all(self.lake, [(stream, change) for stream in streams for change in stream.batches[number]])
            live = [self.ask(stream) for stream in streams]
            self.lake.flush()
            for stream, before in zip(streams, live, strict=True):
                self.asked[stream.name].append((before, self.ask(stream)))

    def ask(self, stream: Stream) -> Rows:
        """The table's rows in the form that JSON has for them."""
        namespace, table = split_table_name(stream.table_name)
        name = f"{quoted('.'.join(namespace))}.{quoted(table)}"
        if has_own_key(stream):
            rows = query(self.lake, f"SELECT * FROM {name}")
            return {str(row["_key_"]): plain(row) for row in rows}
        rows = query(self.lake, f'SELECT *, {_KEY} AS "the key", {_RESCUED} AS "what is rescued" FROM {name}')
        ours = ("the key", "what is rescued")
        return by_key({name: row.pop(name) for name in ours} | row for row in rows)


@pytest.fixture(scope="module")
def corpus(lake: ServerProcess) -> Corpus:
    corpus = Corpus(lake)
    corpus.fill()
    return corpus


@pytest.fixture(scope="module")
def catalog(corpus: Corpus) -> Iterator[RestCatalog]:
    catalog = RestCatalog("lake", uri=corpus.lake.url)
    yield catalog
    catalog.close()


@pytest.fixture(scope="module")
def duck(corpus: Corpus) -> Iterator[DuckDBPyConnection]:
    with duck_on(corpus.lake.url) as connection:
        yield connection


def send_all(lake: ServerProcess, changes: Iterable[tuple[Stream, Change]]) -> None:
    """All changes in their order, each by its source."""
    by_source: dict[str, list[Change]] = {}
    for stream, change in changes:
        sent = {name: value for name, value in change.items() if name != "source"} | {"table": stream.table_name}
        by_source.setdefault(change["source"], []).append(sent)

    for source, events in by_source.items():
        send(lake.url, *events, source=source)


# --- what is the same ------------------------------------------------------------------------------------------------


def has_own_key(stream: Stream) -> bool:
    """Whether `_key` is a column of the source, so that our own SQL means that one."""
    return "_key_" in stream.types


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def plain(value: Any) -> Any:
    """Without the fields that are null, and in order: so that two objects can be compared by their text."""
    if isinstance(value, dict):
        return {name: plain(value[name]) for name in sorted(value) if value[name] is not None}
    if isinstance(value, datetime) and value.tzinfo:
        return value.astimezone(UTC)
    return [plain(each) for each in value] if isinstance(value, list) else value


def as_json(value: Any) -> Any:
    """A value as docs/reference/http.md says that an answer has it."""
    match value:
        case dict():
            return {name: as_json(each) for name, each in value.items()}
        case list():
            return [as_json(each) for each in value]
        case bool():
            return value
        case int():
            return value if abs(value) <= 2**53 else str(value)
        case datetime():
            text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            return text if value.tzinfo is None else f"{text}Z"
        case Decimal() | UUID():
            return format(value, "f") if isinstance(value, Decimal) else str(value)
        case date():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            return value


def with_texts(row: Row) -> Row:
    """What is rescued by its column, each as the JSON text that it was."""
    if row.get(_RESCUED) is None:
        return row
    texts = msgspec.json.decode(row[_RESCUED], type=dict[str, msgspec.Raw])
    return row | {_RESCUED: {name: bytes(text).decode() for name, text in texts.items()}}


def by_key(rows: Iterable[Row]) -> Rows:
    """Of rows whose first two columns are the key and what is rescued."""
    found: Rows = {}
    for row in rows:
        (_, key), (_, rescued), *values = row.items()
        assert key not in found, "a key has two rows"
        found[key] = plain(with_texts(dict(values) | {_RESCUED: rescued}))
    return found


def assert_same(found: Rows, expected: Rows) -> None:
    """The text tells 1 from 1.0 and True, and 0.0 from -0.0."""
    assert found == expected
    for key, row in expected.items():
        assert repr(found[key]) == repr(row)


def type_text(type_: IcebergType) -> str:
    match type_:
        case StructType():
            return "struct<" + ", ".join(f"{field.name}: {type_text(field.field_type)}" for field in type_.fields) + ">"
        case ListType():
            return f"list<{type_text(type_.element_type)}>"
        case _:
            return str(type_)


def types_of(fields: Iterable[NestedField]) -> dict[str, str]:
    return {field.name: type_text(field.field_type) for field in fields if field.name not in (_KEY, _RESCUED)}


# --- each stream -----------------------------------------------------------------------------------------------------


@each_stream
def test_pyiceberg_reads_the_types_and_rows_that_are_written_down(
    catalog: RestCatalog, corpus: Corpus, stream: Stream
) -> None:
    namespace, name = split_table_name(stream.table_name)
    table = catalog.load_table((*namespace, name))
    assert types_of(table.schema().fields) == stream.types
    rows = by_key(table.scan().to_arrow().select([_KEY, _RESCUED, *stream.types]).to_pylist())
    expected = plain_rows(stream)
    for key, row in rows.items():
        for column, type_ in stream.types.items():
            # PyIceberg reads a list of objects that is null as an empty one; the other engines tell them apart.
            if type_.startswith("list<struct") and row.get(column) == [] and column not in expected[key]:
                del row[column]
    assert_same(rows, expected)


@each_stream
def test_the_changes_are_those_that_were_sent(catalog: RestCatalog, corpus: Corpus, stream: Stream) -> None:
    namespace, name = split_table_name(stream.table_name)
    rows = catalog.load_table((*namespace, f"{name}__changes")).scan().to_arrow().to_pylist()
    found = [with_texts(row) for row in sorted(rows, key=lambda row: row["_position"])]
    sent = [{"_operation": each["operation"], _KEY: each["rowId"]} for batch in stream.batches for each in batch]
    for row, expected in zip_longest(found, stream.changes or sent):
        assert row is not None
        assert expected is not None
        assert plain({column: row[column] for column in expected}) == plain(expected)


@each_stream
def test_duckdb_reads_the_same_rows(duck: DuckDBPyConnection, corpus: Corpus, stream: Stream) -> None:
    namespace, name = split_table_name(stream.table_name)
    columns = ", ".join(quoted(column) for column in (_KEY, _RESCUED, *stream.types))
    answer = duck.execute(f"SELECT {columns} FROM lake.{quoted('.'.join(namespace))}.{quoted(name)}")
    rows = answer.to_arrow_table().to_pylist()
    assert_same(by_key(in_utc(row, stream) for row in rows), plain_rows(stream))


def in_utc(row: Row, stream: Stream) -> Row:
    """DuckDB has moments in its own zone, and a uuid as text."""
    return {
        name: UUID(value)
        if isinstance(value, str) and stream.types.get(name) == "uuid"
        else value.astimezone(UTC)
        if isinstance(value, datetime) and value.tzinfo
        else value
        for name, value in row.items()
    }


@each_stream
def test_our_own_sql_has_the_same_rows(corpus: Corpus, stream: Stream) -> None:
    _, published = corpus.asked[stream.name][-1]
    expected = {key: as_json(row) for key, row in plain_rows(stream).items()}
    if has_own_key(stream):
        expected = {str(row.get("_key_")): row for row in expected.values()}
        for row in expected.values():
            row.pop(_RESCUED, None)
    assert_same(published, expected)


@each_stream
def test_our_own_sql_has_them_before_they_are_published(corpus: Corpus, stream: Stream) -> None:
    """But for columns that are renamed and dropped: these are so with the publish (docs/explain/values.md)."""
    for (live, published), changes in zip(corpus.asked[stream.name], stream.batches, strict=False):
        if not any(alters_columns(change) for change in changes):
            assert_same(live, published)


def alters_columns(change: Mapping[str, Any]) -> bool:
    ddl = (change.get("metadata") or {}).get("ddl") or {}
    return str(ddl.get("action", "")).endswith("_column")


def plain_rows(stream: Stream) -> Rows:
    return {key: plain(row) for key, row in stream.rows.items()}


# --- all of them -----------------------------------------------------------------------------------------------------


def test_the_corpus_is_large_and_no_expectation_is_vague() -> None:
    assert len(STREAMS) >= 45
    for stream in STREAMS:
        for row in stream.rows.values():
            assert set(row) <= {*stream.types, _RESCUED}, stream.name
            assert not any(isinstance(value, float) and math.isnan(value) for value in row.values())


def test_a_column_that_is_called_like_the_key_is_the_one_that_sql_means(corpus: Corpus) -> None:
    rows = query(corpus.lake, "SELECT *, _key, _rescued FROM corpus.names_that_iceberg_or_dolake_needs ORDER BY _key")
    assert [(row["_key"], row["_key_"], row["_rescued"]) for row in rows] == [(1, 1, "r"), (5, 5, None)]


def test_half_a_surrogate_is_refused_at_the_door(corpus: Corpus) -> None:
    for text in ('{"s":"\\ud800"}', '{"s":"\\udc00"}', '{"\\ud800":1}', '{"s":["\\ud800 "]}'):
        stream = Stream("refused", (), {}, {})
        change = {"operation": "INSERT", "rowId": "1", "source": "refused", "after": msgspec.Raw(text.encode())}
        with pytest.raises((DoLakeError, msgspec.DecodeError)):
            send_all(corpus.lake, [(stream, change)])


def test_nothing_is_in_quarantine(corpus: Corpus) -> None:
    status, body = corpus.lake.get("/v1/quarantine")
    assert status == 200
    ours = {stream.table_name for stream in STREAMS}
    assert not {f"{each['namespace']}.{each['name']}" for each in body["tables"]} & ours


def test_verify_finds_no_difference(corpus: Corpus) -> None:
    verified(corpus.lake.home)
