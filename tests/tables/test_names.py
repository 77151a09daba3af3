"""Which names a table may have: they come from strangers and become folders, identifiers and keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dolake.tables.names import PART_LENGTH_MAX_BYTES, PARTS_MAX, problem_with_table_name, split_table_name


@pytest.mark.parametrize(
    ("name", "namespace", "table"),
    [
        ("orders", ("default",), "orders"),
        ("shop.orders", ("shop",), "orders"),
        ("eu.shop.orders", ("eu", "shop"), "orders"),
    ],
)
def test_a_name_is_namespaces_and_a_table(name: str, namespace: tuple[str, ...], table: str) -> None:
    assert split_table_name(name) == (namespace, table)


@pytest.mark.parametrize(
    "name",
    [
        "users",
        "Users",
        "user_accounts",
        "user-accounts",
        "2024",
        "shop.orders",
        "a.b.c.d",
        "_private",
        "_row_id",
        "order items",
        "größe",
        "表",
        "it's",
        "changes",
        "my__changes_log",
        "x" * PART_LENGTH_MAX_BYTES,
    ],
)
def test_an_ordinary_name_is_fine(name: str) -> None:
    assert problem_with_table_name(name) is None


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "empty"),
        (".", "empty"),
        ("..", "empty"),
        ("../users", "empty"),
        ("a..b", "empty"),
        (".users", "empty"),
        ("users.", "empty"),
        ("a/b", "'/'"),
        ("a\\b", "'\\\\'"),
        ("C:users", "':'"),
        ('a"b', "'\"'"),
        ("a`b", "'`'"),
        ("a%2Fb", "'%'"),
        ("a#b", "'#'"),
        ("a?b", "'?'"),
        ("a*b", "'*'"),
        ("a|b", "'|'"),
        ("<a>", "'<'"),
        ("a\x00b", "'\\x00'"),
        ("a\nb", "'\\n'"),
        ("a\x7fb", "'\\x7f'"),
        ("a\x85b", "'\\x85'"),
        ("a\u200bb", "'\\u200b'"),
        ("a\u202eb", "'\\u202e'"),
        ("a\u2028b", "'\\u2028'"),
        ("\ufeffusers", "'\\ufeff'"),
        (" users", "space"),
        ("users ", "space"),
        ("shop. users", "space"),
        ("\u00a0users", "space"),
        ("u\u0308ber", "NFC"),
        ("a.b.c.d.e", "5 parts"),
        ("orders__changes", "__changes"),
        ("orders__quarantine", "__quarantine"),
        ("ORDERS__CHANGES", "__changes"),
        ("shop.orders__Changes", "__changes"),
        ("__changes", "__changes"),
    ],
)
def test_a_dangerous_name_is_refused_with_the_reason(name: str, problem: str) -> None:
    found = problem_with_table_name(name)
    assert found is not None
    assert problem in found


def test_length_is_counted_in_bytes_because_a_file_name_is() -> None:
    assert problem_with_table_name("é" * (PART_LENGTH_MAX_BYTES // 2)) is None
    assert "longer than 128 bytes" in (problem_with_table_name("é" * (PART_LENGTH_MAX_BYTES // 2 + 1)) or "")


def test_each_part_may_be_long() -> None:
    assert problem_with_table_name(".".join(["x" * PART_LENGTH_MAX_BYTES] * PARTS_MAX)) is None


@pytest.mark.parametrize("name", ["\ud800", "a\udcffb"])
def test_a_lone_surrogate_is_refused_and_not_a_crash(name: str) -> None:
    assert problem_with_table_name(name) is not None


@given(st.text(max_size=40) | st.from_regex(r"[a-z./\\ \x00]{1,12}", fullmatch=True))
def test_a_name_that_passes_stays_below_the_warehouse(name: str) -> None:
    if problem_with_table_name(name) is not None:
        return
    namespace, table = split_table_name(name)
    root = Path("/warehouse")
    path = root.joinpath(*namespace, table)
    assert path.relative_to(root).parts == (*namespace, table)
    assert ".." not in path.parts
    assert path.as_posix().encode().decode() == path.as_posix()


@given(st.text(max_size=40))
def test_any_text_gets_an_answer(name: str) -> None:
    assert problem_with_table_name(name) != ""
