"""Addresses, and the errors that a server's answers become."""

from __future__ import annotations

from typing import Any

import pytest

from dolake import errors
from dolake.client.transport import Address, error_of
from dolake.wire.messages import NackMessage


@pytest.mark.parametrize(
    ("url", "socket", "http"),
    [
        ("http://lake:8484", "ws://lake:8484/ws", "http://lake:8484"),
        ("https://lake/lakehouse/", "wss://lake/lakehouse/ws", "https://lake/lakehouse"),
        ("ws://lake:1/ws", "ws://lake:1/ws", "http://lake:1"),
        ("wss://lake/a/b/ws", "wss://lake/a/b/ws", "https://lake/a/b"),
    ],
)
def test_a_url_names_the_socket_and_the_base_of_http(url: str, socket: str, http: str) -> None:
    assert Address.parse(url) == Address(socket, http)


@pytest.mark.parametrize("url", ["localhost:8484", "ftp://lake", "http://", ""])
def test_what_is_not_an_address_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(errors.InvalidInput, match="write it like"):
        Address.parse(url)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("buffer_full", errors.BufferOverflowError),
        ("rate_limited", errors.RateLimited),
        ("invalid_sequence", errors.InvalidSequence),
        ("invalid_format", errors.MessageValidationError),
        ("payload_too_large", errors.MessageValidationError),
        ("event_too_large", errors.MessageValidationError),
        ("internal_error", errors.Unavailable),
        ("connection_limit", errors.RateLimited),
    ],
)
@pytest.mark.parametrize("should_retry", [True, False])
def test_a_nack_becomes_a_typed_error_that_says_whether_to_try_again(
    reason: Any, kind: type[errors.DoLakeError], should_retry: bool
) -> None:
    nack = NackMessage(
        timestamp=1, sequence_number=1, reason=reason, error_message="so it is", should_retry=should_retry
    )
    error = error_of(nack)
    assert type(error) is kind
    assert error.retryable is should_retry
    assert "so it is" in str(error)
