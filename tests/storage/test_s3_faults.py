"""The store's client, with a store that is slow, refuses, breaks off, or does what it is asked and does not say so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dolake.errors import Conflict, StoreUnavailable, Unavailable
from dolake.storage.s3 import S3Storage
from tests.support.blocking import wait_until
from tools.faulty_proxy import FaultyProxy, Request, faulty_proxy
from tools.s3_server import S3Server

_PART_BYTES = 16 * 1024 * 1024


@pytest.fixture(scope="module")
def proxy(s3: S3Server) -> Iterator[FaultyProxy]:
    with faulty_proxy(s3.port) as running:
        yield running


@pytest.fixture
def store(s3: S3Server, proxy: FaultyProxy) -> Iterator[S3Storage]:
    location = f"s3://{s3.new_bucket()}/lake"
    found = S3Storage(location, s3.settings(location, endpoint=proxy.endpoint, timeout_ms=500, tries_max=2))
    yield found
    found.close()


def is_get(request: Request) -> bool:
    return request.method == "GET"


def is_put(request: Request) -> bool:
    return request.method == "PUT"


def test_an_answer_that_breaks_off_is_asked_for_again(store: S3Storage, proxy: FaultyProxy) -> None:
    store.write(f"{store.root}/a", b"0123456789" * 1000)
    with proxy.fault("truncate", is_get, left=1) as fault:
        assert store.read(f"{store.root}/a") == b"0123456789" * 1000
    assert fault.hits == 1
    with proxy.fault("truncate", is_get, left=1), store.open_download(f"{store.root}/a") as file:
        assert file.read() == b"0123456789" * 1000


def test_half_an_answer_is_never_taken_for_a_whole_one(store: S3Storage, proxy: FaultyProxy) -> None:
    store.write(f"{store.root}/a", b"0123456789" * 1000)
    with proxy.fault("truncate", is_get), pytest.raises(Unavailable):
        store.read(f"{store.root}/a")
    assert store.read(f"{store.root}/a") == b"0123456789" * 1000


@pytest.mark.parametrize("kind", ["reset", "hang", "lose_answer"])
def test_one_request_without_an_answer_costs_another_one(store: S3Storage, proxy: FaultyProxy, kind: str) -> None:
    with proxy.fault(kind, is_put, left=1) as fault:  # type: ignore[arg-type]
        store.write(f"{store.root}/{kind}", b"1")
    assert fault.hits == 1
    assert store.read(f"{store.root}/{kind}") == b"1"


def test_after_a_lost_request_a_file_of_another_writer_is_not_taken_for_ours(
    store: S3Storage, proxy: FaultyProxy
) -> None:
    """The second try finds a file in both cases; only its bytes say who wrote it."""
    store.write(f"{store.root}/pointer", b"theirs")
    with proxy.fault("reset", is_put, left=1) as fault, pytest.raises(Conflict):
        store.write(f"{store.root}/pointer", b"ours")
    assert fault.hits == 1
    assert store.read(f"{store.root}/pointer") == b"theirs"


def test_a_large_file_whose_last_answer_was_lost_is_there(store: S3Storage, proxy: FaultyProxy) -> None:
    data = bytes(_PART_BYTES + 1)
    file = store.open_write(f"{store.root}/large")
    file.write(data)
    with proxy.fault("lose_answer", lambda request: request.method == "POST", left=1) as fault:
        file.close()
    assert fault.hits == 1
    assert store.size(f"{store.root}/large") == len(data)


@pytest.mark.parametrize(
    ("status", "code", "word"),
    [
        ("403 Forbidden", "InvalidAccessKeyId", "keys"),
        ("403 Forbidden", "SignatureDoesNotMatch", "keys"),
        ("403 Forbidden", "AccessDenied", "rights"),
        ("403 Forbidden", "RequestTimeTooSkewed", "clock"),
        ("404 Not Found", "NoSuchBucket", "bucket"),
        ("503 Slow Down", "SlowDown", "try again"),
    ],
)
def test_a_refusal_says_what_to_do(store: S3Storage, proxy: FaultyProxy, status: str, code: str, word: str) -> None:
    with proxy.fault("refuse", status=status, code=code), pytest.raises(Unavailable, match=code) as caught:
        store.read(f"{store.root}/a")
    assert word in caught.value.hint
    with proxy.fault("refuse", status=status, code=code), pytest.raises(Unavailable, match=code):
        store.write(f"{store.root}/a", b"1")


def test_a_store_that_says_nothing_is_waited_for_once(store: S3Storage, proxy: FaultyProxy) -> None:
    store.write(f"{store.root}/a", b"1")
    with proxy.fault("hang") as fault:
        with pytest.raises(StoreUnavailable):
            store.read(f"{store.root}/a")
        hits = fault.hits
        with pytest.raises(StoreUnavailable, match="lately"):
            store.read(f"{store.root}/a")
        assert fault.hits == hits
    wait_until(lambda: _is_back_with(store, f"{store.root}/a", b"1"))


def test_a_file_that_is_replaced_while_the_store_is_down_is_there_when_it_is_back(
    store: S3Storage, proxy: FaultyProxy, caplog: pytest.LogCaptureFixture
) -> None:
    hint = f"{store.root}/version-hint.text"
    store.replace(hint, b"1")
    with proxy.down():
        store.replace(hint, b"2")
        assert store.read(hint) == b"2"  # what will be there
        wait_until(lambda: "file not replaced yet" in caplog.text)
    store.replace(hint, b"3")
    wait_until(lambda: _writes(proxy, "hint.text") >= 2)
    wait_until(lambda: _is_back_with(store, hint, b"3"))


def _writes(proxy: FaultyProxy, name: str) -> int:
    """How many the store has answered."""
    return sum(method == "PUT" and path.endswith(name) and status > 0 for method, path, status in proxy.log)


def _is_back_with(store: S3Storage, location: str, data: bytes) -> bool:
    """Within a second of its return the store is asked again, and its first answer has these bytes."""
    try:
        assert store.read(location) == data
    except StoreUnavailable:
        return False
    return True
