"""A scan's filter as JSON: checked against the schema, made ready for PyIceberg, and what is left of it in a partition.

From scan_planner.py, which loads it with PyIceberg. Promise: a filter that cannot be meant is refused with a sentence
that names what is wrong; what PyIceberg cannot judge (a transform of a column, a column inside of a list) rules out no
file and stays in the residual; a residual's predicates are the client's own, as it wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, NoReturn

from pyiceberg import expressions as pe
from pyiceberg import types as pt
from pyiceberg.expressions.visitors import expression_evaluator
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import UnknownTransform, parse_transform
from pyiceberg.typedef import Record

from dolake.catalog.errors import IllegalArgument
from dolake.catalog.scan_literals import literal_of, shown
from dolake.catalog.values import Json, is_whole

_UNARY = {"is-null": pe.IsNull, "not-null": pe.NotNull, "is-nan": pe.IsNaN, "not-nan": pe.NotNaN}
_COMPARING = {
    "lt": pe.LessThan,
    "lt-eq": pe.LessThanOrEqual,
    "gt": pe.GreaterThan,
    "gt-eq": pe.GreaterThanOrEqual,
    "eq": pe.EqualTo,
    "not-eq": pe.NotEqualTo,
    "starts-with": pe.StartsWith,
    "not-starts-with": pe.NotStartsWith,
}
_SETS = {"in": pe.In, "not-in": pe.NotIn}
_NESTING_MAX = 100
_TEXTUAL = (pt.StringType, pt.BinaryType, pt.FixedType)


@dataclass(frozen=True, slots=True)
class _Leaf:
    """One predicate, and what PyIceberg makes of it; None where it makes nothing."""

    node: Json
    predicate: pe.BooleanExpression | None


@dataclass(frozen=True, slots=True)
class _Branch:
    """`and` and `or` have two parts or more, `not` has one."""

    kind: Literal["and", "or", "not"]
    parts: tuple[_Tree, ...]


_Tree = _Leaf | _Branch | bool


class Filter:
    """What a scan asks for."""

    def __init__(self, node: object, schema: Schema, *, is_case_sensitive: bool) -> None:
        self._schema = schema
        self._is_case_sensitive = is_case_sensitive
        self._tree = self._read(node, _NESTING_MAX)
        self.expression = _planned(self._tree, is_negated=False)
        """For PyIceberg: true wherever the filter can be true, and without any `not`."""

    def residual_of(self, spec: PartitionSpec) -> Callable[[Record], object]:
        """Of one spec's partitions: what is left of the filter where the partition decided the rest."""
        if spec.is_unpartitioned():
            whole = _residual(self._tree, lambda _predicate: None)
            return lambda _partition: whole
        partition_schema = Schema(*spec.partition_type(self._schema).fields)
        judges: dict[int, Callable[[Record], bool | None]] = {}

        def judge_of(predicate: pe.BooleanExpression) -> Callable[[Record], bool | None]:
            if id(predicate) not in judges:
                judges[id(predicate)] = _judge(predicate, self._schema, spec, partition_schema)
            return judges[id(predicate)]

        return lambda partition: _residual(self._tree, lambda predicate: judge_of(predicate)(partition))

    # --- reading -----------------------------------------------------------------------------------------------------

    def _read(self, node: object, depth: int) -> _Tree:
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            _refuse(f"Cannot parse expression from non-object: {shown(node)}")
        if depth == 0:
            _refuse(f"the filter is nested more than {_NESTING_MAX} deep")
        kind = node.get("type")
        if not isinstance(kind, str):
            _refuse(f"Cannot parse an expression without a type: {shown(node)}")
        kind = kind.lower().replace("_", "-")
        if kind in ("true", "false"):
            return kind == "true"
        if kind == "literal" and isinstance(node.get("value"), bool):
            return bool(node["value"])
        if kind == "not":
            return _Branch("not", (self._read(_part(node, kind, "child"), depth - 1),))
        if kind in ("and", "or"):
            parts = tuple(self._read(part, depth - 1) for part in _chain(node, kind))
            return _Branch("and" if kind == "and" else "or", parts)
        return self._read_predicate(kind, node)

    def _read_predicate(self, kind: str, node: Json) -> _Leaf:
        if kind in _UNARY:
            return _Leaf(node, self._unary(kind, _either(node, kind, "term", "child")))
        if kind in _COMPARING:
            term, value = _either(node, kind, "term", "left"), _either(node, kind, "value", "right")
            return _Leaf(node, self._comparing(kind, term, _bare(value)))
        if kind in _SETS:
            values = _either(node, kind, "values", "values")
            if isinstance(values, dict):  # the newer form names a type for all of them
                values = _part(values, kind, "values")
            if not isinstance(values, list):
                _refuse(f"Cannot parse literals from non-array: {shown(values)}")
            return _Leaf(node, self._set(kind, _either(node, kind, "term", "child"), [_bare(each) for each in values]))
        raise IllegalArgument(f"{shown(kind)} is no kind of expression", hint=f"known: {', '.join(_KINDS)}")

    def _unary(self, kind: str, term: object) -> pe.BooleanExpression | None:
        field = self._field(term)
        if field is None or not self._is_plain(field):
            return None
        return _made(_UNARY[kind], self._reference(field))

    def _comparing(self, kind: str, term: object, value: object) -> pe.BooleanExpression | None:
        field = self._field(term)
        if field is None:
            return None
        if kind.endswith("starts-with") and not isinstance(field.field_type, _TEXTUAL):
            _refuse(f"{kind} is for text, and {field.name} is {field.field_type}")
        compared = literal_of(value, field)
        if not self._is_plain(field) or (
            kind.endswith("starts-with") and not isinstance(field.field_type, pt.StringType)
        ):
            return None
        return _made(_COMPARING[kind], self._reference(field), compared)

    def _set(self, kind: str, term: object, values: list[Any]) -> pe.BooleanExpression | None:
        field = self._field(term)
        if field is None:
            return None
        literals = [literal_of(value, field) for value in values]
        if not self._is_plain(field):
            return None
        return _made(_SETS[kind], self._reference(field), set(literals))

    def _field(self, term: object) -> pt.NestedField | None:
        """The column that a term names; None for a transform of one, which is checked and not judged."""
        if not isinstance(term, dict) or term.get("type") != "transform":
            return self._referenced(term)
        self._referenced(term.get("term"))
        _check_transform(term.get("transform"))
        return None

    def _referenced(self, term: object) -> pt.NestedField:
        if isinstance(term, str):
            return self._named(term)
        if not isinstance(term, dict):
            _refuse(f"Cannot parse reference (requires string or object): {shown(term)}")
        if term.get("type") != "reference":
            kind = shown(term.get("type"))
            _refuse(f"Cannot parse type as a reference: {kind}", hint="name a column, or a transform of one")
        return self._with_id(term["id"]) if "id" in term else self._named(term.get("name", term.get("term")))

    def _named(self, name: object) -> pt.NestedField:
        if not isinstance(name, str):
            _refuse(f"{shown(name)} is no name of a field")
        try:
            return self._schema.find_field(name, case_sensitive=self._is_case_sensitive)
        except ValueError:
            _refuse(f"Cannot find field {shown(name)}", hint=f"the columns are {_columns(self._schema)}")

    def _with_id(self, id_: object) -> pt.NestedField:
        try:
            return self._schema.find_field(id_ if is_whole(id_) else -1)  # type: ignore[arg-type]
        except ValueError:
            _refuse(f"Cannot find a field with the id {shown(id_)}")

    def _is_plain(self, field: pt.NestedField) -> bool:
        """A value of its own in every row: no struct, and nothing inside of a list or a map."""
        if not isinstance(field.field_type, pt.PrimitiveType):
            return False
        try:
            self._schema.accessor_for_field(field.field_id)
        except ValueError:
            return False
        return True

    def _reference(self, field: pt.NestedField) -> pe.Reference:
        return pe.Reference(self._schema.find_column_name(field.field_id) or field.name)


_KINDS = ("true", "false", "and", "or", "not", *_UNARY, *_COMPARING, *_SETS)


def _chain(node: Json, kind: str) -> list[object]:
    """The parts of `a and (b and (c and d))`, flat: engines send hundreds of them, nested as deep."""
    found: list[object] = []
    waiting: list[object] = [node]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict) and each.get("type") == node["type"]:
            waiting += [_part(each, kind, "right"), _part(each, kind, "left")]
        else:
            found.append(each)
    return found


def _part(node: Json, kind: str, key: str) -> object:
    if key not in node:
        _refuse(f"Cannot parse {shown(kind)}: {key} is missing")
    return node[key]


def _either(node: Json, kind: str, old: str, new: str) -> Any:
    """The specification has two names for the parts of a predicate."""
    return node[old] if old in node else _part(node, kind, new)


def _bare(value: object) -> object:
    """A literal is a bare value, or an object around it."""
    if isinstance(value, dict) and value.get("type") == "literal":
        return _part(value, "literal", "value")
    return value


def _check_transform(name: object) -> None:
    try:
        is_known = isinstance(name, str) and not isinstance(parse_transform(name), UnknownTransform)
    except ValueError:
        is_known = False
    if not is_known:
        _refuse(f"{shown(name)} is no transform", hint="such as year, month, day, hour, bucket[4] or truncate[10]")


def _made(kind: Callable[..., pe.BooleanExpression], *parts: Any) -> pe.BooleanExpression:
    try:
        return kind(*parts)
    except (ValueError, TypeError) as error:
        _refuse(f"Cannot compare: {error}")


# --- what it is turned into ------------------------------------------------------------------------------------------


def _planned(tree: _Tree, *, is_negated: bool) -> pe.BooleanExpression:
    if isinstance(tree, bool):
        return pe.AlwaysTrue() if tree != is_negated else pe.AlwaysFalse()
    if isinstance(tree, _Leaf):
        if tree.predicate is None:
            return pe.AlwaysTrue()
        return ~tree.predicate if is_negated else tree.predicate
    if tree.kind == "not":
        return _planned(tree.parts[0], is_negated=not is_negated)
    parts = [_planned(part, is_negated=is_negated) for part in tree.parts]
    joined: pe.BooleanExpression = _balanced(pe.And if (tree.kind == "and") != is_negated else pe.Or, parts)
    return joined


def _balanced(join: Callable[[Any, Any], Any], parts: list[Any]) -> Any:
    """Joined by halves, so that a thousand alternatives nest ten deep and not a thousand."""
    while len(parts) > 1:
        pairs = [parts[at : at + 2] for at in range(0, len(parts), 2)]
        parts = [reduce(join, pair) for pair in pairs]
    return parts[0]


def _residual(tree: _Tree, judge: Callable[[pe.BooleanExpression], bool | None]) -> object:
    """The tree as JSON again, without what is decided."""
    if isinstance(tree, bool):
        return tree
    if isinstance(tree, _Leaf):
        verdict = None if tree.predicate is None else judge(tree.predicate)
        return tree.node if verdict is None else verdict
    if tree.kind == "not":
        child = _residual(tree.parts[0], judge)
        return not child if isinstance(child, bool) else {"type": "not", "child": child}
    deciding = tree.kind == "or"  # one true part decides an `or`, one false part an `and`
    parts = [_residual(part, judge) for part in tree.parts]
    if any(part is deciding for part in parts):
        return deciding
    return _joined(tree.kind, [part for part in parts if not isinstance(part, bool)], nothing=not deciding)


def _joined(kind: str, parts: list[object], *, nothing: bool) -> object:
    if not parts:
        return nothing
    return _balanced(lambda left, right: {"type": kind, "left": left, "right": right}, parts)


def _judge(
    predicate: pe.BooleanExpression, schema: Schema, spec: PartitionSpec, partition_schema: Schema
) -> Callable[[Record], bool | None]:
    """Whether a predicate holds for each row of a partition, for none of them, or None where it depends on the row.

    PyIceberg's own residuals compare a partition without a value with `<` and fail; its evaluators do not.
    """
    bound = predicate.bind(schema, case_sensitive=True)  # type: ignore[attr-defined]
    if not isinstance(bound, pe.BoundPredicate):
        verdict = isinstance(bound, pe.AlwaysTrue)
        return lambda _partition: verdict
    always: list[Callable[[Record], bool]] = []
    perhaps: list[Callable[[Record], bool]] = []
    for field in spec.fields_by_source_id(bound.term.ref().field.field_id):
        for found, projected in (
            (always, field.transform.strict_project(field.name, bound)),
            (perhaps, field.transform.project(field.name, bound)),
        ):
            if projected is not None:
                found.append(expression_evaluator(partition_schema, projected, case_sensitive=True))

    def judge(partition: Record) -> bool | None:
        if any(holds(partition) for holds in always):
            return True
        return None if all(can_hold(partition) for can_hold in perhaps) else False

    return judge


def _columns(schema: Schema) -> str:
    names = schema.column_names
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")


def _refuse(message: str, *, hint: str = "") -> NoReturn:
    raise IllegalArgument(message, hint=hint)


def check_fields(names: Iterable[str], schema: Schema, *, is_case_sensitive: bool) -> list[int]:
    """The ids of the columns of these names."""
    found = []
    for name in names:
        try:
            found.append(schema.find_field(name, case_sensitive=is_case_sensitive).field_id)
        except ValueError:
            _refuse(f"Cannot find field {shown(name)}", hint=f"the columns are {_columns(schema)}")
    return found
