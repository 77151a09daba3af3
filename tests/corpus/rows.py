"""Rows and their keys: odd keys, keys that change, changes in an odd order, what a source does to its table."""

from __future__ import annotations

from tests.corpus.shape import Stream, alter, ddl, put, remove

_KEYS = (
    "a/b", "100%", "%41", "A", "a", "?q=1#frag", " around ", "ключ", "🚀", "k" * 4_000, "ü" * 4_096, "it's", '"', "\\",
    "NULL", "null", "caf\u00e9", "cafe\u0301", "0", "00", "line\nbreak", "nul\0", "nul", "\u200b", "..", "-", "{}",
)  # fmt: skip

STREAMS = (
    Stream(
        "odd_keys",
        (
            tuple(put(key, {"n": at}) for at, key in enumerate(_KEYS)),
            tuple(alter(key, {"n": at + 100}, {"n": at}) for at, key in enumerate(_KEYS) if at % 2),
            tuple(remove(key) for at, key in enumerate(_KEYS) if at % 4 == 0),
        ),
        {"n": "long"},
        {key: {"n": at + 100 if at % 2 else at} for at, key in enumerate(_KEYS) if at % 4},
    ),
    Stream(
        "keys_that_change",
        (
            (put("1", {"n": 1}), put("x", {"n": 10})),
            (
                alter("2", {"n": 2}, {"n": 1}, previousRowId="1"),
                alter("y", {"n": 11}, previousRowId="x"),
                alter("z", {"n": 12}, previousRowId="y"),
            ),
            (
                put("1", {"n": 3}),
                alter("z", {"n": 13}, previousRowId="z"),
                alter("new", {"n": 4}, previousRowId="ghost"),
            ),
        ),
        {"n": "long"},
        {"1": {"n": 3}, "2": {"n": 2}, "z": {"n": 13}, "new": {"n": 4}},
        changes=(
            {"_key": "1", "_previous_key": None},
            {"_key": "x", "_previous_key": None},
            {"_key": "2", "_previous_key": "1", "_before": {"n": 1}},
            {"_key": "y", "_previous_key": "x", "_before": None},
            {"_key": "z", "_previous_key": "y"},
            {"_key": "1", "_previous_key": None},
            {"_key": "z", "_previous_key": "z"},
            {"_key": "new", "_previous_key": "ghost"},
        ),
    ),
    Stream(
        "keys_that_are_swapped",
        (
            (put("a", {"n": "A"}), put("b", {"n": "B"}), put("c", {"n": "C"})),
            (
                alter("-", {"n": "A"}, previousRowId="a"),
                alter("a", {"n": "B"}, previousRowId="b"),
                alter("b", {"n": "A"}, previousRowId="-"),
            ),
            (alter("c", {"n": "B"}, {"n": "B"}, previousRowId="a"),),
        ),
        {"n": "string"},
        {"b": {"n": "A"}, "c": {"n": "B"}},
    ),
    Stream(
        "changes_in_an_odd_order",
        (
            (
                put("twice", {"n": 1}),
                put("twice", {"n": 2}),
                alter("missing", {"n": 3}),
                remove("ghost"),
                remove("back", {"n": 0}),
                put("back", {"n": 4}),
                put("gone", {"n": 5}),
                remove("gone", {"n": 5}),
            ),
            (
                put("twice", {"n": 6}),
                remove("missing"),
                alter("ghost", {"n": 7}, {"n": 0}),
                remove("back"),
                remove("back"),
                remove("gone"),
                put("gone", {"n": 8}),
            ),
        ),
        {"n": "long"},
        {"twice": {"n": 6}, "ghost": {"n": 7}, "gone": {"n": 8}},
    ),
    Stream(
        "nothing_but_deletes",
        ((remove("1"), remove("2", {"a": 1})), (remove("1", {"b": "x"}),)),
        {"a": "long", "b": "string"},
        {},
        changes=(
            {"a": None, "b": None, "_before": None},
            {"a": 1, "b": None, "_before": {"a": 1, "b": None}},
            {"a": None, "b": "x", "_before": {"a": None, "b": "x"}},
        ),
    ),
    Stream(
        "rows_without_a_value",
        ((put("1", {}), put("2", {"a": None})), (alter("1", {}, {}), put("3", {})), (put("2", {"a": 1}),)),
        {"a": "long"},
        {"1": {}, "2": {"a": 1}, "3": {}},
    ),
    Stream(
        "no_column_at_all",
        ((put("1", {}), put("2", {"": 1})), (alter("1", {"": None}), remove("2", {}))),
        {},
        {"1": {}},
    ),
    Stream(
        "columns_missing_in_some_rows",
        (
            (put("1", {"a": 1, "b": 2}), put("2", {"b": 3}), put("3", {"c": "x"})),
            (alter("1", {"a": 5}, {"a": 1, "b": 2}), put("4", {"d": [1], "a": 6})),
        ),
        {"a": "long", "b": "long", "c": "string", "d": "list<long>"},
        {"1": {"a": 5}, "2": {"b": 3}, "3": {"c": "x"}, "4": {"a": 6, "d": [1]}},
    ),
    Stream(
        "a_value_that_was_rescued_is_corrected",
        (
            (put("1", {"n": 1}), put("2", {"n": 2})),
            (alter("1", {"n": "one"}, {"n": 1}), alter("2", {"n": 3}, {"n": "two"})),
            (alter("1", {"n": 4}, {"n": "one"}),),
        ),
        {"n": "long"},
        {"1": {"n": 4}, "2": {"n": 3}},
        changes=(
            {"n": 1, "_rescued": None},
            {"n": 2, "_rescued": None},
            {"n": None, "_before": {"n": 1}, "_rescued": {"n": '"one"'}},
            {"n": 3, "_before": {"n": None}, "_rescued": {"_before": '{"n":"two"}'}},
            {"n": 4, "_before": {"n": None}, "_rescued": {"_before": '{"n":"one"}'}},
        ),
    ),
    Stream(
        "two_sources_with_different_columns",
        (
            (put("a", {"id": 1, "x": "x"}), put("same", {"id": 2})),
            (put("b", {"id": "two", "y": 2}, source="corpus-2"), put("same", {"y": 3}, source="corpus-2")),
        ),
        {"id": "long", "x": "string", "y": "long"},
        {"a": {"id": 1, "x": "x"}, "same": {"y": 3}, "b": {"y": 2, "_rescued": {"id": '"two"'}}},
        changes=({"_source": "corpus"}, {"_source": "corpus"}, {"_source": "corpus-2"}, {"_source": "corpus-2"}),
    ),
    Stream("the_same_row_id_here", ((put("1", {"a": 1}),), (remove("1"),)), {"a": "long"}, {}),
    Stream(
        "the_same_row_id_there",
        ((put("1", {"a": "x"}),), (put("2", {"a": "y"}),)),
        {"a": "string"},
        {"1": {"a": "x"}, "2": {"a": "y"}},
    ),
    Stream(
        "columns_that_did_not_change",
        (
            (
                put("1", {"id": 1, "big": "x" * 1_000, "o": {"a": 1}, "_file": "k"}),
                put("2", {"id": 2, "big": "y", "o": {"a": 2}}),
                put("3", {"id": "odd", "big": 0.5}),
            ),
            (
                alter("1", {"id": 10}, unchanged=["big", "o", "_file", "ghost"]),
                alter("2", {"id": 20, "big": "sent"}, unchanged=["big", "o"]),
                alter("3", {"big": 1.5}, unchanged=["id", "o"]),
            ),
            (
                alter("1", {"id": None}, unchanged=["big", "o"]),
                alter("4", {"id": 4}, unchanged=["big"], previousRowId="2"),
            ),
        ),
        {"id": "string", "big": "string", "o": "struct<a: long>", "_file_": "string"},
        {
            "1": {"big": "x" * 1_000, "o": {"a": 1}},
            "4": {"id": "4", "big": "sent"},
            "3": {"id": "odd", "big": "1.5"},
        },
    ),
    Stream(
        "columns_that_are_renamed_and_dropped",
        (
            (put("1", {"a": 1, "b": "x", "c": True}),),
            (
                alter("1", {"a": 2, "b": "y", "c": True}, {"a": 1, "b": "x", "c": True}),
                ddl("rename_column", column="a", to="_file"),
                put("2", {"_file": 3, "b": "z", "c": False}),
                ddl("drop_column", column="c"),
                put("3", {"_file": 4, "c": "another type"}),
                ddl("drop_column", column="ghost"),
                ddl("rename_column", column="b", to="B"),
            ),
            (ddl("rename_column", column="B", to="x.y"), put("4", {"B": "w", "b": 1, "a": 0.5})),
        ),
        {"_file_": "long", "B": "string", "c": "string", "a": "double"},
        {
            "1": {"_file_": 2, "B": "y"},
            "2": {"_file_": 3, "B": "z"},
            "3": {"_file_": 4, "c": "another type"},
            "4": {"B": "w", "a": 0.5, "_rescued": {"b": "1"}},
        },
        changes=(
            {"_operation": "INSERT", "_file_": 1, "B": "x"},
            {"_operation": "UPDATE", "_file_": 2, "B": "y"},
            {"_operation": "ALTER"},
            {"_operation": "INSERT", "_file_": 3, "B": "z"},
            {"_operation": "ALTER"},
            {"_operation": "INSERT", "_file_": 4, "c": "another type"},
            {"_operation": "ALTER"},
            {"_operation": "ALTER"},
            {"_operation": "ALTER"},
            {"_operation": "INSERT", "a": 0.5, "_rescued": {"b": "1"}},
        ),
    ),
    Stream(
        "a_column_that_is_dropped_last",
        (
            (put("1", {"a": 1, "b": 2, "c": 3}),),
            (ddl("rename_column", column="a", to="z"), ddl("drop_column", column="b")),
            (ddl("drop_column", column="c"),),
        ),
        {"z": "long"},
        {"1": {"z": 1}},
        changes=(
            {"_operation": "INSERT", "z": 1},
            {"_operation": "ALTER"},
            {"_operation": "ALTER"},
            {"_operation": "ALTER"},
        ),
    ),
    Stream(
        "a_truncated_table",
        (
            (ddl("truncate"), put("0", {"n": 0})),
            (put("1", {"n": 1}), ddl("truncate"), put("1", {"n": 100}), remove("0")),
            (ddl("truncate"), ddl("truncate"), put("2", {"n": "x"})),
        ),
        {"n": "long"},
        {"2": {"_rescued": {"n": '"x"'}}},
        changes=(
            {"_operation": "TRUNCATE"},
            {"_operation": "INSERT", "_key": "0"},
            {"_operation": "INSERT", "_key": "1", "n": 1},
            {"_operation": "TRUNCATE"},
            {"_operation": "INSERT", "_key": "1", "n": 100},
            {"_operation": "DELETE", "_key": "0"},
            {"_operation": "TRUNCATE"},
            {"_operation": "TRUNCATE"},
            {"_operation": "INSERT", "_key": "2"},
        ),
    ),
)
