"""The catalog's database as a file of its own, of one moment.

From catalog_copy.py and store_copy.py; light, because a server does the latter all day.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from dolake.catalog.moving import copy_store
from dolake.catalog.sqlite import SqliteStore
from dolake.catalog.stores import FILE, SQLITE, open_store
from dolake.settings import CatalogSettings

DATABASE = FILE


def copy_store_of(home: Path, target: Path, settings: CatalogSettings) -> None:
    """A copy is a file, also of a catalog that is in Postgres: it is whole without anybody else."""
    if settings.store == SQLITE:
        copy_database(home / DATABASE, target)
        return
    target.unlink(missing_ok=True)
    with contextlib.closing(open_store(home, settings)) as source, contextlib.closing(SqliteStore(target)) as copy:
        copy_store(source, copy)


def copy_database(source: Path, target: Path) -> None:
    """An SQLite file as of one transaction, whoever writes to it meanwhile."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    with (
        contextlib.closing(sqlite3.connect(source, timeout=30.0)) as opened,
        contextlib.closing(sqlite3.connect(target)) as written,
    ):
        opened.backup(written)
