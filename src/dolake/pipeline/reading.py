"""Changes of one table become rows of its changes table, typed, and what they do to keys.

From tasks.py, in Spark's workers, and from query/table_tail.py, which must come to the same rows. Promise: each change
is a row, or the answer says which columns the table lacks or which changes cannot be rows at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
from msgspec import UNSET, Raw
from msgspec.json import Decoder, encode
from numpy.typing import NDArray

from dolake.keyindex.hashes import Hashes, hash_keys, no_hashes
from dolake.pipeline.cut import may_say, metadata_of
from dolake.pipeline.files import Shape
from dolake.pipeline.fold import Outcomes, outcomes
from dolake.pipeline.gather import Gathered
from dolake.pipeline.rows import Contradiction, Rows, read_rows
from dolake.pipeline.unchanged import OldRows, filled, plan_filling
from dolake.tables.declaration import Declaration, Notes
from dolake.tables.layout import BEFORE, CLEARING, DDL_OPERATIONS, KEY, NO_KEY, RESCUED, SOURCE
from dolake.tables.rules import ReadingRules
from dolake.tables.schema import Seen, grow
from dolake.tables.types import Columns, Field, column_name, parse_type, problem_with_column_name
from dolake.wire.messages import EventMetadata, RawEvent, SchemaColumn

_NO_IMAGE, _UNCHANGED = b"null", b'"unchanged"'
_NOTHING = Declaration()
_FIRST_LOOK_ROWS = 4_000
_EVERY = 2**40
"""As a count: whatever the table's size, these are many."""
_USUAL = ReadingRules()
_split_row = Decoder(dict[str, Raw]).decode


@dataclass(frozen=True, slots=True)
class Wanting:
    """The table lacks columns that these changes bring, or has them with types that are too narrow."""

    seen: Seen
    declared: Declaration = _NOTHING


@dataclass(frozen=True, slots=True)
class Contradicted:
    """Columns of guessed types must have these types before the changes can be rows."""

    types: dict[str, str]


@dataclass(frozen=True, slots=True)
class Unwritable:
    """Some of the changes cannot be rows, for these reasons; without them the others can."""

    problems: dict[int, str]


@dataclass(frozen=True, slots=True)
class ReadChanges:
    """Changes as rows of the changes table, in journal order; what they do to keys, not folded; and which does what."""

    rows: pa.Table
    outcomes: Outcomes
    change_of: NDArray[np.int64]
    clears: list[int]
    """Changes after which the table has no row."""
    contradicted: Mapping[str, Contradiction] = field(default_factory=dict)
    """Columns of guessed types that should get other types beside the stream, because the table is large."""


@dataclass(frozen=True, slots=True)
class Table:
    """What must be known of a table to read its changes."""

    columns: Columns
    shape: Shape
    has_source_in_key: bool
    rules: ReadingRules = _USUAL
    rebuildable: frozenset[str] = frozenset()
    """Columns that may get another type."""
    old_rows: OldRows | None = None
    notes: Notes | None = None
    """What is noted of its columns; None where nobody can note anything."""
    retypes_at_once: bool = False
    """Whether columns of guessed types can get other types before this publish."""


_NO_NOTES = Notes()


def read_changes(changes: Gathered, table: Table) -> ReadChanges | Wanting | Contradicted | Unwritable:
    """Changes of one table as rows of its changes table, or why that cannot be yet."""
    columns, rules, rebuildable = table.columns, table.rules, table.rebuildable
    metadata = metadata_by_change(changes.events)
    declared = declared_by(metadata).without_guesses(each.name for each in rules.declared)
    wanted, notes = (*declared.columns, *rules.declared), table.notes or _NO_NOTES
    if declared and grow(columns, Seen(), declared=wanted, leaves_max=rules.leaves_max, rebuildable=rebuildable):
        return Wanting(Seen(), declared)
    if declared and table.notes and notes.is_behind(columns, declared):
        return Wanting(Seen(), declared)
    changed = notes.changed(columns, declared)
    if changed and table.retypes_at_once:
        return Contradicted(changed)
    images = [_image_of(event) for event in changes.events]
    for at, each in metadata.items():
        if each.ddl is not None:
            images[at] = _NO_IMAGE
    olds = [at for at, event in enumerate(changes.events) if event.operation == "UPDATE" and _has_before(event)]
    befores = [bytes(cast("Raw", changes.events[at].before)) for at in olds]
    rows = read_rows([*images, *befores], columns, rules.leaves_max, rebuildable, notes.open)
    if rows.columns is None:
        return Wanting(rows.unknown, declared)
    if rows.contradicted and table.retypes_at_once:
        return Contradicted({name: found.type for name, found in rows.contradicted.items()})
    contradicted = rows.contradicted | {name: Contradiction(type_, _EVERY) for name, type_ in changed.items()}
    changes_of = [*range(len(images)), *olds]
    problems = {changes_of[at]: "the row is no JSON object" for at in rows.unreadable}
    if not problems and any(each.unchanged for each in metadata.values()):
        rows, problems = _with_unchanged(changes, metadata, rows, olds, table)
    if problems:
        return Unwritable(problems)
    assert rows.columns is not None
    own, change_of = _outcomes(changes, metadata, has_source_in_key=table.has_source_in_key)
    rescued = _with_absent(_rescued(rows, images, olds), metadata, rules)
    written = _changes_table(changes, metadata, rows.columns, rescued, olds, table.shape)
    clears = [at for at, each in metadata.items() if each.ddl and DDL_OPERATIONS[each.ddl.action] in CLEARING]
    return ReadChanges(written, own, change_of, clears, contradicted)


def _with_unchanged(
    changes: Gathered, metadata: dict[int, EventMetadata], rows: Rows, olds: list[int], table: Table
) -> tuple[Rows, dict[int, str]]:
    """The rows with the columns that were not sent; and the changes of which nobody knows them."""
    assert rows.columns is not None
    sources = _sources(changes) if table.has_source_in_key else None
    filling = plan_filling(changes.events, metadata, sources, olds, table.old_rows)
    columns, rescued = filled(filling, rows.columns, rows.rescued)
    return replace(rows, columns=columns, rescued=rescued), filling.problems


def metadata_by_change(events: list[RawEvent]) -> dict[int, EventMetadata]:
    """Of those events that have any."""
    found = ((index, metadata_of(event)) for index, event in enumerate(events) if event.metadata is not UNSET)
    return {index: metadata for index, metadata in found if metadata is not None}


def has_unchanged(events: list[RawEvent]) -> bool:
    """Whether one of these leaves columns out that have not changed."""
    return any(may_say(_UNCHANGED, bytes(event.metadata)) for event in events if event.metadata is not UNSET)


def declared_by(metadata: Mapping[int, EventMetadata]) -> Declaration:
    """What these events declare, the last word on each column; types that nobody knows are inferred."""
    found = _NOTHING
    for each in metadata.values():
        if isinstance(each.schema, list):
            found = found.then(_declaration(each.schema))
    return found


def _declaration(schema: list[SchemaColumn]) -> Declaration:
    columns: dict[str, Field] = {}
    comments: dict[str, str] = {}
    guesses: set[str] = set()
    for column in schema:
        name, type_ = column_name(column.name), parse_type(column.type)
        if type_ is not None and problem_with_column_name(name) is None:
            columns[name] = Field(name, type_)
            comments |= {} if column.comment is None else {name: column.comment}
            guesses |= {name} if column.is_hint and not column.key else set()
    return Declaration(tuple(columns.values()), comments, frozenset(guesses))


def first_look(changes: Gathered, columns: Columns = ()) -> Seen:
    """What columns a table needs beside these. Unknown columns are read slowly, so a large batch is only sampled."""
    step = -(-len(changes.events) // _FIRST_LOOK_ROWS)
    looked_at = changes.events[::step]
    befores = [bytes(cast("Raw", event.before)) for event in looked_at if _has_before(event)]
    return read_rows([*(_image_of(event) for event in looked_at), *befores], columns).unknown


def _image_of(event: RawEvent) -> bytes:
    """The row that the change shows: as it is now, or for a DELETE as it was."""
    image = event.before if event.operation == "DELETE" else event.after
    return _NO_IMAGE if image is UNSET else bytes(image)


def _rescued(rows: Rows, images: list[bytes], olds: list[int]) -> pa.Array:
    """What did not fit, for each change: values of the row itself, and of the row before it under `_before`."""
    count = len(images)
    own, before = rows.rescued.slice(0, count), rows.rescued.slice(count)
    if rows.rescued.null_count == len(rows.rescued):
        return own
    texts = own.to_pylist()
    for row, text in zip(olds, before.to_pylist(), strict=True):
        if text is not None:
            texts[row] = f'{texts[row][:-1]},"{BEFORE}":{text}}}' if texts[row] else f'{{"{BEFORE}":{text}}}'
    return pa.array(texts, pa.string())


def _with_absent(rescued: pa.Array, metadata: Mapping[int, EventMetadata], rules: ReadingRules) -> pa.Array:
    """And what is known of values that their source could not send, but for columns that the lake does not take."""
    absent = {at: each.rescued for at, each in metadata.items() if each.rescued}
    if not absent:
        return rescued
    texts = rescued.to_pylist()
    for at, values in absent.items():
        taken = {column_name(name): Raw(encode(value)) for name, value in values.items() if rules.takes(name)}
        own = (_split_row(texts[at]) if texts[at] else {}) | taken
        texts[at] = encode(dict(sorted(own.items()))).decode() if own else None
    return pa.array(texts, pa.string())


def without_before(rescued: pa.ChunkedArray) -> pa.Array:
    """For the state, which has no row before."""
    texts = rescued.to_pylist()
    for row, text in enumerate(texts):
        if text is not None and f'"{BEFORE}"' in text:
            own = _split_row(text)
            own.pop(BEFORE, None)
            texts[row] = encode(own).decode() if own else None
    return pa.array(texts, pa.string())


def _has_before(event: RawEvent) -> bool:
    return event.before is not UNSET and bytes(event.before) != _NO_IMAGE


def _outcomes(
    changes: Gathered, metadata: dict[int, EventMetadata], *, has_source_in_key: bool
) -> tuple[Outcomes, NDArray[np.int64]]:
    """What the changes do to keys, and which change does each of it."""
    sources = _sources(changes) if has_source_in_key else None
    keys = hashes_of_keys([event.row_id for event in changes.events], sources)
    is_delete = np.array([event.operation == "DELETE" for event in changes.events], np.bool_)
    moved = _previous_of(changes.events, metadata)
    previous = hashes_of_keys(list(moved.values()), sources and [sources[index] for index in moved])
    previous_of = np.array(list(moved), np.int64)
    change_of = np.insert(np.arange(len(is_delete)), previous_of, previous_of)
    return _of_rows(outcomes(keys, is_delete, previous, previous_of), change_of, metadata)


def _of_rows(
    all_: Outcomes, change_of: NDArray[np.int64], metadata: dict[int, EventMetadata]
) -> tuple[Outcomes, NDArray[np.int64]]:
    """Without what was done to the table itself."""
    of_table = [index for index, each in metadata.items() if each.ddl is not None]
    if not of_table:
        return all_, change_of
    kept = ~np.isin(change_of, of_table)
    return Outcomes(Hashes(all_.hashes.hi[kept], all_.hashes.lo[kept]), all_.rows[kept]), change_of[kept]


def _sources(changes: Gathered) -> list[str]:
    return [str(changes.records[index].stream) for index in changes.record_of]


def hashes_of_keys(row_ids: list[str], sources: list[str] | None) -> Hashes:
    if not row_ids:
        return no_hashes()
    if sources is None:
        return hash_keys([row_id.encode() for row_id in row_ids])
    return hash_keys([f"{source}\0{row_id}".encode() for source, row_id in zip(sources, row_ids, strict=True)])


def _changes_table(
    changes: Gathered,
    metadata: dict[int, EventMetadata],
    columns: pa.RecordBatch,
    rescued: pa.Array,
    olds: list[int],
    shape: Shape,
) -> pa.Table:
    """The rows of the changes table, in the order of its schema."""
    events, count = changes.events, len(changes.events)
    record_of = changes.record_of
    commit_ms = np.array([record.commit_timestamp_ms for record in changes.records], np.int64)[record_of]
    sources = pa.DictionaryArray.from_arrays(
        pa.array(record_of.astype(np.int32)), pa.array([str(record.stream) for record in changes.records])
    )
    keys: list[str] = [event.row_id for event in events]
    operations: list[str] = [event.operation for event in events]
    for at, each in metadata.items():
        if each.ddl is not None:
            keys[at], operations[at] = NO_KEY, DDL_OPERATIONS[each.ddl.action]
    own: dict[str, Any] = {
        KEY: keys,
        "_operation": operations,
        "_sequence": [event.sequence for event in events],
        SOURCE: sources.cast(pa.string()),
        "_timestamp": _moments(np.array([event.timestamp for event in events], np.int64)),
        "_commit_timestamp": _moments(commit_ms),
        "_position": changes.positions,
        "_transaction": _texts({at: each.transaction_id for at, each in metadata.items()}, count),
        "_previous_key": _texts(_previous_of(events, metadata), count),
        RESCUED: rescued,
    }
    arrays = []
    for column in shape.arrow:
        if column.name == BEFORE:
            arrays.append(_before(columns, events, olds, column.type))
        elif column.name in own:
            arrays.append(
                pa.array(own[column.name], column.type) if isinstance(own[column.name], list) else own[column.name]
            )
        else:
            arrays.append(columns.column(column.name).slice(0, count))
    return pa.table(arrays, schema=shape.arrow)


def _moments(time_ms: NDArray[np.int64]) -> pa.Array:
    return pa.array(time_ms * 1000, pa.timestamp("us", tz="UTC"))


def _texts(by_change: Mapping[int, str | int | None], count: int) -> pa.Array:
    """For each change its text, or none."""
    found = {index: str(each) for index, each in by_change.items() if each is not None}
    return pa.array(map(found.get, range(count)), pa.string()) if found else pa.nulls(count, pa.string())


def _previous_of(events: list[RawEvent], metadata: dict[int, EventMetadata]) -> dict[int, str]:
    """The keys that changes have moved rows away from."""
    return {
        index: each.previous_row_id
        for index, each in metadata.items()
        if each.previous_row_id is not None and events[index].operation == "UPDATE"
    }


def _before(columns: pa.RecordBatch, events: list[RawEvent], olds: list[int], type_: pa.StructType) -> pa.Array:
    """The row before each change: read behind all others for an UPDATE, the row itself for a DELETE, else none."""
    count = len(events)
    index = np.full(count, -1, np.int64)
    index[olds] = np.arange(count, count + len(olds))
    for at, event in enumerate(events):
        if event.operation == "DELETE" and _has_before(event):
            index[at] = at
    names = [field.name for field in type_]
    whole = pa.StructArray.from_arrays([columns.column(name) for name in names], fields=list(type_))
    return whole.take(pa.array(index, mask=index < 0))
