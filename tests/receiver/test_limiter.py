"""What one client may ask, decided by numbers and a clock alone."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dolake.receiver import RateLimiter
from dolake.receiver.limiter import GOOD_AFTER_MS, TOKEN_BYTES
from dolake.settings import RateLimitConfig
from tests.support.clock import Clock

HERE = "203.0.113.5"


def limiter_of(clock: Clock, **limits: Any) -> RateLimiter:
    return RateLimiter(RateLimitConfig(whitelisted_ips=(), **limits), clock_ms=clock)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def sent(limiter: RateLimiter, count: int, connection: object = "it", size: int = 100) -> int:
    """How many of so many messages are allowed."""
    return sum(limiter.admit_message(connection, size).allowed for _ in range(count))


# --- messages --------------------------------------------------------------------------------------------------------


def test_a_burst_is_taken_and_then_what_is_refilled(clock: Clock) -> None:
    limiter = limiter_of(clock)
    assert limiter.admit_connection("it", HERE).allowed
    assert sent(limiter, 80) == 50
    clock.now_ms += 1000
    assert sent(limiter, 80) == 10
    clock.now_ms += 60_000
    assert sent(limiter, 80) == 50


def test_messages_per_second_wins_where_it_is_the_smaller_limit(clock: Clock) -> None:
    limiter = limiter_of(clock, messages_per_second=20, burst_capacity=1000, refill_rate=1000)
    limiter.admit_connection("it", HERE)
    assert sent(limiter, 100) == 20
    clock.now_ms += 500
    assert sent(limiter, 100) == 10


def test_each_connection_has_a_bucket_of_its_own(clock: Clock) -> None:
    limiter = limiter_of(clock)
    limiter.admit_connection("one", HERE)
    limiter.admit_connection("two", HERE)
    assert sent(limiter, 80, "one") == 50
    assert sent(limiter, 80, "two") == 50


def test_a_refusal_says_why_and_when_to_come_again(clock: Clock) -> None:
    limiter = limiter_of(clock)
    limiter.admit_connection("it", HERE)
    sent(limiter, 50)
    refused = limiter.admit_message("it", 100)
    assert (refused.allowed, refused.reason, refused.retry_delay_ms) == (False, "rate_limited", 100)
    assert (refused.remaining_tokens, refused.bucket_capacity) == (0, 50)
    clock.now_ms += 100
    assert limiter.admit_message("it", 100).allowed


def test_the_budget_is_what_acks_tell(clock: Clock) -> None:
    limiter = limiter_of(clock)
    limiter.admit_connection("it", HERE)
    sent(limiter, 10)
    budget = limiter.budget("it")
    assert budget is not None
    assert budget.rate_limit is not None
    assert (budget.remaining_tokens, budget.bucket_capacity) == (40, 50)
    assert (budget.rate_limit.limit, budget.rate_limit.remaining) == (100, 40)
    assert budget.rate_limit.reset_at == 1_763_000_001  # ten tokens at ten a second


def test_a_large_message_takes_as_many_tokens_as_it_has_mebibytes(clock: Clock) -> None:
    limiter = limiter_of(clock)
    limiter.admit_connection("it", HERE)
    assert sent(limiter, 80, size=4 * TOKEN_BYTES) == 10


def test_a_message_that_is_larger_than_a_whole_bucket_can_still_be_sent(clock: Clock) -> None:
    limiter = limiter_of(clock, burst_capacity=2, refill_rate=1)
    limiter.admit_connection("it", HERE)
    assert sent(limiter, 5, size=4 * TOKEN_BYTES) == 1
    clock.now_ms += 2_000
    assert sent(limiter, 5, size=4 * TOKEN_BYTES) == 1


def test_messages_that_are_too_large_cost_tokens_too(clock: Clock) -> None:
    limiter = limiter_of(clock, max_payload_size=1000, max_event_size=1000)
    limiter.admit_connection("it", HERE)
    results = [limiter.admit_message("it", 1001) for _ in range(60)]
    assert [result.reason for result in results] == ["payload_too_large"] * 50 + ["rate_limited"] * 10
    assert results[0].max_size == 1000


@given(
    st.integers(1, 50),
    st.integers(1, 50),
    st.integers(1, 50),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 60)), max_size=8),
)
def test_nobody_gets_more_than_a_burst_and_the_rate(
    rate: int, burst: int, refill: int, steps: list[tuple[int, int]]
) -> None:
    clock = Clock()
    limiter = limiter_of(clock, messages_per_second=rate, burst_capacity=burst, refill_rate=refill)
    limiter.admit_connection("it", HERE)
    taken = passed_ms = 0
    for wait_ms, count in steps:
        clock.now_ms += wait_ms
        passed_ms += wait_ms
        taken += sent(limiter, count)
        assert taken <= burst + refill * passed_ms / 1000 + 1e-6
        assert taken <= rate + rate * passed_ms / 1000 + 1e-6


def test_a_clock_that_is_set_back_neither_gives_nor_takes(clock: Clock) -> None:
    limiter = limiter_of(clock)
    limiter.admit_connection("it", HERE)
    assert sent(limiter, 20) == 20
    clock.now_ms -= 3_600_000
    assert sent(limiter, 80) == 30
    clock.now_ms += 1_000
    assert sent(limiter, 80) == 10


# --- connections -----------------------------------------------------------------------------------------------------


def test_new_connections_of_an_address_come_at_a_rate(clock: Clock) -> None:
    limiter = limiter_of(clock, connections_per_second=3)
    results = [limiter.admit_connection(number, HERE) for number in range(5)]
    assert [result.reason for result in results] == [None, None, None, "rate_limited", "rate_limited"]
    assert limiter.admit_connection("other", "198.51.100.9").allowed, "nobody else is hurt"
    clock.now_ms += 1000
    assert limiter.admit_connection("later", HERE).allowed


def test_delays_double_with_each_refusal_in_a_row(clock: Clock) -> None:
    limiter = limiter_of(clock, max_connections_per_ip=1, max_retry_delay_ms=700)
    assert limiter.admit_connection("it", HERE).allowed
    delays = [limiter.admit_connection(number, HERE).retry_delay_ms for number in range(5)]
    assert delays == [100, 200, 400, 700, 700]
    limiter.release("it")
    clock.now_ms += 1000
    assert limiter.admit_connection("it", HERE).allowed
    assert limiter.admit_connection("more", HERE).retry_delay_ms == 100


def test_an_address_has_so_many_connections_at_a_time(clock: Clock) -> None:
    limiter = limiter_of(clock, connections_per_second=1000, max_connections_per_ip=2)
    assert limiter.admit_connection(1, HERE).allowed
    assert limiter.admit_connection(2, HERE).allowed
    refused = limiter.admit_connection(3, HERE)
    assert (refused.reason, HERE in refused.message) == ("ip_limit", True)
    limiter.release(1)
    assert limiter.admit_connection(4, HERE).allowed


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        (["192.0.2.1", "192.0.2.2", "192.0.2.3"], "192.0.3.1"),
        (["2001:db8::1", "2001:db8::2", "2001:db8::3"], "2001:db8:0:1::1"),
    ],
)
def test_a_network_has_so_many_connections_at_a_time(clock: Clock, inside: list[str], outside: str) -> None:
    limiter = limiter_of(clock, subnet_rate_limit_threshold=2)
    results = [limiter.admit_connection(address, address) for address in inside]
    assert [result.reason for result in results] == [None, None, "ip_limit"]
    assert limiter.admit_connection("outside", outside).allowed


def test_a_connection_that_ends_frees_its_place_in_the_network(clock: Clock) -> None:
    limiter = limiter_of(clock, subnet_rate_limit_threshold=2)
    one, two, three, four = (f"192.0.2.{number}" for number in range(1, 5))
    assert limiter.admit_connection(one, one).allowed
    assert limiter.admit_connection(two, two).allowed
    limiter.release(one)
    assert limiter.admit_connection(three, three).allowed
    assert limiter.admit_connection(four, four).reason == "ip_limit"


def test_rates_of_one_ipv6_network_are_counted_as_one(clock: Clock) -> None:
    limiter = limiter_of(clock, connections_per_second=2, http_requests_per_second=2)
    assert [limiter.admit_connection(n, f"2001:db8::{n}").allowed for n in range(1, 4)] == [True, True, False]
    assert [limiter.admit_request(f"2001:db8::{n}").allowed for n in range(1, 4)] == [True, True, False]


def test_a_source_has_so_many_connections_at_a_time(clock: Clock) -> None:
    limiter = limiter_of(clock, max_connections_per_source=2)
    for number in range(3):
        limiter.admit_connection(number, HERE)
    assert limiter.admit_source(0, "shop").allowed
    assert limiter.admit_source(1, "shop").allowed
    refused = limiter.admit_source(2, "shop")
    assert (refused.reason, refused.retry_delay_ms) == ("connection_limit", 100)
    assert limiter.admit_source(2, "other").allowed
    limiter.release(0)
    limiter.admit_connection(3, HERE)
    assert limiter.admit_source(3, "shop").allowed


def test_a_connection_that_is_replaced_does_not_keep_its_successor_out(clock: Clock) -> None:
    limiter = limiter_of(clock, max_connections_per_source=1)
    limiter.admit_connection("old", HERE)
    limiter.admit_connection("new", HERE)
    assert limiter.admit_source("old", "shop").allowed
    limiter.leave_source("old")
    assert limiter.admit_source("new", "shop").allowed
    limiter.release("old")
    limiter.admit_connection("third", HERE)
    assert not limiter.admit_source("third", "shop").allowed, "the old one's end must not free the new one's place"


def test_a_connection_counts_for_one_source_at_a_time(clock: Clock) -> None:
    limiter = limiter_of(clock, max_connections_per_source=1)
    limiter.admit_connection("moves", HERE)
    limiter.admit_connection("comes", HERE)
    assert limiter.admit_source("moves", "shop").allowed
    assert limiter.admit_source("moves", "bank").allowed
    assert limiter.admit_source("comes", "shop").allowed


# --- requests --------------------------------------------------------------------------------------------------------


def test_requests_of_an_address_come_at_a_rate_and_are_told_what_is_left(clock: Clock) -> None:
    limiter = limiter_of(clock, http_requests_per_second=4)
    results = [limiter.admit_request(HERE) for _ in range(6)]
    assert [result.allowed for result in results] == [True] * 4 + [False] * 2
    left = [result.rate_limit.remaining for result in results if result.rate_limit]
    assert left == [3, 2, 1, 0, 0, 0]
    assert results[0].rate_limit is not None
    assert results[0].rate_limit.limit == 4
    assert (results[4].reason, results[4].retry_delay_ms) == ("rate_limited", 250)
    assert limiter.admit_request("198.51.100.9").allowed


# --- who is not limited ----------------------------------------------------------------------------------------------


def test_by_default_private_networks_are_not_limited(clock: Clock) -> None:
    limiter = RateLimiter(clock_ms=clock)
    for address in ("127.0.0.1", "::1", "10.1.2.3", "192.168.9.9", "fd00::1", "::ffff:10.0.0.1"):
        for number in range(40):
            assert limiter.admit_connection((address, number), address).allowed
        assert sent(limiter, 200, (address, 0)) == 200
        assert all(limiter.admit_request(address).allowed for _ in range(200))
        assert limiter.budget((address, 0)) is None
    assert not limiter.is_whitelisted(HERE)


def test_changed_settings_hold_for_connections_that_are_open(clock: Clock) -> None:
    limiter = RateLimiter(clock_ms=clock)
    limiter.admit_connection("it", "127.0.0.1")
    assert sent(limiter, 200) == 200
    limiter.follow(RateLimitConfig(whitelisted_ips=(), burst_capacity=5, refill_rate=1))
    assert sent(limiter, 200) == 5
    limiter.follow(RateLimitConfig(whitelisted_ips=(), burst_capacity=5, refill_rate=100))
    clock.now_ms += 20
    assert sent(limiter, 200) == 2
    limiter.follow(RateLimitConfig())
    assert sent(limiter, 200) == 200


# --- load ------------------------------------------------------------------------------------------------------------


def test_under_load_strangers_give_way_first_then_everybody(clock: Clock) -> None:
    limiter = limiter_of(clock)
    limiter.admit_connection("it", HERE)
    shed = {
        (load, is_known): not limiter.admit_under_load("it", load, is_known=is_known).allowed
        for load in (0.9, 1.0, 1.9, 2.0)
        for is_known in (False, True)
    }
    assert [each for each, is_shed in shed.items() if is_shed] == [
        (1.0, False),
        (1.9, False),
        (2.0, False),
        (2.0, True),
    ]
    refused = limiter.admit_under_load("it", 2.5, is_known=True)
    assert (refused.reason, refused.retry_delay_ms) == ("load_shedding", 100)
    limiter.follow(RateLimitConfig())
    limiter.admit_connection("free", "127.0.0.1")
    assert limiter.admit_under_load("free", 100.0, is_known=False).allowed


def test_who_was_too_fast_a_moment_ago_counts_as_a_stranger(clock: Clock) -> None:
    limiter = limiter_of(clock)
    limiter.admit_connection("it", HERE)
    sent(limiter, 51)
    assert not limiter.admit_under_load("it", 1.0, is_known=True).allowed
    clock.now_ms += GOOD_AFTER_MS + 1
    assert limiter.admit_under_load("it", 1.0, is_known=True).allowed


# --- memory ----------------------------------------------------------------------------------------------------------


def test_memory_does_not_grow_with_the_number_of_addresses(clock: Clock) -> None:
    limiter = RateLimiter(RateLimitConfig(whitelisted_ips=()), clock_ms=clock, addresses_max=100)

    def visit() -> None:
        for number in range(1_000):
            address = f"198.{number // 250}.{number % 250}.1"
            limiter.admit_request(address)
            limiter.admit_connection(number, address)
            limiter.admit_source(number, address)
            limiter.release(number)

    visit()
    tracemalloc.start()
    visit()
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert limiter.address_count == 100
    assert limiter.forgotten_count == 1_900
    assert grown < 100_000


def test_an_address_in_use_is_remembered_longer_than_those_that_asked_once(clock: Clock) -> None:
    limiter = RateLimiter(
        RateLimitConfig(whitelisted_ips=(), http_requests_per_second=50), clock_ms=clock, addresses_max=10
    )
    for number in range(40):
        assert limiter.admit_request(HERE).allowed
        limiter.admit_request(f"198.51.{number}.1")
    assert sum(limiter.admit_request(HERE).allowed for _ in range(50)) == 10
