"""Rows by their keys where only SQL can tell: of a moment in the past, or while the quick way is barred.

From worker.py, as a query like any other: it waits for its turn, and can be cancelled. Promise: the rows and their form
are those of lookup.py.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from dolake.identity.grants import Grant
from dolake.query.answering import Parts, moment_of, registered, runner, suggesting, wait_s
from dolake.query.job import Job
from dolake.query.past import parse_snapshot_id
from dolake.query.reader import Asked
from dolake.query.rows import RowMaker, RowsAnswer
from dolake.query.rows_question import RowsQuestion, wrong_kind
from dolake.query.sqltext import literal, names, quoted
from dolake.tables.layout import KEY, RESCUED, SOURCE


@dataclass(frozen=True, slots=True)
class _Reference:
    """The table, by the name that DuckDB never sees."""

    table: str
    namespace: str
    as_of: str | int | None = None
    snapshot_id: int | None = None
    hidden: frozenset[str] = frozenset()


def find_rows(parts: Parts, question: RowsQuestion, grant: Grant, job: Job) -> None:
    """All of it, up to the last byte."""
    asked = Asked(moment_of(question.as_of), None, question.min_position, wait_s(job.stop), grant)
    reference = _Reference(question.table, ".".join(question.namespace), None, parse_snapshot_id(question.snapshot_id))
    with (
        suggesting(parts.reader, grant),
        contextlib.closing(parts.reader.open([reference], asked, runner(parts.engine, job.stop))) as view,
    ):
        relation = view.relation(reference)
        if KEY not in relation.hidden:
            raise wrong_kind(question.name)
        view.release()
        source = question.checked_source(SOURCE in relation.hidden)
        where = f"{quoted(KEY)} IN ({', '.join(map(literal, question.keys)) or 'NULL'})"
        if SOURCE in relation.hidden:
            where += f" AND {quoted(SOURCE)} = {literal(source)}"
        columns = names((*relation.columns, RESCUED, KEY))
        sql = f"SELECT {columns} FROM ({relation.sql}) WHERE {where}"  # noqa: S608
        with parts.engine.start(sql, None, registered([relation]), stop=job.stop) as running:
            maker = RowMaker(running.columns[:-2])
            found = {}
            for batch in running.batches():
                for at, key in enumerate(batch.column(len(batch.columns) - 1).to_pylist()):
                    found[key] = maker.row(
                        [each.slice(at, 1) for each in batch.columns[:-2]], batch.column(-2).slice(at, 1)
                    )
        told = view.freshness()
        answer = RowsAnswer(
            question,
            [found.get(key) for key in question.keys],
            maker.described,
            told["position"],
            relation.snapshot_id,
            "duckdb",
            told["ageMs"],
            told["asOf"],
        )
        body = answer.body()
        job.tell({"Content-Type": "application/json"})
        job.give(body)
