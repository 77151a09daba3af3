"""What sources declare of columns, and which type a contradicted guess becomes."""

from __future__ import annotations

from typing import Any

import pytest

from dolake.tables.declaration import Declaration, Notes, type_for, type_for_both
from dolake.tables.fitting import decode_written
from dolake.tables.types import Field

COLUMNS = (Field("at", "timestamp"), Field("n", "long"))


def declared(type_: str, comment: str | None = None, *, is_guess: bool = True) -> Declaration:
    comments = {} if comment is None else {"at": comment}
    return Declaration((Field("at", type_),), comments, frozenset(["at"] if is_guess else []))


def test_the_last_word_on_a_column_counts() -> None:
    found = declared("timestamp", "as text").then(declared("timestamptz", is_guess=False))
    assert found == Declaration((Field("at", "timestamptz"),))
    other = Declaration((Field("n", "long"),), {"n": "a count"}, frozenset(["n"]))
    assert declared("date", "x").then(other).comments == {"at": "x", "n": "a count"}


def test_a_table_notes_guesses_and_comments_once() -> None:
    notes = Notes()
    assert notes.is_behind(COLUMNS, declared("timestamp", "as text"))
    assert notes.guesses_after(COLUMNS, declared("timestamp")) == {"at"}
    noted = Notes({"at": "as text"}, frozenset(["at"]))
    assert not noted.is_behind(COLUMNS, declared("timestamp", "as text"))
    assert not noted.is_behind(COLUMNS, declared("timestamp")), "no comment leaves the old one"
    assert noted.is_behind(COLUMNS, declared("timestamp", is_guess=False)), "it is strict from now on"


def test_a_comment_about_another_type_is_not_taken() -> None:
    noted = Notes({}, frozenset(["at"]))
    assert not noted.is_behind(COLUMNS, declared("timestamptz", "epoch seconds"))


def test_only_a_column_without_a_value_follows_the_next_guess() -> None:
    assert Notes({}, frozenset(["at"])).changed(COLUMNS, declared("timestamptz")) == {}
    undecided = Notes({}, frozenset(["at"]), frozenset(["at"]))
    assert undecided.changed(COLUMNS, declared("timestamptz")) == {"at": "timestamptz"}
    assert undecided.changed(COLUMNS, declared("timestamp")) == {}
    assert undecided.changed(COLUMNS, Declaration()) == {}


@pytest.mark.parametrize(
    ("type_", "value", "wanted"),
    [
        ("timestamp", '"tomorrow"', "string"),
        ("boolean", "2", "string"),
        ("decimal(10, 2)", "12.345", "decimal(11, 3)"),
        ("decimal(10, 2)", "123456789.5", "decimal(11, 2)"),
        ("decimal(10, 2)", "1e30", "decimal(33, 2)"),
        ("decimal(10, 2)", "1e300", "string"),
        ("decimal(10, 2)", '"free"', "string"),
        ("decimal(10, 2)", "true", "string"),
    ],
)
def test_a_contradicted_guess_becomes_text_and_money_a_wider_decimal(type_: str, value: Any, wanted: str) -> None:
    assert type_for(type_, decode_written(value.encode())) == wanted


def test_several_contradictions_ask_for_one_type() -> None:
    assert type_for_both("decimal(11, 3)", "decimal(12, 2)") == "decimal(13, 3)"
    assert type_for_both("decimal(11, 3)", "string") == "string"
    assert type_for_both("string", "string") == "string"
    assert type_for_both("decimal(38, 0)", "decimal(10, 9)") == "string"
