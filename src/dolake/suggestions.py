"""The name that was probably meant: "did you mean orders?", for tables, columns and settings.

To every room that looks up a name which a person typed. Pure. Promise: only names that the caller hands in are
suggested, so a caller who hands in what a token may see tells nothing else.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from dolake.errors import UnknownTable

_LENGTH_MAX = 256
"""Longer names are not compared: the time grows with the square of the length."""
_NAMES_MAX = 1_000
_CUTOFF = 0.6


def closest(name: str, known: Iterable[str]) -> str:
    """The known name that looks most like this one, or an empty text. Case does not count."""
    if len(name) > _LENGTH_MAX:
        return ""
    by_folded = {each.casefold(): each for each in sorted(known)[:_NAMES_MAX]}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=_CUTOFF)
    return by_folded[found[0]] if found else ""


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint: the closest name, followed by `otherwise`; only `otherwise` if no name is close."""
    found = closest(name, known)
    parts = [f"did you mean {found}?" if found else "", otherwise]
    return " ".join(part for part in parts if part)


def with_suggestion(error: UnknownTable, known: Iterable[str]) -> UnknownTable:
    """The same error, with the closest of the tables that the caller sees in front of its hint."""
    return UnknownTable(error.message, table=error.table, hint=did_you_mean(error.table, known, error.hint))
