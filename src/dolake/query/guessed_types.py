"""Columns whose type a source has only guessed: the next publish gives some of them another type.

From reader.py, which finds in the metadata what is noted; to table_tail.py, which reads the newest changes as that
publish will.
"""

from __future__ import annotations

from dataclasses import dataclass

from dolake.query.lake import LakeTable
from dolake.tables.declaration import Notes, read_guesses
from dolake.tables.layout import GUESSES

_NO_NOTES = Notes()


@dataclass(frozen=True, slots=True)
class GuessedTypes:
    """What a table has noted, and whether a value that does not fit changes its columns with the next publish."""

    notes: Notes = _NO_NOTES
    at_once: bool = True


def guessed_types(state: LakeTable | None, changes: LakeTable | None, rows_max: int) -> GuessedTypes:
    """Of a table that is in the catalog, or that is not there yet."""
    if state is None or changes is None:
        return GuessedTypes()
    guesses = read_guesses((changes.metadata.get("properties") or {}).get(GUESSES))
    undecided = frozenset(name for name, has_values in guesses.items() if not has_values)
    comments = {field["name"]: field["doc"] for field in state.schema["fields"] if field.get("doc")}
    rows = int(((changes.snapshot or {}).get("summary") or {}).get("total-records", 0))
    notes = Notes(comments, frozenset(guesses), undecided, frozenset(state.pinned_columns))
    return GuessedTypes(notes, rows <= rows_max)
