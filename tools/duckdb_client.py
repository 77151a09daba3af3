"""DuckDB as an outside engine on a lake, attached through the server's REST catalog as any user's would be.

From the tests and the benchmarks that read a lake with another engine.
"""

from __future__ import annotations

import contextlib
import sysconfig
from collections.abc import Iterator

import duckdb

_EXTENSIONS = ("avro", "httpfs", "iceberg")


@contextlib.contextmanager
def duck_on(url: str, *, threads: int | None = None, secret: str | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with the lake attached as `lake`; `secret` is how it logs in. Its extensions are wheels."""
    with duckdb.connect() as connection:
        connection.execute("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")
        for name in _EXTENSIONS:
            file = f"duckdb_extension_{name}/extensions/v{duckdb.__version__}/{name}.duckdb_extension"
            connection.execute(f"LOAD '{sysconfig.get_path('purelib')}/{file}'")
        connection.execute("SET TimeZone = 'UTC'")
        if threads is not None:
            connection.execute(f"SET threads = {threads}")
        if secret is None:
            connection.execute(f"ATTACH 'lake' AS lake (TYPE iceberg, ENDPOINT '{url}', AUTHORIZATION_TYPE 'none')")
        else:
            connection.execute(f"CREATE SECRET login (TYPE iceberg, {secret})")
            connection.execute(f"ATTACH 'lake' AS lake (TYPE iceberg, ENDPOINT '{url}', SECRET login)")
        yield connection
