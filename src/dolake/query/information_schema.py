"""`information_schema.tables`, `.columns` and `.schemata`: the tables and columns that the asker may see.

From reader.py, when a statement names one of them; SHOW and DESCRIBE come here too (show_statements.py). The rows are
made from the catalog and the tail; DuckDB's own catalog is never read. Promise: no row names a namespace, a table or a
column outside of the grant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dolake.catalog.base import Name
from dolake.identity.grants import Grant
from dolake.query.relation import Relation
from dolake.query.rows_question import unknown_table
from dolake.query.sqltext import names, quoted, type_sql
from dolake.tables.layout import is_known, type_of
from dolake.tables.names import NAMESPACE_DEFAULT, plain_table_name, split_table_name

if TYPE_CHECKING:
    from dolake.query.lake import LakeTable
    from dolake.query.reader import LakeReader

NAMESPACE = "information_schema"
TABLES = ("tables", "columns", "schemata")
_CATALOG = "lake"
_TEXT, _NUMBER = pa.string(), pa.int32()
_SCHEMAS = {
    "tables": {"table_catalog": _TEXT, "table_schema": _TEXT, "table_name": _TEXT, "table_type": _TEXT},
    "columns": {
        "table_catalog": _TEXT,
        "table_schema": _TEXT,
        "table_name": _TEXT,
        "column_name": _TEXT,
        "ordinal_position": _NUMBER,
        "is_nullable": _TEXT,
        "data_type": _TEXT,
    },
    "schemata": {"catalog_name": _TEXT, "schema_name": _TEXT},
}
_numbers = count()


def tables_seen(reader: LakeReader, grant: Grant) -> list[Name]:
    """The tables of the catalog and of the tail that this grant sees, in order."""
    # The tail first: a table that is published meanwhile leaves it, and is in the catalog by then.
    unpublished = {Name(*split_table_name(each)) for each in reader.tail.names()}
    published = {pointer.name for pointer in reader.files.tables()}
    found = (each for each in published | unpublished if grant.sees(each.namespace))
    return sorted(found, key=lambda each: (each.namespace, each.name))


def relation_of(reader: LakeReader, grant: Grant, table: str) -> Relation:
    """One of TABLES as a relation, with a row for all that this grant sees."""
    kind = table.lower()
    if kind not in TABLES:  # a namespace option can lead here with any name
        raise unknown_table(Name((NAMESPACE,), table))
    seen = tables_seen(reader, grant)
    rows: Iterable[tuple[Any, ...]]
    match kind:
        case "tables":
            rows = ((_CATALOG, *_named(each), "BASE TABLE") for each in seen)
        case "columns":
            rows = _columns(reader, seen)
        case _:
            used = {".".join(each.namespace) for each in seen}
            made = {".".join(each) for each in reader.files.namespaces() if grant.sees(each)}
            usual = {NAMESPACE_DEFAULT} if grant.sees((NAMESPACE_DEFAULT,)) else set[str]()
            rows = ((_CATALOG, each) for each in sorted(used | made | usual))
    schema = pa.schema(list(_SCHEMAS[kind].items()))
    columns = schema.names
    made_rows = pa.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in rows], schema=schema)
    name = f"information_{next(_numbers)}"
    sql = f"SELECT {names(columns)} FROM {quoted(name)}"  # noqa: S608
    return Relation(f"{NAMESPACE}.{kind}", sql, tuple(columns), arrow={name: made_rows})


def _named(name: Name) -> tuple[str, str]:
    return ".".join(name.namespace), name.name


def _columns(reader: LakeReader, seen: list[Name]) -> Iterator[tuple[Any, ...]]:
    known = reader.files.moment(seen).tables
    for name in seen:
        columns = _columns_of(reader, name, known.get(name))
        for at, (column, kind, is_required) in enumerate(columns, 1):
            yield (_CATALOG, *_named(name), column, at, "NO" if is_required else "YES", kind)


def _columns_of(reader: LakeReader, name: Name, table: LakeTable | None) -> list[tuple[str, str, bool]]:
    """Name, type as DuckDB calls it, and whether it is required; with columns that only the tail has."""
    if table is not None and not table.is_ours and not table.is_waiting:
        fields = table.schema["fields"]
        return [(each["name"], _type_text(each["type"]), bool(each.get("required"))) for each in fields]
    base = table.columns if table else ()
    with reader.tail.lock:
        tail = reader.tail.table(plain_table_name(str(name)))
        columns = tail.columns(base) if tail else base
    return [(each.name, type_sql(each.type), False) for each in columns]


def _type_text(type_: Any) -> str:
    """Other engines may make tables with types that DoLake does not write; those keep Iceberg's name."""
    if is_known(type_):
        return type_sql(type_of(type_))
    return type_.upper() if isinstance(type_, str) else str(type_["type"]).upper()
