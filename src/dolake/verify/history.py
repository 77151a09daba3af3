"""The changes against themselves: positions without a gap, sequences that rise along each stream, a clock that rises.

From run.py, once all changes are in the workshop. They are read once, in the order of their positions, a million at a
time. A stretch of positions that no table has is no difference where a repair of the journal has left a gap, and a
sequence may start over with a new epoch of its source: journal.py knows both for what the journal still keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dolake.positions import START, Position
from dolake.verify.base import Advance, Check
from dolake.verify.journal import Kept

if TYPE_CHECKING:
    import duckdb

_ROWS_AT_ONCE = 1_000_000
_IN_ORDER = "SELECT position, number, source, sequence, committed_us FROM changes ORDER BY position"

Ints = NDArray[np.int64]


@dataclass(slots=True)
class _Walk:
    """How far the walk along the positions has come."""

    names: Sequence[str]
    position: Position = START - 1
    committed_us: int = -(2**63)
    number: int = -1
    sources: dict[str, int] = field(default_factory=dict)
    """A number for each stream that was met."""
    lasts: list[tuple[Position, int]] = field(default_factory=list)
    """By a stream's number, its last position and sequence."""


@dataclass(frozen=True, slots=True)
class History:
    """The three checks of the changes' order."""

    positions: Check
    sequences: Check
    times: Check

    def all(self) -> list[Check]:
        return [self.positions, self.sequences, self.times]


def new_history(table: str) -> History:
    return History(*(Check(table, name) for name in ("positions", "sequences", "commit times")))


def check_history(
    connection: duckdb.DuckDBPyConnection,
    names: Sequence[str],
    published: Position,
    kept: Kept,
    history: History,
    advance: Advance,
    *,
    is_whole: bool,
) -> None:
    """Walk along all changes. Only where these are all tables (`is_whole`) must positions be without a gap."""
    walk = _Walk(names)
    for batch in filter(len, connection.execute(_IN_ORDER).to_arrow_reader(_ROWS_AT_ONCE)):
        for check in history.all():
            check.compared += batch.num_rows
        _check_positions(batch, walk, kept, history.positions, is_whole=is_whole)
        _check_times(batch, walk, history.times)
        _check_sequences(batch, walk, connection, kept, history.sequences)
        walk.position, walk.number = batch.column(0)[-1].as_py(), batch.column(1)[-1].as_py()
        walk.committed_us = batch.column(4)[-1].as_py()
        advance(batch.num_rows)
    if is_whole and walk.position + 1 < published:
        _name_gap(walk.position + 1, published, kept, history.positions)
    _name_unpublished(connection, names, published, history.positions)


# --- positions -------------------------------------------------------------------------------------------------------


def _check_positions(batch: pa.RecordBatch, walk: _Walk, kept: Kept, check: Check, *, is_whole: bool) -> None:
    positions = np.concatenate(([walk.position], batch.column(0).to_numpy()))
    numbers = np.concatenate(([walk.number], batch.column(1).to_numpy()))
    steps = np.diff(positions)
    for at in np.flatnonzero(steps == 0).tolist():
        tables = " and ".join(sorted({walk.names[number] for number in numbers[at : at + 2]}))
        check.differ(f"position {positions[at]} is there twice, in {tables}")
    if is_whole:
        for at in np.flatnonzero(steps > 1).tolist():
            _name_gap(int(positions[at]) + 1, int(positions[at + 1]), kept, check)


def _name_gap(start: Position, end: Position, kept: Kept, check: Check) -> None:
    missing, excused = kept.missing_in(start, end)
    for first, last in missing:
        check.differ(f"{_stretch(first, last)} in no table of changes", last - first)
    for first, last, why in excused:
        check.note(f"{_stretch(first, last)} lost: {why}")


def _stretch(start: Position, end: Position) -> str:
    return f"position {start} is" if end == start + 1 else f"positions {start} to {end - 1} are"


def _name_unpublished(
    connection: duckdb.DuckDBPyConnection, names: Sequence[str], published: Position, check: Check
) -> None:
    found = connection.execute(
        "SELECT number, count(*), min(position) FROM changes WHERE position >= $published OR position < 0 GROUP BY ALL",
        {"published": published},
    ).fetchall()
    for number, count, first in found:
        what = f"{names[number]} has {count} changes from position {first} on; published is what is before {published}"
        check.differ(what, count)


# --- commit times ----------------------------------------------------------------------------------------------------


def _check_times(batch: pa.RecordBatch, walk: _Walk, check: Check) -> None:
    times = np.concatenate(([walk.committed_us], batch.column(4).to_numpy()))
    positions, numbers = batch.column(0).to_numpy(), batch.column(1).to_numpy()
    for at in np.flatnonzero(times[1:] < times[:-1]).tolist():
        what = f"the commit timestamp of position {positions[at]} in {walk.names[numbers[at]]} is before that of the "
        check.differ(f"{what}change ahead of it, by {(times[at] - times[at + 1]) / 1000:.0f} ms")


# --- sequences -------------------------------------------------------------------------------------------------------


def _check_sequences(
    batch: pa.RecordBatch, walk: _Walk, connection: duckdb.DuckDBPyConnection, kept: Kept, check: Check
) -> None:
    """Within each stream the sequence rises with the position."""
    streams = _stream_numbers(batch.column(2), walk)
    order = np.argsort(streams, kind="stable")
    streams, positions, sequences = (
        each[order] for each in (streams, batch.column(0).to_numpy(), batch.column(3).to_numpy())
    )
    firsts = np.flatnonzero(np.append(True, streams[1:] != streams[:-1]))
    ends = np.append(firsts[1:], len(streams))
    before = np.array([walk.lasts[stream] for stream in streams[firsts].tolist()], np.int64).reshape(-1, 2)
    known_positions, known_sequences = _ahead(positions, firsts, before[:, 0]), _ahead(sequences, firsts, before[:, 1])
    is_falling = (sequences <= known_sequences) & (known_positions >= 0)
    found = (each[is_falling].tolist() for each in (streams, known_positions, positions, known_sequences, sequences))
    names = list(walk.sources)
    falls = [_Fall(names[stream], *numbers) for stream, *numbers in zip(*found, strict=True)]
    _judge(falls, connection, kept, check)
    for stream, end in zip(streams[firsts].tolist(), ends.tolist(), strict=True):
        walk.lasts[stream] = int(positions[end - 1]), int(sequences[end - 1])


def _stream_numbers(sources: pa.Array, walk: _Walk) -> Ints:
    encoded = sources.dictionary_encode()
    numbers = []
    for source in encoded.dictionary.to_pylist():
        if source not in walk.sources:
            walk.sources[source] = len(walk.sources)
            walk.lasts.append((-1, 0))
        numbers.append(walk.sources[source])
    streams: Ints = np.array(numbers, np.int64)[encoded.indices.to_numpy()]
    return streams


def _ahead(values: Ints, firsts: Ints, before: Ints) -> Ints:
    """The value ahead of each one in its own stream; for a stream's first one, what was known before."""
    ahead = np.empty_like(values)
    ahead[1:] = values[:-1]
    ahead[firsts] = before
    return ahead


@dataclass(frozen=True, slots=True)
class _Fall:
    """A stream's sequence that does not rise from one change to its next."""

    source: str
    from_position: Position
    to_position: Position
    from_sequence: int
    to_sequence: int

    def __str__(self) -> str:
        what = f"{self.source}: sequence {self.to_sequence} at position {self.to_position}"
        if self.to_sequence == self.from_sequence:
            return f"{what} is there twice, first at position {self.from_position}"
        return f"{what} comes behind {self.from_sequence} at position {self.from_position}"


def _judge(falls: Sequence[_Fall], connection: duckdb.DuckDBPyConnection, kept: Kept, check: Check) -> None:
    """A sequence may start over with a new epoch. The journal knows epochs of what it keeps, and the last of before."""
    if not falls:
        return
    epochs = _epochs_at(connection, {at for fall in falls for at in (fall.from_position, fall.to_position)})
    for fall in falls:
        before = epochs.get(fall.from_position, kept.epochs.get(fall.source, 0))
        if not kept.is_deduplicating:
            check.note(f"{fall}; lake.enable_deduplication is off")
        elif fall.to_position < kept.oldest and before > 0:
            check.note(f"{fall}: a new epoch of this source, as it seems; the journal no longer has it")
        elif epochs.get(fall.to_position, 0) <= before:
            check.differ(str(fall))


def _epochs_at(connection: duckdb.DuckDBPyConnection, positions: set[Position]) -> dict[Position, int]:
    """Of those changes that the journal keeps."""
    cursor = connection.cursor()  # the walk goes on with the connection's own result
    query = "SELECT position, epoch FROM journal WHERE position IN (SELECT unnest($positions))"
    return dict(cursor.execute(query, {"positions": list(positions)}).fetchall())
