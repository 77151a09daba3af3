"""How the rows of a table's files are sorted: words such as `created_at` or `total desc`, and Iceberg's order of it.

From the settings; to the pipeline, which sorts what it writes and tells Iceberg. Pure. Nulls stand last, either way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dolake.tables.types import column_name

Json = dict[str, Any]
Direction = Literal["asc", "desc"]
_WORD = re.compile(r"\s*(\S.*?)(?:\s+(asc|desc))?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SortKey:
    column: str
    direction: Direction = "asc"


def problem_with_sort_word(word: str) -> str | None:
    """Say in words why this is no part of `sort_by`, or None when it is one."""
    return None if _WORD.fullmatch(word) else "is not a column such as `created_at` or `total desc`"


def sort_keys(words: Sequence[str], schema: Mapping[str, Any]) -> tuple[tuple[SortKey, ...], list[str]]:
    """The columns to sort by, as the table has them; and why not by the rest."""
    columns = {field["name"]: field for field in schema["fields"]}
    keys: list[SortKey] = []
    problems: list[str] = []
    for word in words:
        name, direction = _parsed(word)
        column = columns.get(name) or columns.get(column_name(name))
        if column is None:
            problems.append(f"{word}: there is no column {name!r}")
        elif not isinstance(column["type"], str):
            problems.append(f"{word}: a column of type {column['type']['type']} has no order")
        elif all(key.column != column["name"] for key in keys):
            keys.append(SortKey(column["name"], direction))
    return tuple(keys), problems


def order_fields(keys: Iterable[SortKey], schema: Mapping[str, Any]) -> list[Json]:
    """As Iceberg's JSON has them."""
    ids = {field["name"]: field["id"] for field in schema["fields"]}
    return [
        {"transform": "identity", "source-id": ids[key.column], "direction": key.direction, "null-order": "nulls-last"}
        for key in keys
    ]


def _parsed(word: str) -> tuple[str, Direction]:
    found = _WORD.fullmatch(word)
    assert found is not None, "the settings were checked"
    return found[1], "desc" if (found[2] or "").lower() == "desc" else "asc"
