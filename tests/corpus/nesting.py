"""Objects and lists: empty, deep, wide, mixed, and in the place of something else."""

from __future__ import annotations

from typing import Any

from tests.corpus.shape import Row, Stream, alter, put


def _lists(depth: int, inside: Any) -> Any:
    return inside if depth == 0 else [_lists(depth - 1, inside)]


def _objects(depth: int, inside: Any) -> Any:
    return inside if depth == 0 else {"a": _objects(depth - 1, inside)}


_DEEP = {"l": _lists(30, 1), "o": _objects(30, 1), "edge": _lists(20, 1)}
_WIDE: Row = {f"c{number:03}": number for number in range(300)}
_TOO_WIDE: Row = {f"c{number:04}": number for number in range(1_100)}
_MAP = {f"sku-{number}": number for number in range(1_000)}
_MAP_TEXT = "{" + ",".join(f'"sku-{number}":{number}' for number in range(1_000)) + "}"
_FIELDS = {f"f{number:03}": number for number in range(200)}

STREAMS = (
    Stream(
        "an_empty_object_then_a_filled_one",
        ((put("1", {"o": {}}), put("2", {"o": {"a": None}})), (put("3", {"o": {"a": 1}}),), (put("4", {"o": {}}),)),
        {"o": "struct<a: long>"},
        {
            "1": {"_rescued": {"o": "{}"}},
            "2": {"_rescued": {"o": '{"a":null}'}},
            "3": {"o": {"a": 1}},
            "4": {"o": {"a": None}},
        },
    ),
    Stream(
        "an_empty_list_then_a_filled_one",
        (
            (put("1", {"l": []}), put("2", {"l": [[]]})),
            (put("3", {"l": [1]}),),
            (put("4", {"l": []}), put("5", {"l": [None]}), put("6", {"l": None}), put("7", {"l": [[]]})),
        ),
        {"l": "list<long>"},
        {
            "1": {"_rescued": {"l": "[]"}},
            "2": {"_rescued": {"l": "[[]]"}},
            "3": {"l": [1]},
            "4": {"l": []},
            "5": {"l": [None]},
            "6": {},
            "7": {"_rescued": {"l": "[[]]"}},
        },
    ),
    Stream(
        "fields_that_change_their_type",
        (
            (put("1", {"o": {"n": 1, "s": "x"}}),),
            (
                put("2", {"o": {"n": "one", "s": "y"}}),
                put("3", {"o": {"n": 1.5}}),
                put("4", '{"o":{"n":2.0,"s":2.50}}'),
                put("5", {"o": {"n": None, "s": {"a": [1]}}}),
                put("6", {"o": None}),
            ),
            (put("7", {"o": {"new": True, "n": "one"}}),),
        ),
        {"o": "struct<n: long, s: string>"},
        {
            "1": {"o": {"n": 1, "s": "x"}},
            "2": {"_rescued": {"o": '{"n":"one","s":"y"}'}},
            "3": {"_rescued": {"o": '{"n":1.5}'}},
            "4": {"o": {"n": 2, "s": "2.50"}},
            "5": {"o": {"n": None, "s": '{"a":[1]}'}},
            "6": {},
            "7": {"_rescued": {"o": '{"new":true,"n":"one"}'}},
        },
    ),
    Stream(
        "objects_that_grow",
        (
            (put("1", {"o": {"a": 1}}),),
            (put("2", {"o": {"b": "x", "c": {"d": True}}}), put("3", {"o": {"a": 2}})),
            (put("4", {"o": {"c": {"e": [{"f": 1}]}}}),),
            (put("5", {"o": {"c": {"e": [{"g": "y"}]}}}),),
        ),
        {"o": "struct<a: long, b: string, c: struct<d: boolean, e: list<struct<f: long, g: string>>>>"},
        {
            "1": {"o": {"a": 1, "b": None, "c": None}},
            "2": {"o": {"a": None, "b": "x", "c": {"d": True, "e": None}}},
            "3": {"o": {"a": 2, "b": None, "c": None}},
            "4": {"o": {"a": None, "b": None, "c": {"d": None, "e": [{"f": 1, "g": None}]}}},
            "5": {"o": {"a": None, "b": None, "c": {"d": None, "e": [{"f": None, "g": "y"}]}}},
        },
    ),
    Stream(
        "lists_of_objects_with_different_fields",
        (
            (put("1", {"l": [{"a": 1}, {"b": "x"}, {}, None]}),),
            (put("2", {"l": [{"c": 1.5}, {"a": 2}]}),),
            (put("3", {"l": [{"a": 1}, {"a": "one"}]}),),
        ),
        {"l": "list<struct<a: long, b: string, c: double>>"},
        {
            "1": {
                "l": [
                    {"a": 1, "b": None, "c": None},
                    {"a": None, "b": "x", "c": None},
                    {"a": None, "b": None, "c": None},
                    None,
                ]
            },
            "2": {"l": [{"a": None, "b": None, "c": 1.5}, {"a": 2, "b": None, "c": None}]},
            "3": {"_rescued": {"l": '[{"a":1},{"a":"one"}]'}},
        },
    ),
    Stream(
        "lists_of_mixed_types",
        (
            (put("1", '{"l":[1,"a",null,true,1.50,{"x": 1.50},[2, 1e400]]}'),),
            (put("2", '{"l":[0.30000000000000000001,1e2,12345678901234567890,1e400,-0.0,"1e2"]}'),),
        ),
        {"l": "list<string>"},
        {
            "1": {"l": ["1", "a", None, "true", "1.50", '{"x":1.50}', "[2,1e400]"]},
            "2": {"l": ["0.30000000000000000001", "1e2", "12345678901234567890", "1e400", "-0.0", "1e2"]},
        },
    ),
    Stream(
        "lists_of_numbers",
        (
            (put("1", {"ints": [1, 2], "mixed": [1, 2.5], "wide": [2**60, 0.5], "flags": [True, 0]}),),
            (put("2", {"ints": [1.5], "mixed": [3, 2**53 + 1], "wide": [1], "flags": []}),),
            (put("3", '{"ints":[3.0],"mixed":[4],"flags":[false]}'),),
        ),
        {"ints": "list<long>", "mixed": "list<double>", "wide": "list<string>", "flags": "list<string>"},
        {
            "1": {"ints": [1, 2], "mixed": [1.0, 2.5], "wide": ["1152921504606846976", "0.5"], "flags": ["true", "0"]},
            "2": {"wide": ["1"], "flags": [], "_rescued": {"ints": "[1.5]", "mixed": "[3,9007199254740993]"}},
            "3": {"ints": [3], "mixed": [4.0], "flags": ["false"]},
        },
    ),
    Stream(
        "lists_of_lists",
        (
            (put("1", {"l": [[1], [2, 3], [], None]}),),
            (put("2", {"l": [["x"]]}), put("3", {"l": [4]}), put("4", {"l": [[None], [[5]]]}), put("5", {"l": [[6]]})),
        ),
        {"l": "list<list<long>>"},
        {
            "1": {"l": [[1], [2, 3], [], None]},
            "2": {"_rescued": {"l": '[["x"]]'}},
            "3": {"_rescued": {"l": "[4]"}},
            "4": {"_rescued": {"l": "[[null],[[5]]]"}},
            "5": {"l": [[6]]},
        },
    ),
    Stream(
        "thirty_levels",
        ((put("1", _DEEP),), (put("2", {"edge": _lists(21, 1), "l": _lists(20, 2), "o": _objects(20, 3)}),)),
        {
            "l": "list<" * 20 + "string" + ">" * 20,
            "o": "struct<a: " * 20 + "string" + ">" * 20,
            "edge": "list<" * 20 + "long" + ">" * 20,
        },
        {
            "1": {
                "l": _lists(20, "[" * 10 + "1" + "]" * 10),
                "o": _objects(20, '{"a":' * 10 + "1" + "}" * 10),
                "edge": _lists(20, 1),
            },
            "2": {"l": _lists(20, "2"), "o": _objects(20, "3"), "_rescued": {"edge": "[" * 21 + "1" + "]" * 21}},
        },
    ),
    Stream(
        "a_phone_number_turns_into_an_object_and_back",
        (
            (put("1", {"phone": "555"}),),
            (alter("1", '{"phone": {"home": "555", "work": null}}', {"phone": "555"}), put("2", {"phone": ["1", 2]})),
            (alter("1", {"phone": "556"}, '{"phone":{"home":"555","work":null}}'), put("3", {"phone": 5})),
        ),
        {"phone": "string"},
        {"1": {"phone": "556"}, "2": {"phone": '["1",2]'}, "3": {"phone": "5"}},
        changes=(
            {"phone": "555"},
            {"phone": '{"home":"555","work":null}', "_before": {"phone": "555"}},
            {"phone": '["1",2]'},
            {"phone": "556", "_before": {"phone": '{"home":"555","work":null}'}},
            {"phone": "5"},
        ),
    ),
    Stream(
        "an_object_turns_into_a_phone_number_and_back",
        (
            (put("1", {"phone": {"home": "555"}}),),
            (alter("1", {"phone": "555"}, {"phone": {"home": "555"}}), put("2", {"phone": ["555"]})),
            (alter("1", {"phone": {"home": "556"}}, {"phone": "555"}),),
        ),
        {"phone": "struct<home: string>"},
        {"1": {"phone": {"home": "556"}}, "2": {"_rescued": {"phone": '["555"]'}}},
        changes=(
            {"phone": {"home": "555"}, "_rescued": None},
            {"phone": None, "_before": {"phone": {"home": "555"}}, "_rescued": {"phone": '"555"'}},
            {"phone": None, "_rescued": {"phone": '["555"]'}},
            {"phone": {"home": "556"}, "_before": {"phone": None}, "_rescued": {"_before": '{"phone":"555"}'}},
        ),
    ),
    Stream(
        "an_object_beside_a_text",
        ((put("1", {"p": "555"}), put("2", {"p": {"home": "556"}}), put("3", {"p": [1, 2]}), put("4", {"p": {}})),),
        {"p": "string"},
        {"1": {"p": "555"}, "2": {"p": '{"home":"556"}'}, "3": {"p": "[1,2]"}, "4": {"p": "{}"}},
    ),
    Stream(
        "a_list_turns_into_a_single_value",
        (
            (put("1", {"tags": ["a"]}),),
            (put("2", {"tags": "a"}), put("3", {"tags": {"0": "a"}}), put("4", {"tags": [1]}), put("5", {"tags": 1})),
        ),
        {"tags": "list<string>"},
        {
            "1": {"tags": ["a"]},
            "2": {"_rescued": {"tags": '"a"'}},
            "3": {"_rescued": {"tags": '{"0":"a"}'}},
            "4": {"tags": ["1"]},
            "5": {"_rescued": {"tags": "1"}},
        },
    ),
    Stream(
        "three_hundred_columns",
        ((put("1", _WIDE),), (put("2", {"c299": 7, "c000": None}), put("3", {"c150": 0.5}))),
        dict.fromkeys(_WIDE, "long") | {"c150": "double"},
        {"1": _WIDE | {"c150": 150.0}, "2": {"c299": 7}, "3": {"c150": 0.5}},
    ),
    Stream(
        "more_columns_than_a_table_can_have",
        ((put("1", _TOO_WIDE),), (put("2", {"c0000": -1, "c1099": -2, "late": {"a": 1}, "none": None}),)),
        dict.fromkeys(list(_TOO_WIDE)[:1000], "long"),
        {
            "1": {name: value for name, value in _TOO_WIDE.items() if value < 1_000}
            | {"_rescued": {name: str(value) for name, value in _TOO_WIDE.items() if value >= 1_000}},
            "2": {"c0000": -1, "_rescued": {"c1099": "-2", "late": '{"a":1}'}},
        },
    ),
    Stream(
        "a_map_that_is_used_as_columns",
        (
            (put("1", {"m": _MAP, "o": _FIELDS, "edge": {**_FIELDS, "one more": 1}}),),
            (put("2", {"m": {"sku-1": 1}, "o": {"f000": 7}, "edge": {}}),),
        ),
        {"m": "string", "o": "struct<" + ", ".join(f"{name}: long" for name in _FIELDS) + ">", "edge": "string"},
        {
            "1": {
                "m": _MAP_TEXT,
                "o": _FIELDS,
                "edge": "{" + ",".join(f'"{name}":{value}' for name, value in _FIELDS.items()) + ',"one more":1}',
            },
            "2": {"m": '{"sku-1":1}', "o": dict.fromkeys(_FIELDS) | {"f000": 7}, "edge": "{}"},
        },
    ),
    Stream(
        "names_that_come_twice_in_an_object",
        (
            (put("1", '{"a":1,"a":2,"o":{"x":1,"x":2},"s":"t","l":[{"y":1,"y":2}]}'),),
            (put("2", '{"a":"x","a":3,"s":{"x":1,"x":2}}'), put("3", '{"a":4,"a":"x","a.b":1,"a.b":2}')),
        ),
        {"a": "long", "o": "struct<x: long>", "s": "string", "l": "list<struct<y: long>>"},
        {
            "1": {"a": 2, "o": {"x": 2}, "s": "t", "l": [{"y": 2}]},
            "2": {"a": 3, "s": '{"x":1,"x":2}'},
            "3": {"_rescued": {"a": '"x"', "a.b": "2"}},
        },
    ),
)
