"""How much one client may ask: rates, numbers of connections, sizes, and who gives way when the server is overloaded.

From connection.py (messages), endpoint.py (connections) and server/limits.py (requests). Pure: no sockets, no tasks,
and the clock is passed in. Promise: a decision costs the same however many clients there are, memory is bounded
(one entry for each open connection, and the last `addresses_max` addresses), and every refusal names its reason
and when to come again.

A message needs a token from each of two buckets, so the smaller of both limits wins:

    messages_per_second   refilled at that rate, holds a second's worth
    burst_capacity        refilled at refill_rate

A message of more than 1 MiB takes one token more for each further MiB, since it costs as much as several.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dolake.receiver.addresses import Networks, client_address, household_of, parse_address, subnet_of
from dolake.receiver.buckets import MS_PER_S, Recent, TokenBucket
from dolake.settings import DEFAULT_RATE_LIMIT_CONFIG, RateLimitConfig
from dolake.wire.messages import NackReason, RateLimitInfo

ADDRESSES_MAX = 20_000
TOKEN_BYTES = 1024 * 1024
GOOD_AFTER_MS = 10_000
"""A client that was refused for its rate counts as well-behaved again after so long."""
SHED_KNOWN_AT = 2.0
"""The load at which known senders are refused too; from 1.0 on strangers are."""


@dataclass(frozen=True, slots=True)
class RateLimitResult:
    """Whether something may go on; if not, why and when to come again."""

    allowed: bool
    reason: NackReason | None = None
    message: str = ""
    retry_delay_ms: int | None = None
    max_size: int | None = None
    remaining_tokens: int | None = None
    bucket_capacity: int | None = None
    rate_limit: RateLimitInfo | None = None


ALLOWED = RateLimitResult(allowed=True)


@dataclass(slots=True)
class _Household:
    """The rates of one address."""

    is_free: bool
    requests: TokenBucket
    connections: TokenBucket
    refusals_in_row: int = 0


@dataclass(slots=True)
class _Member:
    """One open connection."""

    address: str
    subnet: str
    is_free: bool
    messages: TokenBucket
    burst: TokenBucket
    source: str | None = None
    refused_at_ms: float = -math.inf


class RateLimiter:
    """Counts what clients do, and says what they may."""

    def __init__(
        self,
        config: RateLimitConfig = DEFAULT_RATE_LIMIT_CONFIG,
        *,
        clock_ms: Callable[[], float],
        trusted_proxies: Sequence[str] = (),
        addresses_max: int = ADDRESSES_MAX,
    ) -> None:
        self._clock_ms = clock_ms
        self._members: dict[Hashable, _Member] = {}
        self._households: Recent[_Household] = Recent(addresses_max)
        self._by_address: Counter[str] = Counter()
        self._by_subnet: Counter[str] = Counter()
        self._by_source: Counter[str] = Counter()
        self.refused_counts: dict[str, int] = {}
        """By what was refused: connections, requests, messages."""
        self.follow(config, trusted_proxies)

    @property
    def config(self) -> RateLimitConfig:
        return self._config

    def follow(self, config: RateLimitConfig, trusted_proxies: Sequence[str] = ()) -> None:
        """What changes holds at once, also for connections that are open. Those over a new limit are not closed."""
        self._config = config
        self._free = Networks(config.whitelisted_ips)
        self._proxies = Networks(trusted_proxies)
        self._households.clear()
        for member in self._members.values():
            member.is_free = self.is_whitelisted(member.address)

    @property
    def address_count(self) -> int:
        return len(self._households)

    @property
    def forgotten_count(self) -> int:
        return self._households.forgotten_count

    @property
    def limited_connection_count(self) -> int:
        return sum(not member.is_free for member in self._members.values())

    def is_whitelisted(self, address: str) -> bool:
        return parse_address(address) in self._free

    def client_address(self, peer: str, forwarded_for: Sequence[str] = ()) -> str:
        """Who is behind this connection: `forwarded_for` counts only where trusted proxies wrote it."""
        return client_address(peer, forwarded_for, self._proxies)

    # --- connections -------------------------------------------------------------------------------------------------

    def admit_connection(self, connection: Hashable, address: str) -> RateLimitResult:
        """A new connection of this address: takes its place, until `release`, where it is allowed."""
        now_ms, config = self._clock_ms(), self._config
        household, subnet = self._household(address, now_ms)
        if not household.is_free:
            rate = config.connections_per_second
            if household.connections.refill(now_ms, rate, rate) < 1:
                wait_ms = household.connections.wait_ms(1, rate)
                what = f"more than {rate} new connections a second"
                return self._refuse_connection(household, "rate_limited", what, wait_ms)
            household.connections.tokens -= 1
            if self._by_address[address] >= config.max_connections_per_ip:
                what = f"{address} has {self._by_address[address]} connections, as many as it may"
                return self._refuse_connection(household, "ip_limit", what)
            if self._by_subnet[subnet] >= config.subnet_rate_limit_threshold:
                what = f"the network {subnet} has {self._by_subnet[subnet]} connections, as many as it may"
                return self._refuse_connection(household, "ip_limit", what)
        household.refusals_in_row = 0
        self._by_address[address] += 1
        self._by_subnet[subnet] += 1
        full = TokenBucket(config.messages_per_second, now_ms), TokenBucket(config.burst_capacity, now_ms)
        self._members[connection] = _Member(address, subnet, household.is_free, *full)
        return ALLOWED

    def admit_source(self, connection: Hashable, source: str) -> RateLimitResult:
        """The connection speaks for this source from now on."""
        member, count_max = self._members[connection], self._config.max_connections_per_source
        self.leave_source(connection)
        if not member.is_free and self._by_source[source] >= count_max:
            self._count("connections")
            what = f"the source {source[:80]!r} has {self._by_source[source]} connections, as many as it may"
            return RateLimitResult(False, "connection_limit", what, retry_delay_ms=self._config.base_retry_delay_ms)
        member.source = source
        self._by_source[source] += 1
        return ALLOWED

    def leave_source(self, connection: Hashable) -> None:
        """The connection no longer speaks for its source, because a newer one does: it must not keep that one out."""
        member = self._members.get(connection)
        if member is not None and member.source is not None:
            _take_one(self._by_source, member.source)
            member.source = None

    def release(self, connection: Hashable) -> None:
        """The connection is gone."""
        self.leave_source(connection)
        member = self._members.pop(connection, None)
        if member is not None:
            _take_one(self._by_address, member.address)
            _take_one(self._by_subnet, member.subnet)

    # --- messages ----------------------------------------------------------------------------------------------------

    def is_free(self, connection: Hashable) -> bool:
        """Whether this connection is one that no limit holds for."""
        return self._members[connection].is_free

    def admit_message(self, connection: Hashable, size_bytes: int = 0) -> RateLimitResult:
        """One more message on this connection. What is refused takes no token."""
        member, config = self._members[connection], self._config
        if member.is_free:
            return self._check_size(size_bytes)
        now_ms, cost = self._clock_ms(), 1 + size_bytes // TOKEN_BYTES
        wait_ms = 0.0
        for bucket, capacity, rate in self._buckets(member):
            price = min(cost, capacity)  # else a small bucket could never hold enough
            if bucket.refill(now_ms, capacity, rate) < price:
                wait_ms = max(wait_ms, bucket.wait_ms(price, rate))
        if wait_ms:
            self._count("messages")
            member.refused_at_ms = now_ms
            return self._with_budget(member, now_ms, "rate_limited", _too_fast(config), math.ceil(wait_ms))
        for bucket, capacity, _ in self._buckets(member):
            bucket.tokens -= min(cost, capacity)
        return self._check_size(size_bytes)  # after the tokens, else messages that are too large could come for nothing

    def budget(self, connection: Hashable) -> RateLimitResult | None:
        """What is left for this connection, to be told in an ack; None where nothing is limited."""
        member = self._members.get(connection)
        if member is None or member.is_free:
            return None
        now_ms = self._clock_ms()
        for bucket, capacity, rate in self._buckets(member):
            bucket.refill(now_ms, capacity, rate)
        return self._with_budget(member, now_ms)

    def admit_under_load(self, connection: Hashable, load: float, *, is_known: bool) -> RateLimitResult:
        """Whether a batch is taken while the server has this much to do; 1.0 is as much as it can.

        Strangers and those who were too fast a moment ago give way first, then everybody whose batches are known;
        never the whitelisted.
        """
        if load < 1.0:
            return ALLOWED
        member = self._members[connection]
        is_good = is_known and self._clock_ms() - member.refused_at_ms > GOOD_AFTER_MS
        if member.is_free or (is_good and load < SHED_KNOWN_AT):
            return ALLOWED
        self._count("messages")
        what = f"the server has too much to do (load {load:.1f})"
        return RateLimitResult(False, "load_shedding", what, retry_delay_ms=self._config.base_retry_delay_ms)

    def _check_size(self, size_bytes: int) -> RateLimitResult:
        size_max = self._config.max_payload_size
        if size_bytes <= size_max:
            return ALLOWED
        self._count("messages")
        what = f"the message has {size_bytes} bytes, more than max_payload_size {size_max}"
        return RateLimitResult(False, "payload_too_large", what, max_size=size_max)

    def _buckets(self, member: _Member) -> tuple[tuple[TokenBucket, int, int], tuple[TokenBucket, int, int]]:
        """Each with its capacity and its rate."""
        config = self._config
        rate = config.messages_per_second
        return (member.messages, rate, rate), (member.burst, config.burst_capacity, config.refill_rate)

    def _with_budget(
        self, member: _Member, now_ms: float, reason: NackReason | None = None, message: str = "", delay_ms: int = 0
    ) -> RateLimitResult:
        config = self._config
        full_in_ms = max(bucket.wait_ms(capacity, rate) for bucket, capacity, rate in self._buckets(member))
        remaining = int(min(member.messages.tokens, member.burst.tokens))
        return RateLimitResult(
            allowed=reason is None,
            reason=reason,
            message=message,
            retry_delay_ms=delay_ms if reason else None,
            remaining_tokens=int(member.burst.tokens),
            bucket_capacity=config.burst_capacity,
            rate_limit=RateLimitInfo(config.messages_per_second, remaining, _second(now_ms + full_in_ms)),
        )

    # --- requests ----------------------------------------------------------------------------------------------------

    def admit_request(self, address: str) -> RateLimitResult:
        """One more HTTP request of this address; `rate_limit` is what its X-RateLimit-* headers say."""
        now_ms, rate = self._clock_ms(), self._config.http_requests_per_second
        household, _ = self._household(address, now_ms)
        tokens = household.requests.refill(now_ms, rate, rate)
        if household.is_free:
            return RateLimitResult(True, rate_limit=RateLimitInfo(rate, rate, _second(now_ms)))
        if tokens >= 1:
            household.requests.tokens -= 1
            household.refusals_in_row = 0
            return RateLimitResult(True, rate_limit=self._request_budget(household, now_ms))
        self._count("requests")
        wait_ms = max(household.requests.wait_ms(1, rate), self._longer_delay_ms(household))
        budget = self._request_budget(household, now_ms)
        what = f"more than {rate} requests a second"
        return RateLimitResult(False, "rate_limited", what, retry_delay_ms=math.ceil(wait_ms), rate_limit=budget)

    def _request_budget(self, household: _Household, now_ms: float) -> RateLimitInfo:
        rate = self._config.http_requests_per_second
        full_in_ms = household.requests.wait_ms(rate, rate)
        return RateLimitInfo(rate, int(household.requests.tokens), _second(now_ms + full_in_ms))

    # --- details -----------------------------------------------------------------------------------------------------

    def _household(self, text: str, now_ms: float) -> tuple[_Household, str]:
        """The rates that this address shares, and its network; what is no address is a household of its own."""
        name, subnet = _place_of(text)
        config = self._config

        def make() -> _Household:
            return _Household(
                self.is_whitelisted(text),
                TokenBucket(config.http_requests_per_second, now_ms),
                TokenBucket(config.connections_per_second, now_ms),
            )

        return self._households.get(name, make), subnet

    def _refuse_connection(
        self, household: _Household, reason: NackReason, message: str, wait_ms: float = 0.0
    ) -> RateLimitResult:
        self._count("connections")
        delay_ms = max(math.ceil(wait_ms), self._longer_delay_ms(household))
        return RateLimitResult(False, reason, message, retry_delay_ms=delay_ms)

    def _longer_delay_ms(self, household: _Household) -> int:
        """Doubles with each refusal in a row."""
        delay_ms = retry_delay_ms(household.refusals_in_row, self._config)
        household.refusals_in_row += 1
        return delay_ms

    def _count(self, what: str) -> None:
        self.refused_counts[what] = self.refused_counts.get(what, 0) + 1


@lru_cache(maxsize=4096)
def _place_of(text: str) -> tuple[str, str]:
    """Household and network."""
    address = parse_address(text)
    return (household_of(address), subnet_of(address)) if address else (text, text)


def retry_delay_ms(refusals_in_row: int, limits: RateLimitConfig) -> int:
    """Doubles with each refusal in a row, up to the longest."""
    return min(limits.max_retry_delay_ms, limits.base_retry_delay_ms << min(refusals_in_row, 20))


def _take_one(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if counts[name] <= 0:
        del counts[name]


def _too_fast(config: RateLimitConfig) -> str:
    return (
        f"more messages than {config.messages_per_second} a second,"
        f" or than a burst of {config.burst_capacity} and {config.refill_rate} a second after it"
    )


def _second(at_ms: float) -> int:
    return math.ceil(at_ms / MS_PER_S)
