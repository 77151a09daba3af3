"""Which store a home's catalog is kept in: its own SQLite file, or the PostgreSQL that the settings name.

From the server, query, verify, backup and `dolake catalog move`. Promise: a home whose catalog was moved to Postgres is
not opened as an empty one because its settings do not say so.
"""

from __future__ import annotations

from pathlib import Path

from dolake.catalog.sql_store import SqlStore
from dolake.catalog.sqlite import SqliteStore
from dolake.errors import Conflict, NotFound
from dolake.settings import CatalogSettings

FILE = "catalog.db"
MOVED_FILE = "catalog-moved.db"
"""What the file is called once its content is in Postgres."""
SQLITE = "sqlite"


def open_store(home: Path, settings: CatalogSettings, *, must_exist: bool = False) -> SqlStore:
    """The store of this home. With `must_exist` a file is not made where there is none."""
    if settings.store != SQLITE:
        if (home / FILE).exists():
            raise Conflict(
                f"the catalog of {home} is in its {FILE}, and catalog.store names a Postgres",
                hint="`dolake catalog move --to URL` brings it there; if it is of no use any more, move it elsewhere",
            )
        return open_postgres(settings.store, settings.store_schema)
    if (home / MOVED_FILE).exists() and not (home / FILE).exists():
        raise Conflict(
            f"the catalog of {home} was moved to Postgres",
            hint="set catalog.store to the address that it was moved to, or move it back with `dolake catalog move`",
        )
    if must_exist and not (home / FILE).is_file():
        # Else it would be made here, and found empty: a lie about a mistyped folder.
        raise NotFound(f"no catalog in {home}", hint=f"--home names the server's folder, which has `{FILE}` in it")
    return SqliteStore(home / FILE)


def open_postgres(url: str, schema: str) -> SqlStore:
    from dolake.catalog.postgres import PostgresStore  # who keeps a file does without the driver

    return PostgresStore(url, schema)
