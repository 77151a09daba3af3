"""What format 3 has and DuckDB is not shown."""

from __future__ import annotations

import numpy as np
import pytest

from dolake.errors import InvalidInput
from dolake.query.vectors import joined, refuse_unreadable

_PLAIN = {"id": 1, "name": "x", "required": False, "type": "long"}
_DEFAULT = _PLAIN | {"initial-default": 5}


@pytest.mark.parametrize(
    "type_",
    [
        {"type": "struct", "fields": [_DEFAULT]},
        {"type": "list", "element-id": 3, "element": {"type": "struct", "fields": [_DEFAULT]}},
        {"type": "map", "key": "string", "value": {"type": "struct", "fields": [_PLAIN, _DEFAULT]}},
    ],
)
def test_a_value_for_rows_from_before_is_refused_wherever_it_is(type_: object) -> None:
    refuse_unreadable({"type": "struct", "fields": [_PLAIN]})
    for field in (_DEFAULT, _PLAIN | {"type": type_}):
        with pytest.raises(InvalidInput, match="x has a value for rows that were there before"):
            refuse_unreadable({"type": "struct", "fields": [field]})


def test_what_several_say_of_a_file_is_joined() -> None:
    parts = [{"a": np.array([1, 5], np.uint32)}, {"a": np.array([0, 5], np.uint32), "b": np.array([2], np.uint32)}]
    assert {path: found.tolist() for path, found in joined(parts).items()} == {"a": [0, 1, 5], "b": [2]}
