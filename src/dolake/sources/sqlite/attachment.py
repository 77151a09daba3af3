"""A file and a lake agree, before anything is written: which stream it is, and that its tables belong to no other file.

From the command line and sources/__main__.py, for each file; to runner.py as a Shard. Promise: a copy of a followed
file, a name that no table has, and a table of another database are refused, and the file is left as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dolake.changes import StreamId
from dolake.errors import Conflict, InvalidInput, Unavailable
from dolake.sources.runner import Shard
from dolake.sources.sqlite import installation
from dolake.sources.sqlite.lake_view import KnownStream, LakeView
from dolake.sources.sqlite.naming import table_name
from dolake.sources.sqlite.resumption import is_at
from dolake.sources.sqlite.source import SqliteSource
from dolake.sources.sqlite.state import FileState, address_of
from dolake.sources.sqlite.store import FORMAT, Head, Store, in_words
from dolake.sources.sqlite.tables import Shape, list_tables
from dolake.sources.sqlite.trimming import TrimRules
from dolake.sources.sqlite.watching import wanted_shapes
from dolake.tables.rules import problem_with_mask
from dolake.wire.source_lines import OUTBOX_MAX_BYTES

logger = logging.getLogger("dolake.sources.sqlite")


@dataclass(frozen=True, slots=True)
class Choice:
    """What a person chose for a file. What is None stays as it was chosen before."""

    namespace: str = ""
    tables: Sequence[str] | None = None
    exclude: Sequence[str] | None = None
    masks: Mapping[str, str] | None = None
    source: str | None = None
    shards_of: str | None = None
    """Where set, the file is one shard of this source: files of one schema that are one table."""
    is_copy: bool = False
    """The file is a copy, and is to be a database of its own."""
    is_restored: bool = False
    """The file was restored from a backup, and goes on in the place of the one that was followed."""
    outbox_max_bytes: int = OUTBOX_MAX_BYTES


@dataclass(frozen=True, slots=True)
class Plan:
    """What following the file would mean. Nothing is written yet."""

    path: Path
    stream: StreamId
    choice: Choice
    tables: Mapping[str, str]
    """Tables of the file, with their names in the lake."""
    left_out: Sequence[str]
    needs_writing: bool
    warnings: Sequence[str] = field(default_factory=tuple)

    def carry_out(self) -> Shard:
        """Put triggers into the file where they are missing."""
        if self.needs_writing:
            store = Store(self.path)
            try:
                with in_words(self.path):
                    installation.enable(
                        store,
                        tables=self.choice.tables,
                        exclude=self.choice.exclude,
                        masks=self.choice.masks,
                        stream=str(self.stream),
                        as_copy=self.choice.is_copy,
                        is_restored=self.choice.is_restored,
                    )
            finally:
                store.close()
        for warning in self.warnings:
            logger.warning("file is followed with a warning", extra={"file": str(self.path), "problem": warning})
        rules = TrimRules(size_max_bytes=self.choice.outbox_max_bytes)
        is_shared = bool(self.stream.shard)
        return Shard(self.stream, _Opening(self.path, self.choice.namespace, rules, is_shared=is_shared))


class _Opening:
    """Opens the file, again and again: also another file that has taken its place, which is enabled as it was."""

    def __init__(self, path: Path, namespace: str, rules: TrimRules, *, is_shared: bool) -> None:
        self._path, self._namespace, self._rules, self._is_shared = path, namespace, rules, is_shared
        self._file_id: tuple[int, int] | None = None
        self._head: Head | None = None

    def __call__(self) -> SqliteSource:
        if self._head is not None and not self._path.is_file():
            raise Unavailable(f"{self._path} is gone", hint="it is followed again as soon as it is back")
        with in_words(self._path):
            store = Store(self._path)
            try:
                if store.head() is None and self._head is not None and store.file_id != self._file_id:
                    installation.repair(store, self._head)
                self._head, self._file_id = store.head(), store.file_id
            finally:
                store.close()
        return SqliteSource(self._path, namespace=self._namespace, is_shared=self._is_shared, trim_rules=self._rules)


def plan(path: Path, choice: Choice, view: LakeView) -> Plan:
    """Decide, or refuse with what to do instead. Reads the file and writes nothing."""
    store = Store(path)
    try:
        with in_words(path), store.reading():
            return _plan(store, choice, view)
    finally:
        store.close()


def is_being_followed(path: Path, view: LakeView) -> bool:
    """Whether a source of this file, and not of a copy of it, is connected to the lake."""
    store = Store(path)
    try:
        head = store.head()
        known = view.of_identity(head.identity) if head else ()
        return any(each.is_connected and _is_place_of(store, each) for each in known)
    finally:
        store.close()


def plan_all(paths: Sequence[Path], choice: Choice, view: LakeView) -> list[Plan]:
    """Several files at once: each its own stream with its own tables, unless they are shards of one source."""
    plans = []
    known = view
    for path in paths:
        plans.append(plan(path, _choice_for(path, paths, choice, view), known))
        known = _with_plan(known, plans[-1])
    taken: dict[str, Plan] = {}
    for each in plans:
        if each.stream.shard:
            continue
        for name, table in each.tables.items():
            other = taken.setdefault(table, each)
            if other is not each:
                raise _table_is_taken(each.path, name, table, str(other.path))
    names = [each.stream for each in plans]
    if len(set(names)) < len(names):
        raise InvalidInput(
            "two files would be one stream",
            hint="a stream is named after its file: follow them with --source, one by one",
        )
    return plans


def _with_plan(view: LakeView, plan: Plan) -> LakeView:
    """The name that this file will have is taken for the next one."""
    if plan.stream in view.streams:
        return view
    host, path = address_of(plan.path)
    state = FileState(host=host, path=path)
    return LakeView({**view.streams, plan.stream: KnownStream(plan.stream, False, state)})


def _choice_for(path: Path, paths: Sequence[Path], choice: Choice, view: LakeView) -> Choice:
    if choice.shards_of is None and len(paths) > 1 and _were_shards(path, choice, view):
        folder = choice.source or path.resolve().parent.name
        return replace(choice, shards_of=folder)
    return choice


def _were_shards(path: Path, choice: Choice, view: LakeView) -> bool:
    """Whether an older version followed the files of this folder as shards of one source."""
    known = view.streams.get(StreamId(choice.source or path.resolve().parent.name, path.stem))
    return known is not None and known.state is None


def _plan(store: Store, choice: Choice, view: LakeView) -> Plan:
    known_head = store.head()
    head = known_head or Head(FORMAT, "", "", patterns=installation.format_1_patterns(store) or ["*"])
    before = head.patterns, head.excluded, head.masks
    head.patterns = list(choice.tables) if choice.tables is not None else head.patterns
    head.excluded = list(choice.exclude) if choice.exclude is not None else head.excluded
    head.masks = dict(choice.masks) if choice.masks is not None else head.masks
    installation.check_choice(
        store.db,
        tables=[each for each in head.patterns if each not in before[0]],
        exclude=[each for each in head.excluded if each not in before[1]],
    )
    shapes = wanted_shapes(store.db, head)
    _check_masks(choice.masks or {}, {name: shape.names for name, shape in shapes.items()}, _keys(shapes))
    stream, warnings = _stream_of(store, head, choice, view)
    mine = view.streams.get(stream)
    kept = {name: table.lake for name, table in mine.state.tables.items()} if mine and mine.state else {}
    tables = {name: kept.get(name) or table_name(choice.namespace, name) for name in shapes}
    _check_owners(store.path, stream, tables, view)
    _, left_out = list_tables(store.db, head.patterns, head.excluded)
    is_changed = before != (head.patterns, head.excluded, head.masks)
    needs_writing = (
        known_head is None or is_changed or choice.is_copy or choice.is_restored or head.stream != str(stream)
    )
    return Plan(store.path, stream, choice, tables, left_out, needs_writing, warnings)


def _keys(shapes: Mapping[str, Shape]) -> dict[str, list[str]]:
    return {name: [shape.names[index] for index in shape.key] for name, shape in shapes.items()}


def _check_masks(
    masks: Mapping[str, str], columns: Mapping[str, Sequence[str]], keys: Mapping[str, Sequence[str]]
) -> None:
    for name, mask in masks.items():
        table, _, column = name.rpartition(".")
        if problem := problem_with_mask(mask):
            raise InvalidInput(f"--mask {name}={mask}: the mask {mask!r} {problem}")
        found = next((each for each in columns if each.casefold() == table.casefold()), None)
        if found is None or column.casefold() not in {each.casefold() for each in columns[found]}:
            raise InvalidInput(
                f"--mask {name}={mask}: no followed table has that column", hint="write it as TABLE.COLUMN=MASK"
            )
        if column.casefold() in {each.casefold() for each in keys[found]}:
            raise InvalidInput(
                f"--mask {name}={mask}: it is part of the key, by which rows are known",
                hint="exclude the table instead",
            )


# --- which stream it is ----------------------------------------------------------------------------------------------


def _stream_of(store: Store, head: Head, choice: Choice, view: LakeView) -> tuple[StreamId, list[str]]:
    default = _default_name(store.path, choice)
    if choice.is_copy or not head.stream:
        is_older = head.former is not None or installation.is_format_1(store)
        return _free_name(store, default, choice, view, is_older=is_older and not choice.is_copy), []
    wanted = default if choice.source or choice.shards_of else _parsed(head.stream)
    _check_name(store.path, head, wanted, view)
    known = view.streams.get(wanted)
    if known is None or known.state is None:
        same = [each for each in view.of_identity(head.identity) if each.stream != wanted]
        if same and not (choice.source or choice.shards_of):
            known = same[0]
            wanted = known.stream
    if known is None or known.state is None:
        return wanted, []
    if known.state.identity != head.identity:
        return _free_name(store, default, choice, view), []
    return wanted, _check_copy(store, known, choice)


def _default_name(path: Path, choice: Choice) -> StreamId:
    if choice.shards_of is not None:
        return StreamId(choice.shards_of, path.stem)
    return StreamId(choice.source or path.stem)


def _parsed(name: str) -> StreamId:
    source, _, shard = name.partition("/")
    return StreamId(source, shard)


def _check_name(path: Path, head: Head, wanted: StreamId, view: LakeView) -> None:
    """A stream has one name for ever: under another one, the tables would belong to two streams."""
    now = _parsed(head.stream)
    known = view.streams.get(now)
    if wanted != now and known is not None and known.state is not None and known.state.identity == head.identity:
        raise Conflict(
            f"{path} is followed as stream {now}, and cannot become stream {wanted}",
            hint="leave the new name out; or disable the file, and follow it anew with --namespace for its tables",
        )


def _free_name(store: Store, default: StreamId, choice: Choice, view: LakeView, *, is_older: bool = False) -> StreamId:
    """The default name, unless the stream of another database has it, or that of another kind of client.

    `is_older`: an older version followed the file; the lake has no state of its stream yet.
    """
    known = view.streams.get(default)
    if known is None or (known.state is None and is_older) or _is_place_of(store, known):
        return default
    if choice.source or choice.shards_of:
        owner = f"another database, {known.state.path}" if known.state else "another client"
        raise Conflict(f"the stream {default} belongs to {owner}", hint="choose another --source")
    for number in range(2, 1_000):
        name = StreamId(f"{default.source}-{number}")
        other = view.streams.get(name)
        if other is None or (other.state is not None and _is_place_of(store, other)):
            return name
    raise Conflict(f"all names like {default} are taken", hint="choose a name with --source")


def _is_place_of(store: Store, known: KnownStream) -> bool:
    """Whether this stream is of a file at this path of this host: it was enabled anew, then."""
    state = known.state
    return state is not None and (state.host, state.path) == address_of(store.path)


def _check_copy(store: Store, known: KnownStream, choice: Choice) -> list[str]:
    """The lake knows this identity. Is this the file, moved, or a copy of it?"""
    state = known.state
    assert state is not None
    if _is_place_of(store, known):
        return []
    if known.is_connected:
        raise _is_a_copy(store, known, "which is being followed now")
    if not choice.is_restored and not (is_at(store, state.place) and store.last_sequence() >= state.place.outbox):
        raise _is_a_copy(store, known, "and the lake has changes that this file has not")
    return [f"the file was followed as {state.path} on {state.host} before, and goes on here"]


def _is_a_copy(store: Store, known: KnownStream, why: str) -> Conflict:
    state = known.state
    assert state is not None
    return Conflict(
        f"{store.path} is a copy of {state.path} on {state.host} (stream {known.stream}), {why}",
        hint="add --as-copy to follow it as a database of its own, with --namespace for its tables; "
        "or --restored if it was restored from a backup and takes the place of the other one",
    )


# --- whose tables they are -------------------------------------------------------------------------------------------


def _check_owners(path: Path, stream: StreamId, tables: Mapping[str, str], view: LakeView) -> None:
    for name, table in tables.items():
        for owner in view.owners(table):
            is_sibling = bool(stream.shard) and owner.stream.source == stream.source
            if owner.stream != stream and not is_sibling:
                where = owner.state.path if owner.state else str(owner.stream)
                raise _table_is_taken(path, name, table, where)


def _table_is_taken(path: Path, name: str, table: str, where: str) -> Conflict:
    return Conflict(
        f"table {name} of {path} cannot be followed: table {table} of the lake belongs to another database, {where}",
        hint=f"add --namespace {_namespace_for(path)} to put this file's tables beside it; "
        "or --shards if the files have one schema and are meant to be one table",
    )


def _namespace_for(path: Path) -> str:
    made = "".join(letter if letter.isalnum() else "_" for letter in path.stem).strip("_").lower()
    return made or "other"
