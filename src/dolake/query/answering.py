"""The way of a question: read by the guard, its tables opened at one moment, run by DuckDB, told as bytes.

From worker.py, in the query's own thread; through guard.py, reader.py and engine.py; to results.py. All of it blocks.
Promise: whatever was opened for a question is closed with it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from dolake.errors import InvalidSql, UnknownTable
from dolake.identity.grants import EVERYTHING, Grant
from dolake.pipeline.sql_link import Scan
from dolake.query.copying import copying_in, warnings_of
from dolake.query.diff import diff_sql, side_of
from dolake.query.engine import Engine, Params, Running
from dolake.query.guard import parse
from dolake.query.job import Job
from dolake.query.overlay import Overlays
from dolake.query.partition import conditions_of, narrowed
from dolake.query.planning import Planner, Table
from dolake.query.question import CONTENT_TYPES, DiffQuestion, Format, PlanQuestion, Question
from dolake.query.reader import Asked, Reference, Run, View
from dolake.query.relation import Relation
from dolake.query.rescued import has_rescued, rescued_warnings
from dolake.query.results import Answer, arrow_pieces, csv_pieces, json_pieces
from dolake.query.routing import Bound, Route, SparkRunning, answer_by_spark, route
from dolake.query.spark_engine import SparkEngine, SparkFailed, refuse
from dolake.query.spark_text import SparkStatement
from dolake.query.statement import Statement
from dolake.query.values import json_values
from dolake.query.watch import Stop
from dolake.settings import QuerySettings
from dolake.suggestions import with_suggestion
from dolake.tables.layout import RESCUED
from dolake.tables.names import split_table_name

_WAIT_MAX_S = 10.0
_DIFF_ROWS = 1_000
_HEADER_LENGTH_MAX = 4_000
_SHORT_FRESHNESS = ("position", "ageMs", "engine", "asOf", "tailRows", "files")
_encode = msgspec.json.Encoder().encode


class Reader(Protocol):
    """Who can open a view: a LakeReader."""

    def open(self, references: Sequence[Reference], asked: Asked, run: Run) -> View: ...
    def tables_seen(self, grant: Grant) -> list[str]: ...


@dataclass(frozen=True)
class Parts:
    """What the query process answers with."""

    reader: Reader
    engine: Engine
    planner: Planner
    spark: SparkEngine | None = None
    """None where there is no such process to start: large questions go to DuckDB."""


@dataclass(frozen=True)
class Opened:
    """A question that is ready to be run."""

    statement: Statement
    view: View
    tables: Sequence[Table]
    params: Params

    @property
    def relations(self) -> list[Relation]:
        return [each.relation for each in self.tables]

    @property
    def sql(self) -> str:
        return self.statement.bind(self.relations)

    @property
    def warnings(self) -> list[str]:
        return list(dict.fromkeys([*self.view.warnings, *(text for each in self.relations for text in each.warnings)]))


@contextlib.contextmanager
def suggesting(reader: Reader, grant: Grant) -> Iterator[None]:
    """Let an error about an unknown table name the closest one that the asker sees."""
    try:
        yield
    except UnknownTable as error:
        raise with_suggestion(error, reader.tables_seen(grant)) from None


@contextlib.contextmanager
def opened(
    parts: Parts, question: Question | PlanQuestion, stop: Stop, sql: str, grant: Grant = EVERYTHING
) -> Iterator[Opened]:
    """Read the statement, and open its tables at one moment."""
    statement = parse(sql, question.namespace)
    params = checked_params(statement, question.params)
    asked = Asked(
        moment_of(question.as_of), question.snapshot_id, question.min_position, wait_s(stop), grant, question.max_age_ms
    )
    stop.check()
    with (
        suggesting(parts.reader, grant),
        contextlib.closing(parts.reader.open(statement.references, asked, runner(parts.engine, stop))) as view,
    ):
        stop.check()
        relations = [view.relation(each) for each in statement.references]
        wanted = conditions_of(relations, question.partition)
        tables = [
            Table(view, reference, narrowed(relation, conditions), conditions)
            for reference, relation, conditions in zip(statement.references, relations, wanted, strict=True)
        ]
        stop.check()
        _warn_of_rescued(view, statement, relations, parts.engine, stop)
        yield Opened(statement, view, tables, params)


def _warn_of_rescued(
    view: View, statement: Statement, relations: Sequence[Relation], engine: Engine, stop: Stop
) -> None:
    """Values that did not fit their columns are null in the answer, and it says so."""

    def run(sql: str, arrow: Mapping[str, pa.Table]) -> Sequence[tuple[Any, ...]]:
        return runner(engine, stop, arrow)(sql)

    for number, relation in enumerate(relations):
        if has_rescued(relation):
            view.warnings += rescued_warnings(statement, relation, view.rescued(number, relation, run))


def answer(parts: Parts, question: Question, settings: QuerySettings, form: Format, grant: Grant, job: Job) -> None:
    """All of it, up to the last byte."""
    rows_max = _rows_max(question.limit, settings)
    with opened(parts, question, job.stop, question.sql, grant) as found:
        bound = _bound(parts, found)
        way = route(question.engine, bound, settings, parts.engine, job.stop)
        with _running(parts, bound, way, question, rows_max, job, found.view.overlays) as (running, way):
            freshness = found.view.freshness() | {"files": bound.reading.files}
            freshness |= {"engine": way.engine, "engineReason": way.reason}
            copying = copying_in(found.statement.references, job.copying)
            freshness |= {"copying": copying} if copying else {}
            warnings = [*found.warnings, *warnings_of(copying)]
            told = Answer(job.id, running.columns, freshness, warnings, job.started_s)
            job.tell({"Content-Type": CONTENT_TYPES[form], **_notes(form, freshness)})
            for piece in _pieces(told, running, form, rows_max):
                job.give(piece)


@contextlib.contextmanager
def _running(
    parts: Parts, bound: Bound, way: Route, question: Question, rows_max: int, job: Job, overlays: Overlays
) -> Iterator[tuple[Running | SparkRunning, Route]]:
    """The question at work, and where it came to be: what Spark has no answer for DuckDB gets after all."""
    if way.statement is not None:
        try:
            by_spark = _by_spark(parts, bound, way.statement, rows_max, job, overlays)
        except SparkFailed as error:
            if question.engine == "spark":
                raise refuse(str(error)) from error
            way = Route("duckdb", f"large, but Spark did not answer: {error}")
        else:
            yield by_spark, way
            return
    with parts.engine.start(bound.sql, bound.params, bound.arrow, stop=job.stop) as running:
        yield running, way


def _by_spark(
    parts: Parts, bound: Bound, statement: SparkStatement, rows_max: int, job: Job, overlays: Overlays
) -> SparkRunning:
    if parts.spark is None:
        raise SparkFailed("there is no Spark for questions here")
    found = {name: overlays.in_parts(path) for name, path in statement.scans.items()}
    scans = {name: Scan(str(all_rows.path), str(gone or "")) for name, (all_rows, gone) in found.items()}
    return answer_by_spark(parts.spark, parts.engine, bound, statement, scans, rows_max, job.stop, job.note_progress)


def routed(parts: Parts, question: PlanQuestion, settings: QuerySettings, grant: Grant, job: Job) -> None:
    """Which engine would answer it, and why; nothing is run but what that takes."""
    with opened(parts, question, job.stop, question.statement(), grant) as found:
        tables = [parts.planner.plan_of(each, found.params) for each in found.tables]
        way = route(question.engine, _bound(parts, found), settings, parts.engine, job.stop)
        _give_json(job, {"engine": way.engine, "reason": way.reason, "tables": tables, "warnings": found.warnings})


def _bound(parts: Parts, found: Opened) -> Bound:
    reading = parts.planner.reading_of(found.tables, found.params)
    has_uuids = any(read[0].has_uuids for each in found.tables if (read := each.read()))
    return Bound(found.sql, found.params, registered(found.relations), reading, has_uuids)


def plan(parts: Parts, question: PlanQuestion, grant: Grant, job: Job) -> None:
    """What would be read, and why not more."""
    with opened(parts, question, job.stop, question.statement(), grant) as found:
        tables = [parts.planner.plan_of(each, found.params) for each in found.tables]
        _give_json(job, {"engine": "duckdb", "tables": tables, "sql": found.sql, "warnings": found.warnings})


def difference(parts: Parts, question: DiffQuestion, settings: QuerySettings, grant: Grant, job: Job) -> None:
    """Rows added, removed and changed."""
    namespace, table = _table_of(question)
    sides = [side_of(namespace, table, each) for each in (question.from_, question.to)]
    asked = Asked(
        min_position=question.min_position, timeout_s=wait_s(job.stop), grant=grant, max_age_ms=question.max_age_ms
    )
    with (
        suggesting(parts.reader, grant),
        contextlib.closing(parts.reader.open(sides, asked, runner(parts.engine, job.stop))) as view,
    ):
        relations = [view.relation(each) for each in sides]
        view.release()
        sql, arrow = diff_sql(*relations), registered(relations)
        with parts.engine.start(sql, None, arrow, stop=job.stop) as running:
            if question.format == "lines":
                if view.too_early is not None:
                    raise view.too_early  # a rollback to nothing is more likely a mistake than a wish
                job.tell({"Content-Type": "application/x-ndjson"})
                for batch in running.batches():
                    job.give(_lines(batch))
            elif question.format == "arrow":
                told = Answer(job.id, running.columns, view.freshness(), view.warnings, job.started_s)
                job.tell({"Content-Type": CONTENT_TYPES["arrow"]})
                for piece in arrow_pieces(told, told.cut(running.batches(), 2**62), running.schema):
                    job.give(piece)
            else:
                told_json = {"table": f"{namespace}.{table}", "from": question.from_, "to": question.to}
                told_json |= {"warnings": list(dict.fromkeys(view.warnings))}
                limit = _DIFF_ROWS if question.limit is None else question.limit
                _give_json(job, told_json | _differences(running, _rows_max(limit, settings)))


def _lines(batch: pa.RecordBatch) -> bytes:
    """Each difference as kind, key, the row before and the row after, on a line of its own."""
    rows = zip(*(column.to_pylist() for column in batch.columns[:4]), strict=True)
    return b"".join(_encode(row) + b"\n" for row in rows)


def _table_of(question: DiffQuestion) -> tuple[str, str]:
    if "." not in question.table:
        return question.namespace, question.table
    levels, name = split_table_name(question.table)
    return ".".join(levels), name


def _differences(running: Running, rows_max: int) -> dict[str, Any]:
    """How many there are of each kind, and the first of them."""
    counts, kept = {"added": 0, "removed": 0, "changed": 0}, dict[str, list[Any]](added=[], removed=[], changed=[])
    for batch in running.batches():
        for kind, key, before, after, columns in zip(*map(json_values, batch.columns), strict=True):
            counts[kind] += 1
            if len(kept[kind]) < rows_max:
                before, after = _row(before), _row(after)
                changed = {"key": key, "before": before, "after": after, "columns": columns}
                kept[kind].append(changed if kind == "changed" else before or after)
    is_truncated = any(counts[kind] > len(rows) for kind, rows in kept.items())
    columns = [
        {"name": name, "type": str(kind), "nullable": True} for name, kind in running.fields_of(2) if name != RESCUED
    ]
    return {"counts": counts, **kept, "truncated": is_truncated, "columns": columns}


def _row(row: dict[str, Any] | None) -> dict[str, Any] | None:
    """What did not fit its columns is shown where there is something."""
    if row is not None and row.get(RESCUED) is None:
        row.pop(RESCUED, None)
    return row


def _give_json(job: Job, value: dict[str, Any]) -> None:
    job.tell({"Content-Type": CONTENT_TYPES["json"]})
    job.give(_encode(value))


def _pieces(told: Answer, running: Running | SparkRunning, form: Format, rows_max: int) -> Iterator[bytes]:
    batches = told.cut(running.batches(), rows_max)
    match form:
        case "json":
            return json_pieces(told, batches)
        case "csv":
            return csv_pieces(told, batches)
        case "arrow":
            return arrow_pieces(told, batches, running.schema)


def _notes(form: Format, freshness: Mapping[str, Any]) -> dict[str, str]:
    """CSV has no room for it among its rows, and a header not for thousands of sources."""
    if form != "csv":
        return {}
    text = json.dumps(freshness, separators=(",", ":"))
    if len(text) > _HEADER_LENGTH_MAX:
        text = json.dumps({name: freshness[name] for name in _SHORT_FRESHNESS if name in freshness})
    return {"X-DoLake-Freshness": text}


def checked_params(statement: Statement, params: list[Any] | dict[str, Any] | None) -> Params:
    """The values that the statement asks for: all of them, and as it names them."""
    wanted = statement.parameters
    if wanted.kind == "none":
        if params:
            raise InvalidSql("there are values, but no parameter in the statement", hint="write ? or :name for each")
        return ()
    if wanted.kind == "positional":
        given = len(params) if isinstance(params, list) else None
        if given != wanted.count:
            raise InvalidSql(f"the statement has {wanted.count} parameters", hint="send as many in a list: `params`")
        return params or ()
    if not isinstance(params, dict) or not set(wanted.names) <= params.keys():
        raise InvalidSql(
            f"the statement has the parameters {', '.join(wanted.names)}", hint="send them by name: `params`"
        )
    return {name: params[name] for name in wanted.names}


def registered(relations: Sequence[Relation]) -> dict[str, pa.Table]:
    """What DuckDB is to know beside files."""
    return {name: table for each in relations for name, table in each.arrow.items()}


def runner(engine: Engine, stop: Stop, arrow: Mapping[str, pa.Table] | None = None) -> Run:
    """For the small queries of our own that come before the user's."""

    def run(sql: str) -> list[tuple[Any, ...]]:
        with engine.start(sql, None, arrow, stop=stop) as running:
            return [
                row
                for batch in running.batches()
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
            ]

    return run


def moment_of(as_of: str | float | None) -> str | int | None:
    """As a question says it."""
    return int(as_of) if isinstance(as_of, float) else as_of


def wait_s(stop: Stop) -> float:
    """How long a position is waited for."""
    return _WAIT_MAX_S if stop.timeout_ms is None else min(_WAIT_MAX_S, stop.timeout_ms / 1000)


def _rows_max(limit: int | None, settings: QuerySettings) -> int:
    return settings.rows_max if limit is None else min(limit, settings.rows_max)
