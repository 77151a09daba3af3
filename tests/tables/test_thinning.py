"""Which snapshots stay: all for a while, then one a minute, an hour, a day; the newest and the named ones always."""

from __future__ import annotations

import dataclasses
import itertools

from hypothesis import given
from hypothesis import strategies as st

from dolake.settings import MaintenanceSettings
from dolake.tables.thinning import History, Moment, Steps, snapshots_to_remove

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
STEPS = Steps(10 * MINUTE, DAY, 30 * DAY, 365 * DAY, count_max=10**9)
NOW = 20_000 * DAY + 12 * HOUR + 30 * MINUTE + 30 * SECOND


def every(step_ms: int, since_ms: int, until_ms: int = 0) -> History:
    """A snapshot every so often, from `since` to `until` before now; ids are times."""
    return History([(time_ms, time_ms) for time_ms in range(NOW - since_ms, NOW - until_ms + 1, step_ms)])


def kept(history: History, steps: Steps = STEPS, now_ms: int = NOW) -> list[int]:
    gone = set(snapshots_to_remove(history, steps, now_ms))
    return [id_ for id_ in dict.fromkeys(id_ for _, id_ in history.moments) if id_ not in gone]


# --- the steps -------------------------------------------------------------------------------------------------------


def test_all_stay_for_ten_minutes_then_one_a_minute_an_hour_and_a_day() -> None:
    times = kept(every(30 * SECOND, since_ms=40 * DAY))
    ages = [NOW - time for time in times]
    assert sum(age <= 10 * MINUTE for age in ages) == 21
    assert 24 * 60 - 12 <= sum(10 * MINUTE < age <= DAY for age in ages) <= 24 * 60 - 9
    assert 29 * 24 - 1 <= sum(DAY < age <= 30 * DAY for age in ages) <= 29 * 24 + 1
    assert sum(age > 30 * DAY for age in ages) == 10


def test_a_year_at_one_change_every_two_seconds_fits_into_the_usual_limit() -> None:
    usual = MaintenanceSettings()
    assert (usual.snapshots_all_ms, usual.snapshots_minutely_ms) == (STEPS.all_ms, STEPS.minutely_ms)
    assert (usual.snapshots_hourly_ms, usual.snapshot_age_max_ms) == (STEPS.hourly_ms, STEPS.daily_ms)
    parts = [every(DAY, 400 * DAY, 31 * DAY), every(HOUR, 31 * DAY, 2 * DAY), every(MINUTE, 2 * DAY, HOUR)]
    parts.append(every(2 * SECOND, HOUR))
    history = History(sorted({moment for part in parts for moment in part.moments}))
    assert 2_700 < len(kept(history)) <= usual.snapshots_max


def test_what_was_current_at_the_end_of_a_minute_hour_and_day_is_what_stays_of_it() -> None:
    times = kept(every(29 * SECOND, since_ms=32 * DAY))
    for age, width in ((2 * HOUR, MINUTE), (3 * DAY, HOUR), (31 * DAY, DAY)):
        full = (NOW - age) // width * width
        last = max(time for time in times if time <= full)
        assert full - last < 29 * SECOND, "AS OF a full minute, hour or day is exact"


def test_what_is_older_than_all_steps_goes_but_not_the_last() -> None:
    assert kept(History([(0, 1), (1, 2), (2, 3)])) == [3]
    assert kept(History([(0, 1), (1, 2), (NOW, 3)])) == [3]
    assert kept(History([])) == []


def test_steps_can_be_left_out() -> None:
    history = every(10 * SECOND, since_ms=2 * HOUR)
    assert kept(history, Steps(0, 0, 0, 0, 100)) == [NOW]
    assert len(kept(history, Steps(DAY, 0, 0, DAY, 10**9))) == len(history.moments)
    days = kept(every(HOUR, since_ms=5 * DAY), Steps(0, 0, 0, 10 * DAY, 100))
    assert len(days) == 6


def test_going_back_to_a_snapshot_counts_from_when_that_was_done() -> None:
    """One of an hour ago became current again ten seconds later, and was so at the end of that minute."""
    full = (NOW - HOUR) // MINUTE * MINUTE
    history = History([(full + 1, 1), (full + 2, 2), (full + 3, 3), (full + 10_000, 1), (NOW, 4)])
    assert kept(history) == [1, 4]


# --- too many --------------------------------------------------------------------------------------------------------


def test_beyond_the_limit_the_past_gets_coarser_and_not_shorter() -> None:
    history = every(MINUTE, since_ms=10 * DAY)
    times = kept(history, dataclasses.replace(STEPS, count_max=50))
    assert len(times) == 50
    assert times[0] < NOW - 9 * DAY
    gaps = [(later - time) / (NOW - time) for time, later in itertools.pairwise(times)]
    assert max(gaps[:-5]) < 0.6, "no gap is long beside its age"


def test_one_is_the_newest() -> None:
    assert kept(every(SECOND, since_ms=HOUR), dataclasses.replace(STEPS, count_max=1)) == [NOW]


# --- whatever comes --------------------------------------------------------------------------------------------------

_ages = st.one_of(
    *(st.integers(0, limit) for limit in (30 * SECOND, 20 * MINUTE, 2 * DAY, 40 * DAY, 400 * DAY))
)  # each step about as often


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Some snapshots become current a second time, some are named."""
    ages = draw(st.lists(_ages, min_size=1, max_size=60))
    times = sorted(NOW - age for age in ages)
    ids = draw(st.lists(st.integers(0, len(times) - 1), min_size=len(times), max_size=len(times)))
    is_linear = draw(st.booleans())
    moments: list[Moment] = [(time, at if is_linear else ids[at]) for at, time in enumerate(times)]
    present = sorted({id_ for _, id_ in moments})
    return History(moments, frozenset(draw(st.lists(st.sampled_from(present), max_size=3))))


_limits = st.integers(0, 400 * DAY)
_steps = st.builds(Steps, _limits, _limits, _limits, _limits, st.integers(1, 70)) | st.just(STEPS)


@given(histories(), _steps)
def test_the_newest_and_the_named_ones_always_stay(history: History, steps: Steps) -> None:
    gone = snapshots_to_remove(history, steps, NOW)
    assert len(gone) == len(set(gone))
    assert history.moments[-1][1] not in gone
    assert history.named.isdisjoint(gone)  # type: ignore[attr-defined]


@given(histories(), _steps)
def test_never_more_stay_than_the_limit_says_but_for_named_ones(history: History, steps: Steps) -> None:
    newest = history.moments[-1][1]
    assert len(kept(history, steps)) <= max(steps.count_max, len({newest, *history.named}))


@given(histories(), _steps, st.integers(1, 70))
def test_a_lower_limit_keeps_nothing_that_a_higher_one_lets_go(history: History, steps: Steps, fewer: int) -> None:
    lower = dataclasses.replace(steps, count_max=min(fewer, steps.count_max))
    assert set(snapshots_to_remove(history, steps, NOW)) <= set(snapshots_to_remove(history, lower, NOW))


@given(histories(), _steps)
def test_doing_it_twice_does_nothing_more(history: History, steps: Steps) -> None:
    stay = set(kept(history, steps))
    again = History([each for each in history.moments if each[1] in stay], history.named)
    assert snapshots_to_remove(again, steps, NOW) == []


@given(histories(), st.integers(0, 50 * DAY), st.integers(0, 50 * DAY))
def test_nothing_goes_that_is_wanted_later(history: History, soon: int, later: int) -> None:
    """Looking in between changes nothing of what a later look leaves, as long as there are not too many."""
    stay = set(kept(history, now_ms=NOW + soon))
    between = History([each for each in history.moments if each[1] in stay], history.named)
    assert kept(between, now_ms=NOW + soon + later) == kept(history, now_ms=NOW + soon + later)


# --- from metadata ---------------------------------------------------------------------------------------------------


def test_the_history_is_that_of_the_log_and_of_snapshots_that_it_does_not_name() -> None:
    snapshots = [{"snapshot-id": id_, "timestamp-ms": id_ * 10} for id_ in (1, 2, 3)]
    log = [{"snapshot-id": id_, "timestamp-ms": time_ms} for id_, time_ms in ((2, 20), (3, 30), (9, 35), (2, 40))]
    refs = {"main": {"snapshot-id": 2, "type": "branch"}, "v1": {"snapshot-id": 1, "type": "tag"}}
    history = History.of({"snapshots": snapshots, "snapshot-log": log, "refs": refs})
    assert list(history.moments) == [(10, 1), (20, 2), (30, 3), (40, 2)]
    assert history.named == {1, 2}
    assert history.snapshot_count == 3
    assert list(History.of({}).moments) == []
