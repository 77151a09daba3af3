"""Which tables a statement names, and what it asks of each: a walk through its scopes.

From guard.py, with DuckDB's tree of a statement that has passed; to statement.py. The walk changes nothing; marking.py
does that with what was found here. Promise: a name is a table of the lake unless a WITH in sight has it; each hidden
column that is named belongs to one table, or the user is asked which.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dolake.errors import ForbiddenSql, InvalidSql
from dolake.query import information_schema
from dolake.query.filters import conditions
from dolake.query.moments import Moment, moment_of
from dolake.query.show_statements import CATALOGS
from dolake.query.statement import HIDDEN, Filter
from dolake.query.syntax import Node

_FOREIGN_SCHEMAS = frozenset(("information_schema", "pg_catalog"))
_FOREIGN_TABLES = frozenset(("sqlite_master", "sqlite_schema", "sqlite_temp_master", "sqlite_temp_schema"))
_FOREIGN_PREFIXES = ("duckdb_", "pg_", "sqlite_", "pragma_")
_LEFT_STAYS = frozenset(("INNER", "LEFT", "SEMI", "ANTI"))
_RIGHT_STAYS = frozenset(("INNER", "RIGHT"))
_PLAIN_JOINS = frozenset(("REGULAR", "CROSS", "NATURAL"))

_INFORMATION = "SHOW TABLES and information_schema.tables list the tables; DESCRIBE and .columns their columns"

Names = frozenset[str]
Common = Mapping[str, Names]
"""The common table expressions in sight, and the hidden columns that each hands on."""


@dataclass(eq=False)
class Found:
    """A table of the lake, where the statement names it."""

    node: Node
    namespace: str
    table: str
    parts: tuple[str, ...]
    """As written, in lower case."""
    can_leave_out: bool
    """A row that fails the WHERE is not missed."""
    hidden: set[str] = field(default_factory=set)
    filters: list[Filter] = field(default_factory=list)
    moment: Moment = field(default_factory=Moment)

    @property
    def alias(self) -> str:
        return str(self.node["alias"] or self.table)


@dataclass(eq=False)
class Source:
    """What stands behind FROM under one name."""

    alias: str
    found: Found | None = None
    hands_on: Names = frozenset()
    is_visible: bool = True
    """Not so the right side of a semi join, outside of its condition."""


@dataclass(eq=False)
class Scope:
    """A SELECT's sources, and the query around it."""

    outer: Scope | None
    sources: list[Source] = field(default_factory=list)
    joined_by: set[str] = field(default_factory=set)
    """Hidden columns in a USING: they mean the same on both sides."""
    has_natural_join: bool = False

    def visible(self) -> Iterator[Source]:
        return (each for each in self.sources if each.is_visible)

    def chain(self) -> Iterator[Scope]:
        scope: Scope | None = self
        while scope:
            yield scope
            scope = scope.outer


@dataclass(eq=False)
class StarFound:
    """A `*`, or COLUMNS, over these tables."""

    node: Node
    tables: list[Found]
    hidden_out: Names
    """Hidden columns that the user leaves out himself."""


@dataclass(eq=False)
class Survey:
    """All that is found. Columns of `namespace.table.column` are kept with how many parts to drop."""

    namespace: str
    tables: list[Found] = field(default_factory=list)
    stars: list[StarFound] = field(default_factory=list)
    qualified: list[tuple[Node, int]] = field(default_factory=list)
    common_names: set[str] = field(default_factory=set)
    _scopes: list[Scope] = field(default_factory=list)

    def take(self, tree: Node) -> None:
        """Walk through a whole statement."""
        self._query(tree, {}, None)
        for scope in self._scopes:
            if scope.has_natural_join and any(each.found and each.found.hidden for each in scope.sources):
                raise InvalidSql("a natural join cannot use hidden columns", hint="write JOIN ... USING (...)")

    # --- queries ------------------------------------------------------------------------------------------------------

    def _query(self, node: Node, common: Common, outer: Scope | None) -> Names:
        """Walk through a query; the hidden columns that it hands on."""
        common = self._with_common(node, common, outer)
        match node["type"]:
            case "SELECT_NODE":
                return self._select(node, common, outer)
            case "RECURSIVE_CTE_NODE":
                hands_on = self._query(node["left"], common, outer)
                self._query(node["right"], {**common, node["cte_name"].lower(): hands_on}, outer)
            case _:
                hands_on = self._query(node["left"], common, outer)
                self._query(node["right"], common, outer)
        self._walk(node["modifiers"], Scope(None), common)
        return hands_on

    def _with_common(self, node: Node, common: Common, outer: Scope | None) -> Common:
        for entry in node["cte_map"]["map"]:
            name, value = entry["key"].lower(), entry["value"]
            # Should DuckDB ever see another scope than we do, the name must mean nothing to it: no view, and no file.
            if name.startswith(_FOREIGN_PREFIXES) or not name.replace(" ", "_").replace("-", "_").isidentifier():
                raise ForbiddenSql(f"WITH cannot use the name {entry['key']!r}", hint="choose a plain name")
            hands_on = self._query(value["query"]["node"], common, outer) | _hidden_of(value["aliases"])
            common = {**common, name: hands_on}
            self.common_names.add(name)
        return common

    def _select(self, node: Node, common: Common, outer: Scope | None) -> Names:
        scope = Scope(outer)
        self._scopes.append(scope)
        self._table(node["from_table"], scope, common, can_leave_out=node["sample"] is None)
        for key in ("select_list", "where_clause", "group_expressions", "having", "qualify"):
            self._walk(node[key], scope, common)
        aliases = frozenset(each["alias"].lower() for each in node["select_list"])
        self._walk(node["modifiers"], scope, common, aliases)
        self._filters(node["where_clause"], scope)
        return _handed_on(node["select_list"], scope)

    # --- tables -------------------------------------------------------------------------------------------------------

    def _table(self, ref: Node, scope: Scope, common: Common, *, can_leave_out: bool) -> None:
        match ref["type"]:
            case "BASE_TABLE":
                scope.sources.append(self._named(ref, common, can_leave_out=can_leave_out))
            case "JOIN":
                self._join(ref, scope, common, can_leave_out=can_leave_out)
            case "SUBQUERY":
                hands_on = self._query(ref["subquery"]["node"], common, scope) | _hidden_of(ref["column_name_alias"])
                scope.sources.append(Source(ref["alias"].lower(), hands_on=hands_on))
            case "TABLE_FUNCTION":
                self._walk(ref["function"], scope, common)
                alias = ref["alias"] or ref["function"]["function_name"]
                scope.sources.append(Source(alias.lower(), hands_on=_hidden_of(ref["column_name_alias"])))
            case "EXPRESSION_LIST":
                self._walk(ref["values"], scope, common)
                scope.sources.append(Source(ref["alias"].lower()))
            case "PIVOT":
                self._pivot(ref, scope, common)

    def _named(self, ref: Node, common: Common, *, can_leave_out: bool) -> Source:
        name, schema, catalog = ref["table_name"], ref["schema_name"], ref["catalog_name"]
        alias = (ref["alias"] or name).lower()
        if name.lower() in common and not catalog and schema.lower() in ("", "recurring"):
            if ref["at_clause"]:
                raise InvalidSql(f"{name} is a part of this statement and has no past", hint="put it inside the WITH")
            return Source(alias, hands_on=common[name.lower()])
        parts = [part for part in (catalog, schema, name) if part]
        namespace = [part for part in (catalog, schema) if part]
        if len(namespace) > 1 and namespace[0].lower() in CATALOGS:
            del namespace[0]
        if [part.lower() for part in namespace] == [information_schema.NAMESPACE]:
            namespace = [information_schema.NAMESPACE]
            if name.lower() not in information_schema.TABLES or ref["at_clause"]:
                raise ForbiddenSql(f"{'.'.join(parts)} cannot be queried", hint=_INFORMATION)
        else:
            _refuse_foreign(parts)
        can_leave_out = can_leave_out and not ref["sample"] and not ref["column_name_alias"]
        lower = tuple(part.lower() for part in parts)
        found = Found(ref, ".".join(namespace) or self.namespace, name, lower, can_leave_out)
        found.moment = moment_of(ref["at_clause"])
        self.tables.append(found)
        return Source(alias, found)

    def _join(self, ref: Node, scope: Scope, common: Common, *, can_leave_out: bool) -> None:
        kind, way = ref["join_type"], ref["ref_type"]
        start = len(scope.sources)
        stays = can_leave_out and kind in _LEFT_STAYS and (way in _PLAIN_JOINS or way == "ASOF")
        self._table(ref["left"], scope, common, can_leave_out=stays)
        middle = len(scope.sources)
        stays = can_leave_out and kind in _RIGHT_STAYS and way in _PLAIN_JOINS
        self._table(ref["right"], scope, common, can_leave_out=stays)
        sides = scope.sources[start:middle], scope.sources[middle:]
        for name in _hidden_of(ref["using_columns"]):
            for side in sides:
                _join_by(name, side, scope)
            scope.joined_by.add(name)
        scope.has_natural_join |= way == "NATURAL"
        self._walk(ref["condition"], scope, common)
        for source in sides[1]:
            source.is_visible = source.is_visible and kind not in ("SEMI", "ANTI")

    def _pivot(self, ref: Node, scope: Scope, common: Common) -> None:
        inner = Scope(scope.outer)
        self._scopes.append(inner)
        self._table(ref["source"], inner, common, can_leave_out=False)
        self._walk([ref["aggregates"], ref["pivots"]], inner, common)
        groups = ref.get("groups") or []
        for name in groups:
            _resolve([name], inner)
        scope.sources.append(Source(ref["alias"].lower(), hands_on=_hidden_of(groups)))

    # --- expressions --------------------------------------------------------------------------------------------------

    def _walk(self, root: Any, scope: Scope, common: Common, aliases: Names | None = None) -> None:
        """`aliases` are given behind ORDER BY, where they go before columns, and where `*` means them all."""
        stack = [root]
        while stack:
            item = stack.pop()
            if isinstance(item, list):
                stack.extend(item)
            if not isinstance(item, dict):
                continue
            match item.get("class"):
                case "COLUMN_REF":
                    self._column(item, scope, aliases or frozenset())
                    continue
                case "SUBQUERY":
                    self._query(item["subquery"]["node"], common, scope)
                    stack.append(item["child"])
                    continue
                case "STAR":
                    self._star(item, scope, is_order=aliases is not None)
                    stack.append(item["replace_list"])
                    continue
                case "FUNCTION" if item["schema"] not in ("", "main"):
                    # `o.name.lower()` is the function of a column, which DuckDB sorts out later.
                    _resolve([part for part in (item["catalog"], item["schema"]) if part], scope)
                case "CONSTANT":
                    continue
            stack.extend(item.values())

    def _column(self, node: Node, scope: Scope, aliases: Names) -> None:
        names = node["column_names"]
        if len(names) == 1 and names[0].lower() in aliases:
            return
        drop = _resolve(names, scope)
        if drop:
            self.qualified.append((node, drop))

    def _star(self, node: Node, scope: Scope, *, is_order: bool) -> None:
        if is_order and not node["relation_name"]:
            return
        sources = list(scope.visible())
        if node["relation_name"]:
            source = _source_called(node["relation_name"].lower(), scope)
            sources = [source] if source else []
        hands_on = frozenset(name for each in sources for name in each.hands_on)
        out = [*node["exclude_list"], *(each["column"] for each in node.get("qualified_exclude_list") or ())]
        tables = [each.found for each in sources if each.found]
        self.stars.append(StarFound(node, tables, _hidden_of(out) - hands_on))

    def _filters(self, where: Node | None, scope: Scope) -> None:
        for column, op, values in conditions(where):
            names = [name.lower() for name in column]
            source = scope.sources[0] if len(scope.sources) == 1 else None
            if len(names) > 1:
                source = next((each for each in scope.sources if _is_called(each, names[:-1])), None)
            if source and source.found and source.found.can_leave_out:
                source.found.filters.append(Filter(column[-1], op, values))


# --- names ------------------------------------------------------------------------------------------------------------


def _hidden_of(names: Iterable[str]) -> Names:
    return HIDDEN & {name.lower() for name in names}


def _is_called(source: Source, names: list[str]) -> bool:
    """By its alias; or, if it has none, as it is written or with its namespace."""
    found = source.found
    if names == [source.alias] or found is None or found.node["alias"]:
        return names == [source.alias]
    return tuple(names) == found.parts or names == [*found.namespace.lower().split("."), source.alias]


def _source_called(alias: str, scope: Scope) -> Source | None:
    return next((each for around in scope.chain() for each in around.sources if each.alias == alias), None)


def _resolve(names: list[str], scope: Scope) -> int:
    """Note a hidden column at the table that it means. How many parts in front of the table's own name are too many."""
    lower = [name.lower() for name in names]
    for around in scope.chain():
        for source in around.sources:
            for length in range(1, len(lower)):
                if _is_called(source, lower[:length]):
                    if source.found and lower[length] in HIDDEN:
                        source.found.hidden.add(lower[length])
                    return length - 1
        if lower[0] in HIDDEN and _resolve_bare(lower[0], around):
            return 0
    return 0


def _resolve_bare(name: str, scope: Scope) -> bool:
    sources = list(scope.visible())
    if name in scope.joined_by or any(name in each.hands_on for each in sources):
        return True
    tables = [each.found for each in sources if each.found]
    if len(tables) > 1:
        hint = " or ".join(f"{each.alias}.{name}" for each in tables[:5])
        raise InvalidSql(f"several tables have the column {name}", hint=f"say which one: {hint}")
    for each in tables:
        each.hidden.add(name)
    return bool(tables)


def _join_by(name: str, side: list[Source], scope: Scope) -> None:
    """USING names a column of both sides."""
    tables = [each.found for each in side if each.found]
    if any(name in each.hands_on for each in side) or (
        name in scope.joined_by and any(name in t.hidden for t in tables)
    ):
        return
    if len(tables) > 1:
        hint = f"write ON with {' or '.join(f'{each.alias}.{name}' for each in tables[:5])}"
        raise InvalidSql(f"several tables have the column {name}", hint=hint)
    for each in tables:
        each.hidden.add(name)


def _handed_on(select_list: list[Node], scope: Scope) -> Names:
    """The hidden columns among what a SELECT gives."""
    given: set[str] = set()
    for item in select_list:
        if item["alias"]:
            given.add(item["alias"].lower())
        elif item["class"] == "COLUMN_REF":
            given.add(item["column_names"][-1].lower())
        elif item["class"] == "STAR":
            named = item["relation_name"].lower()
            given.update(*(each.hands_on for each in scope.visible() if not named or each.alias == named))
    return HIDDEN & given


def _refuse_foreign(parts: list[str]) -> None:
    names = [part.lower() for part in parts]
    if not _FOREIGN_SCHEMAS.isdisjoint(names[:-1]) or names[-1] in _FOREIGN_TABLES:
        raise ForbiddenSql(f"{'.'.join(parts)} is no table of the lake", hint=_INFORMATION)
