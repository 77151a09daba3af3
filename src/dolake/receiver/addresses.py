"""Who is calling: a client's address, also behind proxies, and the networks that it belongs to. Pure.

From endpoint.py and server/limits.py. Promise: nobody can choose the address that limits are counted under, because
X-Forwarded-For counts only as far as proxies wrote it that the operator trusts.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

HOPS_MAX = 32
_WITH_PORT = re.compile(r"\[([^\[\]]+)\](?::\d{1,5})?|([0-9.]+):\d{1,5}")
_SUBNET_BITS = {4: 24, 6: 64}
_TEXT_LENGTH_MAX = 64


def parse_address(text: str) -> Address | None:
    """An address with or without port, brackets or zone; None for anything else. IPv4 inside IPv6 is IPv4."""
    text = text.strip()
    if len(text) > _TEXT_LENGTH_MAX:
        return None
    if found := _WITH_PORT.fullmatch(text):
        text = found[1] or found[2]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


class Networks:
    """Some networks of both kinds, to ask whether an address is in one of them."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._networks: tuple[Network, ...] = tuple(ipaddress.ip_network(text) for text in texts)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


def client_address(peer: str, forwarded_for: Sequence[str], trusted: Networks) -> str:
    """The right-most address that no trusted proxy has: what lies left of it was written by the client itself.

    `forwarded_for` are the values of all X-Forwarded-For lines in their order. Where a trusted proxy wrote something
    that is no address, the proxy itself is the client: to go on leftwards would believe a stranger.
    """
    address = parse_address(peer)
    if address is None:
        return peer
    if not forwarded_for or address not in trusted:
        return str(address)
    hops = ",".join(forwarded_for).rsplit(",", HOPS_MAX)[-HOPS_MAX:]
    for hop in reversed(hops):
        before = parse_address(hop)
        if before is None:
            break
        address = before
        if address not in trusted:
            break
    return str(address)


def subnet_of(address: Address) -> str:
    """The network whose addresses count together: /24 of IPv4, /64 of IPv6."""
    bits = _SUBNET_BITS[address.version]
    return str(ipaddress.ip_network((address, bits), strict=False))


def household_of(address: Address) -> str:
    """Whose rates are counted as one: an IPv4 address, but all of a /64, which one machine can use as it likes."""
    return str(address) if address.version == 4 else subnet_of(address)
