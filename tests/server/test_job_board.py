"""Jobs of upkeep as the server keeps them: none stays open when the pipeline dies, and old ones are forgotten."""

from __future__ import annotations

import msgspec
import pytest

from dolake.errors import InvalidInput, NotFound
from dolake.pipeline.link import Cancel, Forget, JobReport, Maintain
from dolake.server.upkeep import JobBoard, checked_kinds, job_json, totals_json
from dolake.settings import Settings


@pytest.fixture
def board() -> JobBoard:
    return JobBoard(lambda: 1_000)


def done(report: JobReport, **figures: int) -> JobReport:
    return msgspec.structs.replace(report, state="done", **figures)


def test_a_job_that_the_pipeline_was_told_of_fails_with_it_and_one_that_waits_goes_to_the_next(board: JobBoard) -> None:
    told, waiting = board.ask(Settings(), ["a"]), board.ask(Settings(), ["b", "c"])
    assert isinstance(board.orders.popleft(), Maintain)  # sent, and never answered
    board.child_ended()
    assert board.find(told.job_id).state == "failed"
    assert board.find(waiting.job_id).state == "queued"
    assert [order.job_id for order in board.orders] == [waiting.job_id]
    board.note(done(waiting))
    board.orders.clear()
    assert not board.is_busy


def test_a_job_is_cancelled_before_it_begins_or_by_an_order(board: JobBoard) -> None:
    waiting = board.ask(Settings(), ["a"])
    assert board.cancel(waiting.job_id).state == "cancelled"
    assert not board.orders
    running = board.ask(Settings(), ["a"])
    board.orders.clear()
    board.note(msgspec.structs.replace(running, state="running"))
    assert board.cancel(running.job_id).state == "running"
    assert list(board.orders) == [Cancel(running.job_id)]
    board.child_ended()
    assert not board.orders, "nobody knows that job any more"
    with pytest.raises(NotFound):
        board.cancel("nobody")


def test_figures_add_up_and_old_jobs_are_forgotten(board: JobBoard) -> None:
    for _ in range(300):
        report = board.ask(Settings(), ["a"])
        board.orders.clear()
        board.note(done(report, files_before=5, files_after=1, waited_ms=7))
        board.note(done(report, files_before=5))  # what is over is over
    assert len(board.jobs) == 200
    totals = totals_json(board)
    assert (totals["jobsDone"], totals["filesBefore"], totals["filesAfter"]) == (300, 1_500, 300)
    assert totals["publishWaitedMaxMs"] == 7
    assert job_json(board.jobs[-1])["filesBefore"] == 5


@pytest.mark.parametrize("kinds", ["files", ["magic"], [1], None])
def test_kinds_that_do_not_exist_are_refused(kinds: object) -> None:
    with pytest.raises(InvalidInput, match="files, deletes"):
        checked_kinds(kinds)


def test_a_key_is_forgotten_by_the_next_pipeline_where_one_dies_over_it_but_not_for_ever(board: JobBoard) -> None:
    job = board.ask_forget(Settings(), "people", "4711", 7, source=None, is_patient=False)
    assert board.key_of(job.job_id) == "4711"
    for _ in range(3):
        order = board.orders.popleft()
        assert isinstance(order, Forget)
        assert (order.table, order.key, order.to) == ("people", "4711", 7)
        board.note(msgspec.structs.replace(board.find(job.job_id), state="running"))
        board.child_ended()
    assert not board.orders
    assert board.find(job.job_id).state == "failed"
    assert board.key_of(job.job_id) is None, "what is over is forgotten here, too"
    assert "4711" not in str(job_json(board.find(job.job_id)))


def test_keys_that_were_forgotten_are_counted_and_a_job_can_be_called_off(board: JobBoard) -> None:
    first, second = (board.ask_forget(Settings(), "t", key, 7, source=None, is_patient=False) for key in "ab")
    board.note(done(first))
    assert board.cancel(second.job_id).state == "cancelled"
    assert (board.forgotten_count, totals_json(board)["keysForgotten"]) == (1, 1)
    told = board.ask_forget(Settings(), "t", "c", 7, source=None, is_patient=False)
    board.orders.clear()
    board.cancel(told.job_id)
    board.child_ended()
    assert not board.orders, "nobody wants it any more"
