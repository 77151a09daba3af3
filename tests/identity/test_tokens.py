"""Tokens: what they grant, how they are kept, and how they end."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dolake.errors import InvalidInput, NotFound, Unauthorized
from dolake.identity.grants import EVERYTHING, NOBODY_YET, Grant, from_header, to_header
from dolake.identity.slowing import DELAY_MAX_S, Failures
from dolake.identity.store import TokenBook, TokenFile
from dolake.identity.tokens import Access, credential, mint, read_access, sign
from tests.support.clock import Clock

HOUR_MS = 3_600_000


def made(
    home: Path,
    clock: Clock,
    *scopes: str,
    name: str = "x",
    namespaces: tuple[str, ...] = (),
    sources: tuple[str, ...] = (),
    expires_ms: int | None = None,
) -> str:
    token, text = mint(name, scopes, namespaces, sources, now_ms=clock(), expires_ms=expires_ms)
    TokenFile(home).add(token)
    return text


def test_a_token_is_recognised_and_nothing_near_it(tmp_path: Path) -> None:
    clock = Clock()
    text, other = made(tmp_path, clock, "read", namespaces=("a.b",)), made(tmp_path, clock, "write")
    book = TokenBook(tmp_path, clock)
    assert book.recognise(text).namespaces == (("a", "b"),)
    mixed = text[:20] + other[20:]
    for wrong in ("", "x", text[:-1], text + "x", text.upper(), mixed, text.replace("dolake_", "")):
        with pytest.raises(Unauthorized, match="not valid"):
            book.recognise(wrong)


def test_what_is_kept_does_not_have_the_secret_and_is_its_owners_alone(tmp_path: Path) -> None:
    text = made(tmp_path, Clock(), "read")
    kept = (tmp_path / "tokens.json").read_text()
    assert text not in kept
    assert text.split("_", 2)[2] not in kept
    TokenBook(tmp_path, Clock())
    for name in ("tokens.json", "tokens.key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_a_process_of_the_server_has_a_token_that_no_file_has(tmp_path: Path) -> None:
    book = TokenBook(tmp_path, Clock())
    text = book.own_token("source app")
    assert book.own_token("source app") == text
    grant = book.recognise(text)
    assert (grant.name, sorted(grant.scopes), book.is_live(grant)) == ("source app", ["ingest", "read"], True)
    assert not book.is_required, "it is no token that others would need, too"
    assert not (tmp_path / "tokens.json").exists()
    made(tmp_path, Clock(), "admin")
    book.refresh()
    assert book.is_live(grant)
    with pytest.raises(Unauthorized):
        TokenBook(tmp_path, Clock()).recognise(text)


def test_a_revoked_token_is_refused_in_the_same_words_as_one_that_never_was(tmp_path: Path) -> None:
    clock = Clock()
    text = made(tmp_path, clock, "read")
    book = TokenBook(tmp_path, clock)
    grant = book.recognise(text)
    TokenFile(tmp_path).revoke("x", clock())
    assert book.refresh()
    with pytest.raises(Unauthorized, match="not valid"):
        book.recognise(text)
    assert not book.is_live(grant)


def test_after_the_last_token_is_revoked_nobody_gets_in(tmp_path: Path) -> None:
    clock = Clock()
    book = TokenBook(tmp_path, clock)
    assert (book.is_required, book.is_live(NOBODY_YET)) == (False, True)
    made(tmp_path, clock, "read")
    TokenFile(tmp_path).revoke("x", clock())
    book.refresh()
    assert (book.is_required, book.is_live(NOBODY_YET)) == (True, False)
    with pytest.raises(InvalidInput, match="last one"):
        TokenFile(tmp_path).revoke(TokenFile(tmp_path).read()[0].id, clock(), forgets=True)


def test_a_token_ends_at_its_expiry(tmp_path: Path) -> None:
    clock = Clock()
    text = made(tmp_path, clock, "read", expires_ms=clock() + HOUR_MS)
    book = TokenBook(tmp_path, clock)
    grant = book.recognise(text)
    clock.now_ms += HOUR_MS
    with pytest.raises(Unauthorized, match="expired"):
        book.recognise(text)
    assert not book.is_live(grant)


def test_write_includes_read_and_admin_everything_and_ingest_nothing_else(tmp_path: Path) -> None:
    clock, expected = (
        Clock(),
        {"ingest": "ingest", "read": "read", "write": "read write", "admin": "admin ingest read write"},
    )
    for scope, granted in expected.items():
        token, _ = mint("x", [scope], [], [], now_ms=clock(), expires_ms=None)
        assert " ".join(sorted(token.grant().scopes)) == granted


def test_an_access_token_ends_with_its_token_and_never_has_more(tmp_path: Path) -> None:
    clock = Clock()
    text = made(tmp_path, clock, "write", namespaces=("a",), expires_ms=clock() + 2 * HOUR_MS)
    book = TokenBook(tmp_path, clock)
    access, lifetime_ms = book.access(book.recognise(text), HOUR_MS, ("read",))
    assert lifetime_ms == HOUR_MS
    grant = book.recognise(access)
    assert (set(grant.scopes), grant.namespaces) == ({"read"}, (("a",),))
    wide, _ = book.access(grant, 9 * HOUR_MS, ("admin",))
    assert book.recognise(wide).scopes == {"read", "write"}
    assert book.recognise(wide).expires_ms == clock() + 2 * HOUR_MS
    TokenFile(tmp_path).revoke("x", clock())
    book.refresh()
    with pytest.raises(Unauthorized):
        book.recognise(access)


def test_what_an_access_token_granted_ends_with_it_and_the_token_goes_on(tmp_path: Path) -> None:
    """A subscription keeps its grant for as long as it is live."""
    clock = Clock()
    text = made(tmp_path, clock, "read", expires_ms=clock() + 2 * HOUR_MS)
    book = TokenBook(tmp_path, clock)
    access, _ = book.access(book.recognise(text), HOUR_MS, ("read",))
    grant = book.recognise(access)
    assert grant.expires_ms == clock() + HOUR_MS
    clock.move(HOUR_MS - 1)
    assert book.is_live(grant)
    assert book.recognise(access) == grant
    clock.move(1)
    assert not book.is_live(grant)
    with pytest.raises(Unauthorized, match="expired"):
        book.recognise(access)
    assert book.is_live(book.recognise(text))
    assert book.access(book.recognise(text), 9 * HOUR_MS, ("read",))[1] == HOUR_MS


@given(st.binary(min_size=1, max_size=200), st.integers(0, 400), st.integers(1, 255))
def test_an_access_token_that_was_changed_is_none(key: bytes, place: int, change: int) -> None:
    text = sign(Access("abcdefghijkl", 2**50, ("admin",)), key)
    place %= len(text)
    changed = text[:place] + chr(ord(text[place]) ^ change) + text[place + 1 :]
    if changed.startswith("dolake-access."):
        assert read_access(changed, key) is None
    assert read_access(text, key + b"x") is None


def test_credentials_are_the_parts_of_a_token_or_all_of_it(tmp_path: Path) -> None:
    text = made(tmp_path, Clock(), "read")
    _, id_, secret = text.split("_", 2)
    assert credential(id_, secret) == credential("", text) == credential(id_, text) == text
    with pytest.raises(Unauthorized):
        credential("somebody0000", text)


def test_a_namespace_stands_for_itself_and_what_is_below_it() -> None:
    grant = Grant("1", "x", namespaces=(("a", "b"), ("c",)))
    for seen in (("a", "b"), ("a", "b", "x"), ("c",), ("c", "d")):
        assert grant.sees(seen)
    for hidden in ((), ("a",), ("a", "bb"), ("a.b",), ("cc",), ("C",), ("d", "c")):
        assert not grant.sees(hidden)
    assert grant.passes(("a",))
    assert not grant.passes(("b",))
    assert [grant.sees_table(name) for name in ("a.b.t", "c.t", "a.t", "t", "default.t")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert Grant("1", "x", namespaces=(("default",),)).sees_table("orders")


def test_a_source_is_a_name_or_a_beginning_and_shown_only_to_who_names_it() -> None:
    grant = Grant("1", "x", namespaces=(("a",),), sources=("shop-*", "till"))
    assert [grant.speaks_as(name) for name in ("shop-1", "shop-", "till", "till-1", "shop")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    anyone = Grant("1", "x", namespaces=(("a",),))
    assert anyone.speaks_as("till")
    assert not anyone.knows_source("till")
    assert EVERYTHING.knows_source("till")


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(
    st.lists(st.lists(names, min_size=1, max_size=3).map(tuple), max_size=3), st.none() | st.lists(names, max_size=3)
)
def test_a_grant_reaches_the_query_process_as_it_is(
    namespaces: list[tuple[str, ...]], sources: list[str] | None
) -> None:
    grant = Grant("1", "1", frozenset(("read",)), tuple(namespaces), None if sources is None else tuple(sources))
    header = to_header(grant)
    assert header.isascii()
    assert "\n" not in header
    assert from_header(header) == grant


@pytest.mark.parametrize("namespace", ["", "a..b", "a/b", "a:b", "a\n", "..", "a%", "x" * 200, "a.b.c.d.e"])
def test_a_namespace_whose_folder_would_not_be_its_name_is_refused(namespace: str) -> None:
    with pytest.raises(InvalidInput):
        mint("x", ["read"], [namespace], [], now_ms=0, expires_ms=None)


def test_a_token_that_is_not_there_cannot_be_revoked_and_a_name_must_be_clear(tmp_path: Path) -> None:
    clock = Clock()
    with pytest.raises(NotFound):
        TokenFile(tmp_path).revoke("x", clock())
    made(tmp_path, clock, "read")
    made(tmp_path, clock, "read")
    with pytest.raises(InvalidInput, match="2 tokens"):
        TokenFile(tmp_path).revoke("x", clock())


def test_a_name_is_clear_where_all_others_that_have_it_are_revoked(tmp_path: Path) -> None:
    clock, file = Clock(), TokenFile(tmp_path)
    for _ in range(3):
        made(tmp_path, clock, "read")
        file.revoke("x", clock())
    assert [each.revoked_ms for each in file.read()] == [clock()] * 3
    with pytest.raises(NotFound):
        file.revoke("x", clock())


def test_tokens_that_are_added_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        texts = list(threads.map(lambda number: made(tmp_path, Clock(), "read", name=str(number)), range(40)))
    book = TokenBook(tmp_path, Clock())
    assert [book.recognise(text).name for text in texts] == list(map(str, range(40)))


def test_a_key_that_others_can_read_is_its_owners_alone_again_when_it_is_used(tmp_path: Path) -> None:
    key = TokenFile(tmp_path).key()
    (tmp_path / "tokens.key").chmod(0o644)
    assert TokenFile(tmp_path).key() == key
    assert stat.S_IMODE((tmp_path / "tokens.key").stat().st_mode) == 0o600


def test_an_administrator_is_one_of_the_whole_lake() -> None:
    assert Grant("1", "x").is_administrator
    assert not Grant("1", "x", namespaces=(("shop",),)).is_administrator
    assert not Grant("1", "x", frozenset({"write"})).is_administrator


def test_failures_of_one_address_wait_longer_and_are_forgotten_after_a_minute() -> None:
    failures = Failures()
    waits = [failures.note("10.0.0.1", float(n)) for n in range(10)]
    assert waits == sorted(waits)
    assert waits[0] < 0.1
    assert waits[-1] == DELAY_MAX_S
    assert failures.note("10.0.0.2", 10.0) == waits[0]
    assert failures.note("10.0.0.1", 100.0) == waits[0]


def test_failures_from_many_addresses_take_bounded_memory_and_never_hold_too_many() -> None:
    failures = Failures()
    for n in range(20_000):
        failures.note(str(n), 0.0)
    assert len(failures._rows) <= 10_000
    failures.waiting = 1_000
    assert failures.note("x", 0.0) == 0.0


def test_a_file_that_cannot_be_read_lets_nobody_in(tmp_path: Path) -> None:
    clock = Clock()
    text = made(tmp_path, clock, "read")
    book = TokenBook(tmp_path, clock)
    (tmp_path / "tokens.json").write_text(json.dumps({"version": 1, "tokens": [{}]}))
    with pytest.raises(Exception, match="cannot be read"):
        book.refresh()
    assert book.is_required
    assert book.recognise(text)


def test_a_file_that_is_gone_opens_no_door_while_the_server_runs(tmp_path: Path) -> None:
    clock = Clock()
    made(tmp_path, clock, "read")
    book = TokenBook(tmp_path, clock)
    (tmp_path / "tokens.json").unlink()
    assert book.refresh()
    assert (book.is_required, book.is_live(NOBODY_YET)) == (True, False)
