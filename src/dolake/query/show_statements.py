"""SHOW TABLES, SHOW NAMESPACES and DESCRIBE, written as a SELECT from `information_schema`.

From guard.py, before everything else; information_schema.py answers the SELECT. A statement that is not one of these
forms stays as it is, and the guard refuses it as before. Pure. Promise: what comes out is checked like any other text.
"""

from __future__ import annotations

from collections.abc import Sequence

from dolake.errors import InvalidSql
from dolake.query.sqltext import literal, quoted
from dolake.query.tokens import Token, tokens_of
from dolake.tables.names import RESERVED_SUFFIXES

CATALOGS = frozenset(("lake", "dolake"))
"""What may stand before a namespace, and means nothing."""
_FIRST_WORDS = ("show", "describe", "desc")
_NAMESPACES = ("namespaces", "schemas")


def as_select(sql: str, namespace: str) -> str:
    """The SELECT that this statement means; any other statement as it is."""
    if not sql.lstrip(" \t\r\n-/*(").lower().startswith(_FIRST_WORDS) and not _has_comment(sql):
        return sql
    try:
        tokens = tokens_of(sql)
    except InvalidSql:
        return sql
    while tokens and tokens[-1].text == ";":
        tokens = tokens[:-1]
    words = [token.word for token in tokens]
    match words:
        case ["show", "tables"]:
            return _tables("")
        case ["show", "tables", "from" | "in", *_] if (parts := _parts(tokens[3:])) is not None:
            return _tables(f" AND table_schema = {literal('.'.join(_without_catalog(parts)))}")
        case ["show", kind] if kind in _NAMESPACES:
            return "SELECT schema_name AS namespace FROM information_schema.schemata ORDER BY 1"
        case ["describe" | "desc", "table", *_] if (parts := _parts(tokens[2:])) is not None:
            return _columns(parts, namespace)
        case ["describe" | "desc", *_] if (parts := _parts(tokens[1:])) is not None:
            return _columns(parts, namespace)
        case ["show", "columns", "from" | "in", *_] if (parts := _parts(tokens[3:])) is not None:
            return _columns(parts, namespace)
    return sql


def _has_comment(sql: str) -> bool:
    return sql.lstrip().startswith(("--", "/*"))


def _tables(condition: str) -> str:
    ours = " AND ".join(f"NOT ends_with(table_name, {literal(suffix)})" for suffix in RESERVED_SUFFIXES)
    return (
        "SELECT table_schema AS namespace, table_name AS name FROM information_schema.tables "  # noqa: S608
        f"WHERE {ours}{condition} ORDER BY 1, 2"
    )


def _columns(parts: list[str], namespace: str) -> str:
    """The table is named too, so that one that is not there is refused as in any other statement."""
    *levels, table = _without_catalog(parts)
    schema = ".".join(levels) or namespace
    return (
        "SELECT column_name, data_type AS column_type, is_nullable AS nullable FROM information_schema.columns "  # noqa: S608
        f"WHERE table_schema = {literal(schema)} AND table_name = {literal(table)} "
        f"AND NOT EXISTS (SELECT 1 FROM {quoted(schema)}.{quoted(table)} WHERE false) ORDER BY ordinal_position"
    )


def _without_catalog(parts: list[str]) -> list[str]:
    return parts[1:] if len(parts) > 2 and parts[0].lower() in CATALOGS else parts


def _parts(tokens: Sequence[Token]) -> list[str] | None:
    """The parts of a name with dots between; None for anything else."""
    if len(tokens) % 2 == 0 or any(token.text != "." for token in tokens[1::2]):
        return None
    parts = tokens[::2]
    if any(token.kind not in ("word", "name") for token in parts):
        return None
    return [token.text[1:-1].replace('""', '"') if token.kind == "name" else token.text for token in parts]
