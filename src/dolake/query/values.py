"""Arrow's values as JSON has them, a column at a time, without loss: what JSON numbers cannot hold becomes text.

From results.py, for each batch of an answer; diff.py uses it too. docs/reference/http.md lists the form of each type.
"""

from __future__ import annotations

import base64
import math
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

EXACT_MAX = 2**53
"""Up to here every program that reads JSON has the same integer."""
_NO_TIME = -(2**63)
"""What numpy takes for a missing moment."""
_PLAIN = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_int8,
    pa.types.is_int16,
    pa.types.is_int32,
    pa.types.is_uint8,
    pa.types.is_uint16,
    pa.types.is_uint32,
)


def json_values(array: pa.Array) -> list[Any]:
    """Each value in the form that the reference describes; None where there is none."""
    kind, types = array.type, pa.types
    if any(is_kind(kind) for is_kind in _PLAIN):
        return list(array.to_pylist())
    if types.is_integer(kind):
        return _integers(array)
    if types.is_floating(kind):
        return _floats(array)
    if types.is_decimal(kind):
        return _decimals(array)
    if types.is_timestamp(kind) or types.is_date(kind):
        return _moments(array)
    if types.is_time(kind):
        return list(array.cast(pa.string()).to_pylist())
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return [None if each is None else base64.b64encode(each).decode() for each in array.to_pylist()]
    return _nested(array)


def _nested(array: pa.Array) -> list[Any]:
    kind, types = array.type, pa.types
    if types.is_dictionary(kind):
        return json_values(array.dictionary_decode())
    if types.is_struct(kind):
        return _structs(array)
    if types.is_map(kind):
        entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        return _lists(array.cast(pa.list_(entry)))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _lists(array)
    if types.is_interval(kind):
        return [None if each is None else _interval(*each) for each in array.to_pylist()]
    if types.is_union(kind):
        return [
            json_values(pa.array([each.value.as_py()], each.value.type))[0] if each.is_valid else None for each in array
        ]
    if isinstance(array, pa.ExtensionArray):
        return json_values(array.storage)
    raise TypeError(f"no JSON form for {kind}")


def _integers(array: pa.Array) -> list[Any]:
    """64 bits: as numbers where they fit."""
    values = list(array.to_pylist())
    bounds = pc.min_max(array).as_py()
    if bounds["min"] is None or (bounds["min"] >= -EXACT_MAX and bounds["max"] <= EXACT_MAX):
        return values
    return [value if value is None or abs(value) <= EXACT_MAX else str(value) for value in values]


def _floats(array: pa.Array) -> list[Any]:
    if array.type != pa.float64():
        # Through the shortest text, or 1.1 would come out with the digits that doubles have and it has not.
        array = array.cast(pa.string()).cast(pa.float64())
    values = list(array.to_pylist())
    if not array.null_count and np.isfinite(array.to_numpy(zero_copy_only=False)).all():
        return values
    return [value if value is None or math.isfinite(value) else _not_finite(value) for value in values]


def _not_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decimals(array: pa.Array) -> list[Any]:
    """As text with all digits and no exponent."""
    texts = list(array.cast(pa.string()).to_pylist())
    if not any(text is not None and "E" in text for text in texts):
        return texts
    return [None if value is None else format(value, "f") for value in array.to_pylist()]


def _moments(array: pa.Array) -> list[Any]:
    """ISO 8601, microseconds at least; `Z` where the type has a time zone, which is always UTC here."""
    is_date = pa.types.is_date(array.type)
    unit: Literal["D", "ns", "us"] = "D" if is_date else "ns" if array.type.unit == "ns" else "us"
    if not is_date and array.type.unit in ("s", "ms"):
        array = array.cast(pa.timestamp("us", array.type.tz))
    zone = "Z" if not is_date and array.type.tz else ""
    numbers = array.cast(pa.int32()).cast(pa.int64()) if is_date else array.cast(pa.int64())
    counts = numbers.fill_null(_NO_TIME).to_numpy()
    texts = np.datetime_as_string(counts.view(f"datetime64[{unit}]"), unit=unit).tolist()
    infinite = 2**31 - 1 if is_date else 2**63 - 1  # DuckDB's
    if not array.null_count and not np.isin(counts, [infinite, -infinite]).any():
        return [text + zone for text in texts] if zone else list(texts)
    odd = {_NO_TIME: None, infinite: "infinity", -infinite: "-infinity"}
    return [odd.get(count, text + zone) for count, text in zip(counts.tolist(), texts, strict=True)]


def _lists(array: pa.Array) -> list[Any]:
    items, values, at = json_values(array.flatten()), list[Any](), 0
    for length in pc.list_value_length(array).to_pylist():
        if length is None:
            values.append(None)
            continue
        values.append(items[at : at + length])
        at += length
    return values


def _structs(array: pa.Array) -> list[Any]:
    names = [field.name for field in array.type]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*map(json_values, array.flatten()), strict=True)]
    if not array.null_count:
        return rows
    return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]


def _interval(months: int, days: int, nanoseconds: int) -> str:
    """As DuckDB writes it: `1 year 2 months 3 days 04:05:06.5`."""
    years, months = int(months / 12), months - 12 * int(months / 12)
    parts = [
        f"{count} {word}{'' if abs(count) == 1 else 's'}"
        for count, word in ((years, "year"), (months, "month"), (days, "day"))
        if count
    ]
    if nanoseconds or not parts:
        seconds, rest = divmod(abs(nanoseconds) // 1000, 1_000_000)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        fraction = f".{rest:06}".rstrip("0") if rest else ""
        parts.append(("-" if nanoseconds < 0 else "") + clock + fraction)
    return " ".join(parts)
