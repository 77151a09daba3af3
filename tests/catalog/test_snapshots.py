"""Snapshots, branches and tags, statistics, and the history of what was current."""

from __future__ import annotations

from typing import Any

import pytest

from dolake.catalog.errors import CommitConflict
from dolake.errors import InvalidInput
from tests.catalog.examples import START_MS, act, add, append, commit, ids, main, ref, snapshot, table

REMOVE_MAIN = act("remove-snapshot-ref", ref_name="main")


def remove(*snapshot_ids: int) -> dict[str, Any]:
    return act("remove-snapshots", snapshot_ids=list(snapshot_ids))


def statistics(id_: int, path: str = "a.puffin") -> dict[str, Any]:
    blob = {"type": "theta", "snapshot-id": id_, "sequence-number": 1, "fields": [1], "properties": {"ndv": "3"}}
    return {
        "snapshot-id": id_,
        "statistics-path": path,
        "file-size-in-bytes": 100,
        "file-footer-size-in-bytes": 10,
        "blob-metadata": [blob],
    }


def partition_statistics(id_: int, path: str = "p.parquet") -> dict[str, Any]:
    return {"snapshot-id": id_, "statistics-path": path, "file-size-in-bytes": 100}


# --- snapshots -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_an_append_becomes_the_current_snapshot_and_the_last_entry_of_the_log(format_version: int) -> None:
    metadata = table(format_version, history=3)
    assert ids(metadata["snapshots"]) == ids(metadata["snapshot-log"]) == [1, 2, 3]
    assert metadata["current-snapshot-id"] == metadata["refs"]["main"]["snapshot-id"] == 3
    assert metadata["snapshot-log"][-1]["timestamp-ms"] == START_MS + 3000


def test_a_snapshot_without_a_ref_changes_nothing_that_readers_see() -> None:
    made = commit(table(history=1), add(snapshot(2, 2, 1)))
    assert (made["current-snapshot-id"], made["last-sequence-number"]) == (1, 2)
    assert ids(made["snapshot-log"]) == [1]


FULL = {"operation": "append", "dolake.published-to": "7", "total-records": "5", "manifests-kept": "2"}


@pytest.mark.parametrize(("is_managed", "kept"), [(True, 3), (False, 4)])
def test_a_managed_table_keeps_of_an_earlier_summary_only_what_somebody_asks_for(is_managed: bool, kept: int) -> None:
    properties = {"dolake.managed": "true"} if is_managed else {"owner": "me"}
    made = commit(table(), act("set-properties", updates=properties))
    for number in (1, 2):
        made = commit(made, add(snapshot(number, number, number - 1 or None) | {"summary": FULL}), main(number))
    assert made["snapshots"][1]["summary"] == FULL, "the next commit counts from it"
    assert made["snapshots"][0]["summary"] == dict(list(FULL.items())[:kept])


def test_a_snapshot_whose_sequence_number_is_behind_came_too_late() -> None:
    metadata = table(history=3)
    for sequence in (2, 3):
        with pytest.raises(CommitConflict, match=f"sequence number {sequence} older than last sequence number 3"):
            commit(metadata, add(snapshot(9, sequence, 3)))


def test_a_snapshot_without_a_sequence_number_has_number_0() -> None:
    with pytest.raises(CommitConflict, match="sequence number 0"):
        commit(table(history=1), add(snapshot(9, None, 1)))


def test_a_snapshot_without_a_parent_may_start_again_only_where_nothing_is_newer() -> None:
    with pytest.raises(InvalidInput, match="sequence number 3 greater than last sequence number 2"):
        commit(table(history=3), add(snapshot(9, 2)))
    made = commit(table(history=3), remove(1, 2, 3), add(snapshot(9, 2)))
    assert made["last-sequence-number"] == 2


def test_format_1_has_no_sequence_numbers() -> None:
    with pytest.raises(InvalidInput, match="must be 0 in v1"):
        commit(table(1), add(snapshot(1, 1)))
    assert "last-sequence-number" not in table(1, history=2)


def test_a_snapshot_id_is_used_once() -> None:
    with pytest.raises(InvalidInput, match="already exists for id: 1"):
        commit(table(history=1), add(snapshot(1, 2, 1)))


def test_a_snapshot_of_format_1_may_name_its_manifests_itself() -> None:
    made = snapshot(1, None, manifests=["a.avro"])
    del made["manifest-list"]
    assert ids(commit(table(1), add(made))["snapshots"]) == [1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"snapshot-id": "1"},
        {"snapshot-id": 2**63},
        {"timestamp-ms": None},
        {"sequence-number": 1.5},
        {"parent-snapshot-id": None},
        {"manifest-list": None},
        {"summary": None},
        {"summary": {"operation": "append", "added-records": 1}},
        {"schema-id": "0"},
        {"first-row-id": -1, "added-rows": 1},
        {"first-row-id": 0, "added-rows": -1},
        {"first-row-id": 0},
        {"key-id": 3},
    ],
    ids=str,
)
def test_a_malformed_snapshot_is_invalid_input(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        commit(table(), add({**snapshot(1, 1), **wrong}))


def test_a_snapshot_needs_its_manifests() -> None:
    made = snapshot(1, 1)
    del made["manifest-list"]
    with pytest.raises(InvalidInput, match="manifests"):
        commit(table(), add(made))


def test_row_ids_of_format_3_are_counted_on() -> None:
    metadata = table(3, history=2)
    assert [each["first-row-id"] for each in metadata["snapshots"]] == [0, 10]
    assert metadata["next-row-id"] == 20


def test_rows_numbered_before_the_table_s_next_row_came_too_late() -> None:
    metadata = table(3, history=2)
    with pytest.raises(CommitConflict, match="first-row-id is behind table next-row-id: 19 < 20"):
        commit(metadata, *append(metadata, 3, first_row_id=19))


def test_row_ids_after_a_gap_are_never_given_out_twice() -> None:
    metadata = table(3, history=2)
    assert commit(metadata, *append(metadata, 3, first_row_id=100))["next-row-id"] == 110


def test_row_ids_end_where_64_bits_do() -> None:
    with pytest.raises(InvalidInput, match="beyond 64 bits"):
        commit(table(3), add(snapshot(1, 1, first_row_id=2**63 - 1, added_rows=1)))


def test_format_3_wants_row_ids() -> None:
    with pytest.raises(InvalidInput, match="first-row-id is null"):
        commit(table(3), add(snapshot(1, 1)))


# --- removing --------------------------------------------------------------------------------------------------------


def test_a_removed_snapshot_takes_its_refs_and_statistics_along() -> None:
    metadata = commit(
        table(history=3),
        ref("old", 1, "tag"),
        ref("new", 3, "tag"),
        *(act("set-statistics", statistics=statistics(id_)) for id_ in (1, 3)),
        *(act("set-partition-statistics", partition_statistics=partition_statistics(id_)) for id_ in (1, 3)),
    )
    made = commit(metadata, remove(1, 2, 77))
    assert ids(made["snapshots"]) == ids(made["statistics"]) == ids(made["partition-statistics"]) == [3]
    assert sorted(made["refs"]) == ["main", "new"]


def test_the_log_keeps_the_entries_of_all_snapshots_that_stay() -> None:
    """Java clears it up to the last one that is gone; then Spark finds no time before that, and DuckDB no row."""
    before = table(history=5)
    made = commit(before, remove(2, 4))
    assert ids(made["snapshots"]) == ids(made["snapshot-log"]) == [1, 3, 5]
    assert made["snapshot-log"] == [before["snapshot-log"][at] for at in (0, 2, 4)]


def test_a_snapshot_that_was_current_twice_leaves_the_log_twice() -> None:
    back = commit(table(history=3), main(1), now_ms=START_MS + 50_000)
    assert ids(back["snapshot-log"]) == [1, 2, 3, 1]
    assert ids(commit(back, remove(3), now_ms=START_MS + 51_000)["snapshot-log"]) == [1, 2, 1]
    on = commit(back, *append(back, 4), now_ms=START_MS + 52_000)
    assert ids(commit(on, remove(1), now_ms=START_MS + 53_000)["snapshot-log"]) == [2, 3, 4]


def published(*positions: int) -> dict[str, Any]:
    """A managed table with a snapshot for each of these positions of the journal."""
    made = commit(table(), act("set-properties", updates={"dolake.managed": "true"}))
    for number, position in enumerate(positions, start=1):
        summary = {"operation": "append", "dolake.published-to": str(position)}
        made = commit(made, *append(made, number, summary=summary))
    return made


def replaced(metadata: dict[str, Any]) -> dict[int, str | None]:
    return {each["snapshot-id"]: each["summary"].get("dolake.replaced-at") for each in metadata["snapshots"]}


def test_what_stays_before_a_gap_says_from_which_position_on_the_table_was_another() -> None:
    made = commit(published(10, 20, 30, 40, 50), remove(2, 3))
    assert replaced(made) == {1: "20", 4: None, 5: None}
    assert replaced(commit(made, remove(4))) == {1: "20", 5: None}, "the first that went decides"
    assert replaced(commit(made, remove(1))) == {4: None, 5: None}


def test_a_compaction_that_is_gone_leaves_no_gap_but_passes_on_the_one_behind_it() -> None:
    made = published(10, 10, 20, 30)  # the second has the rows of the first
    assert replaced(commit(made, remove(2))) == {1: None, 3: None, 4: None}
    behind = commit(made, remove(3))
    assert replaced(behind) == {1: None, 2: "20", 4: None}
    assert replaced(commit(behind, remove(2))) == {1: "20", 4: None}


def test_tables_of_others_get_no_mark() -> None:
    assert replaced(commit(table(history=3), remove(2))) == {1: None, 3: None}


def test_removing_the_current_snapshot_leaves_the_table_empty() -> None:
    made = commit(table(history=2), remove(2))
    assert (made["current-snapshot-id"], made["refs"], ids(made["snapshot-log"])) == (-1, {}, [1])


def test_children_of_a_removed_snapshot_still_name_it() -> None:
    """As in Java: the lineage is history, not a pointer that must lead somewhere."""
    assert commit(table(history=2), remove(1))["snapshots"][0]["parent-snapshot-id"] == 1


# --- branches and tags -----------------------------------------------------------------------------------------------


def test_a_rollback_happened_now_and_not_when_the_old_snapshot_was_made() -> None:
    made = commit(table(history=3), main(1), now_ms=START_MS + 50_000)
    assert made["current-snapshot-id"] == 1
    assert made["snapshot-log"][-1] == {"timestamp-ms": START_MS + 50_000, "snapshot-id": 1}


def test_snapshots_that_were_current_only_within_a_commit_leave_no_trace_in_the_log() -> None:
    metadata = table(history=1)
    made = commit(metadata, add(snapshot(2, 2, 1)), main(2), add(snapshot(3, 3, 2)), main(3))
    assert ids(made["snapshots"]) == [1, 2, 3]
    assert ids(made["snapshot-log"]) == [1, 3]


def test_a_commit_that_goes_back_on_itself_keeps_the_log_true() -> None:
    made = commit(table(history=2), add(snapshot(3, 3, 2)), main(3), main(1))
    assert ids(made["snapshot-log"]) == [1, 2, 1]


def test_a_branch_beside_main_leaves_no_entry_in_the_log() -> None:
    made = commit(table(history=2), ref("audit", 1), add(snapshot(3, 3, 1)), ref("audit", 3))
    assert made["refs"]["audit"] == {"snapshot-id": 3, "type": "branch"}
    assert (made["current-snapshot-id"], ids(made["snapshot-log"])) == (2, [1, 2])


def test_limits_of_a_branch_are_kept_and_those_left_open_are_not_written() -> None:
    sent = {**ref("main", 1, min_snapshots_to_keep=5, max_ref_age_ms=7), "max-snapshot-age-ms": None}
    made = commit(table(history=1), sent)
    assert made["refs"]["main"] == {"snapshot-id": 1, "type": "branch", "min-snapshots-to-keep": 5, "max-ref-age-ms": 7}
    assert commit(made, sent) is made
    assert commit(made, main(1))["refs"]["main"] == {"snapshot-id": 1, "type": "branch"}


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (ref("main", 9), "unknown snapshot: 9"),
        (ref("main", 1, "tag"), "it must be a branch"),
        (ref("x", 1, "twig"), "Invalid snapshot ref type: twig"),
        (ref("x", 1, "branch", min_snapshots_to_keep=0), "greater than 0"),
        (ref("x", 1, "branch", min_snapshots_to_keep=2**31), "greater than 0"),
        (ref("x", 1, "branch", max_snapshot_age_ms=-1), "greater than 0"),
        (ref("x", 1, "tag", max_ref_age_ms=0), "greater than 0"),
        (ref("x", 1, "tag", min_snapshots_to_keep=1), "Tags do not support"),
        (ref("x", 1, "tag", max_snapshot_age_ms=1), "Tags do not support"),
    ],
    ids=str,
)
def test_a_ref_that_cannot_be_is_refused(update: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        commit(table(history=2), update)


def test_without_main_the_table_is_empty_and_its_snapshots_stay() -> None:
    made = commit(table(history=2), REMOVE_MAIN)
    assert (made["current-snapshot-id"], made["refs"]) == (-1, {})
    assert ids(made["snapshots"]) == ids(made["snapshot-log"]) == [1, 2]


def test_a_tag_can_be_removed() -> None:
    metadata = commit(table(history=1), ref("v1", 1, "tag"))
    assert sorted(commit(metadata, act("remove-snapshot-ref", ref_name="v1"))["refs"]) == ["main"]


def test_a_table_from_before_there_were_refs_gets_them_when_one_moves() -> None:
    old = {key: value for key, value in table(history=2).items() if key != "refs"}
    assert sorted(commit(old, ref("v1", 1, "tag"))["refs"]) == ["main", "v1"]


# --- statistics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "made"),
    [("statistics", statistics), ("partition-statistics", partition_statistics)],
    ids=["statistics", "partition-statistics"],
)
def test_a_snapshot_has_one_statistics_file_and_a_new_one_replaces_it(key: str, made: Any) -> None:
    metadata = commit(table(history=2), *({"action": f"set-{key}", key: made(id_)} for id_ in (1, 2)))
    replaced = commit(metadata, {"action": f"set-{key}", key: made(1, "b")})
    assert replaced[key] == [made(2), made(1, "b")]
    assert commit(replaced, act(f"remove-{key}", snapshot_id=2))[key] == [made(1, "b")]


@pytest.mark.parametrize("missing", sorted(statistics(1)))
def test_a_statistics_file_without_one_of_its_fields_is_refused(missing: str) -> None:
    sent = {key: value for key, value in statistics(1).items() if key != missing}
    with pytest.raises(InvalidInput, match=missing):
        commit(table(history=1), act("set-statistics", statistics=sent))


# --- clocks ----------------------------------------------------------------------------------------------------------


def test_a_writer_whose_clock_is_minutes_ahead_is_refused() -> None:
    """Java's readers would refuse the table from then on."""
    metadata = table(history=1)
    late = snapshot(2, 2, 1, timestamp_ms=START_MS + 100_000)
    with pytest.raises(InvalidInput, match="Invalid update timestamp") as refused:
        commit(metadata, add(late), main(2), now_ms=START_MS + 5000)
    assert "clocks differ by 95 s" in refused.value.hint
    assert commit(metadata, add(late), main(2), now_ms=START_MS + 41_000)["current-snapshot-id"] == 2


def test_a_writer_whose_clock_is_minutes_behind_is_refused() -> None:
    metadata = table(history=1)
    early = snapshot(2, 2, 1, timestamp_ms=START_MS - 60_000)
    with pytest.raises(InvalidInput, match="Expected sorted snapshot log"):
        commit(metadata, add(early), main(2))
    assert commit(metadata, add({**early, "timestamp-ms": START_MS - 58_000}), main(2))["current-snapshot-id"] == 2
