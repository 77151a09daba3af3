"""Texts, dates and times, and the many ways of nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.corpus.shape import Row, Stream, alter, put

_LONG, _LONG_UNICODE = "x" * 300_000, "ü🚀" * 50_000
_CONTROL = "nul\0 tab\t bell\x07 escape\x1b delete\x7f lines\r\n\u2028\u2029\x85"
_NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
_NO_TIMES = (
    "2026-01-31T24:00:00Z", "2016-12-31T23:59:60Z", "0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z",
    "2026-01-31T12:00:00.123456789Z", "2026-02-30T00:00:00Z", "2025-02-29T00:00:00Z", "2026-01-31", "", "soon",
    "2026-01-31T12:00:00 Europe/Rome", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", "+2026-01-31T12:00Z",
    "2026-W05-6T12:00:00Z", "2026-01-31T12Z", "12:00:00",
)  # fmt: skip


def _row(key: str, **values: Any) -> dict[str, Row]:
    return {key: values}


STREAMS = (
    Stream(
        "empty_text_null_and_missing",
        (
            (put("1", {"s": "", "t": "x"}), put("2", {"s": None, "t": ""}), put("3", {"t": "z"}), put("4", {})),
            (alter("1", {"t": "y"}, {"s": "", "t": "x"}),),
        ),
        {"s": "string", "t": "string"},
        {"1": {"t": "y"}, "2": {"t": ""}, "3": {"t": "z"}, "4": {}},
        changes=(
            {"s": "", "t": "x"},
            {"s": None, "t": ""},
            {"s": None, "t": "z"},
            {"s": None, "t": None},
            {"s": None, "t": "y", "_before": {"s": "", "t": "x"}},
        ),
    ),
    Stream(
        "null_only_columns",
        ((put("1", {"id": 1, "never": None, "late": None}),), (put("2", {"id": 2, "never": None, "late": [None]}),)),
        {"id": "long"},
        {"1": {"id": 1}, "2": {"id": 2, "_rescued": {"late": "[null]"}}},
    ),
    Stream(
        "null_then_typed",
        ((put("1", {"a": None, "b": None}),), (put("2", {"a": 1}),), (put("3", {"a": None, "b": "x"}),)),
        {"a": "long", "b": "string"},
        {"1": {}, "2": {"a": 1}, "3": {"b": "x"}},
    ),
    Stream(
        "very_long_texts",
        ((put("1", {"s": _LONG}), put("2", {"s": _LONG_UNICODE, "n": 1})), (put("3", {"n": _LONG}),)),
        {"s": "string", "n": "long"},
        {"1": {"s": _LONG}, "2": {"s": _LONG_UNICODE, "n": 1}, "3": {"_rescued": {"n": f'"{_LONG}"'}}},
    ),
    Stream(
        "control_characters",
        ((put("1", {"s": _CONTROL, "t": "\0"}),), (put("2", {"s": "\0", "t": "\0a"}),)),
        {"s": "string", "t": "string"},
        {"1": {"s": _CONTROL, "t": "\0"}, "2": {"s": "\0", "t": "\0a"}},
    ),
    Stream(
        "characters_beyond_the_usual",
        (
            (
                put("1", '{"s":"\\ud83d\\ude00 \\u0065\\u0301 \\u00e9","n":1}'),
                put("2", {"s": "\ufeffbom \u202eoverride\u202c \uffff \U0010ffff \ue000"}),
                put("3", '{"s":"a\\/b \\" \\\\ \\b\\f","n":"\\u0000"}'),
            ),
            (put("4", '{"n":"\\ud83d\\ude00"}'),),
        ),
        {"s": "string", "n": "string"},
        {
            "1": {"s": "😀 e\u0301 \u00e9", "n": "1"},
            "2": {"s": "\ufeffbom \u202eoverride\u202c \uffff \U0010ffff \ue000"},
            "3": {"s": 'a/b " \\ \b\f', "n": "\0"},
            "4": {"n": "😀"},
        },
    ),
    Stream(
        "json_inside_text",
        (
            (
                put("1", {"s": '{"a":1}'}),
                put("2", {"s": "[1,2]"}),
                put("3", {"s": '"quoted"'}),
                put("4", {"s": "null"}),
                put("5", {"s": "true"}),
                put("6", {"s": '","s":"}'}),
            ),
        ),
        {"s": "string"},
        {
            "1": {"s": '{"a":1}'},
            "2": {"s": "[1,2]"},
            "3": {"s": '"quoted"'},
            "4": {"s": "null"},
            "5": {"s": "true"},
            "6": {"s": '","s":"}'},
        },
    ),
    Stream(
        "dates_in_three_forms",
        ((put("1", {"d": "2026-01-31"}), put("2", {"d": "31.01.2026"}), put("3", {"d": "01/31/2026"})),),
        {"d": "string"},
        {"1": {"d": "2026-01-31"}, "2": {"d": "31.01.2026"}, "3": {"d": "01/31/2026"}},
    ),
    Stream(
        "times_with_a_zone_and_without",
        (
            (
                put("1", {"t": "2026-01-31T12:00:00Z"}),
                put("2", {"t": "2026-01-31T12:00:00+02:00"}),
                put("3", {"t": "2026-01-31 12:00"}),
                put("4", {"t": "2026-01-31T12:00:00.123456"}),
                put("5", {"t": "2026-01-31T12:00:00.5-0530"}),
                put("6", {"t": "2026-01-31T12:00:00.123456000Z"}),
                put("7", {"t": "1969-12-31T23:59:59.999999Z"}),
            ),
        ),
        {"t": "timestamptz"},
        {
            "1": {"t": _NOON},
            "2": {"t": _NOON.replace(hour=10)},
            "3": {"t": _NOON},
            "4": {"t": _NOON.replace(microsecond=123456)},
            "5": {"t": _NOON.replace(hour=17, minute=30, microsecond=500000)},
            "6": {"t": _NOON.replace(microsecond=123456)},
            "7": {"t": datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)},
        },
    ),
    Stream(
        "texts_that_are_almost_times",
        (
            (put("0", {"t": "2026-01-31T12:00:00Z"}),),
            (*(put(text or "empty", {"t": text}) for text in _NO_TIMES), put("number", {"t": 1769860800})),
        ),
        {"t": "timestamptz"},
        _row("0", t=_NOON)
        | _row("number", _rescued={"t": "1769860800"})
        | {text or "empty": {"_rescued": {"t": f'"{text}"'}} for text in _NO_TIMES},
    ),
    Stream(
        "the_first_and_the_last_time",
        ((put("1", {"t": "0001-01-01T00:00:00Z"}), put("2", {"t": "9999-12-31T23:59:59.999999Z"})),),
        {"t": "timestamptz"},
        {
            "1": {"t": datetime(1, 1, 1, tzinfo=UTC)},
            "2": {"t": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)},
        },
    ),
    Stream(
        "times_beside_other_texts",
        (
            (put("1", {"t": "2026-01-31T12:00:00+02:00"}), put("2", {"t": "soon"})),
            (put("3", {"t": "2026-01-31 12:00"}),),
        ),
        {"t": "string"},
        {"1": {"t": "2026-01-31T12:00:00+02:00"}, "2": {"t": "soon"}, "3": {"t": "2026-01-31 12:00"}},
    ),
    Stream(
        "a_leap_second_first",
        ((put("1", {"t": "2016-12-31T23:59:60Z"}),), (put("2", {"t": "2026-01-31T12:00:00Z"}),)),
        {"t": "string"},
        {"1": {"t": "2016-12-31T23:59:60Z"}, "2": {"t": "2026-01-31T12:00:00Z"}},
    ),
    Stream(
        "times_that_stay_texts",
        ((put("1", {"t": "2026-01-31T12:00:00Z", "l": ["2026-01-31T12:00:00Z"]}),), (put("2", {"t": "x"}),)),
        {"t": "string", "l": "list<string>"},
        {"1": {"t": "2026-01-31T12:00:00Z", "l": ["2026-01-31T12:00:00Z"]}, "2": {"t": "x"}},
        settings="infer_timestamps = false",
    ),
)
