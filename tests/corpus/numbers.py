"""Numbers and truth values: whole ones, fractions, what no column holds, and one kind after the other."""

from __future__ import annotations

from tests.corpus.shape import Stream, alter, put, remove

STREAMS = (
    Stream(
        "ten_then_ten_and_a_half",
        ((put("1", {"n": 10}),), (put("2", {"n": 10.5}),), (put("3", {"n": 11}),)),
        {"n": "double"},
        {"1": {"n": 10.0}, "2": {"n": 10.5}, "3": {"n": 11.0}},
        changes=({"n": 10.0}, {"n": 10.5}, {"n": 11.0}),
    ),
    Stream(
        "ten_and_a_half_then_ten",
        ((put("1", {"n": 10.5}),), (put("2", {"n": 10}), put("3", {"n": 2**53}), put("4", {"n": 2**53 + 1}))),
        {"n": "double"},
        {"1": {"n": 10.5}, "2": {"n": 10.0}, "3": {"n": 2.0**53}, "4": {"_rescued": {"n": "9007199254740993"}}},
    ),
    Stream(
        "a_fraction_in_the_row_before_alone",
        ((put("1", {"n": 1}),), (alter("1", {"n": 2}, {"n": 0.5}),), (remove("1", {"n": 2}),), (put("2", {"n": 3}),)),
        {"n": "double"},
        {"2": {"n": 3.0}},
        changes=({"n": 1.0}, {"n": 2.0, "_before": {"n": 0.5}}, {"n": 2.0}, {"n": 3.0}),
    ),
    Stream(
        "two_to_the_sixtieth_then_a_half",
        ((put("1", {"n": 2**60 + 1}),), (put("2", {"n": 0.5}), put("3", {"n": 7}))),
        {"n": "long"},
        {"1": {"n": 2**60 + 1}, "2": {"_rescued": {"n": "0.5"}}, "3": {"n": 7}},
    ),
    Stream(
        "two_to_the_fiftythird_then_a_half",
        ((put("1", {"n": 2**53, "m": -(2**53)}),), (put("2", {"n": 0.5, "m": -0.5}),)),
        {"n": "double", "m": "double"},
        {"1": {"n": 2.0**53, "m": -(2.0**53)}, "2": {"n": 0.5, "m": -0.5}},
    ),
    Stream(
        "an_integer_that_no_double_holds_beside_a_half",
        ((put("1", {"n": 2**53 + 1}), put("2", {"n": 0.5}), put("3", {"n": 1})), (put("4", '{"n":1.50}'),)),
        {"n": "string"},
        {"1": {"n": "9007199254740993"}, "2": {"n": "0.5"}, "3": {"n": "1"}, "4": {"n": "1.50"}},
    ),
    Stream(
        "two_to_the_sixtythird_first",
        ((put("1", {"n": 2**63}),), (put("2", {"n": 5}), put("3", {"n": 10**40}))),
        {"n": "string"},
        {"1": {"n": "9223372036854775808"}, "2": {"n": "5"}, "3": {"n": "1" + "0" * 40}},
    ),
    Stream(
        "two_to_the_sixtythird_later",
        (
            (put("1", {"n": 1}),),
            (
                put("2", {"n": 2**63 - 1}),
                put("3", {"n": 2**63}),
                put("4", {"n": -(2**63)}),
                put("5", {"n": -(2**63) - 1}),
            ),
        ),
        {"n": "long"},
        {
            "1": {"n": 1},
            "2": {"n": 2**63 - 1},
            "3": {"_rescued": {"n": "9223372036854775808"}},
            "4": {"n": -(2**63)},
            "5": {"_rescued": {"n": "-9223372036854775809"}},
        },
    ),
    Stream(
        "ten_to_the_fourhundredth",
        (
            (put("1", '{"first":1e400,"d":0.5}'),),
            (put("2", '{"first":1,"d":1e400,"l":[1.5]}'),),
            (put("3", '{"l":[1e400],"d":-1e400,"o":{"n":1e400}}'),),
        ),
        {"first": "string", "d": "double", "l": "list<double>", "o": "struct<n: string>"},
        {
            "1": {"first": "1e400", "d": 0.5},
            "2": {"first": "1", "l": [1.5], "_rescued": {"d": "1e400"}},
            "3": {"o": {"n": "1e400"}, "_rescued": {"l": "[1e400]", "d": "-1e400"}},
        },
    ),
    Stream(
        "minus_zero",
        ((put("1", '{"d":-0.0,"n":1,"l":[-0.0]}'), put("2", '{"d":-0,"n":-0}'), put("3", '{"d":0.0,"n":0}')),),
        {"d": "double", "n": "long", "l": "list<double>"},
        {"1": {"d": -0.0, "n": 1, "l": [-0.0]}, "2": {"d": 0.0, "n": 0}, "3": {"d": 0.0, "n": 0}},
    ),
    Stream(
        "whole_numbers_written_as_fractions",
        ((put("1", {"n": 1, "m": 1.0}),), (put("2", '{"n":1e2,"m":1e2}'), put("3", '{"n":2.0,"m":2}'))),
        {"n": "long", "m": "double"},
        {"1": {"n": 1, "m": 1.0}, "2": {"n": 100, "m": 100.0}, "3": {"n": 2, "m": 2.0}},
    ),
    Stream(
        "all_digits_of_a_double",
        (
            (
                put("1", {"d": 0.1 + 0.2, "e": 1.7976931348623157e308, "f": 5e-324}),
                put("2", '{"d":0.1,"e":-1.7976931348623157e308,"f":2.2250738585072014e-308}'),
                put("3", '{"d":1.1e-7,"e":123456789.12345679,"f":3.141592653589793}'),
            ),
        ),
        {"d": "double", "e": "double", "f": "double"},
        {
            "1": {"d": 0.30000000000000004, "e": 1.7976931348623157e308, "f": 5e-324},
            "2": {"d": 0.1, "e": -1.7976931348623157e308, "f": 2.2250738585072014e-308},
            "3": {"d": 1.1e-7, "e": 123456789.12345679, "f": 3.141592653589793},
        },
    ),
    Stream(
        "numbers_in_a_column_of_text",
        (
            (put("1", {"s": "x"}),),
            (
                put("2", '{"s":1.50}'),
                put("3", '{"s": [1.50, 1e400] }'),
                put("4", '{"s": {"a" : 0.30000000000000000001}}'),
                put("5", '{"s":1E5}'),
                put("6", '{"s":false}'),
                put("7", '{"s":12345678901234567890}'),
            ),
        ),
        {"s": "string"},
        {
            "1": {"s": "x"},
            "2": {"s": "1.50"},
            "3": {"s": "[1.50,1e400]"},
            "4": {"s": '{"a":0.30000000000000000001}'},
            "5": {"s": "1E5"},
            "6": {"s": "false"},
            "7": {"s": "12345678901234567890"},
        },
    ),
    Stream(
        "numbers_as_text_in_a_column_of_numbers",
        ((put("1", {"n": 1, "d": 0.5}),), (put("2", {"n": "2", "d": "0.5"}), put("3", {"n": "", "d": [0.5]}))),
        {"n": "long", "d": "double"},
        {
            "1": {"n": 1, "d": 0.5},
            "2": {"_rescued": {"n": '"2"', "d": '"0.5"'}},
            "3": {"_rescued": {"n": '""', "d": "[0.5]"}},
        },
    ),
    Stream(
        "words_for_what_is_no_number",
        (
            (put("1", {"d": 0.5, "w": "NaN"}),),
            (put("2", {"d": "NaN", "w": "Infinity"}), put("3", {"d": "-Infinity", "w": 1})),
        ),
        {"d": "double", "w": "string"},
        {
            "1": {"d": 0.5, "w": "NaN"},
            "2": {"w": "Infinity", "_rescued": {"d": '"NaN"'}},
            "3": {"w": "1", "_rescued": {"d": '"-Infinity"'}},
        },
    ),
    Stream(
        "zero_and_one_after_true",
        (
            (put("1", {"ok": True}),),
            (put("2", {"ok": 1}), put("3", {"ok": 0}), put("4", {"ok": "true"}), put("5", {"ok": False})),
        ),
        {"ok": "boolean"},
        {
            "1": {"ok": True},
            "2": {"_rescued": {"ok": "1"}},
            "3": {"_rescued": {"ok": "0"}},
            "4": {"_rescued": {"ok": '"true"'}},
            "5": {"ok": False},
        },
    ),
    Stream(
        "true_after_zero_and_one",
        ((put("1", {"n": 0, "d": 0.5}), put("2", {"n": 1})), (put("3", {"n": True, "d": False}),)),
        {"n": "long", "d": "double"},
        {"1": {"n": 0, "d": 0.5}, "2": {"n": 1}, "3": {"_rescued": {"n": "true", "d": "false"}}},
    ),
    Stream(
        "true_beside_one",
        ((put("1", {"ok": True}), put("2", {"ok": 1}), put("3", {"ok": "yes"})),),
        {"ok": "string"},
        {"1": {"ok": "true"}, "2": {"ok": "1"}, "3": {"ok": "yes"}},
    ),
)
