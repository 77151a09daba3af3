"""What a catalog in Postgres does that a file has no need for: lost connections, several servers, one schema."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from dolake.catalog.base import Create, Move, Name, Publish, Remember
from dolake.catalog.errors import CommitConflict, StaleGeneration
from dolake.catalog.postgres import PostgresStore
from dolake.catalog.postgres_links import Links
from dolake.errors import Conflict, Damaged, InvalidInput, OutcomeUnknown, Unavailable
from tests.support.cutting_proxy import Cut, CuttingProxy
from tests.support.postgres import PostgresServer

SHOP = ("shop",)
ORDERS = Name(SHOP, "orders")
COMMIT = b"; COMMIT"


@pytest.fixture
def schema(postgres: PostgresServer) -> str:
    return postgres.new_schema()


@pytest.fixture
def store(postgres: PostgresServer, schema: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres.url, schema)) as opened:
        yield opened


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[CuttingProxy]:
    with CuttingProxy(postgres.port) as proxy:
        yield proxy


@pytest.fixture
def behind(proxy: CuttingProxy, store: PostgresStore, schema: str) -> Iterator[PostgresStore]:
    """A second server's store, behind a network that can fail; `shop.orders` is at version 1."""
    store.create_namespace(SHOP, {})
    store.commit([Create(ORDERS, "table", "uuid-orders", "m1")])
    with closing(PostgresStore(f"postgresql://dolake@127.0.0.1:{proxy.port}/postgres", schema)) as opened:
        yield opened


# --- the network ----------------------------------------------------------------------------------------------------


def test_a_connection_that_was_ended_between_two_calls_is_made_anew(
    store: PostgresStore, postgres: PostgresServer
) -> None:
    store.create_namespace(SHOP, {"a": "1"})
    assert postgres.end_links() > 0
    assert store.namespace_properties(SHOP) == {"a": "1"}
    assert postgres.end_links() > 0
    store.commit([Create(ORDERS, "table", "uuid-orders", "m1")])
    assert store.find(ORDERS, "table").version == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_whose_answer_was_lost_happens_once(
    behind: PostgresStore, store: PostgresStore, proxy: CuttingProxy, when: Cut
) -> None:
    proxy.cut_at(COMMIT, when)
    behind.commit([Move(ORDERS, "table", 1, "m2")])
    assert proxy.cut_count == 1
    found = store.find(ORDERS, "table")
    assert (found.version, found.metadata_location) == (2, "m2")


def test_a_commit_that_nobody_can_be_asked_about_has_an_unknown_outcome(
    behind: PostgresStore, store: PostgresStore, proxy: CuttingProxy
) -> None:
    proxy.cut_at(COMMIT, "after", then_refuse=True)
    with pytest.raises(OutcomeUnknown, match="load the table, then decide"):
        behind.commit([Move(ORDERS, "table", 1, "m2")])
    assert store.find(ORDERS, "table").version == 2
    proxy.refuse(False)
    assert behind.find(ORDERS, "table").version == 2


def test_without_postgres_every_call_is_unavailable_and_says_where_it_should_be(
    behind: PostgresStore, proxy: CuttingProxy
) -> None:
    proxy.refuse()
    with pytest.raises(Unavailable, match=rf"Postgres at 127\.0\.0\.1:{proxy.port}/postgres .* is not reached"):
        behind.commit([Move(ORDERS, "table", 1, "m2")])
    began_s = time.monotonic()
    with pytest.raises(Unavailable):  # who comes next does not wait as long
        behind.published()
    assert time.monotonic() - began_s < 2
    proxy.refuse(False)
    behind.commit([Move(ORDERS, "table", 1, "m2")])
    assert behind.find(ORDERS, "table").version == 2


def test_a_commit_that_was_cut_again_and_again_changed_nothing(
    behind: PostgresStore, store: PostgresStore, proxy: CuttingProxy
) -> None:
    proxy.cut_at(COMMIT, "before", times=100)
    with pytest.raises(Unavailable, match="nothing was changed"):
        behind.commit([Move(ORDERS, "table", 1, "m2")])
    assert store.find(ORDERS, "table").version == 1


def test_a_moment_that_was_cut_is_read_again(behind: PostgresStore, proxy: CuttingProxy) -> None:
    proxy.cut_at(b"REPEATABLE READ", "before")
    pointers, _ = behind.snapshot(None)
    assert [pointer.name for pointer in pointers] == [ORDERS]
    assert proxy.cut_count == 1


def test_more_threads_than_connections_wait_for_their_turn(store: PostgresStore) -> None:
    store.create_namespace(SHOP, {})
    names = [Name(SHOP, f"t{number}") for number in range(40)]
    with ThreadPoolExecutor(40) as threads:
        list(threads.map(lambda name: store.commit([Create(name, "table", str(name), "m1")]), names))
    assert len(store.pointers()) == 40


# --- several servers ------------------------------------------------------------------------------------------------


def test_two_servers_that_start_at_once_make_one_schema(postgres: PostgresServer, schema: str) -> None:
    ready = threading.Barrier(4)

    def start(number: int) -> None:
        ready.wait()
        with closing(PostgresStore(postgres.url, schema)) as opened:
            opened.create_namespace((f"n{number}",), {})

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(start, range(4)))
    with closing(PostgresStore(postgres.url, schema)) as opened:
        assert opened.list_namespaces((), None, None).items == ["n0", "n1", "n2", "n3"]
    assert postgres.ask(f"SELECT version FROM {schema}.version") == [(1,)]  # noqa: S608


def test_the_generation_of_one_server_fences_the_pipeline_of_another(
    store: PostgresStore, postgres: PostgresServer, schema: str
) -> None:
    with closing(PostgresStore(postgres.url, schema)) as other:
        store.create_namespace(SHOP, {})
        old = store.begin_generation().generation
        new = other.begin_generation().generation
        with pytest.raises(StaleGeneration, match=f"generation {old} was replaced by {new}"):
            store.commit([Create(ORDERS, "table", "u", "m1")], Publish(0, 1, old, 1))
        other.commit([Create(ORDERS, "table", "u", "m1")], Publish(0, 5, new, 1))
        with pytest.raises(CommitConflict, match="the lake is at 5"):
            other.commit([Move(ORDERS, "table", 1, "m2")], Publish(0, 9, new, 1))
        assert store.published().position == 5
        assert store.find(ORDERS, "table").version == 1


def test_a_lake_belongs_to_the_journal_of_the_first_server_with_a_pipeline(
    store: PostgresStore, postgres: PostgresServer, schema: str
) -> None:
    with closing(PostgresStore(postgres.url, schema)) as other:
        assert other.claim("looks on", 0, has_pipeline=False) == "looks on"
        assert store.claim("writes", 0, has_pipeline=True) == "writes"
        assert other.claim("late", 100, has_pipeline=True) == "writes"
        store.begin_generation()
        assert other.claim("late", 100, has_pipeline=True) == "writes"
        with pytest.raises(StaleGeneration):
            other.begin_generation()
        store.begin_generation()


def test_a_journal_that_ends_before_the_published_row_does_not_make_the_lake_its_own(store: PostgresStore) -> None:
    store.commit([], Publish(0, 10, 0, 1))
    assert store.claim("short", 9, has_pipeline=True) == ""
    assert store.claim("long", 10, has_pipeline=True) == "long"


def test_of_two_servers_on_copies_of_one_journal_the_older_begins_no_generation_any_more(
    store: PostgresStore, postgres: PostgresServer, schema: str
) -> None:
    with closing(PostgresStore(postgres.url, schema)) as copy:
        assert store.claim("same", 0, has_pipeline=True) == "same"
        store.begin_generation()
        assert copy.claim("same", 0, has_pipeline=True) == "same"
        with pytest.raises(StaleGeneration, match="another server has taken this lake over"):
            store.begin_generation()
        copy.begin_generation()


def test_a_request_that_two_servers_got_is_done_by_one(
    store: PostgresStore, postgres: PostgresServer, schema: str
) -> None:
    with closing(PostgresStore(postgres.url, schema)) as other:
        store.create_namespace(SHOP, {})
        store.commit([Create(ORDERS, "table", "u", "m1")], None, Remember("k", 200, 200, now_ms=100))
        with pytest.raises(Unavailable, match="ask again with the same key"):
            other.commit([Move(ORDERS, "table", 1, "m2")], None, Remember("k", 250, 200, now_ms=150))
        assert other.find(ORDERS, "table").version == 1
        other.commit([Move(ORDERS, "table", 1, "m2")], None, Remember("k", 400, 200, now_ms=300))  # the first is over


def test_a_namespace_is_not_dropped_while_another_server_fills_it(
    store: PostgresStore, postgres: PostgresServer, schema: str
) -> None:
    """Either the table is in a namespace that stays, or there is neither."""
    with closing(PostgresStore(postgres.url, schema)) as other, ThreadPoolExecutor(2) as threads:
        for number in range(20):
            namespace = (f"n{number}",)
            store.create_namespace(namespace, {})
            creating = threads.submit(store.commit, [Create(Name(namespace, "t"), "table", f"u{number}", "m1")])
            dropping = threads.submit(other.drop_namespace, namespace)
            outcomes = [creating.exception(), dropping.exception()]
            assert sum(outcome is None for outcome in outcomes) == 1, outcomes
            assert len(store.pointers()) == sum(1 for _ in store.list_namespaces((), None, None).items)


# --- the schema, and what is said -----------------------------------------------------------------------------------


def test_a_schema_of_a_newer_release_is_refused(store: PostgresStore, postgres: PostgresServer, schema: str) -> None:
    postgres.ask(f"INSERT INTO {schema}.version VALUES (99)")  # noqa: S608
    with pytest.raises(Damaged, match="catalog version 99"):
        PostgresStore(postgres.url, schema)


def test_names_sort_by_their_bytes_whatever_the_database_speaks(store: PostgresStore) -> None:
    for name in ("b", "B", "a", "Z", "ä", "_"):
        store.create_namespace((name,), {})
    assert store.list_namespaces((), None, None).items == ["B", "Z", "_", "a", "b", "ä"]


def test_names_of_transactions_are_kept_for_a_day(store: PostgresStore, postgres: PostgresServer, schema: str) -> None:
    store.create_namespace(SHOP, {})
    postgres.ask(f"INSERT INTO {schema}.transactions VALUES ('old', false, now() - interval '25 hours')")  # noqa: S608
    postgres.ask(f"INSERT INTO {schema}.transactions VALUES ('young', false, now() - interval '23 hours')")  # noqa: S608
    with closing(PostgresStore(postgres.url, schema)) as opened:
        opened.create_namespace(("other",), {})
    kept = [name for (name,) in postgres.ask(f"SELECT name FROM {schema}.transactions")]  # noqa: S608
    assert "old" not in kept
    assert "young" in kept
    assert len(kept) == 3


def test_a_schema_may_have_the_name_of_a_word_of_sql(postgres: PostgresServer) -> None:
    with closing(PostgresStore(postgres.url, "user")) as store:
        store.create_namespace(SHOP, {})


def test_what_postgres_cannot_keep_is_the_callers_mistake(store: PostgresStore) -> None:
    with pytest.raises(InvalidInput, match="cannot keep this"):
        store.create_namespace(("a\0b",), {})
    store.create_namespace(SHOP, {"nul": "\0"})
    assert store.namespace_properties(SHOP) == {"nul": "\0"}


def test_an_address_that_cannot_be_read_is_refused_without_its_password() -> None:
    with pytest.raises(InvalidInput) as refused:
        PostgresStore("postgresql://ann:s3cr%zzet@host/db")
    assert "s3cr" not in str(refused.value)


def test_a_commit_is_durable_also_where_the_database_would_forget_it(postgres: PostgresServer, schema: str) -> None:
    links = Links(f"{postgres.url}?options=-csynchronous_commit%3Doff", schema)
    with closing(links), links.borrow() as link:
        assert link.execute("SHOW synchronous_commit").fetchone() == ("on",)


def test_a_catalog_that_has_left_takes_no_changes_from_anybody(
    store: PostgresStore, postgres: PostgresServer, schema: str
) -> None:
    with closing(PostgresStore(postgres.url, schema)) as other:
        store.let_go("", lambda _run: None)
        with pytest.raises(Conflict, match="the catalog has left"):
            other.create_namespace(SHOP, {})
