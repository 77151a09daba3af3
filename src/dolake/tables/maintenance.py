"""What upkeep a table needs, as pure rules over what is known of its files. Doing it is pipeline/maintenance.py's part.

From pipeline/staging.py, which merges the smallest files within a publish; from pipeline/maintenance.py, which does the
rest beside the stream; from the server, which shows it. Promise: what is good stays as it is; a row is written again a
few times in its life, however long the stream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dolake.tables.thinning import History, Steps, snapshots_to_remove
from dolake.tables.tiers import COLD, WARM, Tier

MERGE_FILES_MIN, MERGE_FILES_MAX = 5, 32
MERGE_ROWS_MAX = 100_000
"""A publish must not take long: larger files are left to compaction."""
_MERGED_ROWS_MAX = 50_000
_TINY_BYTES = 2 * 1024 * 1024
_TIER_STEP = 4
_SMALL_SHARE = 0.75
"""A file of at least this share of the target is as large as it should be."""
_INFLATION = 8
"""How many times larger in memory than on disk rows may be, read and written."""
_ROW_GROUP_ROWS = 100_000
_ROW_BYTES = 64
"""What a compaction keeps in memory of each row: its key's hash, thrice while it is sorted."""
_URGENT_ROWS = 1_000
_BASE_BYTES = 32 * 1024 * 1024
_DAY_MS = 86_400_000


# --- within a publish ------------------------------------------------------------------------------------------------


def files_to_merge(live_rows: Mapping[str, int], *, files_min: int = MERGE_FILES_MIN) -> list[str]:
    """Small files that should become one now, and files that have no row left."""
    empty = [path for path, rows in live_rows.items() if not rows]
    small = {path: rows for path, rows in live_rows.items() if 0 < rows <= _MERGED_ROWS_MAX}
    if len(small) < files_min:
        return empty
    merged = _smallest(small)[:MERGE_FILES_MAX]
    while sum(small[path] for path in merged) > MERGE_ROWS_MAX:
        merged.pop()
    return [*empty, *merged]


def groups_to_merge(live_rows: Mapping[str, int], partitions: Mapping[str, str]) -> list[list[str]]:
    """The same for a table with partitions: files of one partition become one, in a few partitions at a time."""
    by_partition: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for path, rows in live_rows.items():
        by_partition[partitions[path]][path] = rows
    found = [group for files in by_partition.values() if (group := files_to_merge(files))]
    chosen: list[list[str]] = []
    total = 0
    for group in sorted(found, key=len, reverse=True):
        rows = sum(live_rows[path] for path in group)
        if rows and total + rows > MERGE_ROWS_MAX:
            group = [path for path in group if not live_rows[path]]
        elif rows:
            total += rows
        if group:
            chosen.append(group)
    return chosen


def _smallest(sizes: Mapping[str, int]) -> list[str]:
    """The smallest of these and each that is at most four times as large as all smaller ones together.

    So a row is written again only in a file that is a good deal larger than the one it was in.
    """
    chosen: list[str] = []
    total = 0
    for path, size in sorted(sizes.items(), key=lambda each: each[1]):
        if len(chosen) >= 2 and size > _TIER_STEP * total:
            break
        chosen.append(path)
        total += size
    return chosen


def _tier_of(size: int) -> int:
    """Each tier holds files up to four times as large as the one before."""
    tier, limit = 0, _TINY_BYTES
    while size > limit:
        tier, limit = tier + 1, limit * _TIER_STEP
    return tier


# --- beside the stream -----------------------------------------------------------------------------------------------

Kind = Literal["files", "deletes", "tiers", "manifests", "snapshots"]


@dataclass(frozen=True, slots=True)
class Rules:
    """From when on something is due, and how much is done at once: the settings `compaction` and `maintenance`."""

    min_files_to_compact: int
    max_files_to_compact: int
    target_file_size_bytes: int
    deleted_share_max: float
    small_files_max: int
    manifests_max: int
    snapshots: Steps
    memory_max_bytes: int
    move_size_max_bytes: int

    def relaxed(self) -> Rules:
        """While there is no time: eight times as many small files, and three times as many deleted rows, may wait."""
        share = min(1.0, 3 * self.deleted_share_max)
        return replace(self, small_files_max=8 * self.small_files_max, deleted_share_max=share)

    def with_target(self, size_bytes: int | None) -> Rules:
        """For a table that has a file size of its own."""
        return replace(self, target_file_size_bytes=size_bytes) if size_bytes else self


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A data file of a table: `deleted_rows` of its `rows` are deleted."""

    path: str
    size_bytes: int
    rows: int
    deleted_rows: int = 0
    partition: str = ""
    tier: Tier = WARM
    ended_ms: int | None = None
    """When the span of time that its partition is for was over; None where it is for none, or should stay here."""

    @property
    def live_bytes(self) -> int:
        return self.size_bytes * (self.rows - self.deleted_rows) // max(1, self.rows)


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What is known of a table; None where nobody has counted."""

    table: str
    files: Sequence[FileFacts]
    manifest_count: int | None = None
    history: History | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that is due.

    `score` says how many files fewer a full scan opens, and how many rows fewer it reads in vain; `memory_bytes` what
    doing it takes at most, about.
    """

    table: str
    kind: Kind
    partition: str
    paths: tuple[str, ...]
    size_bytes: int
    memory_bytes: int
    score: float
    reason: str


def candidates(facts: TableFacts, rules: Rules, now_ms: int, *, is_urgent: bool) -> list[Candidate]:
    """What is due, the most useful first. `is_urgent` asks only for what should not wait for the next hourly look."""
    found = [
        *_files_due(facts, rules, is_urgent=is_urgent),
        *_manifests_due(facts, rules),
        *_snapshots_due(facts, rules, now_ms),
    ]
    return sorted(found, key=lambda each: -each.score)


def _files_due(facts: TableFacts, rules: Rules, *, is_urgent: bool) -> Iterator[Candidate]:
    by_partition: defaultdict[tuple[str, Tier], list[FileFacts]] = defaultdict(list)
    for file in facts.files:
        by_partition[file.partition, file.tier].append(file)
    for (partition, _), files in by_partition.items():
        worn = [file for file in files if _is_worn(file, rules, is_urgent=is_urgent)]
        taken = {file.path for file in worn}
        for group in _groups(worn, rules):
            share = sum(file.deleted_rows for file in group) / sum(file.rows for file in group)
            reason = f"{share:.0%} of the rows in {len(group)} files are deleted"
            yield _candidate(facts.table, "deletes", partition, group, reason)
        small = [file for file in files if file.path not in taken and _is_small(file, rules)]
        for group in _small_due(small, rules, is_urgent=is_urgent):
            reason = f"{len(group)} files of {_mean_mb(group):.2g} MB could be {_count_after(group, rules)}"
            yield _candidate(facts.table, "files", partition, group, reason)


def _is_worn(file: FileFacts, rules: Rules, *, is_urgent: bool) -> bool:
    """A few rows that are read in vain can wait, else a small table would be written anew after each publish."""
    is_much = file.deleted_rows > rules.deleted_share_max * file.rows
    return is_much and (not is_urgent or file.deleted_rows >= _URGENT_ROWS)


def _is_small(file: FileFacts, rules: Rules) -> bool:
    return file.live_bytes < _SMALL_SHARE * rules.target_file_size_bytes


def _small_due(small: list[FileFacts], rules: Rules, *, is_urgent: bool) -> Iterator[list[FileFacts]]:
    """Tiny files, and files of one tier, when there are many; at the hourly look all, if that makes them fewer."""
    if not is_urgent:
        for group in _groups(small, rules):
            if len(group) >= rules.min_files_to_compact and _is_worth_it(group, rules):
                yield group
        return
    tiers: defaultdict[int, list[FileFacts]] = defaultdict(list)
    for file in small:
        tiers[_tier_of(file.live_bytes)].append(file)
    for tier, files in sorted(tiers.items()):
        if len(files) >= max(rules.min_files_to_compact, rules.small_files_max):
            chosen = set(_smallest({file.path: file.live_bytes for file in files}))
            groups = _groups([file for file in files if tier or file.path in chosen], rules)
            yield from (group for group in groups if _is_worth_it(group, rules))


def _is_worth_it(group: list[FileFacts], rules: Rules) -> bool:
    """Else the same files would be due again."""
    return _count_after(group, rules) * 2 <= len(group)


def _groups(files: list[FileFacts], rules: Rules, size_max_bytes: int | None = None) -> Iterator[list[FileFacts]]:
    """Pieces of work in the order of the files, each within the most files, memory and bytes that one may take."""
    group: list[FileFacts] = []
    for file in files:
        is_full = len(group) == rules.max_files_to_compact
        if size_max_bytes is not None and sum(each.size_bytes for each in [*group, file]) > size_max_bytes:
            is_full = True
        if group and (is_full or memory_of([*group, file]) > rules.memory_max_bytes):
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def memory_of(files: Iterable[FileFacts]) -> int:
    """What compacting these takes at most, about: a row group as it is in memory, and something for each row."""
    sizes = [(file.size_bytes, max(1, file.rows)) for file in files]
    largest = max(size * min(rows, _ROW_GROUP_ROWS) // rows for size, rows in sizes)
    return _BASE_BYTES + _INFLATION * largest + _ROW_BYTES * sum(rows for _, rows in sizes)


def _candidate(table: str, kind: Kind, partition: str, files: list[FileFacts], reason: str) -> Candidate:
    opened = len(files) + sum(file.deleted_rows > 0 for file in files)
    in_vain = sum(file.deleted_rows for file in files) / 100_000
    paths = tuple(file.path for file in files)
    size_bytes = sum(file.size_bytes for file in files)
    return Candidate(table, kind, partition, paths, size_bytes, memory_of(files), opened - 1 + in_vain, reason)


def _count_after(files: list[FileFacts], rules: Rules) -> int:
    return max(1, round(sum(file.live_bytes for file in files) / rules.target_file_size_bytes))


def _mean_mb(files: list[FileFacts]) -> float:
    return sum(file.size_bytes for file in files) / len(files) / 1e6


def moves_due(facts: TableFacts, rules: Rules, archive_after_days: int, now_ms: int) -> list[Candidate]:
    """Warm files of partitions whose time was over so many days ago; 0 days means never."""
    if not archive_after_days:
        return []
    until_ms = now_ms - archive_after_days * _DAY_MS
    old = [
        file for file in facts.files if file.tier == WARM and file.ended_ms is not None and file.ended_ms <= until_ms
    ]
    return list(_moves(facts.table, old, rules, f"older than {archive_after_days} days"))


def moves_to(facts: TableFacts, rules: Rules, tier: Tier) -> list[Candidate]:
    """Everything that is not there yet."""
    away = [file for file in facts.files if file.tier != tier]
    return list(_moves(facts.table, away, rules, f"asked to be {tier}"))


def _moves(table: str, files: list[FileFacts], rules: Rules, reason: str) -> Iterator[Candidate]:
    """In pieces that are moved one at a time, partition by partition.

    The largest comes first: where rows of old partitions change all the time, the few that came since the last look
    would keep those waiting that have never moved.
    """
    by_partition: defaultdict[str, list[FileFacts]] = defaultdict(list)
    for file in files:
        by_partition[file.partition].append(file)
    for partition, inside in sorted(by_partition.items(), key=lambda each: -sum(file.size_bytes for file in each[1])):
        for piece in _groups(inside, rules, size_max_bytes=rules.move_size_max_bytes):
            yield _candidate(table, "tiers", partition, piece, f"{len(piece)} files {reason}")


@dataclass(frozen=True, slots=True)
class Held:
    """What a tier holds."""

    files: int = 0
    rows: int = 0
    size_bytes: int = 0

    def __add__(self, other: Held) -> Held:
        return Held(self.files + other.files, self.rows + other.rows, self.size_bytes + other.size_bytes)

    def cost(self, price: float) -> float:
        """For a month, at the price of a gigabyte (1,000,000,000 bytes) for a month."""
        return self.size_bytes / 1e9 * price


def held_by(files: Iterable[FileFacts]) -> dict[Tier, Held]:
    """The rows that are current, and the bytes of their files."""
    found: dict[Tier, Held] = {WARM: Held(), COLD: Held()}
    for file in files:
        found[file.tier] += Held(1, file.rows - file.deleted_rows, file.size_bytes)
    return found


def _manifests_due(facts: TableFacts, rules: Rules) -> Iterator[Candidate]:
    count = facts.manifest_count or 0
    if count > rules.manifests_max:
        yield _of_metadata(facts.table, "manifests", count, f"{count} manifests are read to plan a query")


def _snapshots_due(facts: TableFacts, rules: Rules, now_ms: int) -> Iterator[Candidate]:
    history = facts.history or History(())
    if gone := snapshots_to_remove(history, rules.snapshots, now_ms):
        reason = f"{len(gone)} of {history.snapshot_count} snapshots are more than their age is worth"
        yield _of_metadata(facts.table, "snapshots", len(gone), reason)


def _of_metadata(table: str, kind: Kind, count: int, reason: str) -> Candidate:
    return Candidate(table, kind, "", (), 0, _BASE_BYTES, count / 100, reason)
