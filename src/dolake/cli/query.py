"""`dolake query`: run one SELECT on a running server, and print the answer."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dolake.cli import showing
from dolake.cli.address import HomeOption, UrlOption, lake_at
from dolake.cli.moments import moment_of
from dolake.cli.showing import Format
from dolake.client import Plan, QueryResult
from dolake.client.sync import LakeClient, prefer_json
from dolake.errors import InvalidInput

TABLE_ROWS = 1_000
"""More than that nobody reads; --limit says otherwise."""
CANCELLED = 130
AsOfOption = Annotated[
    str | None,
    typer.Option("--as-of", help="The lake at this point in time: 2025-01-14T12:00Z, '5 minutes ago', yesterday."),
]
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/""", re.DOTALL)


def query(
    sql: Annotated[str, typer.Argument(help="One SELECT; `-` reads it from standard input.")],
    home: HomeOption = Path("dolake-home"),
    url: UrlOption = None,
    as_of: AsOfOption = None,
    snapshot: Annotated[str | None, typer.Option("--snapshot", help="The tables at this snapshot.")] = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", help="A value for `?`, in their order, or name=value for `:name`."),
    ] = None,
    form: Annotated[Format, typer.Option("--format", "-f", help="table, json or csv.")] = "table",
    limit: Annotated[int | None, typer.Option(help="Rows at most; 1,000 in a table otherwise.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds at most; the server's setting otherwise.")] = None,
    engine: Annotated[
        Literal["auto", "duckdb", "spark"], typer.Option(help="Who answers; auto: Spark, where much is to be read.")
    ] = "auto",
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be read, and why not more.")] = False,
) -> None:
    """Run one SELECT and print the answer; Ctrl-C ends it on the server too."""
    statement = sys.stdin.read() if sql == "-" else sql
    asked: dict[str, Any] = {
        "params": _parameters(statement, param or []),
        "as_of": None if as_of is None else moment_of(as_of),
        "snapshot_id": snapshot,
    }
    lake = lake_at(home, url)
    with cancelled_by_ctrl_c():
        if plan:
            show_plan(lake.plan(statement, **asked), form)
        elif form == "table":
            limit = TABLE_ROWS if limit is None else limit
            if limit <= TABLE_ROWS:
                prefer_json(lake)
            show_answer(lambda: lake.query(statement, **asked, limit=limit, timeout=timeout, engine=engine))
        else:
            _write(lake, form, statement, asked | {"limit": limit, "timeout": timeout, "engine": engine})


def _parameters(sql: str, given: list[str]) -> list[str] | dict[str, str] | None:
    """As the statement wants them: in their order where it has `?` or `$1`, by name where it has `:name` or `$name`."""
    if not given:
        return None
    if re.search(r"\?|\$\d", _QUOTED.sub(" ", sql)):
        return given
    parts = [each.partition("=") for each in given]
    if any(not equals for _, equals, _ in parts):
        raise InvalidInput("--param has no name", hint="write --param name=value for :name in the statement")
    return {name: value for name, _, value in parts}


@contextmanager
def cancelled_by_ctrl_c() -> Iterator[None]:
    """Ctrl-C closes the connection, by which the server knows."""
    try:
        yield
    except KeyboardInterrupt:
        showing.notes().print("cancelled")
        raise typer.Exit(CANCELLED) from None


def show_answer(ask: Callable[[], QueryResult], *, with_facts: bool = True) -> None:
    """The answer as a table, and a line about it."""
    began_s = time.monotonic()
    with waiting() as tell:
        result = ask()
        tell(f"{len(result):,} rows")
        shown = showing.table_of(result.columns, result)
    showing.output().print(shown)
    _show_notes(result, len(result), began_s, with_facts=with_facts)


def _write(lake: LakeClient, form: Format, sql: str, asked: dict[str, Any]) -> None:
    """JSON or CSV, batch by batch, so that an answer of any size goes through."""
    began_s = time.monotonic()
    counted: list[QueryResult] = []
    row_count = 0

    def batches(tell: Callable[[str], None]) -> Iterator[QueryResult]:
        nonlocal row_count
        for batch in lake.query_batches(sql, **asked):
            counted[:] = [batch]
            row_count += len(batch)
            tell(f"{row_count:,} rows")
            yield batch

    with waiting(is_silent=sys.stdout.isatty()) as tell:
        lines = showing.json_lines if form == "json" else showing.csv_lines
        _print_lines(lines(batches(tell)))
    _show_notes(counted[0], row_count, began_s)


def _print_lines(lines: Iterable[str]) -> None:
    try:
        for line in lines:
            sys.stdout.write(line)
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our pipe has enough
        raise typer.Exit(0) from None


def _show_notes(result: QueryResult, row_count: int, began_s: float, *, with_facts: bool = True) -> None:
    console = showing.notes()
    for warning in result.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)
    if with_facts:
        took_ms = (time.monotonic() - began_s) * 1000 if result.elapsed_ms is None else result.elapsed_ms
        console.print(showing.facts(result, row_count, took_ms), style="dim", markup=False, soft_wrap=True)


@contextmanager
def waiting(what: str = "running", *, is_silent: bool = False) -> Iterator[Callable[[str], None]]:
    """On a terminal, a sign of life with the seconds gone by; it leaves nothing behind."""
    console = showing.notes()
    if is_silent or not console.is_terminal:
        yield lambda _: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # here: a script has no use for it

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=False,  # or what is written meanwhile would end up here, and not where the user wants it
    ) as progress:
        task = progress.add_task(what, total=None)
        yield lambda text: progress.update(task, description=text)


def show_plan(plan: Plan, form: Format) -> None:
    """Which files would be read, and why not the others."""
    if form != "table":
        sys.stdout.write(showing.pretty(plan))
        return
    counted = "files", "left out", "MB", "MB left out", "rows from the journal"
    shown = showing.new_table("table", "snapshot", *counted, numbers=counted)
    console = showing.output()
    for each in plan.tables:
        kept, pruned = (each.bytes.get(name, 0) / 1e6 for name in ("kept", "pruned"))
        counts = [f"{each.files.get(name, 0):,}" for name in ("kept", "pruned")]
        sizes = f"{kept:,.1f}", f"{pruned:,.1f}"
        shown.add_row(*map(showing.cell, (each.table, each.snapshot_id, *counts, *sizes, f"{each.tail_rows:,}")))
    console.print(shown)
    for each in plan.tables:
        for reason in each.reasons:
            console.print(f"left out: {reason.file}: {reason.reason}", markup=False, soft_wrap=True)
    for warning in plan.warnings:
        showing.notes().print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)
