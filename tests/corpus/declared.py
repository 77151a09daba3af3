"""Types that somebody has declared, and values that do not fit them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

from tests.corpus.shape import Row, Stream, declares, put

_ID = "0188e0e0-1111-7222-8333-444455556666"
_NO_DECIMALS = {
    "word": '"abc"', "empty": '""', "nan": '"NaN"', "infinity": '"Infinity"', "grouped": '"1_000"', "spaced": '" 1 "',
    "arabic": '"\u0661\u0662"', "precise": "0.00000000001", "large": "1e28", "true": "true", "list": "[1]",
    "huge": "1e400",
}  # fmt: skip
_DATES: dict[str, Row] = {
    "first": {"d": date(1, 1, 1)},
    "last": {"d": date(9999, 12, 31)},
    "leap": {"d": date(2024, 2, 29)},
    "zero": {"_rescued": {"d": '"0000-01-01"'}},
    "fits": {"d": date(2026, 1, 31)},
}
_NO_DATES = (
    "0000-01-01", "2026-02-30", "2026-1-31", "31.01.2026", "01/31/2026", "20260131", "2026-01-31T00:00:00Z",
    "10000-01-01", "", "2026-W05-6",
)  # fmt: skip
_NO_UUIDS = (
    "0188e0e0-1111-7222-8333-44445555_666", "----0188e0e0111172228333444455556666",
    "{}{}0188e0e0111172228333444455556666", "0188e0e0111172228333444455556666", "0188e0e0-1111-7222-8333-44445555666g",
    f"urn:uuid:{_ID}", "",
)  # fmt: skip
_NO_BYTES = ("?", "AA", "AB==", "A A=", "AA==\n", "AA-_", "ü")

STREAMS = (
    Stream(
        "types_from_the_settings",
        (
            (
                put(
                    "1",
                    {
                        "price": "12.5",
                        "born": "2001-02-03",
                        "seen": "2026-01-02T03:04:05",
                        "uid": _ID,
                        "photo": "AAH/",
                        "small": 7,
                        "ratio": 0.5,
                        "ok": True,
                        "at": "2026-01-02T03:04:05+01:00",
                        "text": 1.50,
                        "big": 2**60,
                    },
                ),
                put("2", '{"price":0.10,"text":1.50,"photo":"","seen":"0001-01-01 00:00","ratio":16777216,"big":1e2}'),
            ),
            (
                put(
                    "3",
                    {
                        "price": 0.001,
                        "born": "3.2.2001",
                        "seen": "2026-01-02T03:04:05Z",
                        "uid": "x",
                        "photo": "?",
                        "small": "7",
                        "ratio": 16777217,
                        "ok": 1,
                        "at": "2026-01-02",
                        "big": "1",
                    },
                ),
            ),
        ),
        {
            "price": "decimal(10, 2)",
            "born": "date",
            "seen": "timestamp",
            "uid": "uuid",
            "photo": "binary",
            "small": "int",
            "ratio": "float",
            "ok": "boolean",
            "at": "timestamptz",
            "text": "string",
            "big": "long",
            "never": "date",
        },
        {
            "1": {
                "price": Decimal("12.50"),
                "born": date(2001, 2, 3),
                "seen": datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001
                "uid": UUID(_ID),
                "photo": b"\x00\x01\xff",
                "small": 7,
                "ratio": 0.5,
                "ok": True,
                "at": datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC),
                "text": "1.5",
                "big": 2**60,
            },
            "2": {
                "price": Decimal("0.10"),
                "text": "1.50",
                "photo": b"",
                "seen": datetime(1, 1, 1),  # noqa: DTZ001
                "ratio": 16777216.0,
                "big": 100,
            },
            "3": {
                "_rescued": {
                    "price": "0.001",
                    "born": '"3.2.2001"',
                    "seen": '"2026-01-02T03:04:05Z"',
                    "uid": '"x"',
                    "photo": '"?"',
                    "small": '"7"',
                    "ratio": "16777217",
                    "ok": "1",
                    "at": '"2026-01-02"',
                    "big": '"1"',
                }
            },
        },
        settings='columns = {price = "decimal(10,2)", born = "date", seen = "timestamp", uid = "uuid", photo = "bytea",'
        ' small = "int", ratio = "real", ok = "bool", at = "timestamptz", text = "varchar(20)", big = "bigint", '
        'never = "date"}',
    ),
    Stream(
        "large_decimals",
        (
            (
                put("whole", '{"d":1234567890123456789012345678}', schema=declares(d="numeric(38,10)")),
                put("digits", '{"d":1234567890123456789012345678.0123456789}'),
                put("text", '{"d":"-1234567890123456789012345678.0123456789"}'),
                put("power", '{"d":1e5}'),
                put("small", '{"d":1e-10}'),
                put("zeros", '{"d":"0.50000000000000000000"}'),
            ),
            tuple(put(name, f'{{"d":{text}}}') for name, text in _NO_DECIMALS.items()),
        ),
        {"d": "decimal(38, 10)"},
        {
            "whole": {"d": Decimal("1234567890123456789012345678.0000000000")},
            "digits": {"d": Decimal("1234567890123456789012345678.0123456789")},
            "text": {"d": Decimal("-1234567890123456789012345678.0123456789")},
            "power": {"d": Decimal("100000.0000000000")},
            "small": {"d": Decimal("0.0000000001")},
            "zeros": {"d": Decimal("0.5000000000")},
        }
        | {name: {"_rescued": {"d": text}} for name, text in _NO_DECIMALS.items()},
    ),
    Stream(
        "declared_dates",
        (
            (
                put("first", {"d": "0001-01-01"}, schema=declares(d="date")),
                put("last", {"d": "9999-12-31"}),
                put("leap", {"d": "2024-02-29"}),
            ),
            (put("zero", {"d": "0000-01-01"}), put("fits", {"d": "2026-01-31"})),
            tuple(put(f"not {text}", {"d": text}) for text in _NO_DATES),
        ),
        {"d": "date"},
        _DATES | {f"not {text}": {"_rescued": {"d": f'"{text}"'}} for text in _NO_DATES},
    ),
    Stream(
        "declared_uuids_and_bytes",
        (
            (
                put("1", {"u": _ID, "b": "AAH/"}, schema=declares(u="uuid", b="bytea")),
                put("2", {"u": _ID.upper(), "b": "AA=="}),
                put("3", {"u": "00000000-0000-0000-0000-000000000000", "b": ""}),
            ),
            tuple(put(f"not {text}", {"u": text}) for text in _NO_UUIDS),
            tuple(put(f"not {text}", {"b": text}) for text in _NO_BYTES),
        ),
        {"u": "uuid", "b": "binary"},
        {
            "1": {"u": UUID(_ID), "b": b"\x00\x01\xff"},
            "2": {"u": UUID(_ID), "b": b"\x00"},
            "3": {"u": UUID(int=0), "b": b""},
        }
        | {f"not {text}": {"_rescued": {"u": f'"{text}"'}} for text in _NO_UUIDS}
        | {f"not {text}": {"_rescued": {"b": f'"{text}"'.replace("\n", "\\n")}} for text in _NO_BYTES},
    ),
    Stream(
        "a_schema_that_comes_late",
        (
            (put("1", {"id": 1, "price": "12.5", "rate": 1, "born": "2001-02-03"}),),
            (
                put(
                    "2",
                    f'{{"id":2147483648,"price":13.50,"rate":2,"born":"2001-02-04","uid":"{_ID}"}}',
                    schema=declares(
                        id="int", price="numeric(10,2)", rate="double", born="date", uid="uuid", odd="geometry"
                    ),
                ),
            ),
            (put("3", {"id": 3, "odd": "POINT(1 2)", "uid": "x", "rate": 0.5}),),
        ),
        {"id": "long", "price": "string", "rate": "double", "born": "string", "uid": "uuid", "odd": "string"},
        {
            "1": {"id": 1, "price": "12.5", "rate": 1.0, "born": "2001-02-03"},
            "2": {"id": 2**31, "price": "13.50", "rate": 2.0, "born": "2001-02-04", "uid": UUID(_ID)},
            "3": {"id": 3, "odd": "POINT(1 2)", "rate": 0.5, "_rescued": {"uid": '"x"'}},
        },
    ),
    Stream(
        "types_that_get_wider",
        (
            (
                put(
                    "1",
                    {"i": 2**31 - 1, "d": "999.99", "f": 0.1, "h": 7},
                    schema=declares(i="int", d="numeric(5,2)", f="real", h="int"),
                ),
            ),
            (
                put("2", {"i": -(2**31) - 1, "h": 0.5}),
                put("3", '{"d":1000.00,"f":0.1}', schema=declares(d="numeric(9,2)", f="double precision")),
            ),
            (put("4", {"i": 2**63 - 1, "d": "9999999.99", "f": 1e300}),),
        ),
        {"i": "long", "d": "decimal(9, 2)", "f": "double", "h": "double"},
        {
            # The nearest float to 0.1 is this double, and stays it when the column gets wider.
            "1": {"i": 2**31 - 1, "d": Decimal("999.99"), "f": 0.10000000149011612, "h": 7.0},
            "2": {"i": -(2**31) - 1, "h": 0.5},
            "3": {"d": Decimal("1000.00"), "f": 0.1},
            "4": {"i": 2**63 - 1, "d": Decimal("9999999.99"), "f": 1e300},
        },
    ),
    Stream(
        "declared_columns_that_never_come",
        (
            (
                put(
                    "1",
                    {"id": 1, "_key": 2, "a.b": 3, "ID": 4},
                    schema=[
                        *declares(id="int", never="timestamp with time zone", _key="int"),
                        {"name": "a.b", "type": "int"},
                        {"name": "ID", "type": "text"},
                    ],
                ),
            ),
            (put("2", {"never": "2026-01-02T03:04:05"}),),
        ),
        {"id": "int", "never": "timestamptz", "_key_": "int"},
        {
            "1": {"id": 1, "_key_": 2, "_rescued": {"a.b": "3", "ID": "4"}},
            "2": {"never": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)},
        },
    ),
    Stream(
        "words_of_databases_for_types",
        (
            (
                put(
                    "1",
                    {
                        "a": 1,
                        "b": 2,
                        "c": 0.1,
                        "d": "x",
                        "e": '{"x":1}',
                        "f": "12:00:00",
                        "g": "2026-01-02 03:04:05",
                        "h": "2026-01-02 03:04:05+00",
                        "i": 5,
                        "j": "y",
                        "k": 0.1,
                    },
                    schema=declares(
                        a="BIGINT",
                        b="smallint",
                        c="double precision",
                        d="character varying(20)",
                        e="jsonb",
                        f="time",
                        g="timestamp(6) without time zone",
                        h="timestamp with time zone",
                        i="numeric(5)",
                        j="geometry",
                        k="float(53)",
                    ),
                ),
            ),
        ),
        {
            "a": "long",
            "b": "int",
            "c": "double",
            "d": "string",
            "e": "string",
            "f": "string",
            "g": "timestamp",
            "h": "timestamptz",
            "i": "decimal(5, 0)",
            "j": "string",
            "k": "double",
        },
        {
            "1": {
                "a": 1,
                "b": 2,
                "c": 0.1,
                "d": "x",
                "e": '{"x":1}',
                "f": "12:00:00",
                "g": datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001
                "h": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
                "i": Decimal(5),
                "j": "y",
                "k": 0.1,
            }
        },
    ),
)
