"""The tables of all sources, as the pipeline knows them: both Iceberg tables, the key index and the delete files.

From publish.py. Promise: a table is made on first sight and grows new columns by itself; its key index belongs to the
snapshot that the table has, and is rebuilt by Spark from the table's keys where it does not.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from dolake.crashpoints import reach
from dolake.errors import Conflict
from dolake.keyindex import Block, KeyIndex, StaleIndex, rebuild
from dolake.pipeline.arranging import Arrangement, arrangement, folder_of, mark_of, name_of, partition_of
from dolake.pipeline.catalog_http import CatalogHttp
from dolake.pipeline.deletes import VECTORS_FORMAT_MIN, DeleteFiles
from dolake.pipeline.guesses import RetypesWanted, columns_with_values, comments_of, guesses_text
from dolake.pipeline.iceberg import Iceberg, IcebergTable
from dolake.pipeline.origins import Origin
from dolake.pipeline.quarantine import quarantine_of
from dolake.pipeline.tasks import KeysJob, TablePlan, read_keys
from dolake.tables import layout
from dolake.tables.declaration import Declaration, Notes, read_guesses
from dolake.tables.maintenance import files_to_merge, groups_to_merge
from dolake.tables.ordering import order_fields, sort_keys
from dolake.tables.partitions import UNPARTITIONED, fitted, parse_partition_words, spec_changes
from dolake.tables.rules import LakeRules, TableRules
from dolake.tables.schema import Seen, grow, grown
from dolake.tables.tiers import COLD, WARM, Tiers, partition_end_ms
from dolake.tables.transforms import kinds_of
from dolake.tables.types import Columns, can_be_added, column_name

logger = logging.getLogger(__name__)
_NOTHING = Declaration()

Json = dict[str, Any]

Run = Callable[[Callable[[Any], Any], list[Any]], Iterator[Any]]
"""Runs a function on each job in Spark's workers, and yields the results in order."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Columns that get another type; and the schemas that both tables had before."""

    columns: tuple[str, ...]
    state_schema: str
    changes_schema: str


@dataclass(slots=True)
class SourceTable:
    """One source table."""

    name: str
    state: IcebergTable
    changes: IcebergTable
    columns: Columns
    index: KeyIndex
    deletes: DeleteFiles
    files: dict[str, Json]
    """The state's data files by path, as a commit names them."""
    changes_files: dict[str, Json]
    rules: TableRules
    tiers: Tiers
    """Where files are that are not old, and where those are that are."""
    rebuild: Rebuild | None = None
    """What the next publish writes anew, because columns get another type."""
    exact: frozenset[str] = frozenset()
    """Columns with integers that no double holds: they keep their type."""
    busy: set[str] = field(default_factory=set)
    """Data files that a compaction is reading: publishes do not merge them."""
    arrangement: Arrangement = field(default_factory=Arrangement)
    """Of the state's files that are written from now on."""
    origins: dict[str, Origin] = field(default_factory=dict)
    """Of the rows of the state's data files; empty until somebody has to know."""

    @contextlib.contextmanager
    def trusting_index(self) -> Iterator[KeyIndex]:
        """The key index; where it turns out to be damaged it is made anew when the table is next loaded."""
        try:
            yield self.index
        except StaleIndex:
            self.index.forsake()
            raise

    def live_rows(self) -> dict[str, int]:
        """How many rows of each data file are current."""
        return dict.fromkeys(self.files, 0) | {file.path: file.rows for file in self.index.view.manifest.files}

    @property
    def plan(self) -> TablePlan:
        return TablePlan(
            self.columns,
            self.state.schema,
            self.state.location,
            self.changes.schema,
            self.changes.location,
            self.rules,
            self.rebuildable,
            self.rebuildable_later,
            self.rebuild.columns if self.rebuild else (),
            self.rebuild.state_schema if self.rebuild else "",
            str(self.index.folder),
            self.state.snapshot_id,
            self.arrangement,
            self.notes,
            not (self.is_large or self.busy or self.is_altering),
        )

    @property
    def notes(self) -> Notes:
        """What sources have declared of the columns."""
        guesses, pinned = read_guesses(self.changes.guesses), self.state.pinned_columns
        undecided = frozenset(name for name, has_values in guesses.items() if not has_values)
        return Notes(comments_of(self.state.schema), frozenset(guesses), undecided, pinned)

    @property
    def is_altering(self) -> bool:
        """Whether columns change with the next publish: until then nobody else may commit to the table."""
        return self.rebuild is not None or self.state.pending is not None or self.changes.pending is not None

    @property
    def rebuildable(self) -> frozenset[str]:
        """Columns that may get another type within a publish: of a small table, while nobody else reads its files."""
        return frozenset() if self.is_large or self.busy else self._unpinned()

    @property
    def rebuildable_later(self) -> frozenset[str]:
        """Columns that may get another type beside the stream: of a table that is too large for a publish."""
        return self._unpinned(of=("int", "long")) if self.is_large and self.rebuild is None else frozenset()

    @property
    def is_large(self) -> bool:
        rows: int = sum(entry["record-count"] for entry in self.changes_files.values())
        return rows > self.rules.rebuild_rows_max

    def retypable(self, types: Mapping[str, str]) -> dict[str, str]:
        """Those of these columns that may get these types."""
        fractions, pinned = self.rebuildable_later, self.state.pinned_columns
        found = {
            column.name: types[column.name]
            for column in self.columns
            if column.name in types and isinstance(column.type, str) and column.type != types[column.name]
        }
        return {
            name: type_
            for name, type_ in found.items()
            if (name in fractions if type_ == "double" and self.is_large else name not in pinned)
        }

    def _unpinned(self, of: tuple[str, ...] = ()) -> frozenset[str]:
        columns = (each for each in self.columns if isinstance(each.type, str) and (not of or each.type in of))
        return frozenset(column.name for column in columns) - self.exact - self.state.pinned_columns

    def to_merge(self, live: Mapping[str, int]) -> list[list[str]]:
        """Groups of data files that a publish writes as one each; `live` are rows that are current after it.

        What is cold stays so, as long as there is a row in it.
        """
        if not self.rebuild:
            live = {path: rows for path, rows in live.items() if not rows or self.tiers.of(path) == WARM}
        partitions = {path: partition_of(self.files[path]) for path in live} if self.state.has_partitions else {}
        if self.rebuild:
            groups: dict[str, list[str]] = {}
            for path in live:
                groups.setdefault(partitions.get(path, ""), []).append(path)
            return list(groups.values())
        if partitions:
            return groups_to_merge(live, partitions)
        found = files_to_merge(live)
        return [found] if found else []

    def is_in(self, path: str, partitions: Iterable[str]) -> bool:
        """Whether a data file is in one of these partitions, such as `dt=2024-01-15`, or in a part of one."""
        name = self.partition_name(path)
        parts = set(name.split("/"))
        return any(name == each or parts.issuperset(each.split("/")) for each in partitions)

    def partition_name(self, path: str) -> str:
        """Of the partition that a data file of the state is in, such as `dt=2024-01-15`."""
        return name_of(self.files[path], {spec["spec-id"]: spec for spec in self.state.specs})

    def ended_ms(self, path: str) -> int | None:
        """When the time was over that this data file's partition is for."""
        entry = self.files[path]
        spec = next(spec for spec in self.state.specs if spec["spec-id"] == entry["spec-id"])
        if not entry["partition"]:
            return None
        kinds = kinds_of(json.loads(self.state.schema))
        values = zip(spec["fields"], entry["partition"], strict=True)
        return partition_end_ms((each["transform"], kinds.get(each["source-id"], ""), value) for each, value in values)

    def place_of(self, path: str) -> dict[str, Any]:
        """What a rewrite says of new files of the same partition as this data file."""
        if self.arrangement.is_plain and not self.state.has_partitions:
            return {}
        return {
            "folder": folder_of(self.tiers.folders(self.state.location), path),
            "mark": mark_of(self.files[path]),
            "sort": self.arrangement.sort,
            "sort_order_id": self.arrangement.sort_order_id,
        }


def _renames(old: str, new: str) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], str]]:
    """The names of all tables of a source table, before and after; and what they say of themselves then."""
    for each in (str, quarantine_of):
        for before, after in zip(layout.table_names(each(old)), layout.table_names(each(new)), strict=True):
            yield before, after, each(new)


def brief(entry: Json) -> Json:
    """What a commit needs to remove a file: its bounds and counts only take memory."""
    names = ("spec-id", "content", "file-path", "file-format", "partition", "file-size-in-bytes", "record-count")
    return {name: entry[name] for name in names}


class SourceTables:
    """All of them, loaded when they are first needed."""

    def __init__(
        self,
        iceberg: Iceberg,
        folder: Path,
        run: Run,
        rules: LakeRules,
        *,
        has_source_in_key: bool,
        http: CatalogHttp,
        tiers: Tiers,
    ) -> None:
        self._iceberg, self._folder, self._run, self._http = iceberg, folder, run, http
        self._rules, self.tiers = rules, tiers
        self._exact: dict[str, frozenset[str]] = {}
        self.has_source_in_key = has_source_in_key
        self._known: dict[str, SourceTable] = {}
        self.retypes_wanted = RetypesWanted()
        self._warned: set[tuple[str, str]] = set()
        self._verified: set[Path] = set()
        """Indexes of which every byte was read since the start."""

    def find(self, name: str) -> SourceTable | None:
        """The table, loaded if the catalog has it."""
        if name not in self._known:
            state_name, changes_name = layout.table_names(name)
            state, changes = self._load(state_name), self._load(changes_name)
            if state is None or changes is None:
                return None
            self._known[name] = self._open(name, *self._aligned(state, changes))
        return self._known[name]

    def find_for_publish(self, name: str) -> SourceTable | None:
        """The table with all columns that the settings declare: what changes for that goes out with the publish."""
        source = self.find(name)
        if source is not None and not source.is_altering:
            self._follow_declared(source)
        return source

    def _follow_declared(self, source: SourceTable) -> None:
        declared = source.rules.reading.declared
        leaves_max, rebuildable = source.rules.reading.leaves_max, source.rebuildable
        if declared and source.rebuildable_later:
            self._wish_declared(source)
        if declared and grow(source.columns, Seen(), declared=declared, leaves_max=leaves_max, rebuildable=rebuildable):
            self.grow(source.name, Seen())

    def _wish_declared(self, source: SourceTable) -> None:
        later, declared = source.rebuildable_later, source.rules.reading.declared
        if wished := grow(source.columns, Seen(), declared=declared, rebuildable=later).rebuilds:
            self.retypes_wanted.add(source.name, {column.name: str(column.type) for column in wished})

    @property
    def rules(self) -> LakeRules:
        return self._rules

    def follow(self, rules: LakeRules) -> None:
        """From now on these rules hold; tables that they change are loaded anew."""
        for name in [name for name in self._known if rules.of(name) != self._rules.of(name)]:
            del self._known[name]
        self._rules = rules

    def grow(self, name: str, seen: Seen, declared: Declaration = _NOTHING) -> SourceTable:
        """Make the table if there is none, and give it the columns that were seen or declared."""
        found = self.find(name)
        columns = found.columns if found else self._columns_of_half(name)
        rules = self._rules.of(name).reading
        growth = grow(
            columns,
            seen,
            leaves_max=rules.leaves_max,
            inference=rules.inference,
            declared=(*declared.columns, *rules.declared),
            rebuildable=found.rebuildable if found else frozenset(),
        )
        known, columns = columns, grown(columns, msgspec.structs.replace(growth, rebuilds=()))
        declared = declared.without_guesses(each.name for each in rules.declared)
        notes = found.notes if found else Notes()
        comments = notes.new_comments(columns, declared)
        wanted_state = layout.state_schema(columns, has_source=self.has_source_in_key, comments=comments)
        wanted_changes = layout.changes_schema(columns, comments)
        if found is None:
            found = self._create(name, wanted_state, wanted_changes)
            self._note_guesses(found, found.notes.guesses_after(columns, declared), known)
            return found
        if growth.additions or growth.promotions or comments:
            found.state = self._iceberg.add_columns(self._with_room(found.state, wanted_state), wanted_state)
            reach("half_grown")
            found.changes = self._iceberg.add_columns(found.changes, wanted_changes)
            found.columns = layout.columns_of(json.loads(found.state.schema))
            if growth:
                logger.info("columns added", extra={"table": name, "columns": len(found.columns)})
            self._arrange(found)
        self._note_guesses(found, notes.guesses_after(columns, declared), known)
        if growth.rebuilds:
            self._retype(found, growth.rebuilds)
        return found

    def _note_guesses(self, source: SourceTable, guesses: frozenset[str], known: Columns) -> None:
        """Which columns are guesses from now on; of those that were there before, whether they have values."""
        now = read_guesses(source.changes.guesses)
        if guesses != now.keys():
            unknown = guesses.intersection(each.name for each in known).difference(now)
            used = columns_with_values(self._iceberg, (source.state, source.changes), unknown)
            noted = {name: now.get(name, name in used) for name in guesses}
            source.changes = self._iceberg.note_guesses(source.changes, guesses_text(noted))

    def keep_exact(self, source: SourceTable, columns: Iterable[str]) -> None:
        """These columns have integers that would not survive another type: never again."""
        self._exact[source.name] = self._exact.get(source.name, frozenset()) | frozenset(columns)

    def retyped(self, source: SourceTable, types: Mapping[str, str]) -> tuple[IcebergTable, IcebergTable]:
        """State and changes with other types of these columns, which nobody sees before something is staged.

        From left to right: each gets its place beside its neighbour, who may be another one by then.
        """
        types = {column.name: types[column.name] for column in source.columns if column.name in types}
        # The source's comment is about the type that it has declared; a fraction is a number like the others.
        comments = {
            name: text for name, text in comments_of(source.state.schema).items() if types.get(name) == "double"
        }
        before_it = {column.name: column.type for column in source.columns}
        comments |= {name: f"values did not fit {before_it[name]}" for name in types if types[name] == "string"}
        paths: dict[tuple[str, ...], str] = {(name,): type_ for name, type_ in types.items()}
        before: dict[tuple[str, ...], str] = {(layout.BEFORE, name): type_ for name, type_ in types.items()}
        state = self._iceberg.retype_columns(source.state, paths, comments)
        return state, self._iceberg.retype_columns(source.changes, paths | before, comments)

    def _retype(self, source: SourceTable, columns: Columns) -> None:
        """Give columns other types, which others see with the next publish, together with the old rows in new files."""
        now = source.rebuild or Rebuild((), source.state.schema, source.changes.schema)
        types = {column.name: str(column.type) for column in columns}
        source.state, source.changes = self.retyped(source, types)
        source.columns = layout.columns_of(json.loads(source.state.schema))
        source.rebuild = replace(now, columns=(*now.columns, *types))
        logger.info("columns get another type", extra={"table": source.name, "columns": types})

    def _columns_of_half(self, name: str) -> Columns:
        """Of a run that died when it had made one of the two tables."""
        halves = (self._load(each) for each in layout.table_names(name))
        return next((layout.columns_of(json.loads(half.schema)) for half in halves if half), ())

    @property
    def known(self) -> list[SourceTable]:
        """Those that were needed since the start."""
        return list(self._known.values())

    def forget(self, name: str | None = None) -> None:
        """Load a table again, or all: somebody else may have changed them."""
        if name is None:
            self._known.clear()
        else:
            self._known.pop(name, None)

    def rename_column(self, source: SourceTable, old: str, new: str) -> None:
        """A column under another name, visible with the next publish; refused where the new name cannot be one."""
        old, new = column_name(old), column_name(new)
        names = {column.name for column in source.columns}
        parts = {part["name"] for spec in source.state.specs for part in spec["fields"]}
        taken = {name.casefold() for name in (names | parts) - {old}}
        is_kept = old in source.state.pinned_columns or source.rules.reading.is_touched(old)
        if old not in names or is_kept or not can_be_added(new, taken):
            logger.warning("column not renamed", extra={"table": source.name, "columns": [old, new]})
            return
        source.state = self._iceberg.rename_columns(source.state, [old], new)
        source.changes = self._iceberg.rename_columns(source.changes, [old, f"{layout.BEFORE}.{old}"], new)
        if old in (guesses := read_guesses(source.changes.guesses)):
            guesses[new] = guesses.pop(old)
            source.changes = self._iceberg.note_guesses(source.changes, guesses_text(guesses))
        self._altered(source)

    def drop_column(self, source: SourceTable, column: str) -> None:
        """A column that is left out from the next publish on; earlier snapshots keep it."""
        name = column_name(column)
        if name not in {each.name for each in source.columns}:
            return
        if name in source.state.pinned_columns:
            logger.warning(
                "column not dropped", extra={"table": source.name, "reason": "it divides or sorts the table"}
            )
            return
        before = [layout.BEFORE] if len(source.columns) == 1 else [f"{layout.BEFORE}.{name}"]
        source.state = self._iceberg.drop_columns(source.state, [name])
        source.changes = self._iceberg.drop_columns(source.changes, [name, *before])
        if name in (guesses := read_guesses(source.changes.guesses)):
            del guesses[name]
            source.changes = self._iceberg.note_guesses(source.changes, guesses_text(guesses))
        self._altered(source)

    def _altered(self, source: SourceTable) -> None:
        source.columns = layout.columns_of(json.loads(source.state.schema))
        logger.info("columns altered", extra={"table": source.name, "columns": len(source.columns)})

    def rename(self, old: str, new: str) -> str:
        """Give a source's tables another name; the name that they have now. Can be done again after a crash."""
        reason = self._problem_with_rename(old, new)
        if reason:
            logger.warning("table not renamed", extra={"table": old, "to": new, "reason": reason})
            return old
        for before, after, name in _renames(old, new):
            if found := self._iceberg.load(before):
                self._iceberg.rename(found, after, {layout.OURS: name})
        self.forget(old)
        self.forget(new)
        logger.info("table renamed", extra={"table": old, "to": new})
        return new

    def _problem_with_rename(self, old: str, new: str) -> str:
        """Empty where nothing stands in the way. What an earlier try has renamed already does not."""
        if self._rules.of(old).reading.changes_values and self._rules.of(old).reading != self._rules.of(new).reading:
            return "its columns are left out or masked, and those of the new name are not"
        for before, after, name in _renames(old, new):
            target = self._iceberg.load(after)
            is_done = target and target.ours in (name, old) and self._iceberg.load(before) is None
            if target and not is_done:
                return f"there is a table {'.'.join(after)}"
        return ""

    def _create(self, name: str, state_schema: layout.Json, changes_schema: layout.Json) -> SourceTable:
        state_name, changes_name = layout.table_names(name)
        properties = layout.properties(name)
        changes = self._load(changes_name) or self._iceberg.create(changes_name, changes_schema, properties)
        reach("half_grown")
        state = self._load(state_name)
        version = max(self._rules.of(name).layout.format_version, state.format_version if state else 0)
        properties = layout.properties(name, version)
        if state is None:
            partitions = self._wanted_partitions(name, state_schema) or []
            state = self._iceberg.create(state_name, state_schema, properties, partitions)
        if state.ours is None and state.snapshot_id is not None:
            raise Conflict(
                f"{'.'.join(state_name)} has data that DoLake did not write, so its keys are not known",
                hint="drop it, or adopt an empty table of that name; the changes wait in the journal",
            )
        if state.ours is None:
            state = self._iceberg.take_over(state, state_schema, properties)
            logger.info("table taken over", extra={"table": name})
        logger.info("table created", extra={"table": name})
        self._known[name] = self._open(name, *self._aligned(state, changes))
        return self._known[name]

    def _aligned(self, state: IcebergTable, changes: IcebergTable) -> tuple[IcebergTable, IcebergTable]:
        """Both tables with the same columns: a run that died between the two left one of them behind."""
        of_state, of_changes = (layout.columns_of(json.loads(each.schema)) for each in (state, changes))
        if of_state != of_changes:
            wanted = layout.state_schema(of_changes, has_source=self.has_source_in_key)
            state = self._iceberg.add_columns(self._with_room(state, wanted), wanted)
            of_state = layout.columns_of(json.loads(state.schema))
            changes = self._iceberg.add_columns(changes, layout.changes_schema(of_state))
        return state, changes

    def _load(self, name: tuple[str, ...]) -> IcebergTable | None:
        found = self._iceberg.load(name)
        if found and not found.is_managed:
            raise Conflict(
                f"{'.'.join(name)} is a table of somebody else, so changes of that name cannot be written",
                hint="rename or drop it; the changes wait in the journal",
            )
        return found

    def _open(self, name: str, state: IcebergTable, changes: IcebergTable) -> SourceTable:
        state = self._in_wanted_format(name, state)
        columns = layout.columns_of(json.loads(state.schema))
        found = list(self._iceberg.files(state))
        files = {data["file-path"]: brief(data) for data, _ in found}
        cold = self.tiers.folder(state.location, COLD)
        known = {data["file-path"]: entries for data, entries in found}
        deletes = DeleteFiles(state.location, known, cold, state.format_version)
        folder = self._folder / state.uuid
        try:
            index = KeyIndex.open(folder, state.snapshot_id, is_verified=folder not in self._verified)
            self._verified.add(folder)
        except StaleIndex as error:
            logger.warning("key index rebuild started", extra={"table": name, "reason": str(error)})
            index = rebuild(folder, state.snapshot_id, self._read_keys(list(files), deletes))
            logger.info("key index rebuilt", extra={"table": name, "rows": index.row_count})
        changes_files = {data["file-path"]: brief(data) for data, _ in self._iceberg.files(changes)}
        exact = self._exact.get(name, frozenset())
        rules = self._rules.of(name)
        found_table = SourceTable(
            name, state, changes, columns, index, deletes, files, changes_files, rules, self.tiers, exact=exact
        )
        self._arrange(found_table)
        return found_table

    def _in_wanted_format(self, name: str, state: IcebergTable) -> IcebergTable:
        """Files and deletes that are there stay as they are; the way back is not one that Iceberg has."""
        wanted = self._rules.of(name).layout.format_version
        if wanted <= state.format_version:
            return state
        logger.info("format raised", extra={"table": name, "format": wanted})
        return self._iceberg.upgrade(state, wanted)

    def origins(self, source: SourceTable, paths: Iterable[str]) -> dict[str, Origin]:
        """Where the rows of these data files of the state come from, to be taken along; nothing before format 3."""
        if source.state.format_version < VECTORS_FORMAT_MIN:
            return {}
        wanted = list(paths)
        if any(path not in source.origins or source.origins[path].first_row_id is None for path in wanted):
            source.origins = self._iceberg.origins(source.state)
        return {path: source.origins[path] for path in wanted}

    def refresh_state(self, source: SourceTable) -> None:
        """Something was committed to it; in time it is known where the rows come from that it has added."""
        source.state = self._iceberg.refresh(source.state)
        if source.origins:
            known = source.origins | self._iceberg.origins(source.state, is_newest=True)
            source.origins = {path: each for path, each in known.items() if path in source.files}

    # --- partitions and order ----------------------------------------------------------------------------------------

    def _arrange(self, source: SourceTable) -> None:
        """Give the state the partitions and the order that its owner wants; files that are there stay as they are."""
        if source.state.pending:
            return  # its columns are about to change; the next look comes with the next publish
        wanted = self._wanted_partitions(source.name, json.loads(source.state.schema))
        if wanted is not None and not (source.state.spec["fields"] and source.rules.layout.is_by_date):
            gone, come = spec_changes(source.state.spec["fields"], wanted, source.state.partition_fields)
            if gone or come:
                source.state = self._iceberg.repartition(source.state, gone, come)
                logger.info("partitions changed", extra={"table": source.name, "spec": source.state.spec["spec-id"]})
        schema = json.loads(source.state.schema)
        keys, problems = sort_keys(source.rules.layout.sort_by, schema)
        self._warn(source.name, problems)
        order_id = 0
        if keys:
            source.state, order_id = self._iceberg.reorder(source.state, order_fields(keys, schema))
        namespace = source.state.name[:-1]
        source.arrangement = arrangement(
            source.state.schema, source.state.spec, namespace, source.rules.layout, keys, order_id
        )

    def _with_room(self, state: IcebergTable, schema: Json) -> IcebergTable:
        """Partition fields give way to columns that want their names: Iceberg takes no such column otherwise."""
        if not state.has_partitions:
            return state
        known = {field["name"] for field in json.loads(state.schema)["fields"]}
        wanted = {field["name"] for field in schema["fields"]}
        names = {field["name"] for field in state.partition_fields}
        clashes = sorted(names & (wanted - known))
        for clash in clashes:
            taken = {name.casefold() for name in names | known | wanted}
            candidates = (f"{clash}_partition{number or ''}" for number in range(1_000))
            new_name = next(name for name in candidates if name.casefold() not in taken)
            self._http.rename_partition_field(state.name, state.uuid, clash, new_name)
            names.add(new_name)
            logger.info("partition field renamed", extra={"table": ".".join(state.name), "field": new_name})
        return (self._iceberg.load(state.name) or state) if clashes else state

    def _wanted_partitions(self, name: str, schema: Json) -> list[Json] | None:
        """Fields of a spec; None where nobody wants anything that is possible: then a table keeps what it has."""
        words = self._rules.of(name).layout.partition_by
        fields = parse_partition_words(words, schema)
        if fields is None:
            return None
        found = fitted(fields, schema)
        self._warn(name, found.problems)
        return found.fields if found.fields or UNPARTITIONED in words else None

    def _warn(self, table: str, problems: Iterable[str]) -> None:
        """Once for each: a setting that does not fit the table stops nothing."""
        for problem in problems:
            if (table, problem) not in self._warned:
                self._warned.add((table, problem))
                logger.warning("layout setting ignored", extra={"table": table, "reason": problem})

    def _read_keys(self, paths: list[str], deletes: DeleteFiles) -> Iterator[Block]:
        jobs = [KeysJob(path, deletes.of(path), self.has_source_in_key) for path in paths]
        yield from self._run(read_keys, jobs)
