"""Change capture on a plain SQLite file: whichever program writes to it, in any language, its changes become events.

    from dolake.sources.sqlite import enable_cdc
    enable_cdc("shop.db")               # triggers and an outbox, in the same file
    # then: dolake source sqlite shop.db --to http://127.0.0.1:8787

A change and its event are one transaction, because triggers write the event. The source itself only reads the file.
In the file: triggers.py, store.py (the one table), installation.py (in and out), watching.py and columns.py (changed
tables), trimming.py. What is read: tables.py, values.py, forms.py, events.py, copying.py. What is sent: pieces.py,
state.py (kept in the lake), resumption.py. source.py joins them, and fills sources/base.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from dolake.sources.base import SourceStatus
from dolake.sources.sqlite import installation
from dolake.sources.sqlite.lake_view import LakeView
from dolake.sources.sqlite.source import SqliteSource, not_enabled, status_of
from dolake.sources.sqlite.state import FileState
from dolake.sources.sqlite.store import Store

__all__ = ["SqliteSource", "disable_cdc", "enable_cdc", "has_traces", "is_attached", "is_enabled", "resync", "status"]


def enable_cdc(
    path: Path | str,
    tables: str | Iterable[str] | None = None,
    *,
    exclude: Iterable[str] | None = None,
    masks: Mapping[str, str] | None = None,
) -> SourceStatus:
    """Follow these tables of the file: names, or patterns with `*`; all of them if none were chosen before.

    May be called again, also with other tables, and repairs a file from which another program has dropped parts of
    ours. From here on every change is kept in the file until a lake has acknowledged it.
    """
    store = Store(path)
    try:
        installation.enable(
            store,
            tables=[tables] if isinstance(tables, str) else None if tables is None else list(tables),
            exclude=None if exclude is None else list(exclude),
            masks=masks,
        )
        return status_of(store)
    finally:
        store.close()


def disable_cdc(path: Path | str) -> None:
    """Remove every trace of us from the file, from any state. Events that no lake has acknowledged are lost."""
    store = Store(path)
    try:
        installation.disable(store)
    finally:
        store.close()


def is_enabled(path: Path | str) -> bool:
    """Whether the file is followed, and needs nothing done to it before a source can read it."""
    store = Store(path)
    try:
        return store.head() is not None
    finally:
        store.close()


def is_attached(path: Path | str) -> bool:
    """Whether the file has agreed with a lake on the name of its stream before."""
    store = Store(path)
    try:
        head = store.head()
        return head is not None and bool(head.stream)
    finally:
        store.close()


def has_traces(path: Path | str) -> bool:
    """Whether anything of us is in the file, also after another program removed parts of it."""
    store = Store(path)
    try:
        return installation.has_traces(store.db)
    finally:
        store.close()


def resync(path: Path | str, table: str) -> None:
    """Copy this table again; a running source notices, and goes on with the others meanwhile."""
    store = _opened(path)
    try:
        installation.resync(store, table)
    finally:
        store.close()


def status(path: Path | str, view: LakeView | None = None) -> SourceStatus:
    """What the file itself knows: its tables, and how many events are kept. The lake knows how far the copies are."""
    store = _opened(path)
    try:
        state = _state_in(store, view)
        return status_of(store, state=state, acked=state.place.outbox if state else None)
    finally:
        store.close()


def _state_in(store: Store, view: LakeView | None) -> FileState | None:
    """The lake's state of this file; an empty one where the lake has none."""
    if view is None:
        return None
    head = store.head()
    known = view.of_identity(head.identity) if head else ()
    return known[0].state if known else FileState()


def _opened(path: Path | str) -> Store:
    store = Store(path)
    if store.head() is None:
        store.close()
        raise not_enabled(path)
    return store
