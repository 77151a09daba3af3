"""A whole catalog from one store into another: `dolake catalog move`, and the copy that a backup takes of Postgres.

From cli/catalog.py, which holds the home's lock, and backup/catalog_copy.py. Promise: the target gets everything as of
one moment of the source, in one transaction, is counted before that ends, and had nothing before. A move that was
stopped has left the catalog where it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dolake.catalog.sql_store import Run, SqlStore
from dolake.catalog.sqlite import SqliteStore
from dolake.catalog.stores import FILE, MOVED_FILE
from dolake.errors import Conflict, Damaged
from dolake.storage.local import sync_path

if TYPE_CHECKING:
    from dolake.catalog.postgres import PostgresStore

_ROWS = {
    "every_namespace": ("create_namespace", ("key", "parent", "properties")),
    "all_pointers": (
        "enter_pointer",
        ("namespace", "name", "kind", "uuid", "metadata_location", "version", "is_managed", "folders"),
    ),
    "every_publish": ("note_publish", ("position", "at_ms")),
    "every_answer": ("keep_answer", ("key", "answer", "until_ms")),
}
"""Which statement reads the rows, which one enters them, and what their columns are called there."""


@dataclass(frozen=True, slots=True)
class Moved:
    """How much it was."""

    namespaces: int
    tables_and_views: int
    publishes: int
    answers: int
    position: int


def copy_store(source: SqlStore, target: SqlStore) -> Moved:
    """Everything that is in `source` now, into `target`, which must be empty."""
    return source.read_moment(lambda read: target.write(lambda write: _copy(read, write)))


def move_to_postgres(home: Path, target: PostgresStore, journal: str) -> Moved:
    """From the home's file; `journal` is the one that the published row counts. The file stays, under another name."""
    source = SqliteStore(home / FILE)
    try:
        moved = source.read_moment(lambda read: target.take_in(journal, lambda write: _copy(read, write)))
    finally:
        source.close()
    (home / FILE).replace(home / MOVED_FILE)
    sync_path(home)
    return moved


def move_to_sqlite(home: Path, source: PostgresStore, journal: str) -> Moved:
    """Into the home's file. What is in Postgres stays there, marked as moved: no server works with it any more."""
    if (home / FILE).exists():
        raise Conflict(f"{home / FILE} is there already", hint="if it is of no use any more, move it elsewhere")
    draft = home / f"{FILE}.tmp"

    def fill(read: Run) -> Moved:
        draft.unlink(missing_ok=True)
        target = SqliteStore(draft)
        try:
            moved = target.write(lambda write: _copy(read, write))
        finally:
            target.close()
        draft.replace(home / FILE)
        sync_path(home)
        return moved

    try:
        moved = source.let_go(journal, fill)
    except BaseException:
        # Not moved, or nobody knows. The file must not be mistaken for the catalog; asked again, it is made again.
        for path in (home / FILE, draft):
            path.unlink(missing_ok=True)
        raise
    (home / MOVED_FILE).unlink(missing_ok=True)
    return moved


def _copy(read: Run, write: Run) -> Moved:
    if any(write("count_rows").fetchone()) or any(write("published").fetchone()):
        raise Conflict("there is a catalog already", hint="name an empty schema with --schema, or drop that one first")
    for reading, (entering, columns) in _ROWS.items():
        if rows := [dict(zip(columns, row, strict=True)) for row in read(reading)]:
            write(entering, rows)
    position, generation, at_ms = read("published").fetchone()
    write("set_published", {"position": position, "generation": generation, "at_ms": at_ms})
    counts, expected = (tuple(run("count_rows").fetchone()) for run in (write, read))
    if counts != expected or tuple(write("published").fetchone()) != (position, generation, at_ms):
        raise Damaged(f"copied {counts} rows of {expected}", hint="nothing was moved")
    namespaces, names, publishes, answers = counts
    return Moved(namespaces, names, publishes, answers, position)
