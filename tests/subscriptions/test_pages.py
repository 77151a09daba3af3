"""Pages are cut where they are full, and where no transaction is parted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dolake.query.announcing import Page, PagesHead, from_bytes, to_bytes
from dolake.query.pages import Event, Transaction, clean_cut, fitting


def events(*transactions: str) -> list[Event]:
    """One for each; `-` is a change of none."""
    return [Event(at, b"x" * 10, None if each == "-" else ("shop", each)) for at, each in enumerate(transactions)]


def test_a_page_takes_rows_and_bytes_up_to_its_limits_and_one_change_at_least() -> None:
    assert fitting(events(*"-----"), 3, 1000) == 3
    assert fitting(events(*"-----"), 5, 33) == 3
    assert fitting(events(*"-----"), 5, 1) == 1
    assert fitting([], 5, 1) == 0


def test_a_transaction_is_not_parted() -> None:
    assert clean_cut(events(*"-aa-"), 2) == 1
    assert clean_cut(events(*"aab-"), 1) == 2
    assert clean_cut(events(*"abab--"), 2) == 4
    assert clean_cut(events(*"--aa"), 3, {("shop", "a"): 9}) == 2
    assert clean_cut(events(*"aaaa"), 2, {("shop", "a"): 9}) == 0


@given(st.lists(st.sampled_from("-abcd"), min_size=1, max_size=30), st.integers(1, 30))
def test_whatever_comes_a_cut_parts_nothing(names: list[str], count: int) -> None:
    found = events(*names)
    kept = clean_cut(found, count)
    before = {event.transaction for event in found[:kept]} - {None}
    after: set[Transaction] = {event.transaction for event in found[kept:]} - {None}
    assert kept
    assert not before & after


def test_pages_travel_as_they_are() -> None:
    head = PagesHead(9, 4, [Page(5, 2, 3, is_live=True), Page(6), Page(7, 1, 2)])
    found, bodies = from_bytes(to_bytes(head, [b"a,b", b"", b"cc"]))
    assert found == head
    assert [bytes(each) for each in bodies] == [b"a,b", b"", b"cc"]
