"""Who may write what: sizes, fallback, and table names that differ only in case."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dolake.changes import StreamId
from dolake.errors import BufferOverflowError, MessageValidationError
from dolake.positions import CircuitBreakerState
from dolake.receiver.admission import (
    TableRegistry,
    TooLarge,
    check_event_sizes,
    check_fallback,
    check_fits_journal,
    check_source,
    raise_if_refused,
)
from dolake.receiver.limiter import RateLimiter
from dolake.settings import DoLakeConfig, JournalSettings, RateLimitConfig
from dolake.wire.messages import BatchMessage, EnvelopeBatch, check_events, decode_received
from tests.support.speaker import batch, event


def decoded(*tables: str) -> EnvelopeBatch:
    events = [event(sequence, table=table) for sequence, table in enumerate(tables, 1)]
    message = decode_received(json.dumps(batch(1, events)).encode())
    assert isinstance(message, BatchMessage)
    return message


def admit(registry: TableRegistry, *tables: str) -> None:
    message = decoded(*tables)
    registry.check(check_events(message), message)


# --- sizes -----------------------------------------------------------------------------------------------------------


def test_a_message_that_could_never_fit_into_the_journal_is_too_large() -> None:
    with pytest.raises(TooLarge, match=r"half of journal\.size_max_bytes") as refusal:
        check_fits_journal(b"x" * 100_001, JournalSettings(size_max_bytes=200_000))
    assert refusal.value.size_max == 100_000


def test_a_message_of_exactly_the_limit_is_taken() -> None:
    check_fits_journal(b"x" * 100_000, JournalSettings(size_max_bytes=200_000))


def test_a_larger_message_is_refused_with_both_numbers() -> None:
    limiter = RateLimiter(RateLimitConfig(max_payload_size=100), clock_ms=lambda: 0)
    limiter.admit_connection("it", "127.0.0.1")
    raise_if_refused(limiter.admit_message("it", 100))
    with pytest.raises(TooLarge, match="101 bytes, more than max_payload_size 100") as caught:
        raise_if_refused(limiter.admit_message("it", 101))
    assert caught.value.size_max == 100
    assert not caught.value.is_event
    assert not caught.value.retryable
    assert "split" in caught.value.hint


def of_size(sequence: int, size: int) -> dict[str, Any]:
    """An event that takes exactly this many bytes as JSON."""
    bare = event(sequence, after={"pad": ""})
    return bare | {"after": {"pad": "x" * (size - len(json.dumps(bare)))}}


def test_an_event_of_exactly_the_limit_is_taken() -> None:
    data = json.dumps(batch(1, [of_size(1, 500), of_size(2, 500)])).encode()
    check_event_sizes(data, RateLimitConfig(max_event_size=500))


def test_a_larger_event_is_refused_with_its_index() -> None:
    data = json.dumps(batch(1, [of_size(1, 400), of_size(2, 501)])).encode()
    with pytest.raises(TooLarge, match=r"events\[1\] has 501 bytes, more than max_event_size 500") as caught:
        check_event_sizes(data, RateLimitConfig(max_event_size=500))
    assert caught.value.size_max == 500
    assert caught.value.is_event


# --- fallback --------------------------------------------------------------------------------------------------------


def test_while_publishing_works_fallback_settings_do_not_matter() -> None:
    check_fallback("closed", 10**9, DoLakeConfig(enable_fallback=False, max_fallback_size=0))


@pytest.mark.parametrize("breaker", ["open", "half-open"])
def test_while_publishing_fails_the_journal_takes_changes_up_to_the_fallback_size(breaker: CircuitBreakerState) -> None:
    check_fallback(breaker, 99, DoLakeConfig(max_fallback_size=100))
    with pytest.raises(BufferOverflowError, match="100 bytes") as caught:
        check_fallback(breaker, 100, DoLakeConfig(max_fallback_size=100))
    assert "max_fallback_size" in caught.value.hint
    assert caught.value.retryable


@pytest.mark.parametrize("breaker", ["open", "half-open"])
def test_without_fallback_changes_are_refused_while_publishing_fails(breaker: CircuitBreakerState) -> None:
    with pytest.raises(BufferOverflowError, match="enable_fallback is false"):
        check_fallback(breaker, 0, DoLakeConfig(enable_fallback=False))


# --- table names -----------------------------------------------------------------------------------------------------


def test_a_table_may_be_named_again() -> None:
    registry = TableRegistry([], 10)
    admit(registry, "orders", "users")
    admit(registry, "users", "orders")
    assert len(registry) == 2


def test_a_name_that_differs_only_in_case_is_refused_with_index_and_both_names() -> None:
    registry = TableRegistry([], 10)
    admit(registry, "Orders")
    with pytest.raises(MessageValidationError, match=r"'orders' differs only in case from 'default\.Orders'") as caught:
        admit(registry, "users", "users", "orders")
    assert caught.value.path == "$.events[2].table"


@pytest.mark.parametrize("other", ["SHOP.orders", "shop.ORDERS", "Shop.Orders"])
def test_namespaces_collide_by_case_too(other: str) -> None:
    registry = TableRegistry(["shop.orders"], 10)
    with pytest.raises(MessageValidationError, match="differs only in case"):
        admit(registry, other)


def test_a_bare_name_and_the_default_namespace_are_one_table() -> None:
    registry = TableRegistry(["orders"], 10)
    admit(registry, "default.orders")
    assert len(registry) == 1
    with pytest.raises(MessageValidationError, match="differs only in case"):
        admit(registry, "default.Orders")


def test_equal_tables_of_two_namespaces_do_not_collide() -> None:
    registry = TableRegistry([], 10)
    admit(registry, "eu.orders", "us.orders", "orders")
    assert len(registry) == 3


def test_two_spellings_in_one_batch_are_refused() -> None:
    with pytest.raises(MessageValidationError, match="differs only in case"):
        admit(TableRegistry([], 10), "orders", "ORDERS")


def test_a_refused_batch_makes_no_table_known() -> None:
    registry = TableRegistry(["users"], 10)
    with pytest.raises(MessageValidationError):
        admit(registry, "Orders", "Users")
    assert len(registry) == 1
    admit(registry, "orders")


def test_there_is_a_most_of_tables() -> None:
    registry = TableRegistry(["a"], 2)
    admit(registry, "b")
    with pytest.raises(MessageValidationError, match=r"number 3; server\.tables_max is 2") as caught:
        admit(registry, "a", "c")
    assert caught.value.path == "$.events[1].table"
    admit(registry, "a", "b")


def test_a_batch_that_would_pass_the_limit_half_way_makes_no_table_known() -> None:
    registry = TableRegistry([], 1)
    with pytest.raises(MessageValidationError):
        admit(registry, "a", "b")
    admit(registry, "b")


def test_another_spelling_of_a_known_table_is_no_further_table() -> None:
    registry = TableRegistry(["a", "b"], 2)
    admit(registry, "default.a", "default.b")
    assert len(registry) == 2


def test_the_most_of_tables_can_be_raised_while_running() -> None:
    registry = TableRegistry(["a"], 1)
    registry.tables_max = 2
    admit(registry, "b")


def test_tables_known_from_the_journal_count() -> None:
    registry = TableRegistry(["Orders", "default.users"], 10)
    assert len(registry) == 2
    admit(registry, "users")
    with pytest.raises(MessageValidationError, match="differs only in case"):
        admit(registry, "orders")


def test_namespaces_that_differ_only_in_case_are_refused() -> None:
    registry = TableRegistry(["shop.orders"], 10)
    with pytest.raises(MessageValidationError, match="namespace that differs only in case from 'shop'"):
        admit(registry, "Shop.users")
    admit(registry, "shop.users", "shop.eu.orders")
    with pytest.raises(MessageValidationError, match=r"namespace that differs only in case from 'shop\.eu'"):
        admit(registry, "shop.EU.users")


def test_a_name_of_a_batch_that_was_not_kept_is_forgotten() -> None:
    registry = TableRegistry(["users"], 2)
    message = decoded("Orders", "users")
    registry.release(registry.check(check_events(message), message))
    assert len(registry) == 1
    admit(registry, "orders")


def test_a_name_that_another_batch_made_durable_is_never_forgotten() -> None:
    registry = TableRegistry([], 10)
    message = decoded("Tab")
    first = registry.check(check_events(message), message)
    second = registry.check(check_events(message), message)
    registry.confirm(second)
    registry.release(first)
    with pytest.raises(MessageValidationError, match="differs only in case"):
        admit(registry, "TAB")


def test_a_name_is_held_until_the_last_batch_that_brought_it_is_refused() -> None:
    registry = TableRegistry([], 10)
    message = decoded("shop.Tab")
    first = registry.check(check_events(message), message)
    second = registry.check(check_events(message), message)
    registry.release(first)
    with pytest.raises(MessageValidationError, match="differs only in case"):
        admit(registry, "shop.TAB")
    registry.release(second)
    assert len(registry) == 0
    admit(registry, "SHOP.TAB")


def test_a_namespace_that_another_table_has_stays_known_when_a_batch_is_not_kept() -> None:
    registry = TableRegistry(["shop.users"], 10)
    message = decoded("shop.orders")
    registry.release(registry.check(check_events(message), message))
    with pytest.raises(MessageValidationError, match="differs only in case"):
        admit(registry, "Shop.orders")
    admit(registry, "shop.orders")


# --- sources ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["dolake.", "dolake.rollback"])
def test_a_source_may_not_be_called_as_one_of_ours(source: str) -> None:
    with pytest.raises(MessageValidationError, match="kept for DoLake itself") as caught:
        check_source(StreamId(source))
    assert caught.value.path == "$.sourceDoId"


@pytest.mark.parametrize("source", ["dolake", "shop", "my.dolake."])
def test_any_other_name_is_a_sources_own_choice(source: str) -> None:
    check_source(StreamId(source))
