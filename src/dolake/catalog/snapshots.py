"""Snapshots, the branches and tags that point at them, their statistics, and the log of what was current when.

From commit.py: each update of these kinds, in order, and settle_snapshot_log() once at the end of the commit.
Danger: a reader of Iceberg's Java library refuses a table whose history is out of order, so a commit that would make
it so has to be refused here; nobody could undo it later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dolake.catalog.base import PUBLISHED_TO, REPLACED_AT
from dolake.catalog.draft import ROW_LINEAGE_FORMAT_MIN, Draft
from dolake.catalog.errors import CommitConflict
from dolake.catalog.readers import MAIN, whole_of
from dolake.catalog.values import (
    Json,
    is_int,
    is_whole,
    read_int,
    read_ints,
    read_long,
    read_long_or_none,
    read_longs,
    read_object,
    read_objects,
    read_text,
    read_text_map,
    read_text_or_none,
    read_texts,
    refuse,
)
from dolake.tables.layout import MANAGED

CLOCK_TOLERANCE_MS = 60_000
_REF_LIMITS = ("min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms")
_REF_FIELDS = frozenset({"snapshot-id", "type", *_REF_LIMITS})
_UPDATE_FIELDS = frozenset({"action", "ref-name"})
_KEPT_IN_SUMMARIES = frozenset(
    {"operation", "added-records", "deleted-records", "total-records", "total-position-deletes"}
)


# --- snapshots -------------------------------------------------------------------------------------------------------


def add_snapshot(draft: Draft, update: Json) -> None:
    snapshot = checked_snapshot(read_object(update, "snapshot"))
    metadata, id_, sequence = draft.metadata, snapshot["snapshot-id"], snapshot.get("sequence-number", 0)
    for key, what in (("schemas", "schema"), ("partition-specs", "partition spec"), ("sort-orders", "sort order")):
        if not metadata[key]:
            refuse(f"Attempting to add a snapshot before a {what} is added")
    if id_ in draft.snapshots:
        refuse(f"Snapshot already exists for id: {id_}")
    _advance_sequence(draft, sequence, has_parent="parent-snapshot-id" in snapshot)
    if draft.format_version >= ROW_LINEAGE_FORMAT_MIN:
        _advance_rows(draft, snapshot)
    snapshots = draft.own_list("snapshots")
    if snapshots and metadata["properties"].get(MANAGED) == "true":
        snapshots[-1] = brief = _brief(snapshots[-1])
        draft.snapshots[brief["snapshot-id"]] = brief
    snapshots.append(snapshot)
    draft.snapshots[id_] = snapshot
    draft.added["snapshot"].add(id_)
    draft.is_changed = True


def _brief(snapshot: Json) -> Json:
    """Without most of its summary, which is half of a snapshot and is of use to the next commit alone.

    Engines parse all of it at each load: 300 snapshots cost DuckDB 4 ms, as long as it reads a small table.
    """
    summary = snapshot.get("summary") or {}
    kept = {key: value for key, value in summary.items() if key in _KEPT_IN_SUMMARIES or key.startswith("dolake.")}
    return snapshot | {"summary": kept}


def checked_snapshot(snapshot: Json) -> Json:
    """A snapshot as Iceberg's parser accepts it."""
    for key in ("snapshot-id", "timestamp-ms"):
        read_long(snapshot, key)
    for key in ("sequence-number", "parent-snapshot-id"):
        if key in snapshot:
            read_long(snapshot, key)
    if "summary" in snapshot:
        read_text_map(snapshot, "summary")
    if snapshot.get("schema-id") is not None:
        read_int(snapshot, "schema-id")
    if "manifest-list" in snapshot:
        read_text(snapshot, "manifest-list")
    else:
        read_texts(snapshot, "manifests")
    first, added = (_not_negative(snapshot, key) for key in ("first-row-id", "added-rows"))
    if first is not None and added is None:
        refuse("Invalid added-rows (required when first-row-id is set): null")
    read_text_or_none(snapshot, "key-id")
    return snapshot


def remove_snapshots(draft: Draft, update: Json) -> None:
    """Ids that are not there are no error: an expiry that runs twice has done its work."""
    gone = draft.snapshots.keys() & set(read_longs(update, "snapshot-ids"))
    if gone:
        if draft.metadata["properties"].get(MANAGED) == "true":
            _mark_gaps(draft, gone)
        kept = [entry for entry in draft.metadata["snapshots"] if entry["snapshot-id"] not in gone]
        draft.keep("snapshots", kept)
        for id_ in gone:
            del draft.snapshots[id_]
        for key in ("statistics", "partition-statistics"):
            _drop_files(draft, key, gone)
        draft.is_changed = draft.has_removed_snapshots = True
    for name, ref in list(draft.own_map("refs").items()):
        if ref["snapshot-id"] not in draft.snapshots:
            _remove_ref(draft, name)


def _mark_gaps(draft: Draft, gone: Collection[int]) -> None:
    """What stays before a gap says from which position on the table was another: for pins, which must not guess."""
    snapshots = draft.own_list("snapshots")
    before: int | None = None
    """Where in the list the last one is that stays and has no mark yet."""
    for at, snapshot in enumerate(snapshots):
        if snapshot["snapshot-id"] not in gone:
            before = None if REPLACED_AT in snapshot.get("summary", {}) else at
            continue
        if before is None:
            continue
        kept = snapshots[before]
        position, replaced_at = (whole_of(snapshot, key) for key in (PUBLISHED_TO, REPLACED_AT))
        if position is None or position == whole_of(kept, PUBLISHED_TO):  # the same rows in other files
            position = replaced_at
        if position is not None:
            summary = kept.get("summary", {}) | {REPLACED_AT: str(position)}
            snapshots[before] = draft.snapshots[kept["snapshot-id"]] = kept | {"summary": summary}
            before = None


def _advance_sequence(draft: Draft, sequence: int, *, has_parent: bool) -> None:
    last = draft.metadata.get("last-sequence-number", 0)
    if draft.format_version == 1:
        if sequence != 0:
            refuse(f"Sequence number must be 0 in v1: {sequence}")
        return
    if sequence <= last and has_parent:
        raise CommitConflict(
            "Validation failed, please retry: "
            f"Cannot add snapshot with sequence number {sequence} older than last sequence number {last}",
            hint="load the table again and give the snapshot the next sequence number",
        )
    draft.is_sequence_lowered |= sequence < last
    draft.metadata["last-sequence-number"] = sequence


def _advance_rows(draft: Draft, snapshot: Json) -> None:
    first, next_row = snapshot.get("first-row-id"), draft.metadata.get("next-row-id") or 0
    if first is None or "manifest-list" not in snapshot:
        refuse("Cannot add a snapshot: first-row-id is null")
    if first < next_row:
        raise CommitConflict(
            "Validation failed, please retry: "
            f"Cannot add a snapshot, first-row-id is behind table next-row-id: {first} < {next_row}",
            hint="load the table again and number the rows from its next-row-id",
        )
    # Java adds only added-rows. If the writer left a gap, the ids behind it would then be given out a second time.
    next_row = first + snapshot["added-rows"]
    if not is_whole(next_row):
        refuse(f"Cannot add a snapshot, next-row-id would be beyond 64 bits: {next_row}")
    draft.metadata["next-row-id"] = next_row


def _not_negative(snapshot: Json, key: str) -> int | None:
    value = read_long_or_none(snapshot, key)
    if value is not None and value < 0:
        refuse(f"Invalid {key} (cannot be negative): {value}")
    return value


# --- branches and tags -----------------------------------------------------------------------------------------------


def set_snapshot_ref(draft: Draft, update: Json) -> None:
    name = read_text(update, "ref-name")
    ref = checked_ref({key: value for key, value in update.items() if key not in _UPDATE_FIELDS})
    refs = draft.own_map("refs")
    existing = refs.get(name, {})
    ref = {**{key: value for key, value in existing.items() if key not in _REF_FIELDS}, **ref}
    if ref == existing:
        return
    snapshot = draft.snapshots.get(ref["snapshot-id"])
    if snapshot is None:
        refuse(f"Cannot set {name} to unknown snapshot: {ref['snapshot-id']}")
    if name == MAIN:
        _set_main(draft, ref, snapshot)
    refs[name] = ref
    draft.is_changed = True


def checked_ref(ref: Json) -> Json:
    """A branch or tag in canonical spelling, without the limits that it leaves open."""
    read_long(ref, "snapshot-id")
    type_ = read_text(ref, "type").lower()
    if type_ not in ("branch", "tag"):
        refuse(f"Invalid snapshot ref type: {ref['type']}", hint="branch or tag")
    limits = {key: read_long(ref, key) for key in _REF_LIMITS if ref.get(key) is not None}
    for key, value in limits.items():
        if type_ == "tag" and key != "max-ref-age-ms":
            refuse(f"Tags do not support setting {key}")
        if value <= 0 or (key == "min-snapshots-to-keep" and not is_int(value)):
            refuse(f"{key} must be greater than 0: {value}")
    others = {key: value for key, value in ref.items() if key not in _REF_LIMITS}
    return {**others, "type": type_, **limits}


def remove_snapshot_ref(draft: Draft, update: Json) -> None:
    _remove_ref(draft, read_text(update, "ref-name"))


def _set_main(draft: Draft, ref: Json, snapshot: Json) -> None:
    if ref["type"] != "branch":
        refuse(f"Cannot set {MAIN} to a tag, it must be a branch")
    id_ = ref["snapshot-id"]
    is_new = id_ in draft.added["snapshot"]
    if is_new:
        draft.mains_in_passing.add(id_)
    # Going back to an older snapshot happens now, not when that snapshot was made.
    moment = snapshot["timestamp-ms"] if is_new else draft.last_updated_ms
    draft.own_list("snapshot-log").append({"timestamp-ms": moment, "snapshot-id": id_})
    draft.metadata["current-snapshot-id"] = id_


def _remove_ref(draft: Draft, name: str) -> None:
    if draft.own_map("refs").pop(name, None) is not None:
        draft.is_changed = True
    if name == MAIN:
        draft.metadata["current-snapshot-id"] = None


# --- statistics ------------------------------------------------------------------------------------------------------


def set_statistics(draft: Draft, update: Json) -> None:
    _set_file(draft, "statistics", checked_statistics(read_object(update, "statistics")))


def set_partition_statistics(draft: Draft, update: Json) -> None:
    _set_file(draft, "partition-statistics", checked_partition_statistics(read_object(update, "partition-statistics")))


def remove_statistics(draft: Draft, update: Json) -> None:
    _drop_files(draft, "statistics", {read_long(update, "snapshot-id")})


def remove_partition_statistics(draft: Draft, update: Json) -> None:
    _drop_files(draft, "partition-statistics", {read_long(update, "snapshot-id")})


def checked_statistics(file: Json) -> Json:
    checked_partition_statistics(file)
    read_long(file, "file-footer-size-in-bytes")
    for blob in read_objects(file, "blob-metadata"):
        read_text(blob, "type")
        read_long(blob, "snapshot-id")
        read_long(blob, "sequence-number")
        read_ints(blob, "fields")
        if "properties" in blob:
            read_text_map(blob, "properties")
    return file


def checked_partition_statistics(file: Json) -> Json:
    read_long(file, "snapshot-id")
    read_text(file, "statistics-path")
    read_long(file, "file-size-in-bytes")
    return file


def _set_file(draft: Draft, key: str, file: Json) -> None:
    """A snapshot has one file of each kind; a new one replaces it."""
    _drop_files(draft, key, {file["snapshot-id"]})
    draft.own_list(key).append(file)
    draft.is_changed = True


def _drop_files(draft: Draft, key: str, snapshot_ids: set[int]) -> None:
    files = draft.metadata.get(key) or ()
    kept = [file for file in files if file["snapshot-id"] not in snapshot_ids]
    if len(kept) != len(files):
        draft.keep(key, kept)
        draft.is_changed = True


# --- history ---------------------------------------------------------------------------------------------------------


def settle_snapshot_log(draft: Draft) -> None:
    """Make the log true at the end of a commit, and refuse it where readers would.

    Snapshots that were current only between two updates of this commit were never seen by anybody. Of those that are
    gone the entries go, and no others: docs/decisions/0032 has why this is not what Iceberg's Java library does.
    """
    current = draft.current_snapshot_id
    in_passing = draft.mains_in_passing - {current}
    log: list[Json] = draft.metadata.get("snapshot-log") or []
    checked = 0 if draft.base is None else len(draft.base.get("snapshot-log") or ()) - 1
    if in_passing or draft.has_removed_snapshots:
        log = _true_entries(draft, log, in_passing)
        draft.keep("snapshot-log", log)
        checked = 0
        if current is not None and log and log[-1]["snapshot-id"] != current:
            refuse("Cannot set invalid snapshot log: latest entry is not the current snapshot")
    check_order_of_time(log[max(0, checked) :], draft.last_updated_ms, "snapshot log")
    if draft.is_sequence_lowered:
        check_sequence_numbers(draft.metadata)


def _true_entries(draft: Draft, log: list[Json], in_passing: set[int]) -> list[Json]:
    kept = draft.snapshots.keys() - in_passing
    return [entry for entry in log if entry["snapshot-id"] in kept]


def check_order_of_time(log: list[Json], last_updated_ms: int, what: str) -> None:
    """Entries follow each other, and the table's own time follows them, with a minute for clocks that disagree."""
    previous = None
    for entry in log:
        moment = entry["timestamp-ms"]
        if previous is not None and moment < previous - CLOCK_TOLERANCE_MS:
            _refuse_clock(f"Expected sorted {what} entries: {moment} comes after {previous}", previous - moment)
        previous = moment
    if previous is not None and last_updated_ms < previous - CLOCK_TOLERANCE_MS:
        message = f"Invalid update timestamp {last_updated_ms}: before last {what} entry at {previous}"
        _refuse_clock(message, previous - last_updated_ms)


def check_sequence_numbers(metadata: Mapping[str, Any]) -> None:
    last = metadata.get("last-sequence-number", 0)
    for snapshot in metadata.get("snapshots") or ():
        sequence = snapshot.get("sequence-number", 0)
        if sequence > last:
            refuse(f"Invalid snapshot with sequence number {sequence} greater than last sequence number {last}")


def _refuse_clock(message: str, behind_ms: int) -> None:
    refuse(message, hint=f"two clocks differ by {behind_ms / 1000:.0f} s; the writer's and the catalog's must agree")
