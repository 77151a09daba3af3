"""Marks in the places of a statement's tables, made twice: in DuckDB's tree, and in the text by its tokens.

From guard.py, with what survey.py found. Users' text stays as it is but for these edits, so that a statement means, and
names its columns, as it would in DuckDB. A mark is a small query in parentheses, as a relation will be. guard.py lets
DuckDB read the edited text and compares: an edit that went wrong cannot run. Promise: the marks cannot be guessed, so
no user's text can contain one.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from dolake.errors import InvalidSql
from dolake.query.functions import words
from dolake.query.moments import check_constant
from dolake.query.spelling import Edit, Text
from dolake.query.sqltext import quoted
from dolake.query.statement import Place, Reference, Star
from dolake.query.survey import Found, StarFound, Survey
from dolake.query.syntax import Node, Unreadable, copy_of, is_same, name_of, parts, read, subquery_of

_CLAUSES = words("except from group having intersect limit offset order qualify union using where window")
_TRIES = 8
_SUBQUERIES_MAX = 100
_TOKENS_MAX = 2_000


class Marking:
    """Marks one statement."""

    def __init__(self, survey: Survey, text: Text, tree: Node) -> None:
        self._text, self._tree, self._stars = text, tree, survey.stars
        self._qualified = survey.qualified
        self._found = sorted(survey.tables, key=lambda found: self._index(found.node))
        self._mark = f"dolake_{secrets.token_hex(8)}"
        self._edits: list[Edit] = []
        self._pieces: dict[str, Place | Star] = {}
        self.references: tuple[Reference, ...] = ()

    def apply(self) -> str:
        """Mark the tree, and give the text with the same marks."""
        self._name_subqueries()
        self._edits += [edit for node, drop in self._qualified for edit in self._shorten(node, drop)]
        for number, star in enumerate(self._stars):
            self._edits += self._mark_star(number, star)
        selects = [each for each in parts(self._tree) if each.get("type") == "SELECT_NODE"]
        counts = [node for select in selects for node in _unnamed_counts(select)]
        self._edits += [edit for node in counts for edit in self._name_count(node)]
        self.references = tuple(self._mark_table(number, found) for number, found in enumerate(self._found))
        return self._text.edited(self._edits)

    def pieces(self, sql: str) -> Iterator[str | Place | Star]:
        """The text, cut at the marks."""
        for cut in sorted(self._pieces, key=sql.index):
            before, _, sql = sql.partition(cut)
            yield before
            yield self._pieces[cut]
        yield sql

    def _index(self, node: Node) -> int:
        index = self._text.index_at(node["query_location"])
        if index is None:
            raise InvalidSql("a part of the statement cannot be found again", hint="write it in a plainer way")
        return index

    # --- tables -------------------------------------------------------------------------------------------------------

    def _mark_table(self, number: int, found: Found) -> Reference:
        node, index = found.node, self._index(found.node)
        end = index + 2 * len(found.parts) - 1
        as_of_sql = self._take_moment(found, end) if node["at_clause"] else None
        reference = Reference(
            number=number,
            namespace=found.namespace,
            table=found.table,
            alias=found.alias,
            hidden=frozenset(found.hidden),
            as_of=found.moment.as_of,
            as_of_sql=as_of_sql,
            snapshot_id=found.moment.snapshot_id,
            filters=tuple(found.filters),
        )
        mark = f"{self._mark}_t{number}_"
        place = f"(SELECT {mark})"
        self._pieces[place] = Place(number)
        self._edits.append(Edit(index, end, place if node["alias"] else f"{place} AS {quoted(found.table)}"))
        kept = {key: node[key] for key in ("sample", "column_name_alias")}
        node.clear()
        node.update(subquery_of(mark), alias=reference.alias, **kept)
        return reference

    def _take_moment(self, found: Found, index: int) -> str | None:
        """Take `AT (...)` out of the text. The SQL of a time that is no literal."""
        tokens = self._text.tokens
        start = next((at for at in range(index, len(tokens) - 3) if tokens[at].word == "at"), len(tokens))
        end = self._text.closing(min(start + 1, len(tokens) - 1))
        if end >= len(tokens):
            raise InvalidSql("the moment behind a table cannot be found again", hint="write it in a plainer way")
        self._edits.append(Edit(start, end + 1, ""))
        if found.moment.expression is None:
            return None
        sql = "".join(token.gap + token.text for token in tokens[start + 4 : end]).strip()
        check_constant(found.moment.expression, sql)
        return sql

    def _shorten(self, node: Node, drop: int) -> Iterator[Edit]:
        """`shop.orders.id` is `orders.id` once the table is a relation of that name."""
        index = self._index(node)
        node["column_names"] = node["column_names"][drop:]
        yield Edit(index, index + 2 * drop + 1, self._text.tokens[index + 2 * drop].text)

    # --- stars --------------------------------------------------------------------------------------------------------

    def _mark_star(self, number: int, star: StarFound) -> Iterator[Edit]:
        """Leave out hidden columns, where the statement names some elsewhere or leaves them out itself."""
        tables = [found for found in star.tables if found.hidden or star.hidden_out]
        if not tables:
            return
        node = star.node
        has_list = bool(node["exclude_list"] or node.get("qualified_exclude_list"))
        if node["expr"]:
            hint = "name the columns, or write COLUMNS(* EXCLUDE (...))"
            raise InvalidSql("COLUMNS cannot choose beside hidden columns", hint=hint)
        kept = [quoted(name) for name in node["exclude_list"] if name.lower() not in star.hidden_out]
        node["exclude_list"] = [name for name in node["exclude_list"] if name.lower() not in star.hidden_out]
        if node.get("qualified_exclude_list"):
            rest = [each for each in node["qualified_exclude_list"] if each["column"].lower() not in star.hidden_out]
            kept += [_qualified(each) for each in rest]
            node["qualified_exclude_list"] = rest
        mark = f"{self._mark}_s{number}_"
        node["exclude_list"].append(mark)
        exclude = f" EXCLUDE ({', '.join([*kept, mark])})"
        numbers = tuple(self._found.index(found) for found in tables)
        self._pieces[exclude] = Star(numbers, star.hidden_out, tuple(kept))
        yield self._edit_star(star, exclude, has_list=has_list)

    def _edit_star(self, star: StarFound, exclude: str, *, has_list: bool) -> Edit:
        tokens = self._text.tokens
        index = self._text.index_at(star.node["query_location"])
        at = None if index is None else self._asterisk(index)
        if at is None:
            start = self._from_before(min(self._index(found.node) for found in star.tables))
            return Edit(start, start, f" SELECT *{exclude} ")
        end = at + 1
        if has_list:
            end = self._text.closing(end + 1) + 1 if tokens[end + 1].text == "(" else end + 2
        return Edit(at + 1, end, exclude)

    def _asterisk(self, index: int) -> int | None:
        """The `*` of `*`, of `o.*`, and of either in COLUMNS(...)."""
        texts = [token.text.lower() for token in self._text.tokens[index : index + 5]]
        start = 2 if texts[:2] == ["columns", "("] else 0
        for at in (start, start + 2):
            if texts[at : at + 1] == ["*"]:
                return index + at
        return None

    def _from_before(self, index: int) -> int:
        """The FROM of a query without a SELECT: everything is asked for."""
        depth = 0
        for at in range(index, -1, -1):
            token = self._text.tokens[at]
            depth += (token.text == ")") - (token.text == "(" and depth > 0)
            if token.word == "from" and depth == 0:
                return at
        raise InvalidSql("hidden columns need a SELECT that names them", hint="write SELECT ... FROM ...")

    # --- names --------------------------------------------------------------------------------------------------------

    def _name_subqueries(self) -> None:
        """DuckDB calls a column by its whole expression. Where that names tables, it would tell our relations."""
        ours = {id(found.node) for found in self._found}
        selects = [each for each in parts(self._tree) if each.get("type") == "SELECT_NODE"]
        unnamed = (item for select in selects for item in select["select_list"] if not item["alias"])
        columns = [item for item in unnamed if item["class"] not in ("COLUMN_REF", "STAR")]
        columns = [item for item in columns if any(id(part) in ours for part in parts(item))]
        if len(columns) > _SUBQUERIES_MAX:
            raise InvalidSql(f"{len(columns)} columns have no name", hint="write (SELECT ...) AS name")
        if columns:
            self._edits += self._alias_edits(columns, [name_of(item) for item in columns])

    def _alias_edits(self, columns: list[Node], names: list[str]) -> list[Edit]:
        """DuckDB does not say where an expression ends. The first place that comes into question is mostly right."""
        ends = [list(islice(self._ends(item), _TRIES)) for item in columns]
        options = [[Edit(at, at, f" AS {quoted(name)}") for at in each] for name, each in zip(names, ends, strict=True)]
        for item, name in zip(columns, names, strict=True):
            item["alias"] = name
        first = [each[0] for each in options]
        return first if self._fits(first) else self._one_by_one(columns[:_TRIES], names, options)

    def _one_by_one(self, columns: list[Node], names: list[str], options: list[list[Edit]]) -> list[Edit]:
        for item in columns:
            item["alias"] = ""
        edits: list[Edit] = []
        for item, name, each in zip(columns, names, options, strict=False):
            item["alias"] = name
            if len(self._text.tokens) < _TOKENS_MAX:  # each try reads all of it
                edits += islice((edit for edit in each if self._fits([*edits, edit])), 1)
        if len(edits) < len(options):
            raise InvalidSql("a column that is a query needs a name", hint="write (SELECT ...) AS name")
        return edits

    def _fits(self, edits: list[Edit]) -> bool:
        """Whether the text with these edits means the tree as it is now."""
        with suppress(Unreadable):
            trees = read(self._text.edited(edits))
            return len(trees) == 1 and is_same(trees[0], copy_of(self._tree))
        return False

    def _ends(self, item: Node) -> Iterator[int]:
        """Where an expression may end."""
        places = (self._text.index_at(part.get("query_location", -1)) for part in parts(item))
        start = min(place for place in places if place is not None)
        depth = 0
        for at, token in enumerate(self._text.tokens[start:], start):
            if token.kind == "sign" and token.text in ")]}" and depth > 0:
                depth -= 1
            elif depth == 0 and (token.text in (")", ",", ";") or token.word in _CLAUSES):
                yield at
            elif token.kind == "sign" and token.text in "([{":
                depth += 1
        yield len(self._text.tokens)

    def _name_count(self, node: Node) -> Iterator[Edit]:
        """`COUNT(*)` is called `count`; DuckDB alone would call it `count_star()`."""
        tokens, index = self._text.tokens, self._text.index_at(node["query_location"])
        if index is None or tokens[index - 1].text.lower() not in (",", "select", "distinct", "all"):
            return
        end = self._text.closing(index + 1)
        if end < len(tokens):
            node["alias"] = "count"
            yield Edit(end + 1, end + 1, " AS count")


def _unnamed_counts(select: Node) -> list[Node]:
    """The COUNT(*) among a SELECT's columns that have no name, unless one is called `count` already."""
    others = [*select["select_list"], *select["group_expressions"]]
    if any("count" in (each["alias"].lower(), *_column_name(each)) for each in others):
        return []
    plain = (
        each for each in select["select_list"] if each["class"] == "FUNCTION" and each["function_name"] == "count_star"
    )
    return [each for each in plain if not each["alias"] and not each["filter"]]


def _column_name(node: Node) -> list[str]:
    return [node["column_names"][-1].lower()] if node["class"] == "COLUMN_REF" else []


def _qualified(name: Node) -> str:
    parts = [name.get(key) for key in ("catalog", "schema", "table", "column")]
    return ".".join(quoted(part) for part in parts if part)
