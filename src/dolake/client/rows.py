"""One row of an answer: `row.total`, `row["total"]` and `row[0]` are the same value.

From results.py, which shares one layout among all rows of an answer. It has few methods, because each of them hides a
column of that name from the dot; `row["keys"]` reaches it.
"""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping, Sequence
from typing import Any, overload


class Row:
    """A row as callers see it: by name like a mapping, by number and in loops like a tuple.

    order = result.rows[0]
    order.total == order["total"] == order[0]
    number, city = order
    """

    __slots__ = ("__layout", "__values")  # mangled, so that a column `_values` or `_layout` is reached by the dot

    def __init__(self, layout: Mapping[str, int], values: Sequence[Any]) -> None:
        self.__layout = layout
        self.__values = tuple(values)

    def keys(self) -> KeysView[str]:
        """The names of the columns, in their order."""
        return self.__layout.keys()

    def as_dict(self) -> dict[str, Any]:
        """Names and values as a dictionary of its own."""
        return dict(zip(self.__layout, self.__values, strict=True))

    @overload
    def __getitem__(self, key: str | int) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, str):
            try:
                return self.__values[self.__layout[key]]
            except KeyError:
                raise KeyError(self.__no_column(key)) from None
        return self.__values[key]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__values[self.__layout[name]]
        except KeyError:
            raise AttributeError(self.__no_column(name)) from None

    def __iter__(self) -> Iterator[Any]:
        return iter(self.__values)

    def __len__(self) -> int:
        return len(self.__values)

    def __contains__(self, name: object) -> bool:
        return name in self.__layout

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Row):
            return list(self.__layout) == list(other.__layout) and self.__values == other.__values
        if isinstance(other, Mapping):
            return self.as_dict() == other
        if isinstance(other, tuple):
            return self.__values == other
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.__values)

    def __reduce__(self) -> tuple[type[Row], tuple[dict[str, int], tuple[Any, ...]]]:
        return Row, (dict(self.__layout), self.__values)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in zip(self.__layout, self.__values, strict=True))
        return f"Row({shown})"

    def __no_column(self, name: str) -> str:
        return f"the row has no column {name!r}; it has {', '.join(self.__layout)}"


def layout_of(names: Sequence[str]) -> dict[str, int]:
    """Where each column is; all rows of an answer share it."""
    return {name: index for index, name in enumerate(names)}
