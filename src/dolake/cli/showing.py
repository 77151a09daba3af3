"""Answers on paper: tables for people, JSON and CSV for programs. Pure, but for the console that is handed in.

From query.py, shell.py, tables.py and diff.py. Promise: what is in a row cannot steer the terminal; JSON and CSV have
every value in full, in the forms of POST /v1/query.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dolake.client import QueryResult, Row
from dolake.client.asking import iso_text, plain
from dolake.client.results import Column

Format = Literal["table", "json", "csv"]
_EXACT_MAX = 2**53
_ENDLESS = 100_000
_NUMBER = re.compile(
    r"(?:U?(?:TINY|SMALL|BIG|HUGE)?INT(?:EGER)?|UINTEGER|FLOAT|DOUBLE|REAL|DECIMAL\(.*\))$", re.IGNORECASE
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_WORDS = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def output() -> Console:
    """Where answers go. What is not a terminal has no right margin, so that lines are not broken in a file."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_ENDLESS)


def notes() -> Console:
    """Where everything goes that is not the answer."""
    return Console(stderr=True, highlight=False)


# --- tables -----------------------------------------------------------------------------------------------------------


def table_of(columns: Sequence[Column], rows: Iterable[Row]) -> Table:
    """Rows as a table, numbers on the right."""
    shown = new_table()
    for column in columns:
        is_number = _NUMBER.match(column.type) is not None
        shown.add_column(_visible(column.name), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        shown.add_row(*map(cell, row))
    return shown


def new_table(*names: str, numbers: Sequence[str] = ()) -> Table:
    """An empty table in our one style."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in names:
        shown.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    return shown


def cell(value: Any) -> Text:
    """One value, as a person wants to see it."""
    return Text("NULL", style="dim") if value is None else Text(_visible(_text(value)))


def _text(value: Any) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case datetime():
            text = iso_text(value).replace("T", " ")
            return re.sub(r"\.?0+(?=Z?$)", "", text) if "." in text else text
        case Decimal():
            return format(value, "f")
        case bytes():
            return "\\x" + value.hex()
        case list() | dict() | tuple():
            return _encoded(value).decode()
        case _:
            return str(value)


def _visible(text: str) -> str:
    """Without anything that a terminal would obey."""
    return _CONTROL.sub(lambda found: _WORDS.get(found[0], f"\\u{ord(found[0]):04x}"), text)


# --- for programs -----------------------------------------------------------------------------------------------------


def json_lines(batches: Iterable[QueryResult]) -> Iterator[str]:
    """One array of objects, a row on each line."""
    before = "["
    for batch in batches:
        for row in batch:
            yield before + _encoded(row.as_dict()).decode()
            before = ",\n"
    yield "[]\n" if before == "[" else "]\n"


def json_line(value: Any) -> str:
    """One value on a line of its own."""
    return _encoded(value).decode() + "\n"


def csv_lines(batches: Iterable[QueryResult]) -> Iterator[str]:
    """RFC 4180, with a header. An empty text is quoted, and NULL is nothing at all."""
    has_header = False
    for batch in batches:
        if not has_header:
            yield ",".join(_csv_text(column.name) for column in batch.columns) + "\r\n"
            has_header = True
        for row in batch:
            yield ",".join(map(_csv_value, row)) + "\r\n"


def _csv_value(value: Any) -> str:
    if value is None:
        return ""
    simple = _exact(plain(value))
    return _csv_text(simple if isinstance(simple, str) else msgspec.json.encode(simple).decode())


def _csv_text(text: str) -> str:
    has_to = not text or any(mark in text for mark in ',"\r\n')
    return '"' + text.replace('"', '""') + '"' if has_to else text


def _encoded(value: Any) -> bytes:
    return msgspec.json.encode(_exact(plain(value)))


def _exact(value: Any) -> Any:
    """Integers that not every reader of JSON has in full become text."""
    match value:
        case bool():
            return value
        case int() if abs(value) > _EXACT_MAX:
            return str(value)
        case list():
            return [_exact(each) for each in value]
        case dict():
            return {name: _exact(each) for name, each in value.items()}
        case _:
            return value


def pretty(value: Any) -> str:
    """Anything that the client returns, as indented JSON."""
    rows = msgspec.to_builtins(value, enc_hook=lambda found: plain(found.as_dict()), builtin_types=())
    return msgspec.json.format(msgspec.json.encode(rows)).decode() + "\n"


# --- how fresh --------------------------------------------------------------------------------------------------------


def facts(result: QueryResult, row_count: int, took_ms: float) -> str:
    """The one line about an answer that people want to see beside it."""
    fresh = result.freshness
    parts = [f"{row_count:,} {'row' if row_count == 1 else 'rows'} in {_length(took_ms)}"]
    if result.truncated:
        parts[0] += ", and more that a limit cut off"
    if fresh.as_of is not None:
        parts.append(f"as of {_text(fresh.as_of)}")
    else:
        parts.append(f"position {fresh.position:,}, {_length(fresh.age_ms)} old")
    files = f"{fresh.files.read:,} files read, {fresh.files.pruned:,} left out"
    parts.append(files + (f", {fresh.tail_rows:,} rows from the journal" if fresh.tail_rows else ""))
    return "; ".join(parts)


def _length(ms: float) -> str:
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= size:
            return f"{ms / size:.1f} {unit}"
    return f"{ms:.0f} ms"
