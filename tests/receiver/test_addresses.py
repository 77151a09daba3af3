"""Who is calling, also behind proxies: what a client writes into X-Forwarded-For itself never counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dolake.receiver.addresses import (
    HOPS_MAX,
    Networks,
    client_address,
    household_of,
    parse_address,
    subnet_of,
)

PROXIES = Networks(["10.0.0.0/8", "127.0.0.1", "fd00::/8"])


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        (" 192.0.2.7 ", "192.0.2.7"),
        ("192.0.2.7:443", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:DB8:0::1]:443", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("[::ffff:192.0.2.7]:1", "192.0.2.7"),
    ],
)
def test_an_address_is_understood_with_port_brackets_and_zone(text: str, address: str) -> None:
    assert str(parse_address(text)) == address


@pytest.mark.parametrize(
    "text", ["", "unknown", "_hidden", "192.0.2", "192.0.2.7:port", "[192.0.2.7", "1.2.3.4.5", "a" * 10_000, "0x7f.1"]
)
def test_what_is_no_address_is_none(text: str) -> None:
    assert parse_address(text) is None


def test_the_peer_counts_when_it_is_no_trusted_proxy_whatever_it_says() -> None:
    assert client_address("203.0.113.5", ["192.0.2.7"], PROXIES) == "203.0.113.5"
    assert client_address("203.0.113.5", ["127.0.0.1, 10.0.0.1"], PROXIES) == "203.0.113.5"


def test_without_trusted_proxies_the_header_is_ignored() -> None:
    assert client_address("127.0.0.1", ["192.0.2.7"], Networks([])) == "127.0.0.1"


@pytest.mark.parametrize(
    ("lines", "address"),
    [
        (["192.0.2.7"], "192.0.2.7"),
        (["198.51.100.1, 192.0.2.7"], "192.0.2.7"),  # the left one the client wrote itself
        (["198.51.100.1, 192.0.2.7, 10.1.1.1"], "192.0.2.7"),
        (["198.51.100.1", "192.0.2.7", "10.1.1.1"], "192.0.2.7"),  # several lines are one list
        (["[2001:db8::1]:5000, fd00::9"], "2001:db8::1"),
        (["192.0.2.7:1234"], "192.0.2.7"),
        (["10.2.2.2, 10.1.1.1"], "10.2.2.2"),  # nothing but proxies: the first of them
        (["198.51.100.1, junk"], "127.0.0.1"),
        (["198.51.100.1, junk, 10.1.1.1"], "10.1.1.1"),
        (["198.51.100.1, "], "127.0.0.1"),
        ([""], "127.0.0.1"),
        ([], "127.0.0.1"),
    ],
)
def test_behind_trusted_proxies_the_right_most_address_that_is_none_of_them_counts(
    lines: list[str], address: str
) -> None:
    assert client_address("127.0.0.1", lines, PROXIES) == address


def test_a_chain_of_proxies_without_end_is_not_followed() -> None:
    chain = ", ".join(["192.0.2.7", *["10.0.0.1"] * 10 * HOPS_MAX])
    assert client_address("127.0.0.1", [chain], PROXIES) == "10.0.0.1"


@given(st.lists(st.text(max_size=50), max_size=5))
def test_a_stranger_cannot_choose_its_address(lines: list[str]) -> None:
    """What the client sent stands left of what the proxy appended."""
    assert client_address("127.0.0.1", [*lines, "203.0.113.5"], PROXIES) == "203.0.113.5"
    assert client_address("127.0.0.1", [", ".join([*lines, "203.0.113.5"])], PROXIES) == "203.0.113.5"


def test_networks_and_households_of_both_kinds() -> None:
    four, six = parse_address("192.0.2.7"), parse_address("2001:db8:0:1:2:3:4:5")
    assert four is not None
    assert six is not None
    assert subnet_of(four) == "192.0.2.0/24"
    assert subnet_of(six) == "2001:db8:0:1::/64"
    assert household_of(four) == "192.0.2.7"
    assert household_of(six) == "2001:db8:0:1::/64"
