"""Which changes are about one row: a key's own, and those of other keys for as long as they were the row's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dolake.positions import START
from dolake.tables.forgetting import END, Life, Move, lives_of


def test_a_key_that_never_moved_is_its_whole_life() -> None:
    assert lives_of("a", []) == (Life("a"),)
    assert lives_of("a", [Move(5, "b", "c")]) == (Life("a"),)
    assert Life("a").is_on


def test_a_row_is_followed_to_its_next_keys_and_back_to_those_before() -> None:
    moves = [Move(5, "a", "b"), Move(9, "b", "c")]
    all_of_it = {Life("a", START, 5), Life("b", 5, 9), Life("c", 9, END)}
    for key in "abc":
        assert set(lives_of(key, moves)) == {Life(key), *all_of_it}


def test_who_gets_the_key_afterwards_is_somebody_else() -> None:
    moves = [Move(5, "a", "b"), Move(20, "a", "d")]
    found = lives_of("b", moves)
    assert Life("a", START, 5) in found
    assert not any(life.key == "d" or (life.key == "a" and life.end > 5) for life in found)
    assert any(life.key == "d" for life in lives_of("a", moves)), "the key itself is forgotten for all time"


def test_who_had_the_key_before_the_row_came_is_somebody_else_too() -> None:
    found = lives_of("c", [Move(2, "b", "z"), Move(5, "a", "b"), Move(9, "b", "c"), Move(12, "b", "y")])
    assert {life for life in found if life.key == "b"} == {Life("b", 5, 9)}
    assert {life.key for life in found} == {"a", "b", "c"}


def test_a_key_that_a_row_left_and_came_back_to_ends_in_no_circle() -> None:
    found = lives_of("a", [Move(3, "a", "b"), Move(7, "b", "a"), Move(11, "a", "b")])
    assert {life.key for life in found} == {"a", "b"}


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd"))), st.sampled_from("abcd"))
def test_each_move_of_the_row_is_told_on_both_of_its_sides(pairs: list[tuple[str, str]], key: str) -> None:
    moves = [Move(position, previous, now) for position, (previous, now) in enumerate(pairs, 1) if previous != now]
    found = lives_of(key, moves)
    assert found[0] == Life(key)
    for move in moves:
        told = any(life.key == move.key and life.start <= move.position < life.end for life in found)
        left = any(life.key == move.previous and life.start <= move.position <= life.end for life in found)
        assert told or not left, "who left has come somewhere"
