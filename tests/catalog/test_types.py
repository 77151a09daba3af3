"""Type names, transforms and default values."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dolake.catalog.types import can_transform, canonical_transform, canonical_type, check_default
from dolake.errors import InvalidInput


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("LONG", "long"),
        ("timestamptz_ns", "timestamptz_ns"),
        ("fixed[ 16 ]", "fixed[16]"),
        ("decimal(38,0)", "decimal(38, 0)"),
        ("Decimal( 09 , 02 )", "decimal(9, 2)"),
        ("geometry", "geometry(OGC:CRS84)"),
        ("Geometry( srid:1234 )", "geometry(srid:1234)"),
        ("geography", "geography(OGC:CRS84, spherical)"),
        ("geography(srid:1, KARNEY)", "geography(srid:1, karney)"),
    ],
)
def test_a_type_has_one_spelling(sent: str, stored: str) -> None:
    assert canonical_type(sent) == stored
    assert canonical_type(stored) == stored


@pytest.mark.parametrize(
    "sent",
    ["", "int32", "decimal(39, 2)", "decimal(9)", "fixed", "fixed[99999999999]", "geometry()", "geography(a, flat)"],
)
def test_a_type_that_does_not_exist_is_refused(sent: str) -> None:
    with pytest.raises(InvalidInput):
        canonical_type(sent)


def test_a_type_made_to_waste_our_time_is_refused_at_once() -> None:
    start = time.process_time()
    with pytest.raises(InvalidInput):
        canonical_type("geography(" + " " * 100_000)
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("transform", "fits", "does_not"),
    [
        ("identity", ["long", "string", "decimal(9, 2)", "unknown"], ["variant", "geometry(x)", {"type": "list"}]),
        ("bucket[4]", ["long", "uuid", "fixed[3]", "timestamp_ns"], ["double", "boolean", "float"]),
        ("truncate[4]", ["int", "string", "binary"], ["date", "uuid", "fixed[3]"]),
        ("day", ["date", "timestamp", "timestamptz_ns"], ["time", "long"]),
        ("hour", ["timestamp", "timestamptz"], ["date", "time"]),
        ("void", ["long", {"type": "struct"}], []),
        ("some-day-known", ["long"], []),
    ],
)
def test_a_transform_fits_the_types_it_is_made_for(transform: str, fits: list[Any], does_not: list[Any]) -> None:
    assert all(can_transform(transform, type_) for type_ in fits)
    assert not any(can_transform(transform, type_) for type_ in does_not)


def test_known_transforms_have_one_spelling_and_unknown_ones_are_left_alone() -> None:
    assert [canonical_transform(text) for text in ("DAY", "Bucket[016]", "zOrder", "Hash[3]")] == [
        "day",
        "bucket[16]",
        "zOrder",
        "Hash[3]",
    ]
    with pytest.raises(InvalidInput):
        canonical_transform("truncate[0]")


GOOD: list[tuple[str, Any]] = [
    ("boolean", True),
    ("int", -(2**31)),
    ("long", 2**63 - 1),
    ("float", 1.0),
    ("double", -0.5),
    ("string", ""),
    ("uuid", "0194c5a0-0000-7000-8000-000000000001"),
    ("date", "2026-11-16"),
    ("time", "10:00:00.123456"),
    ("timestamp", "2026-11-16T10:00:00.000001"),
    ("timestamptz", "2026-11-16T10:00:00+00:00"),
    ("timestamp_ns", "2026-11-16T10:00:00.000000001"),
    ("timestamptz_ns", "2026-11-16T10:00:00.000000001+00:00"),
    ("binary", "00ff"),
    ("fixed[2]", "00FF"),
    ("decimal(9, 2)", "14.20"),
    ("decimal(9, 0)", "-14"),
]
BAD: list[tuple[Any, Any]] = [
    ("boolean", 1),
    ("int", 2**31),
    ("int", True),
    ("long", 1.0),
    ("double", 1),
    ("string", 1),
    ("uuid", "0194c5a0"),
    ("date", "yesterday"),
    ("time", "25:00"),
    ("timestamp", "2026-11-16T10:00:00+00:00"),
    ("timestamptz", "2026-11-16T10:00:00+02:00"),
    ("timestamptz", "2026-11-16T10:00:00"),
    ("binary", "0g"),
    ("fixed[2]", "00"),
    ("decimal(9, 2)", "14.2"),
    ("decimal(9, 2)", "NaN"),
    ("decimal(9, 2)", "x"),
    ("variant", "1"),
    ("unknown", "1"),
    ("long", None),
    ({"type": "struct", "fields": []}, {}),
]


@pytest.mark.parametrize(("type_", "value"), GOOD, ids=str)
def test_a_default_of_its_type_is_accepted(type_: str, value: Any) -> None:
    check_default(type_, value)


@pytest.mark.parametrize(("type_", "value"), BAD, ids=str)
def test_a_default_of_another_type_is_refused(type_: Any, value: Any) -> None:
    with pytest.raises(InvalidInput):
        check_default(type_, value)
