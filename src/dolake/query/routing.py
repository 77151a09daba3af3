"""Which engine answers a question, and why: DuckDB for what reads little, Spark for what reads more than a setting.

From answering.py, with a question whose tables are open; spark_text.py says whether Spark would give the same answer.
Promise: the engine that was asked for, or an error; with `auto`, an answer from DuckDB wherever Spark has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from dolake.errors import InvalidSql
from dolake.pipeline.sql_link import Scan
from dolake.query.engine import Engine, Params
from dolake.query.planning import Reading
from dolake.query.question import Wish
from dolake.query.spark_engine import SparkEngine, SparkFailed
from dolake.query.spark_text import NotForSpark, SparkStatement, in_spark
from dolake.query.syntax import Unreadable, read
from dolake.query.watch import Stop
from dolake.settings import QuerySettings

EngineName = Literal["duckdb", "spark"]
_BATCH_ROWS = 2048


@dataclass(frozen=True, slots=True)
class Route:
    """Where a question goes."""

    engine: EngineName
    reason: str
    statement: SparkStatement | None = None
    """For Spark."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A statement that is ready to run, and how much it would read."""

    sql: str
    params: Params
    arrow: Mapping[str, pa.Table]
    reading: Reading
    has_uuids: bool = False
    """Which Spark reads as text, where upper and lower case differ."""


def route(wish: Wish, bound: Bound, settings: QuerySettings, engine: Engine, stop: Stop) -> Route:
    """The engine for it."""
    if wish == "duckdb":
        return Route("duckdb", "DuckDB was asked for")
    if wish == "auto" and bound.reading.byte_count < settings.spark_scan_bytes:
        size = f"{bound.reading.byte_count:,} bytes of data files to read"
        return Route("duckdb", f"{size}, less than query.spark_scan_bytes ({settings.spark_scan_bytes:,})")
    if not settings.spark_enabled:
        return _without_spark(wish, "query.spark_enabled is false")
    if bound.has_uuids:
        return _without_spark(wish, "a table has a column of uuids, which is for DuckDB")
    try:
        statement = in_spark(_tree(bound.sql), bound.arrow, _constants(engine, bound.params, stop))
    except NotForSpark as error:
        return _without_spark(wish, str(error))
    if wish == "spark":
        return Route("spark", "Spark was asked for", statement)
    return Route("spark", f"{bound.reading.byte_count:,} bytes of data files to read", statement)


def _without_spark(wish: Wish, reason: str) -> Route:
    if wish == "spark":
        raise InvalidSql(f"Spark cannot answer this: {reason}", hint="leave `engine` out, or say duckdb")
    return Route("duckdb", f"large, but {reason}")


def _tree(sql: str) -> dict[str, Any]:
    try:
        (tree,) = read(sql)
    except (Unreadable, ValueError) as error:
        raise NotForSpark("it cannot be read again") from error
    return tree


def _constants(engine: Engine, params: Params, stop: Stop) -> Callable[..., Sequence[tuple[Any, str]]]:
    """Computed by DuckDB, which knows its own words for times and intervals best."""

    def compute(expressions: Sequence[str], names: frozenset[str]) -> Sequence[tuple[Any, str]]:
        known = params if isinstance(params, Mapping) else {str(at): each for at, each in enumerate(params, 1)}
        sql = f"SELECT {', '.join(f'({each}) AS c{at}' for at, each in enumerate(expressions))}"
        with engine.start(sql, {name: known[name] for name in names}, stop=stop) as running:
            (batch,) = [each for each in running.batches() if each.num_rows]
            return [
                (column.to_pylist()[0], kind) for column, (_, kind) in zip(batch.columns, running.columns, strict=True)
            ]

    return compute


class SparkRunning:
    """Spark's rows as if DuckDB had computed them: under its names, in its types."""

    def __init__(self, columns: list[tuple[str, str]], table: pa.Table) -> None:
        self.columns, self._table = columns, table

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from self._table.to_batches(_BATCH_ROWS)


def answer_by_spark(
    spark: SparkEngine,
    engine: Engine,
    bound: Bound,
    statement: SparkStatement,
    scans: Mapping[str, Scan],
    rows_max: int,
    stop: Stop,
    progress: Callable[[int, int], None],
) -> SparkRunning:
    """All rows, up to one more than may be shown. Raises SparkFailed."""
    columns, schema = _shape(engine, bound, stop)
    table = spark.answer(statement, scans, bound.arrow, rows_max + 1, stop, progress)
    if table.num_columns != len(schema):
        raise SparkFailed("it has other columns there")
    if odd := next(
        (field for have, field in zip(table.schema, schema, strict=True) if not _fits(have.type, field.type)), None
    ):
        raise SparkFailed(f"the column {odd.name} has another type there")
    try:
        arrays = [column.cast(field.type) for column, field in zip(table.columns, schema, strict=True)]
    except pa.ArrowException as error:
        raise SparkFailed(f"a column has another type there: {error}") from error
    return SparkRunning(columns, pa.Table.from_arrays(arrays, schema=schema))


def _fits(have: pa.DataType, want: pa.DataType) -> bool:
    """Whether a value of the one is the same value as the other: Arrow would cast a span of time to a number, too."""
    if have == want or pa.types.is_null(have):
        return True
    kinds: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool]], ...] = (
        (pa.types.is_integer, lambda each: pa.types.is_integer(each) or pa.types.is_decimal(each)),
        (pa.types.is_floating, pa.types.is_floating),
        (pa.types.is_decimal, pa.types.is_decimal),
        (_is_text, _is_text),
        (pa.types.is_binary, lambda each: pa.types.is_binary(each) or pa.types.is_large_binary(each)),
    )
    if pa.types.is_timestamp(have) and pa.types.is_timestamp(want):
        return (have.tz is None) == (want.tz is None)
    if pa.types.is_list(have) and pa.types.is_list(want):
        return _fits(have.value_type, want.value_type)
    if pa.types.is_struct(have) and pa.types.is_struct(want):
        pairs = zip(have, want, strict=False)
        return have.num_fields == want.num_fields and all(a.name == b.name and _fits(a.type, b.type) for a, b in pairs)
    return any(is_have(have) and is_want(want) for is_have, is_want in kinds)


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _shape(engine: Engine, bound: Bound, stop: Stop) -> tuple[list[tuple[str, str]], pa.Schema]:
    """What DuckDB would call the columns, and their types; nothing is read for that."""
    described = f"SELECT * FROM (DESCRIBE {bound.sql})"  # noqa: S608
    with engine.start(described, bound.params, bound.arrow, stop=stop) as running:
        rows = [row for batch in running.batches() for row in batch.to_pylist()]
    columns = [(str(row["column_name"]), str(row["column_type"])) for row in rows]
    empty = f"SELECT * FROM ({bound.sql}) LIMIT 0"  # noqa: S608
    with engine.start(empty, bound.params, bound.arrow, stop=stop) as running:
        schema = running.schema
    names = [f"c{number}" for number in range(len(schema))]
    return columns, pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])
