"""Change capture on a plain SQLite file: whoever writes to it, in whatever language, its changes become events.

    from dolake.sources.sqlite import enable_cdc
    enable_cdc("shop.db")               # triggers and an outbox, in the same file
    # then: dolake source sqlite shop.db --to http://127.0.0.1:8787

A change and its event are one transaction, because triggers write the event. tables.py: what a file has; triggers.py:
the words that SQLite runs; store.py: what we keep in the file; watching.py and columns.py: changed tables; copying.py:
what was there before; values.py, events.py: rows become changes; source.py joins them, and fills sources/base.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from dolake.errors import NotFound
from dolake.sources.base import SourceStatus
from dolake.sources.sqlite.columns import COPYING
from dolake.sources.sqlite.source import SqliteSource, not_enabled, status_of
from dolake.sources.sqlite.store import Store
from dolake.sources.sqlite.tables import PREFIX, quoted
from dolake.sources.sqlite.watching import follow_schema

__all__ = ["SqliteSource", "disable_cdc", "enable_cdc", "is_enabled", "resync", "status"]


def enable_cdc(path: Path | str, tables: str | Iterable[str] = "*") -> SourceStatus:
    """Follow these tables of the file: names, or patterns with `*`. May be called again, also with other tables.

    From here on every change is kept in the file until a lake has acknowledged it.
    """
    patterns = [tables] if isinstance(tables, str) else list(tables)
    store = Store(path)
    try:
        with store.begin():
            if not store.exists:
                store.create()
            store.check_format()
            store.set("patterns", json.dumps(patterns))
            follow_schema(store, patterns)
        return status_of(store)
    finally:
        store.close()


def disable_cdc(path: Path | str) -> None:
    """Remove every trace of us from the file. Events that no lake has acknowledged are lost."""
    store = Store(path)
    try:
        with store.begin() as db:
            for kind in ("trigger", "table"):
                rows = db.execute(
                    "SELECT name FROM sqlite_schema WHERE type = ? AND substr(name, 1, ?) = ?",
                    (kind, len(PREFIX), PREFIX),
                ).fetchall()
                for (name,) in rows:
                    db.execute(f"DROP {kind} {quoted(name)}")
    finally:
        store.close()


def is_enabled(path: Path | str) -> bool:
    """Whether the file is followed."""
    store = Store(path)
    try:
        return store.exists
    finally:
        store.close()


def resync(path: Path | str, table: str) -> None:
    """Copy this table again; a running source notices, and goes on with the others meanwhile."""
    store = _opened(path)
    try:
        with store.begin():
            for state in store.tables():
                if state.name.casefold() == table.casefold():
                    state.phase, state.cursor, state.filling, state.empties = COPYING, None, None, True
                    state.copied = state.total = 0
                    store.save(state)
                    return
        raise NotFound(f"{path} has no table {table!r} that is followed", hint="`dolake source status` lists them")
    finally:
        store.close()


def status(path: Path | str) -> SourceStatus:
    """How far behind the lake is, and which tables are being copied: what the file itself knows."""
    store = _opened(path)
    try:
        return status_of(store)
    finally:
        store.close()


def _opened(path: Path | str) -> Store:
    store = Store(path)
    if not store.exists:
        store.close()
        raise not_enabled(path)
    return store
