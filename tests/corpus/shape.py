"""What a stream of the corpus is: changes as a source sends them, and the table that they must become.

To names.py, numbers.py and the others, which are data; to test_corpus.py, which sends and compares. The expected tables
are written by hand from the rules in docs/explain/values.md and pipeline.md, and never from what came out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import Raw

Row = dict[str, Any]
Change = dict[str, Any]


@dataclass(frozen=True)
class Stream:
    """Changes of one table in batches, each of which is published alone; and what the table is in the end.

    In `rows` a column or a field of an object that is not named is null. `_rescued` has the JSON text of each value by
    its column's name. In `changes` each entry names only what is to be looked at; without `changes`, operations and
    keys are those sent.
    """

    name: str
    batches: tuple[tuple[Change, ...], ...]
    types: dict[str, str]
    rows: dict[str, Row]
    changes: tuple[Row, ...] | None = None
    table: str = ""
    settings: str = ""
    """Lines of the table's own section."""

    @property
    def table_name(self) -> str:
        return self.table or f"corpus.{self.name}"


def put(key: str, row: Row | str, *, source: str = "corpus", **metadata: Any) -> Change:
    """An INSERT. A row may be given as JSON text, where Python has no word for what is in it."""
    return _change("INSERT", key, {"after": _image(row)}, source, metadata)


def alter(key: str, row: Row | str, before: Row | str | None = None, *, source: str = "corpus", **meta: Any) -> Change:
    """An UPDATE, with the row before or without it."""
    images = {"after": _image(row)} | ({} if before is None else {"before": _image(before)})
    return _change("UPDATE", key, images, source, meta)


def remove(key: str, before: Row | str | None = None, *, source: str = "corpus") -> Change:
    """A DELETE."""
    return _change("DELETE", key, {} if before is None else {"before": _image(before)}, source, {})


def ddl(action: str, **more: str) -> Change:
    """Something that the source has done to the table."""
    return _change("DELETE", "-", {}, "corpus", {"ddl": {"action": action} | more})


def declares(**types: str) -> list[dict[str, str]]:
    """For `metadata.schema`."""
    return [{"name": name, "type": type_} for name, type_ in types.items()]


def _change(operation: str, key: str, images: Row, source: str, metadata: Row) -> Change:
    return {"operation": operation, "rowId": key, "source": source, **images} | (
        {"metadata": metadata} if metadata else {}
    )


def _image(row: Row | str) -> Row | Raw:
    return Raw(row.encode()) if isinstance(row, str) else row
