"""DuckDB as a workshop: a few narrow tables that hold what is compared, one row a change or a row of a state.

From run.py, which opens one for each verification; to all checks. Promise: its memory is bounded, what does not fit
goes to the scratch folder, nothing is downloaded, and the folder is empty again afterwards.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec import DecodeError, Raw
from msgspec.json import Decoder, encode

from dolake.errors import Unavailable
from dolake.storage.base import Storage
from dolake.storage.duck import duck_store
from dolake.tables.layout import BEFORE

if TYPE_CHECKING:
    import duckdb

MEMORY_MAX = "1GiB"
_split_row = Decoder(dict[str, Raw]).decode
_TABLES = """
CREATE TABLE changes (
    number INTEGER, position BIGINT, source VARCHAR, sequence BIGINT, committed_us BIGINT, scope VARCHAR, key VARCHAR,
    operation VARCHAR, checksum UBIGINT, has_before BOOLEAN, previous VARCHAR
);
CREATE TABLE state (number INTEGER, scope VARCHAR, key VARCHAR, checksum UBIGINT, file BIGINT, row BIGINT);
CREATE TABLE deletes (file BIGINT, row BIGINT);
CREATE TABLE entries (file BIGINT, row BIGINT);
CREATE TABLE journal (
    number INTEGER, position BIGINT, source VARCHAR, epoch BIGINT, sequence BIGINT, committed_us BIGINT, key VARCHAR,
    operation VARCHAR, previous VARCHAR
);
CREATE MACRO range_of(scope, key) AS hash(scope, key) % CAST(1024 AS UBIGINT);
"""


@contextlib.contextmanager
def workshop(scratch: Path | None, storage: Storage | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty database. What exceeds its memory goes to a folder inside `scratch`, or the system's temporary one."""
    duckdb = _duckdb()
    with tempfile.TemporaryDirectory(prefix="dolake-verify-", dir=scratch) as folder:
        config: dict[str, Any] = {
            "memory_limit": MEMORY_MAX,
            "temp_directory": folder,
            "preserve_insertion_order": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        with duckdb.connect(config=config) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            if storage and (store := duck_store(storage)):
                store.open(connection)
            connection.execute(_TABLES)
            connection.create_function(
                "without_before", _without_before, ["VARCHAR"], "VARCHAR", type="arrow", null_handling="special"
            )
            yield connection


def _duckdb() -> Any:
    try:
        import duckdb
    except ModuleNotFoundError:
        hint = "pip install duckdb==1.5.5"
        raise Unavailable("dolake verify needs DuckDB, which is not installed", hint=hint) from None
    return duckdb


def _without_before(texts: pa.ChunkedArray) -> pa.Array:
    """What a change rescued, without what it rescued of the row before it: so it stands in the state."""
    return pa.array([None if text is None else _own_part(text) for text in texts.to_pylist()], pa.string())


def _own_part(text: str) -> str | None:
    try:
        own = _split_row(text)
    except DecodeError:  # a row that could not be read at all is kept as it came
        return text
    if own.pop(BEFORE, None) is None:
        return text
    return encode(own).decode() if own else None
