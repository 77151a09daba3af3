"""Questions to a lake made by hand: a reader on its home, and a plain DuckDB that runs what the reader says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path
from typing import Any

import duckdb

from dolake.catalog.sqlite import SqliteStore
from dolake.query.lake import LakeFiles
from dolake.query.reader import Asked, LakeReader, View, open_reader
from dolake.query.relation import Relation
from dolake.storage.local import LocalStorage
from dolake.tables.rules import LakeRules

Row = dict[str, Any]


@dataclass(frozen=True)
class Named:
    """A table as a statement would name it."""

    table: str
    namespace: str = "default"
    hidden: frozenset[str] = frozenset()
    as_of: str | int | None = None
    snapshot_id: int | None = None


def duck() -> duckdb.DuckDBPyConnection:
    """With what it needs to read Iceberg, from the wheels."""
    connection = duckdb.connect()
    for name in ("avro", "httpfs", "iceberg"):
        found = util.find_spec(f"duckdb_extension_{name}")
        assert found is not None
        assert found.submodule_search_locations is not None
        (path,) = Path(found.submodule_search_locations[0]).rglob("*.duckdb_extension")
        connection.load_extension(str(path))
    connection.execute("SET TimeZone = 'UTC'")
    return connection


@dataclass
class Asker:
    """Asks one lake."""

    reader: LakeReader
    connection: duckdb.DuckDBPyConnection
    last: View | None = field(default=None)
    asked: Asked = field(default_factory=Asked)

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql).fetchall()

    def view(self, *references: Named, **asked: Any) -> View:
        self.last = self.reader.open(references, Asked(**asked), self.run)
        return self.last

    def rows(self, *references: Named | str, **asked: Any) -> list[list[Row]]:
        """Of each reference all rows with all columns, in no order."""
        named = [Named(each) if isinstance(each, str) else each for each in references]
        view = self.view(*named, **asked)
        return [self.fetch(view.relation(each)) for each in named]

    def fetch(self, relation: Relation) -> list[Row]:
        for name, table in relation.arrow.items():
            self.connection.register(name, table)
        found = self.connection.execute(relation.sql).to_arrow_table().to_pylist()
        for name in relation.arrow:
            self.connection.unregister(name)
        return list(found)


@contextmanager
def asking(home: Path, *, has_source_in_key: bool = False) -> Iterator[Asker]:
    files = LakeFiles(SqliteStore(home / "catalog.db"), LocalStorage(home / "warehouse"))
    reader = open_reader(
        home, files, LakeRules(), has_source_in_key=has_source_in_key, tail_max_bytes=1 << 26, wait_max_ms=3_600_000
    )
    try:
        with duck() as connection:
            yield Asker(reader, connection)
    finally:
        reader.close()
