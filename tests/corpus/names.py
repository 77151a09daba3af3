"""Names: of columns, of fields inside objects, of tables."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.corpus.shape import Stream, alter, put

_KEYWORDS = (
    "select", "from", "where", "order", "group", "by", "table", "null", "true", "user", "all", "natural", "join",
    "with", "union", "values", "timestamp", "primary", "end", "case", "rowid", "oid",
)  # fmt: skip
_MARKS = (
    "a b", 'say "hi"', "it's", "back\\slash", "semi;colon", "a,b", "a/b", "100%", "#", "?", "*", "$1", ":name", "--",
    "/*", "[0]", "{x}", "`tick`", "<b>", " ", " around ", "a=b", "a\u00a0b", "1", "-1", "!", "@home", "a&b", "~", "^",
)  # fmt: skip
_RLO, _ZERO_WIDTH, _BOM, _JOINER = "\u202e", "\u200b", "\ufeff", "\u200d"

STREAMS = (
    Stream(
        "unicode_names",
        ((put("1", {"größe": 1, "表": "x", "имя": True, "🚀": 1.5, "שם": "r", "naïve café": 2, "ไทย": [1]}),),),
        {
            "größe": "long",
            "表": "string",
            "имя": "boolean",
            "🚀": "double",
            "שם": "string",
            "naïve café": "long",
            "ไทย": "list<long>",
        },
        {"1": {"größe": 1, "表": "x", "имя": True, "🚀": 1.5, "שם": "r", "naïve café": 2, "ไทย": [1]}},
    ),
    Stream(
        "names_that_only_look_the_same",
        ((put("1", {"caf\u00e9": 1, "cafe\u0301": 2, "a": 3, "\u0430": 4}),),),
        {"caf\u00e9": "long", "cafe\u0301": "long", "a": "long", "\u0430": "long"},
        {"1": {"caf\u00e9": 1, "cafe\u0301": 2, "a": 3, "\u0430": 4}},
    ),
    Stream(
        "names_with_invisible_characters",
        (
            (
                put("1", {f"a{_ZERO_WIDTH}b": 1, f"{_RLO}abc": 2, f"{_BOM}id": 3, "ok": 5}),
                put("2", {f"👩{_JOINER}👩": 4, "a\u00adb": 6, "a\u2028b": 7, "\ue000": 8, "ok": 9}),
            ),
        ),
        {"ok": "long"},
        {
            "1": {"ok": 5, "_rescued": {f"a{_ZERO_WIDTH}b": "1", f"{_RLO}abc": "2", f"{_BOM}id": "3"}},
            "2": {"ok": 9, "_rescued": {f"👩{_JOINER}👩": "4", "a\u00adb": "6", "a\u2028b": "7", "\ue000": "8"}},
        },
    ),
    Stream(
        "words_of_sql_as_names",
        ((put("1", {name: at for at, name in enumerate(_KEYWORDS)}),), (put("2", {"select": -1, "order": -2}),)),
        dict.fromkeys(_KEYWORDS, "long"),
        {"1": {name: at for at, name in enumerate(_KEYWORDS)}, "2": {"select": -1, "order": -2}},
    ),
    Stream(
        "names_with_marks_and_spaces",
        (
            (put("1", {name: at for at, name in enumerate(_MARKS)}),),
            (alter("1", {name: str(at) for at, name in enumerate(_MARKS)}, dict.fromkeys(_MARKS, 0)),),
        ),
        dict.fromkeys(_MARKS, "long"),
        {"1": {"_rescued": {name: f'"{at}"' for at, name in enumerate(_MARKS)}}},
        changes=({"*": 10, "_before": None}, {"*": None, "_before": dict.fromkeys(_MARKS, 0)}),
    ),
    Stream(
        "names_that_no_column_can_have",
        (
            (
                put("1", {"a.b": 1, ".": 2, "": 3, "tab\there": 4, "nul\0": 5, "line\nbreak": 6, "ok": 7}),
                put("2", {"x" * 129: 1, "x" * 128: 2, "ü" * 65: 3, "ü" * 64: 4, "y" * 200: 5}),
                put("3", {"a.b": None, "": None}),
            ),
        ),
        {"ok": "long", "x" * 128: "long", "ü" * 64: "long"},
        {
            "1": {
                "ok": 7,
                "_rescued": {"a.b": "1", ".": "2", "": "3", "tab\there": "4", "nul\0": "5", "line\nbreak": "6"},
            },
            "2": {"x" * 128: 2, "ü" * 64: 4, "_rescued": {"x" * 129: "1", "ü" * 65: "3", "y" * 200: "5"}},
            "3": {},
        },
    ),
    Stream(
        "names_that_iceberg_or_dolake_needs",
        (
            (
                put(
                    "1",
                    {
                        "_key": 1,
                        "_file": 2,
                        "_operation": "o",
                        "_rescued": "r",
                        "_before": {"a": 1},
                        "_source": "s",
                        "_position": 3,
                        "_row_id": 4,
                        "_deleted": True,
                        "_timestamp": "2026-01-02T03:04:05Z",
                    },
                ),
            ),
            (put("2", {"_key": 5, "_KEY": 6, "_key_": 7, "_File": 8, "_key__": 9, "__key": 10, "_before": "b"}),),
        ),
        {
            "_key_": "long",
            "_file_": "long",
            "_operation_": "string",
            "_rescued_": "string",
            "_before_": "struct<a: long>",
            "_source_": "string",
            "_position_": "long",
            "_row_id_": "long",
            "_deleted_": "boolean",
            "_timestamp_": "timestamptz",
            "_key__": "long",
            "_key___": "long",
            "__key": "long",
        },
        {
            "1": {
                "_key_": 1,
                "_file_": 2,
                "_operation_": "o",
                "_rescued_": "r",
                "_before_": {"a": 1},
                "_source_": "s",
                "_position_": 3,
                "_row_id_": 4,
                "_deleted_": True,
                "_timestamp_": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            },
            "2": {
                "_key_": 5,
                "_key__": 7,
                "_key___": 9,
                "__key": 10,
                "_rescued": {"_KEY_": "6", "_File_": "8", "_before_": '"b"'},
            },
        },
    ),
    Stream(
        "names_that_differ_only_in_case",
        (
            (put("1", {"id": 1, "Name": "a", "NAME": "b", "straße": 2, "STRASSE": 3}),),
            (put("2", {"ID": 2, "Id": 3, "id": 4}), put("3", {"name": "c"}), put("4", {"nAmE": None})),
        ),
        {"id": "long", "Name": "string", "straße": "long"},
        {
            "1": {"id": 1, "Name": "a", "straße": 2, "_rescued": {"NAME": '"b"', "STRASSE": "3"}},
            "2": {"id": 4, "_rescued": {"ID": "2", "Id": "3"}},
            "3": {"_rescued": {"name": '"c"'}},
            "4": {},
        },
    ),
    Stream(
        "odd_names_inside_objects",
        (
            (put("1", {"o": {"select": 1, "a b": 2, "_key": 3, "_file": 4, "größe": 5, 'q"': 6}}),),
            (
                put("2", {"o": {"a.b": 1, "select": 2}}),
                put("3", {"o": {"Select": 1}}),
                put("4", {"o": {"element": "e", "key": "k", "value": "v"}}),
                put("5", {"o": {"": None, "a.b": None, "select": 9}}),
            ),
        ),
        {
            "o": 'struct<select: long, a b: long, _key: long, _file: long, größe: long, q": long, element: string, '
            "key: string, value: string>"
        },
        {
            "1": {"o": {"select": 1, "a b": 2, "_key": 3, "_file": 4, "größe": 5, 'q"': 6}},
            "2": {"_rescued": {"o": '{"a.b":1,"select":2}'}},
            "3": {"_rescued": {"o": '{"Select":1}'}},
            "4": {"o": {"element": "e", "key": "k", "value": "v"}},
            "5": {"o": {"select": 9}},
        },
    ),
    Stream(
        "a_name_that_no_field_can_have_at_first_sight",
        (
            (put("1", {"o": {"a.b": 1, "ok": 2}, "p": {"": 1}, "l": [{"x": 1}, {"X": 2}]}),),
            (put("2", {"o": {"ok": 3}}),),
        ),
        {"o": "struct<ok: long>", "l": "list<struct<x: long>>"},
        {
            "1": {"_rescued": {"o": '{"a.b":1,"ok":2}', "p": '{"":1}', "l": '[{"x":1},{"X":2}]'}},
            "2": {"o": {"ok": 3}},
        },
    ),
    Stream(
        "a_table_with_marks_in_its_name",
        ((put("1", {"a": 1}),), (put("1", {"a": 2}), put("2", {"a": 3}))),
        {"a": "long"},
        {"1": {"a": 2}, "2": {"a": 3}},
        table="corpus.größe 表 it's [1] {a}=1+1&b;c",
    ),
    Stream(
        "a_table_with_words_of_sql_for_a_name",
        ((put("1", {"order": 1}),), (put("1", {"order": 2}),)),
        {"order": "long"},
        {"1": {"order": 2}},
        table="select.from.order.table",
    ),
)
