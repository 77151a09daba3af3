"""Random changes, by hypothesis: groups of them, with rows of every type, new columns, and values that fit nowhere.

To driver.py, which gives them streams, sequences and transactions. Keys are few, so that streams meet on them. Promise:
the same seed gives the same changes. Nothing shrinks: a run takes seconds, and its seed repeats it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Literal, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

Value = TypeVar("Value")
Boundary = Literal["none", "ended", "left open"]

TABLES = ("orders", "users", "shop.items")
KEYS = (*(f"key-{number}" for number in range(30)), "schlüssel", "a b", '"', "../x", "🔑", "0", " ")
TYPES = {
    "id": "long",
    "price": "double",
    "active": "boolean",
    "name": "string",
    "seen": "timestamptz",
    "address": "struct",
    "tags": "list",
    "lines": "list",
}
"""Columns whose values are always of one kind, and what issue 5 says they become."""
MASKED, LEFT_OUT = "secret", "hidden"
"""Columns of which the lake keeps the first two characters, and nothing; see driver.py's settings."""
RENAMED = {"_file": "_file_", "_position": "_position_"}
"""Names that Iceberg or DoLake keeps for itself, and what they become."""


@dataclass(frozen=True, slots=True)
class Step:
    """A change that belongs to no stream yet."""

    table: str
    operation: Literal["INSERT", "UPDATE", "DELETE"]
    key: str
    after: dict[str, Any] | None
    before: dict[str, Any] | None
    previous_key: str | None
    unchanged: tuple[str, ...] = ()
    """Columns that the source leaves out of `after`, because they did not change."""
    ddl: Literal["truncate"] | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Changes that follow each other in a stream; as a transaction they may end here, or with the stream's next."""

    steps: list[Step]
    transaction: Boundary


def examples(strategy: st.SearchStrategy[Value], count: int, number: int) -> list[Value]:
    """`count` values of this strategy, the same ones for the same number."""
    found: list[Value] = []

    @seed(number)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def take(value: Value) -> None:
        found.append(value)

    take()
    return found


# --- values ----------------------------------------------------------------------------------------------------------

_words = st.text(max_size=12) | st.sampled_from(
    ['"', "\\", '\\"}', "a,b", "{}", "null", "true", "1e5", "\0", "é", "🙂"]
)
_names = st.builds("n{}".format, _words)  # with a letter in front none looks like a timestamp
_floats = st.floats(allow_nan=False, allow_infinity=False)
_longs = st.integers(-(2**63), 2**63 - 1) | st.integers(-100, 100)


@st.composite
def _timestamps(draw: st.DrawFn) -> str:
    """ISO 8601, in several spellings, some of them hours away from UTC."""
    zone = timezone(timedelta(minutes=draw(st.sampled_from([0, 0, 120, -570]))))
    moment = draw(st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1)))  # noqa: DTZ001 - the zone comes next
    text = moment.replace(tzinfo=UTC).astimezone(zone).isoformat(timespec=draw(st.sampled_from(_PRECISIONS)))
    return text.replace("+00:00", "Z")


_PRECISIONS = ("seconds", "milliseconds", "microseconds")
_anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | _floats | _words | _timestamps(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
    max_leaves=4,
)
_place = st.fixed_dictionaries({"lat": _floats}, optional={"lon": _floats})
_columns: dict[str, st.SearchStrategy[Any]] = {
    "id": _longs,
    "price": _floats,
    "active": st.booleans(),
    "name": _names,
    "seen": _timestamps(),
    "address": st.fixed_dictionaries({"city": _names}, optional={"zip": _longs, "geo": _place}),
    "tags": st.lists(_names, max_size=3),
    "lines": st.lists(
        st.fixed_dictionaries({"sku": _names}, optional={"count": _longs, "at": _timestamps()}), max_size=2
    ),
}
_odd_columns: dict[str, st.SearchStrategy[Any]] = {
    MASKED: _names,
    LEFT_OUT: _anything,
    "mixed": _anything,
    "number": st.integers(-5, 5) | st.sampled_from([0.5, 2.0, 1e300, 2**60]),
    "größe": _longs,
    "with space": _names,
    "a.b": _anything,
    "ID": _anything,
    "": st.booleans(),
    "_file": _names,
    "_position": _longs,
    **{f"extra_{number}": _anything for number in range(8)},
}


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    """A source's row: some of the usual columns, now and then null, and sometimes one that is odd."""
    names = draw(st.lists(st.sampled_from(sorted(_columns)), max_size=6, unique=True))
    row = {name: draw(st.none() if draw(st.integers(0, 9)) == 9 else _columns[name]) for name in names}
    if draw(st.integers(0, 3)) == 3:
        name = draw(st.sampled_from(sorted(_odd_columns)))
        row[name] = draw(_odd_columns[name])
    return row


@st.composite
def _steps(draw: st.DrawFn, keys: Sequence[str] = KEYS) -> Step:
    operation: Literal["INSERT", "UPDATE", "DELETE"] = draw(st.sampled_from(["INSERT", "UPDATE", "UPDATE", "DELETE"]))
    has_moved = operation == "UPDATE" and draw(st.integers(0, 3)) == 3
    after = None if operation == "DELETE" else draw(rows())
    unchanged: tuple[str, ...] = ()
    if operation == "UPDATE" and draw(st.integers(0, 7)) == 7:
        names = draw(st.sampled_from([sorted(_columns), sorted(_columns), sorted(_odd_columns)]))
        unchanged = tuple(draw(st.lists(st.sampled_from(names), max_size=3, unique=True)))
        after = {name: value for name, value in (after or {}).items() if name not in unchanged}
    return Step(
        table=draw(st.sampled_from(TABLES)),
        operation=operation,
        key=draw(st.sampled_from(keys)),
        after=after,
        before=None if operation == "INSERT" or draw(st.booleans()) else draw(rows()),
        previous_key=draw(st.sampled_from(keys)) if has_moved else None,
        unchanged=unchanged,
    )


@st.composite
def groups(draw: st.DrawFn) -> Group:
    """A few changes in a row; some groups stay on few keys, so that several changes of one key come together."""
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3)) if draw(st.booleans()) else KEYS
    if draw(st.integers(0, 99)) == 99:
        return Group([Step(draw(st.sampled_from(TABLES)), "DELETE", "-", None, None, None, ddl="truncate")], "none")
    steps = draw(st.lists(_steps(keys), min_size=1, max_size=10))
    return Group(steps, draw(st.sampled_from(_BOUNDARIES)))


_BOUNDARIES: tuple[Boundary, ...] = ("none", "none", "ended", "left open")
