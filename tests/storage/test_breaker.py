"""A store that says nothing is asked by one, and the others go on."""

from __future__ import annotations

import threading

import pytest

from dolake.errors import NotFound, StoreUnavailable
from dolake.storage import breaker as module
from dolake.storage.breaker import Breaker


def silent(breaker: Breaker) -> None:
    with pytest.raises(StoreUnavailable, match="nobody"), breaker.passing("s3://b/k"):
        raise StoreUnavailable("nobody there")


def test_after_a_silence_nobody_else_waits_for_the_store() -> None:
    breaker, asked = Breaker(), 0
    silent(breaker)
    with pytest.raises(StoreUnavailable, match="lately"), breaker.passing("s3://b/k"):
        asked += 1
    assert asked == 0


def test_one_request_finds_out_and_its_answer_lets_all_others_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_S", 0.0)
    breaker = Breaker()
    silent(breaker)
    is_asking, may_end = threading.Event(), threading.Event()

    def ask() -> None:
        with breaker.passing("s3://b/k"):
            is_asking.set()
            may_end.wait(10)

    probe = threading.Thread(target=ask)
    probe.start()
    assert is_asking.wait(10)
    with pytest.raises(StoreUnavailable, match="lately"), breaker.passing("s3://b/k"):
        pass
    may_end.set()
    probe.join()
    with breaker.passing("s3://b/k"):
        pass


def test_a_bad_answer_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_S", 0.0)
    breaker = Breaker()
    silent(breaker)
    with pytest.raises(NotFound), breaker.passing("s3://b/k"):
        raise NotFound("no such file")
    with breaker.passing("s3://b/k"):
        pass
