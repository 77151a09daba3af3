"""DuckDB's way to the lake's files: its extensions, and the keys of the store where the files are in one.

From query/engine.py and verify/database.py. Promise: nothing is ever downloaded; keys are in DuckDB's memory alone, for
the lake's own places.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dolake.errors import QueryUnavailable
from dolake.storage.base import Storage

if TYPE_CHECKING:
    from dolake.storage.s3 import Keys, S3Storage

_TRIES_MAX = 3


def extension_file(name: str) -> str:
    """Where the wheel of this extension was installed."""
    import duckdb

    spec = importlib.util.find_spec(f"duckdb_extension_{name}")
    if spec is None or not spec.submodule_search_locations:
        hint = f"pip install duckdb-extension-{name}=={duckdb.__version__}"
        raise QueryUnavailable(f"DuckDB's extension {name} is not installed", hint=hint)
    return str(Path(spec.submodule_search_locations[0], f"extensions/v{duckdb.__version__}/{name}.duckdb_extension"))


class DuckStore:
    """A store as one DuckDB sees it."""

    def __init__(self, storage: S3Storage) -> None:
        self._storage = storage
        self._known: Keys | None = None

    @property
    def roots(self) -> tuple[str, ...]:
        return self._storage.roots

    @property
    def patience_s(self) -> float:
        """How long DuckDB may wait for the store, and cannot be interrupted."""
        return self._storage.timeout_ms / 1000 * self._tries_max

    @property
    def _tries_max(self) -> int:
        """Few: a thread of DuckDB that waits can do nothing else, and who asks can ask again."""
        return min(self._storage.tries_max, _TRIES_MAX)

    def open(self, connection: Any) -> None:
        """Once for a database, before its doors are closed."""
        connection.execute(f"LOAD {quoted(extension_file('httpfs'))}")
        # Files never change, so what was once known of one is known for good.
        connection.execute("SET GLOBAL enable_http_metadata_cache = true")
        connection.execute(f"SET GLOBAL http_timeout = {math.ceil(self._storage.timeout_ms / 1000)}")
        connection.execute(f"SET GLOBAL http_retries = {self._tries_max - 1}")
        self.renew(connection)

    def renew(self, connection: Any) -> None:
        """Before a question: the keys of a role change by and by."""
        keys = self._storage.keys()
        if keys == self._known:
            return
        scheme, _, host = self._storage.endpoint.rpartition("://")
        options = {
            "TYPE": "s3",
            "KEY_ID": keys.access_key_id,
            "SECRET": keys.secret_access_key,
            "REGION": self._storage.region,
            "URL_STYLE": "path" if self._storage.is_path_style else "vhost",
            "USE_SSL": "false" if scheme == "http" else "true",
            **({"ENDPOINT": host} if host else {}),
            **({"SESSION_TOKEN": keys.session_token} if keys.session_token else {}),
        }
        words = ", ".join(f"{name} {quoted(value)}" for name, value in options.items())
        scopes = ", ".join(map(quoted, self.roots))
        connection.execute(f"CREATE OR REPLACE TEMPORARY SECRET lake ({words}, SCOPE [{scopes}])")
        self._known = keys


def duck_store(storage: Storage) -> DuckStore | None:
    """None where the files are a folder's."""
    if storage.root.startswith("file:"):
        return None
    from dolake.storage.s3 import S3Storage

    assert isinstance(storage, S3Storage)
    return DuckStore(storage)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
