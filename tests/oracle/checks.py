"""Compare the tables with the dictionary: the same for every engine, since each gives its rows as an Arrow table.

From driver.py, after everything is published. Promise: `differences` returns a sentence for each thing that is not as
issue 5 says, and nothing when all is well.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from dolake.catalog.manifests import REFERENCED, read_entries
from tests.oracle.changes import RENAMED, TYPES
from tests.oracle.model import Id, Model, Row, Sent, State


@dataclass(frozen=True, slots=True)
class Engine:
    """How one engine sees a table with this full name, such as `default.orders__changes`: all of its rows.

    `has_null_lists` is false where a list that is null comes back as an empty one; `has_vectors` where the deletion
    vectors of format 3 are not to be trusted.
    """

    read: Callable[[str], pa.Table]
    has_null_lists: bool = True
    has_vectors: bool = True

    def rows(self, name: str) -> list[Row]:
        found: list[Row] = self.read(name).to_pylist()
        return found


_OWN_OF_STATE = {"_key", "_rescued"}
_OWN_OF_CHANGES = _OWN_OF_STATE | {
    *("_before", "_operation", "_sequence", "_source", "_timestamp", "_commit_timestamp", "_position", "_transaction"),
    "_previous_key",
}
_SOURCE_NAMES = {column: name for name, column in RENAMED.items()}
_SHOWN_MAX = 300


def full_name(table: str) -> str:
    return table if "." in table else f"default.{table}"


class Oracle:
    """The model, and the order in which the journal took the changes."""

    def __init__(self, model: Model, acked_ends: Mapping[Id, int], formats: Mapping[str, int]) -> None:
        self._model, self._acked_ends, self._formats = model, acked_ends, formats
        self._order: list[Id] = []
        self._state = State()

    def differences(self, catalog: RestCatalog, engines: Mapping[str, Engine], tables: Iterable[str]) -> list[str]:
        """Everything that is wrong with any table, by the catalog; with the rows of these, by each of the engines."""
        return [*self._in_order(catalog), *self._in_publishes(catalog), *self._in_rows(catalog, engines, tables)]

    # --- every change once -------------------------------------------------------------------------------------------

    def _in_order(self, catalog: RestCatalog) -> Iterator[str]:
        """Each change that was acknowledged is there once, and positions count from 0 without a gap."""
        found: list[tuple[int, datetime, str, int]] = []
        names = [f"{full_name(table)}{suffix}" for table in self._tables for suffix in ("", "__quarantine")]
        for name in names:
            if not catalog.table_exists(f"{name}__changes"):
                continue
            scan = catalog.load_table(f"{name}__changes").scan(
                selected_fields=("_position", "_commit_timestamp", "_source", "_sequence")
            )
            found += (
                (row["_position"], row["_commit_timestamp"], row["_source"], row["_sequence"])
                for row in scan.to_arrow().to_pylist()
            )
        found.sort()
        self._order = [(source, sequence) for _, _, source, sequence in found]
        counts = Counter(self._order)
        yield from _some("changes are missing", [id_ for id_ in self._model.sent if id_ not in counts])
        yield from _some("changes were never sent", [id_ for id_ in counts if id_ not in self._model.sent])
        yield from _some("changes are there more than once", [id_ for id_, count in counts.items() if count > 1])
        positions = [position for position, *_ in found]
        if positions != list(range(len(positions))):
            yield from _some(
                "positions are not followed by the next", [p for p, q in pairwise(positions) if q != p + 1]
            )
        yield from _some("commit timestamps decrease at", [b[0] for a, b in pairwise(found) if a[1] > b[1]])
        place = dict(zip(self._order, positions, strict=True))
        wrong = [id_ for id_, end in self._acked_ends.items() if place.get(id_) != end - 1]
        yield from _some("changes are not where their ack said", wrong)
        last: dict[str, int] = {}
        for source, sequence in self._order:
            if sequence <= last.get(source, 0):
                yield f"{source}: sequence {sequence} stands behind {last[source]}"
            last[source] = sequence

    @property
    def _tables(self) -> list[str]:
        return sorted({change.table for change in self._model.sent.values()})

    # --- whole publishes ---------------------------------------------------------------------------------------------

    def _in_publishes(self, catalog: RestCatalog) -> Iterator[str]:
        """Publishes follow each other, each at one moment, none by an older pipeline; they split no transaction.

        Where snapshots have expired, those that are left do not overlap. Compactions replace, and are no publishes.
        """
        publishes: dict[tuple[int, int], list[tuple[str, int, int]]] = defaultdict(list)
        has_expired = False
        for table in self._tables:
            for name in (full_name(table), f"{full_name(table)}__changes"):
                snapshots = catalog.load_table(name).metadata.snapshots
                kept = {None, *(each.snapshot_id for each in snapshots)}
                has_expired |= any(each.parent_snapshot_id not in kept for each in snapshots)
                for snapshot in snapshots:
                    assert snapshot.summary is not None
                    summary = snapshot.summary.additional_properties
                    if snapshot.summary.operation is Operation.REPLACE:
                        continue
                    stretch = int(summary["dolake.published-from"]), int(summary["dolake.published-to"])
                    publishes[stretch].append((name, snapshot.timestamp_ms, int(summary["dolake.generation"])))
        ends = [0, *sorted(end for _, end in publishes)]
        if not has_expired and sorted(publishes) != list(pairwise(ends)):
            yield f"publishes do not follow each other: {sorted(publishes)}"
        if overlapping := [(a, b) for a, b in pairwise(sorted(publishes)) if a[1] > b[0]]:
            yield f"publishes overlap: {overlapping}"
        generations = []
        for stretch, parts in sorted(publishes.items()):
            names, times, makers = zip(*parts, strict=True)
            if len(set(names)) != len(names) or len(set(times)) != 1 or len(set(makers)) != 1:
                yield f"the publish of {stretch} is not one: {parts}"
            generations.append(makers[0])
        if generations != sorted(generations):
            yield f"an older pipeline published beside a newer one: {generations}"
        yield from self._split_transactions(set(ends))

    def _split_transactions(self, ends: set[int]) -> Iterator[str]:
        """What is done to a table itself is published alone, and parts the transactions that are open at that moment.

        A part begins where the transaction's next change is: what others did before that need not wait for it.
        """
        place = {id_: position for position, id_ in enumerate(self._order)}
        alone = sorted(place[id_] for id_, change in self._model.sent.items() if change.is_ddl and id_ in place)
        for (source, transaction), ids in self._model.transactions().items():
            for before, after in pairwise(sorted(place[id_] for id_ in ids if id_ in place)):
                inner = ends.intersection(range(before + 1, after + 1))
                if inner and not any(before < position < after for position in alone):
                    yield f"{source}: transaction {transaction} is split between {before} and {after}, at {inner}"

    # --- rows --------------------------------------------------------------------------------------------------------

    def _in_rows(self, catalog: RestCatalog, engines: Mapping[str, Engine], tables: Iterable[str]) -> Iterator[str]:
        self._state = self._model.state(id_ for id_ in self._order if id_ in self._model.sent)
        state = self._state.tables
        for table in tables:
            yield from self._in_quarantine(catalog, table)
            format_version = self._formats.get(table, 2)
            types = _in_types(catalog, full_name(table), format_version)
            for problem in (*_in_files(catalog, full_name(table)), *types):
                yield f"{table}: {problem}"
            for name, engine in engines.items():
                if engine.has_vectors or format_version < 3:
                    for problem in _in_state(engine, full_name(table), state[table]):
                        yield f"{table} by {name}: {problem}"
                for problem in self._in_changes(engine, table):
                    yield f"{table}__changes by {name}: {problem}"

    def _in_quarantine(self, catalog: RestCatalog, table: str) -> Iterator[str]:
        """What cannot be written is there, as it was sent but for what the lake does not keep."""
        name = f"{full_name(table)}__quarantine"
        rows = catalog.load_table(name).scan().to_arrow().to_pylist() if catalog.table_exists(name) else []
        found = {(row["source"], row["sequence"]): json.loads(row["event"]) for row in rows}
        wanted = {id_ for id_ in self._state.set_aside if self._model.sent[id_].table == table}
        yield from _some("changes should be in quarantine", wanted - found.keys())
        yield from _some("changes should not be in quarantine", found.keys() - wanted)
        for id_ in wanted & found.keys():
            if found[id_]["after"] != self._model.sent[id_].after:
                yield f"{id_} in quarantine is {_short(found[id_])}"

    def _in_changes(self, engine: Engine, table: str) -> Iterator[str]:
        wanted = {id_ for id_, change in self._model.sent.items() if change.table == table} - self._state.set_aside
        for row in engine.rows(f"{full_name(table)}__changes"):
            id_ = row["_source"], row["_sequence"]
            if id_ not in wanted:
                yield f"{id_} should not be here, or not twice"
                continue
            wanted.remove(id_)
            sent = self._model.sent[id_]
            image = self._state.images.get(id_, sent.image)
            yield from (f"{id_}: {problem}" for problem in _in_change(engine, row, sent, image))
        yield from _some("changes are missing", wanted)


def _in_change(engine: Engine, row: Row, sent: Sent, image: Row) -> Iterator[str]:
    own = {
        "_key": "" if sent.is_ddl else sent.key,
        "_operation": "TRUNCATE" if sent.is_ddl else sent.operation,
        "_transaction": sent.transaction,
    }
    for name, value in own.items():
        if row[name] != value:
            yield f"{name} is {row[name]!r}, not {value!r}"
    if round(row["_timestamp"].timestamp() * 1000) != sent.event["timestamp"]:
        yield f"_timestamp is {row['_timestamp']}"
    rescued = json.loads(row["_rescued"] or "{}")
    rescued_before = rescued.pop("_before", {})
    if problem := _in_image(engine, row, rescued, image):
        yield problem
    before = row.get("_before")
    if sent.before is None or sent.operation == "INSERT":
        if before is not None:
            yield f"_before is {_short(before)}, and there was none"
    elif before is None and any(value is not None for value in sent.before.values()):
        yield "_before is null"
    else:
        rescued = rescued if sent.operation == "DELETE" else rescued_before
        if problem := _in_image(engine, before or {}, rescued, sent.before):
            yield f"_before: {problem}"


def _in_state(engine: Engine, name: str, wanted: Mapping[str, Row]) -> Iterator[str]:
    rows = engine.rows(name)
    keys = Counter(row["_key"] for row in rows)
    yield from _some("keys have more than one row", [key for key, count in keys.items() if count > 1])
    yield from _some("keys have no row", wanted.keys() - keys.keys())
    yield from _some("keys should have no row", keys.keys() - wanted.keys())
    for row in rows:
        if row["_key"] in wanted:
            rescued = json.loads(row["_rescued"] or "{}")
            if problem := _in_image(engine, row, rescued, wanted[row["_key"]]):
                yield f"{row['_key']!r}: {problem}"


def _in_image(engine: Engine, row: Row, rescued: Row, wanted: Row) -> str | None:
    """Put a source's row together from its columns and what was rescued; say how it differs from what was sent."""
    sent = _without_nulls(wanted)
    rescued = {_SOURCE_NAMES.get(name, name): value for name, value in rescued.items()}
    columns = {_SOURCE_NAMES.get(name, name): value for name, value in row.items() if name not in _OWN_OF_CHANGES}
    found = _present(columns, {name: value for name, value in sent.items() if name not in rescued}, engine)
    if twice := found.keys() & rescued.keys():
        return f"{sorted(twice)} are both in a column and in _rescued"
    for name, value in rescued.items():
        # Types that never change take every value but an empty list, which may come before anything tells its type;
        # and `id` is no column of a table that saw `ID` first.
        if name in TYPES and value != [] and not _is_taken(name, columns):
            return f"{name} was rescued: {_short(value)}"
    whole = {**found, **rescued}
    for name in whole.keys() | sent.keys():
        if name not in whole:
            return f"{name!r} is missing, was {_short(sent[name])}"
        if name not in sent:
            return f"{name!r} is {_short(whole[name])}, and was not sent"
        if not _is_same(sent[name], whole[name], engine):
            return f"{name!r} is {_short(whole[name])}, not {_short(sent[name])}"
    return None


def _is_taken(name: str, columns: Iterable[str]) -> bool:
    """Whether one of the columns has this name in other letters: many an engine could not tell the two apart."""
    return any(column != name and column.casefold() == name.casefold() for column in columns)


def _is_same(sent: Any, found: Any, engine: Engine) -> bool:
    """Whether a value of a table is the JSON value that was sent: exactly, whatever type its column has."""
    match found:
        case str():
            return bool(sent == found) if isinstance(sent, str) else _is_same_json(sent, found)
        case datetime():
            return isinstance(sent, str) and datetime.fromisoformat(sent) == found
        case dict():
            if not isinstance(sent, dict):
                return False
            parts, wanted = _present(found, sent, engine), _without_nulls(sent)
            return parts.keys() == wanted.keys() and all(_is_same(wanted[name], parts[name], engine) for name in parts)
        case []:
            return sent == [] or (sent is None and not engine.has_null_lists)
        case list():
            is_long_enough = isinstance(sent, list) and len(sent) == len(found)
            return is_long_enough and all(_is_same(*pair, engine) for pair in zip(sent, found, strict=True))
        case _:
            return isinstance(sent, bool) == isinstance(found, bool) and bool(sent == found)


def _is_same_json(sent: Any, text: str) -> bool:
    """A column of strings keeps anything else as its JSON text; true is not 1 there either."""
    try:
        return json.dumps(json.loads(text), sort_keys=True) == json.dumps(sent, sort_keys=True)
    except ValueError:
        return False


def _without_nulls(value: Row) -> Row:
    return {name: part for name, part in value.items() if part is not None}


def _present(found: Row, sent: Row, engine: Engine) -> Row:
    """What is not null. An empty list that may be a null counts where one was sent."""
    maybe_null = () if engine.has_null_lists else [name for name, part in found.items() if part == []]
    return {
        name: part
        for name, part in found.items()
        if part is not None and (name not in maybe_null or sent.get(name) == [])
    }


# --- files and types -------------------------------------------------------------------------------------------------


def _in_files(catalog: RestCatalog, name: str) -> Iterator[str]:
    """No equality delete, and for each data file at most one delete file, which names no other, or one vector."""
    table = catalog.load_table(name)
    if table.format_version >= 3:
        yield from _in_vectors(table)
        return
    for file in _live_files(table):
        if file.content == DataFileContent.EQUALITY_DELETES:
            yield f"{file.file_path} is an equality delete"
        if file.content == DataFileContent.POSITION_DELETES:
            with table.io.new_input(file.file_path).open() as opened:
                named = set(pq.read_table(opened).column("file_path").to_pylist())
            if len(named) != 1:
                yield f"{file.file_path} names {len(named)} data files"
    for task in table.scan().plan_files():
        if len(task.delete_files) > 1:
            yield f"{task.file.file_path} has {len(task.delete_files)} delete files"


def _in_vectors(table: Table) -> Iterator[str]:
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    entries = [entry for each in manifests for entry in read_entries(table.io.new_input(each.manifest_path))]
    deletes = [entry.data_file for entry in entries if entry.data_file.content != DataFileContent.DATA]
    yield from (f"{file.file_path} is no vector" for file in deletes if file.file_format != FileFormat.PUFFIN)
    named = Counter(file[REFERENCED] for file in deletes)
    yield from _some("data files have more than one vector", [path for path, count in named.items() if count > 1])
    there = {entry.data_file.file_path for entry in entries}
    yield from _some("vectors are of files that are gone", [path for path in named if path not in there])


def _live_files(table: Table) -> Iterator[Any]:
    snapshot = table.current_snapshot()
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield entry.data_file


def _in_types(catalog: RestCatalog, name: str, format_version: int) -> Iterator[str]:
    for suffix, wanted_format in (("", format_version), ("__changes", 2)):
        table = catalog.load_table(name + suffix)
        if table.format_version != wanted_format:
            yield f"format {table.format_version}"
        for field in table.schema().fields:
            wanted = TYPES.get(field.name)
            if wanted and not str(field.field_type).startswith(wanted):
                yield f"{field.name} is {field.field_type}, not {wanted}"


def _some(sentence: str, what: Iterable[Any]) -> Iterator[str]:
    if listed := list(what):
        yield f"{len(listed)} {sentence}: {_short(listed[:5])}"


def _short(value: Any) -> str:
    return repr(value)[:_SHOWN_MAX]
