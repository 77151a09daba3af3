"""A statement in Spark's words: written anew from DuckDB's tree, by a list of what both engines understand alike.

From routing.py, with a statement that guard.py has checked and whose tables are bound; to spark_engine.py. Nothing of
the user's text is taken over: names are quoted here, and whatever has no column in it is computed by DuckDB before and
written as a constant. Pure but for that. Promise: Spark gives the same answer, or NotForSpark says what it is that the
two would not agree on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from dolake.query.functions import words
from dolake.query.syntax import Node, name_of, parts

LENGTH_MAX = 200_000
Constants = Callable[[Sequence[str], frozenset[str]], Sequence[tuple[Any, str]]]
"""Computes expressions that name no column, with these parameters: for each its value and DuckDB's type."""


class NotForSpark(Exception):
    """Why only DuckDB can answer."""


@dataclass(frozen=True, slots=True)
class SparkStatement:
    """What Spark is to run, and what must be there under which name."""

    sql: str
    scans: dict[str, str]
    """Views of Iceberg metadata files."""
    tables: frozenset[str]
    """Names of Arrow tables, as the relations have them."""


def in_spark(tree: Node, arrow: Iterable[str], constants: Constants) -> SparkStatement:
    """The whole statement, or NotForSpark."""
    writer = _Writer({name.lower(): name for name in arrow})
    try:
        sql = writer.query(tree)
    except RecursionError:
        raise NotForSpark("it is nested too deeply") from None
    values = constants(writer.constants, frozenset(writer.parameters)) if writer.constants else ()
    texts = [_literal(value, kind) for value, kind in values]
    sql = re.sub("\0(\\d+)\0", lambda found: texts[int(found[1])], sql)
    if len(sql) > LENGTH_MAX:
        raise NotForSpark("it becomes too long")
    return SparkStatement(sql, writer.scans, frozenset(writer.tables))


_SAME = words(
    """length abs greatest least contains year month day hour minute quarter replace bool_and bool_or count min max"""
)
"""Functions that mean the same under the same name, for the types that a lake has. Not among them: `lower` and `upper`
(ß, İ), `trim` (which spaces?), `||` (a number as text), `any_value` (null, too?), `round`."""
_AS_FRACTIONS = words("avg mean stddev stddev_samp stddev_pop variance var_samp var_pop median")
_RENAMED = {"starts_with": "startswith", "^@": "startswith", "ends_with": "endswith", "mean": "avg"}
_OPERATORS = frozenset(("+", "-", "*"))
_LIKE = {"~~": "LIKE", "!~~": "NOT LIKE", "~~*": "ILIKE", "!~~*": "NOT ILIKE"}
_ARGUMENTS = {"min": 1, "max": 1, "count": 1, "length": 1, "replace": 3, "sum": 1}
_UNITS = words("year quarter month week day hour minute second")
_COMPARISONS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
    "COMPARE_NOT_DISTINCT_FROM": "<=>",
}
_CASTS = {"DOUBLE": "DOUBLE", "DATE": "DATE", "TIMESTAMP": "TIMESTAMP_NTZ", "TIMESTAMP WITH TIME ZONE": "TIMESTAMP"}
_TYPES = _CASTS | {"BIGINT": "BIGINT", "INTEGER": "INT", "VARCHAR": "STRING", "BOOLEAN": "BOOLEAN", "FLOAT": "FLOAT"}
_JOINS = {
    "INNER": "JOIN",
    "LEFT": "LEFT JOIN",
    "RIGHT": "RIGHT JOIN",
    "OUTER": "FULL JOIN",
    "FULL": "FULL JOIN",
    "SEMI": "LEFT SEMI JOIN",
    "ANTI": "LEFT ANTI JOIN",
}
_RANKS = {"WINDOW_ROW_NUMBER": "row_number", "WINDOW_RANK": "rank", "WINDOW_RANK_DENSE": "dense_rank"}
_WINDOWED = words("sum count count_star min max avg mean")
_VOLATILE = words("random uuid gen_random_uuid uuidv4 uuidv7 nextval")
_NO_CONSTANT = frozenset(("COLUMN_REF", "SUBQUERY", "STAR", "WINDOW", "POSITIONAL_REFERENCE", "LAMBDA"))
_AGGREGATES = _AS_FRACTIONS | words("count count_star sum min max bool_and bool_or any_value first last")
_NOT_BEFORE = _AGGREGATES | _VOLATILE
_LIKE_ESCAPE = "\x01"
"""DuckDB's LIKE has no character of escape, and Spark's has: this one, which no pattern has."""


@dataclass
class _Writer:
    """One statement on its way; a constant is a number between two zero bytes until its value is known."""

    arrow: dict[str, str]
    constants: list[str] = field(default_factory=list)
    parameters: set[str] = field(default_factory=set)
    scans: dict[str, str] = field(default_factory=dict)
    tables: set[str] = field(default_factory=set)

    # --- queries ------------------------------------------------------------------------------------------------------

    def query(self, node: Node) -> str:
        common = [
            f"{_quoted(_free(each['key']))} AS ({self.query(each['value']['query']['node'])})"
            for each in (node.get("cte_map") or {}).get("map") or ()
            if not _refused(each["value"].get("aliases"), "WITH with names of columns")
        ]
        begin = f"WITH {', '.join(common)} " if common else ""
        match node["type"]:
            case "SELECT_NODE":
                return begin + self._select(node)
            case "SET_OPERATION_NODE":
                return begin + self._set_operation(node)
            case other:
                raise NotForSpark(f"{_plain(other)} is for DuckDB")

    def _set_operation(self, node: Node) -> str:
        kind = node["setop_type"]
        if kind not in ("UNION", "EXCEPT", "INTERSECT"):
            raise NotForSpark(f"{_plain(kind)} is for DuckDB")
        sides = node.get("children") or [node["left"], node["right"]]
        word = f" {kind} ALL " if node.get("setop_all") else f" {kind} "
        body = word.join(f"({self.query(each)})" for each in sides)
        return body + self._modifiers(node, can_be_distinct=False)

    def _select(self, node: Node) -> str:
        for key, what in (("sample", "SAMPLE"), ("qualify", "QUALIFY")):
            _refused(node.get(key), what)
        distinct = [each for each in node.get("modifiers") or () if each["type"] == "DISTINCT_MODIFIER"]
        for each in distinct:
            _refused(each.get("distinct_on_targets"), "DISTINCT ON")
        _refuse_other_order(node)
        _refuse_hidden_columns(node)
        items = ", ".join(self._item(each) for each in node["select_list"])
        text = f"SELECT {'DISTINCT ' if distinct else ''}{items}"
        if (table := node.get("from_table")) and table["type"] != "EMPTY":
            text += f" FROM {self._table(table)}"
        if where := node.get("where_clause"):
            text += f" WHERE {self.expression(where)}"
        text += self._groups(node)
        if having := node.get("having"):
            text += f" HAVING {self.expression(having)}"
        return text + self._modifiers(node, can_be_distinct=True)

    def _item(self, node: Node) -> str:
        if node["class"] == "STAR":
            return self._star(node)
        text = self.expression(node)
        return f"{text} AS {_quoted(node['alias'])}" if node.get("alias") else text

    def _star(self, node: Node) -> str:
        for key in ("replace_list", "rename_list", "columns", "expr", "unpacked"):
            _refused(node.get(key), "COLUMNS, REPLACE or RENAME")
        begin = f"{_quoted(node['relation_name'])}." if node.get("relation_name") else ""
        out = [_quoted(each) for each in node.get("exclude_list") or ()]
        out += [
            ".".join(_quoted(each[part]) for part in ("table", "column") if each.get(part))
            for each in node.get("qualified_exclude_list") or ()
        ]
        return f"{begin}* EXCEPT ({', '.join(out)})" if out else f"{begin}*"

    def _groups(self, node: Node) -> str:
        if node.get("aggregate_handling") == "FORCE_AGGREGATES":
            return " GROUP BY ALL"
        sets, groups = node.get("group_sets") or [], node.get("group_expressions") or []
        if len(sets) > 1 or (sets and sorted(sets[0]) != list(range(len(groups)))):
            raise NotForSpark("GROUPING SETS are for DuckDB")
        return f" GROUP BY {', '.join(map(self._counted, groups))}" if groups else ""

    def _modifiers(self, node: Node, *, can_be_distinct: bool) -> str:
        text = ""
        for each in node.get("modifiers") or ():
            match each["type"]:
                case "ORDER_MODIFIER":
                    text += f" ORDER BY {', '.join(map(self._order, each['orders']))}"
                case "LIMIT_MODIFIER":
                    text += f" LIMIT {self._count(each['limit'])}" if each.get("limit") else ""
                    text += f" OFFSET {self._count(each['offset'])}" if each.get("offset") else ""
                case "DISTINCT_MODIFIER" if can_be_distinct:
                    continue
                case other:
                    raise NotForSpark(f"{_plain(other)} is for DuckDB")
        return text

    def _order(self, order: Node) -> str:
        """DuckDB puts what is null last, whichever way it sorts."""
        way = "DESC" if order["type"] == "DESCENDING" else "ASC"
        nulls = "FIRST" if "FIRST" in order.get("null_order", "") else "LAST"
        if order["expression"]["class"] == "STAR":
            raise NotForSpark("ORDER BY ALL is for DuckDB")
        return f"{self._counted(order['expression'])} {way} NULLS {nulls}"

    def _counted(self, node: Node) -> str:
        """Behind ORDER BY and GROUP BY a whole number counts the columns of the answer."""
        whole = _whole_number(node)
        return self.expression(node) if whole is None else str(whole)

    def _count(self, node: Node) -> str:
        """Of rows: DuckDB and Spark both want a whole number here, and Spark none that has to be cast."""
        if not self._is_constant(node):
            raise NotForSpark("LIMIT with a query is for DuckDB")
        whole = _whole_number(node)
        return str(whole) if whole is not None else f"CAST({self._constant(node)} AS INT)"

    # --- tables -------------------------------------------------------------------------------------------------------

    def _table(self, ref: Node) -> str:
        _refused(ref.get("sample"), "SAMPLE")
        match ref["type"]:
            case "BASE_TABLE":
                return self._named(ref)
            case "SUBQUERY":
                return f"({self.query(ref['subquery']['node'])}){_alias(ref)}"
            case "JOIN":
                return self._join(ref)
            case "TABLE_FUNCTION" if ref["function"]["function_name"] == "iceberg_scan":
                (path,) = ref["function"]["children"]
                return f"{_quoted(self._scan(path['value']['value']))}{_alias(ref)}"
            case "TABLE_FUNCTION":
                raise NotForSpark(f"{ref['function']['function_name']} behind FROM is for DuckDB")
            case other:
                raise NotForSpark(f"{_plain(other)} is for DuckDB")

    def _scan(self, path: str) -> str:
        """One view for each file: Spark tells two uses of a view apart, and two views of one file not always."""
        known = {file: name for name, file in self.scans.items()}
        name = known.get(path) or f"scan_{len(self.scans) + 1}"
        self.scans[name] = path
        return name

    def _named(self, ref: Node) -> str:
        name = ref["table_name"]
        if ref.get("schema_name") or ref.get("catalog_name"):
            raise NotForSpark("a name with a schema is for DuckDB")
        if name.lower() in self.arrow:
            name = self.arrow[name.lower()]
            self.tables.add(name)
        return f"{_quoted(name)}{_alias(ref)}"

    def _join(self, ref: Node) -> str:
        way, kind = ref["ref_type"], ref["join_type"]
        if way not in ("REGULAR", "CROSS") or kind not in _JOINS:
            raise NotForSpark(f"a join of the kind {_plain(way)} {_plain(kind)} is for DuckDB")
        left, right = self._table(ref["left"]), self._table(ref["right"])
        if way == "CROSS":
            return f"{left} CROSS JOIN {right}"
        if using := ref.get("using_columns"):
            return f"{left} {_JOINS[kind]} {right} USING ({', '.join(map(_quoted, using))})"
        return f"{left} {_JOINS[kind]} {right} ON {self.expression(ref['condition'])}"

    # --- expressions --------------------------------------------------------------------------------------------------

    def expression(self, node: Node) -> str:
        if self._is_constant(node):
            return self._constant(node)
        match node["class"]:
            case "COLUMN_REF":
                return ".".join(map(_quoted, node["column_names"]))
            case "CONJUNCTION":
                word = " AND " if node["type"] == "CONJUNCTION_AND" else " OR "
                return f"({word.join(map(self.expression, node['children']))})"
            case "COMPARISON":
                return self._comparison(node["type"], self.expression(node["left"]), self.expression(node["right"]))
            case "BETWEEN":
                word = "NOT BETWEEN" if node["type"] == "COMPARE_NOT_BETWEEN" else "BETWEEN"
                value, low, high = (self.expression(node[key]) for key in ("input", "lower", "upper"))
                return f"({value} {word} {low} AND {high})"
            case "CASE":
                return self._case(node)
            case "CAST":
                return self._cast(node)
            case "OPERATOR":
                return self._operator(node)
            case "FUNCTION":
                return self._function(node)
            case "WINDOW":
                return self._window(node)
            case "SUBQUERY":
                return self._subquery(node)
            case other:
                raise NotForSpark(f"{_plain(other)} is for DuckDB")

    def _comparison(self, kind: str, left: str, right: str) -> str:
        if kind == "COMPARE_DISTINCT_FROM":
            return f"(NOT ({left} <=> {right}))"
        if kind not in _COMPARISONS:
            raise NotForSpark(f"{_plain(kind)} is for DuckDB")
        return f"({left} {_COMPARISONS[kind]} {right})"

    def _case(self, node: Node) -> str:
        checks = " ".join(
            f"WHEN {self.expression(each['when_expr'])} THEN {self.expression(each['then_expr'])}"
            for each in node["case_checks"]
        )
        return f"(CASE {checks} ELSE {self.expression(node['else_expr'])} END)"

    def _cast(self, node: Node) -> str:
        """Where both engines do the same; DuckDB rounds to whole numbers, Spark cuts off, and texts look different."""
        kind = node["cast_type"]["id"]
        if node.get("try_cast") or kind not in _CASTS:
            raise NotForSpark(f"a cast to {_plain(kind)} is for DuckDB")
        return f"CAST({self.expression(node['child'])} AS {_CASTS[kind]})"

    def _operator(self, node: Node) -> str:
        inner = node["children"]
        match node["type"]:
            case "OPERATOR_IS_NULL":
                return f"({self.expression(inner[0])} IS NULL)"
            case "OPERATOR_IS_NOT_NULL":
                return f"({self.expression(inner[0])} IS NOT NULL)"
            case "OPERATOR_NOT":
                return f"(NOT {self.expression(inner[0])})"
            case "COMPARE_IN" | "COMPARE_NOT_IN" as kind:
                value, *others = map(self.expression, inner)
                return f"({value} {'NOT IN' if 'NOT' in kind else 'IN'} ({', '.join(others)}))"
            case "OPERATOR_COALESCE":
                return f"coalesce({', '.join(map(self.expression, inner))})"
            case "OPERATOR_NULLIF":
                return f"nullif({', '.join(map(self.expression, inner))})"
            case "STRUCT_EXTRACT" if (name := _text(inner[1])) is not None:
                return f"{self.expression(inner[0])}.{_quoted(name)}"
            case other:
                raise NotForSpark(f"{_plain(other)} is for DuckDB")

    def _function(self, node: Node) -> str:
        name, inner = node["function_name"].lower(), node["children"]
        _refused((node.get("order_bys") or {}).get("orders"), f"{name} with an order")
        if node.get("schema") not in (None, "", "main") or node.get("export_state"):
            raise NotForSpark("a function of a column is for DuckDB")
        text = self._called(name, inner, is_distinct=bool(node.get("distinct")))
        return f"{text} FILTER (WHERE {self.expression(node['filter'])})" if node.get("filter") else text

    def _called(self, name: str, inner: list[Node], *, is_distinct: bool = False) -> str:
        if name == "count_star" or (name == "count" and not inner):
            return "count(*)"
        if name == "nullif":
            return f"nullif({', '.join(map(self.expression, inner))})"
        if name in _ARGUMENTS and len(inner) != _ARGUMENTS[name]:
            raise NotForSpark(f"{name} with {len(inner)} arguments is for DuckDB")
        begin = "DISTINCT " if is_distinct else ""
        if name in _LIKE:
            value, pattern = map(self.expression, inner)
            return f"({value} {_LIKE[name]} {pattern} ESCAPE '{_LIKE_ESCAPE}')"
        if name in _OPERATORS:
            return f"({f' {name} '.join(map(self.expression, inner))})" if len(inner) > 1 else self._signed(name, inner)
        if name == "/":
            return self._divided(*map(self.expression, inner))
        if name == "sum":
            return f"sum({begin}{self.expression(inner[0])})"
        if name in _AS_FRACTIONS:
            (number,) = inner
            return f"{_RENAMED.get(name, name)}({begin}CAST({self.expression(number)} AS DOUBLE))"
        if name == "date_trunc" and _text(inner[0]) in _UNITS:
            return f"date_trunc('{_text(inner[0])}', {self.expression(inner[1])})"
        if name == "date_part" and (unit := _text(inner[0])) in _SAME:
            return f"{unit}({self.expression(inner[1])})"
        if name in ("substr", "substring") and all((_whole_number(each) or 0) > 0 for each in inner[1:]):
            return f"substring({', '.join(map(self.expression, inner))})"
        if name in _SAME or name in _RENAMED:
            return f"{_RENAMED.get(name, name)}({begin}{', '.join(map(self.expression, inner))})"
        raise NotForSpark(f"{name[:60]} is for DuckDB")

    def _signed(self, name: str, inner: list[Node]) -> str:
        return f"({name} {self.expression(inner[0])})"

    def _divided(self, above: str, below: str) -> str:
        """A fraction, whatever is divided; by nothing it is endless or not a number, where Spark would fail."""
        above, below = f"CAST({above} AS DOUBLE)", f"CAST({below} AS DOUBLE)"
        endless = (
            f"CASE WHEN {above} > 0 THEN double('Infinity') WHEN {above} < 0 THEN double('-Infinity') "
            f"WHEN {above} = 0 THEN double('NaN') END"
        )
        return f"(CASE WHEN {below} = 0 THEN {endless} ELSE {above} / {below} END)"

    def _window(self, node: Node) -> str:
        frame = node.get("start"), node.get("end"), node.get("exclude_clause")
        if frame != ("UNBOUNDED_PRECEDING", "CURRENT_ROW_RANGE", "NO_OTHER") or node.get("ignore_nulls"):
            raise NotForSpark("a window with a frame is for DuckDB")
        for key in ("filter_expr", "arg_orders", "distinct"):
            _refused(node.get(key), "such a window")
        kind, name = node["type"], node["function_name"].lower()
        if kind in _RANKS:
            called = f"{_RANKS[kind]}()"
        elif kind == "WINDOW_AGGREGATE" and name in _WINDOWED:
            called = self._called(name, node["children"])
        else:
            raise NotForSpark(f"{name[:60]} over a window is for DuckDB")
        partitions = ", ".join(map(self.expression, node.get("partitions") or ()))
        orders = ", ".join(map(self._window_order, node.get("orders") or ()))
        if kind in _RANKS and not orders:
            raise NotForSpark(f"{name} without an order is for DuckDB")
        over = [f"PARTITION BY {partitions}" if partitions else "", f"ORDER BY {orders}" if orders else ""]
        return f"{called} OVER ({' '.join(filter(None, over))})"

    def _window_order(self, order: Node) -> str:
        if _whole_number(order["expression"]) is not None:
            raise NotForSpark("a window that is ordered by a number is for DuckDB")
        return self._order(order)

    def _subquery(self, node: Node) -> str:
        query = self.query(node["subquery"]["node"])
        match node["subquery_type"]:
            case "EXISTS":
                return f"EXISTS ({query})"
            case "NOT_EXISTS":
                return f"(NOT EXISTS ({query}))"
            case "SCALAR":
                return f"({query})"
            case "ANY" if node.get("comparison_type") == "COMPARE_EQUAL":
                return f"({self.expression(node['child'])} IN ({query}))"
            case other:
                raise NotForSpark(f"{_plain(other)} with a query is for DuckDB")

    # --- constants ----------------------------------------------------------------------------------------------------

    def _is_constant(self, node: Node) -> bool:
        """Whether it can be computed before: it names no column, is no aggregate, and is the same each time."""
        for each in parts(node):
            if each.get("class") in _NO_CONSTANT:
                return False
            if each.get("class") == "FUNCTION" and (
                each["function_name"].lower() in _NOT_BEFORE or each.get("schema") not in (None, "", "main")
            ):
                return False
        return True

    def _constant(self, node: Node) -> str:
        self.parameters.update(each["identifier"] for each in parts(node) if each.get("class") == "PARAMETER")
        self.constants.append(name_of({**node, "alias": ""}))
        return f"\0{len(self.constants) - 1}\0"


def _literal(value: Any, kind: str) -> str:
    """A value as Spark reads it; a text as its bytes, so that nothing in it can mean anything."""
    if value is None:
        return f"CAST(NULL AS {_TYPES[kind]})" if kind in _TYPES else "NULL"
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case int() if abs(value) < 2**31:
            return f"CAST({value} AS INT)"
        case int() if abs(value) < 2**63:
            return f"CAST('{value}' AS BIGINT)"
        case Decimal() if kind.startswith("DECIMAL") or kind == "HUGEINT":
            return f"CAST('{value:f}' AS {'DECIMAL(38,0)' if kind == 'HUGEINT' else kind})"
        case float():
            return f"CAST('{value!r}' AS DOUBLE)" if value == value and abs(value) != float("inf") else _odd(value)
        case str():
            return f"decode(X'{value.encode().hex()}', 'UTF-8')" if value else "''"
        case datetime() if value.tzinfo:
            return f"TIMESTAMP '{value.astimezone(UTC).replace(tzinfo=None).isoformat(sep=' ')}Z'"
        case datetime():
            return f"TIMESTAMP_NTZ '{value.isoformat(sep=' ')}'"
        case date():
            return f"DATE '{value.isoformat()}'"
        case _:
            raise NotForSpark(f"a constant of the type {kind[:60]} is for DuckDB")


def _odd(value: float) -> str:
    return "double('NaN')" if value != value else f"double('{'-' if value < 0 else ''}Infinity')"


def _quoted(name: str) -> str:
    """Spark's parser takes no line and nothing unprintable in a name, and looks for variables in the whole text."""
    if not name.isprintable() or "$" in name:
        raise NotForSpark("a name with such characters is for DuckDB")
    return "`" + name.replace("`", "``") + "`"


def _free(name: str) -> str:
    """A WITH of the statement must not stand in for one of our views."""
    if name.lower().startswith("scan_"):
        raise NotForSpark(f"WITH {name[:60]} is for DuckDB")
    return name


def _refuse_other_order(node: Node) -> None:
    """Behind `*` Spark puts the columns of USING first, DuckDB where they are."""
    has_star = any(each["class"] == "STAR" and not each.get("relation_name") for each in node["select_list"])
    if has_star and _has_using(node.get("from_table")):
        raise NotForSpark("* over a join with USING is for DuckDB")


def _has_using(ref: Node | None) -> bool:
    if ref is None or ref["type"] != "JOIN":
        return False
    return bool(ref.get("using_columns")) or _has_using(ref["left"]) or _has_using(ref["right"])


def _refuse_hidden_columns(node: Node) -> None:
    """Inside of an expression behind HAVING and ORDER BY, DuckDB takes the column and Spark the alias of that name."""
    aliases = {each["alias"].lower() for each in node["select_list"] if each.get("alias")}
    orders = [
        order["expression"]
        for each in node.get("modifiers") or ()
        if each["type"] == "ORDER_MODIFIER"
        for order in each["orders"]
        if order["expression"]["class"] != "COLUMN_REF"
    ]
    for part in parts([node.get("having"), orders]):
        names: list[str] = part.get("column_names") or []
        if part.get("class") == "COLUMN_REF" and len(names) == 1 and names[0].lower() in aliases:
            raise NotForSpark(f"{names[0][:60]} is a column and an alias: such an order is for DuckDB")


def _alias(ref: Node) -> str:
    columns = ref.get("column_name_alias") or ()
    if not ref.get("alias"):
        return ""
    named = f" ({', '.join(map(_quoted, columns))})" if columns else ""
    return f" AS {_quoted(ref['alias'])}{named}"


def _whole_number(node: Node) -> int | None:
    if node["class"] != "CONSTANT" or node["value"].get("is_null"):
        return None
    is_whole = node["value"]["type"]["id"] in ("INTEGER", "BIGINT", "TINYINT", "SMALLINT")
    return int(node["value"]["value"]) if is_whole else None


def _text(node: Node) -> str | None:
    is_text = node["class"] == "CONSTANT" and node["value"]["type"]["id"] == "VARCHAR"
    return str(node["value"]["value"]).lower() if is_text and not node["value"].get("is_null") else None


def _refused(found: Any, what: str) -> bool:
    if found:
        raise NotForSpark(f"{what} is for DuckDB")
    return False


def _plain(word: str) -> str:
    return word.replace("_", " ").lower()[:60]
