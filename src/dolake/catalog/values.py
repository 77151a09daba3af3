"""Reading one value out of a JSON object that a stranger sent. Missing, or of another kind, it is InvalidInput.

From every module of the metadata engine; the messages name the field, as Iceberg's own parsers do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from dolake.errors import InvalidInput

Json = dict[str, Any]

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_JAVA_INT = re.compile(r"[+-]?[0-9]{1,10}")


def refuse(message: str, *, hint: str = "") -> NoReturn:
    """The request cannot be right, whatever the table looks like."""
    raise InvalidInput(message, hint=hint)


def read_int(node: Mapping[str, Any], key: str) -> int:
    """A 32-bit number: ids of schemas, specs, orders, columns and versions."""
    value = _present(node, key)
    if not is_whole(value, _INT_MAX):
        refuse(f"Cannot parse to an integer value: {key}: {value!r}")
    return int(value)


def read_long(node: Mapping[str, Any], key: str) -> int:
    """A 64-bit number: snapshot ids, sequence numbers, times and sizes."""
    value = _present(node, key)
    if not is_whole(value, _LONG_MAX):
        refuse(f"Cannot parse to a long value: {key}: {value!r}")
    return int(value)


def read_long_or_none(node: Mapping[str, Any], key: str) -> int | None:
    return None if node.get(key) is None else read_long(node, key)


def read_bool(node: Mapping[str, Any], key: str) -> bool:
    value = _present(node, key)
    if not isinstance(value, bool):
        refuse(f"Cannot parse to a boolean value: {key}: {value!r}")
    return value


def read_text(node: Mapping[str, Any], key: str) -> str:
    value = _present(node, key)
    if not isinstance(value, str):
        refuse(f"Cannot parse to a string value: {key}: {value!r}")
    return value


def read_text_or_none(node: Mapping[str, Any], key: str) -> str | None:
    return None if node.get(key) is None else read_text(node, key)


def read_object(node: Mapping[str, Any], key: str) -> Json:
    value = _present(node, key)
    if not isinstance(value, dict):
        refuse(f"Cannot parse an object from: {key}: {value!r}")
    return value


def read_list(node: Mapping[str, Any], key: str) -> list[Any]:
    value = _present(node, key)
    if not isinstance(value, list):
        refuse(f"Cannot parse JSON array from non-array value: {key}: {value!r}")
    return value


def read_objects(node: Mapping[str, Any], key: str) -> list[Json]:
    return [as_object(item, key) for item in read_list(node, key)]


def read_texts(node: Mapping[str, Any], key: str) -> list[str]:
    values = read_list(node, key)
    if not all(isinstance(value, str) for value in values):
        refuse(f"Cannot parse strings from: {key}: {values!r}")
    return values


def read_longs(node: Mapping[str, Any], key: str) -> list[int]:
    return _numbers(node, key, _LONG_MAX)


def read_ints(node: Mapping[str, Any], key: str) -> list[int]:
    return _numbers(node, key, _INT_MAX)


def read_text_map(node: Mapping[str, Any], key: str) -> dict[str, str]:
    """Properties and summaries: values are text, also where they look like numbers."""
    value = read_object(node, key)
    for name, text in value.items():
        if not isinstance(text, str):
            refuse(f"Cannot parse to a string value: {name}: {text!r}", hint=f"values of {key} are strings")
    return value


def as_object(value: object, what: str) -> Json:
    if not isinstance(value, dict):
        refuse(f"Cannot parse {what} from a non-object: {value!r}")
    return value


def as_objects(values: object, what: str) -> Sequence[Json]:
    if not isinstance(values, list | tuple):
        refuse(f"Cannot parse {what} from a non-array: {values!r}")
    return [as_object(value, what) for value in values]


def is_whole(value: object, highest: int = _LONG_MAX) -> bool:
    """A whole number within the range; True and False are not numbers here, as they are none in JSON."""
    return isinstance(value, int) and not isinstance(value, bool) and -highest - 1 <= value <= highest


def is_int(value: object) -> bool:
    return is_whole(value, _INT_MAX)


def property_int(properties: Mapping[str, str], key: str, default: int) -> int:
    """A property that holds a number; Java's Integer.parseInt, so neither spaces nor underscores."""
    text = properties.get(key)
    if text is None:
        return default
    if not isinstance(text, str) or not _JAVA_INT.fullmatch(text) or not is_int(int(text)):
        refuse(f"Table property {key} must have integer value: {text!r}")
    return int(text)


def property_bool(properties: Mapping[str, str], key: str, default: bool) -> bool:
    text = properties.get(key)
    return default if text is None else text.lower() == "true"


def _present(node: Mapping[str, Any], key: str) -> Any:
    if key not in node:
        refuse(f"Cannot parse missing field: {key}")
    return node[key]


def _numbers(node: Mapping[str, Any], key: str, highest: int) -> list[int]:
    values = read_list(node, key)
    if not all(is_whole(value, highest) for value in values):
        refuse(f"Cannot parse whole numbers from: {key}: {values!r}")
    return values
