"""Tables: create, load, commit, register, rename, drop. Everything here blocks and runs in the catalog's threads.

From rest.py; to the store (pointers), documents.py (metadata files) and commit.py (what a commit means). Promise: a
metadata file is durable before the pointer moves to it; commits to one table take turns and are applied to the newest
metadata; a commit of many tables moves all of them and the published position, or nothing. Hints and deletions follow
after the answer.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from dolake.catalog import locations
from dolake.catalog.afterwards import LATER_S, Afterwards
from dolake.catalog.base import CatalogStore, Create, Move, Name, Pointer, Publish, Published, Remember
from dolake.catalog.commit import apply_updates, check_requirements
from dolake.catalog.create import new_table_metadata
from dolake.catalog.documents import Document, Documents, version_of
from dolake.catalog.errors import AlreadyExists, CommitConflict, IllegalArgument, ManagedTable, NoSuchTable
from dolake.catalog.locks import NameLocks
from dolake.catalog.places import Places, folders_of
from dolake.catalog.readers import changes_data, refs_of
from dolake.catalog.register import registered_table_metadata
from dolake.catalog.values import Json, as_objects, refuse
from dolake.errors import InvalidInput, NotFound, OutcomeUnknown
from dolake.tables.layout import MANAGED, is_known
from dolake.tables.types import source_name

_DELETE_OLD_METADATA = "write.metadata.delete-after-commit.enabled"
_TRIES_MAX = 5
_FORMAT_MAX = 3
_WRITERS = 8
_Part = TypeVar("_Part")


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One table's part of a commit, as a client sends it."""

    name: Name
    requirements: Sequence[Json]
    updates: Sequence[Json]


@dataclass(frozen=True, slots=True)
class _Applied:
    """A commit that was applied to what the table is; nothing is written yet."""

    name: Name
    pointer: Pointer | None
    before: Document | None
    metadata: Json

    @property
    def is_settling(self) -> bool:
        """Whether the table says anew where its files lie; commits of data do not."""
        before, keys = self.before, ("location", "properties")
        return before is None or any(self.metadata.get(key) != before.metadata.get(key) for key in keys)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A commit that was applied, and whose file is written; the pointer has not moved yet."""

    change: Create | Move
    before: Document | None
    after: Document


class Tables:
    """See the module."""

    def __init__(self, store: CatalogStore, documents: Documents, clock_ms: Callable[[], int]) -> None:
        self._store, self._documents, self._clock_ms = store, documents, clock_ms
        self._places = Places(store, documents)
        self._locks = NameLocks()
        self._afterwards = Afterwards()
        self._newest: dict[str, Document] = {}
        """By its folder, the file that the next hint names."""
        self._held: frozenset[str] = frozenset()
        self._passed_over: set[str] = set()
        """Metadata files that somebody still needs, and those of them that would have been removed."""
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="catalog-writer")

    def settle(self) -> None:
        """Return when hints are written and files removed for all that was answered until now."""
        self._afterwards.settle()

    def close(self) -> None:
        self._writers.shutdown()
        self._afterwards.close()

    # --- look --------------------------------------------------------------------------------------------------------

    def load(self, name: Name) -> Document:
        return self._documents.read_present(self._store.find(name, "table").metadata_location)

    def find(self, name: Name) -> Pointer:
        return self._store.find(name, "table")

    def load_all(self, names: Sequence[Name] | None = None) -> tuple[dict[Name, Document], Published]:
        """These tables, or all, and the published position, at one moment: never half of a publish."""
        pointers, published = self._store.snapshot(names)
        return {pointer.name: self._documents.read(pointer.metadata_location) for pointer in pointers}, published

    def read(self, location: str) -> Document:
        return self._documents.read(location)

    def hold(self, metadata: frozenset[str]) -> None:
        """From now on keep these metadata files, also when many others have followed; those held before may go."""
        self._held = metadata
        for file in [each for each in list(self._passed_over) if each not in metadata]:
            self._passed_over.discard(file)
            self._afterwards.do(functools.partial(self._documents.discard, file))

    # --- change ------------------------------------------------------------------------------------------------------

    def create(
        self, name: Name, request: Json, *, is_pipeline: bool, remember: Remember | None = None
    ) -> tuple[Document | None, Json]:
        """A new table, or with `stage-create` only its metadata: nothing is stored then."""
        locations.check_name(name)
        self._store.namespace_properties(name.namespace)
        with self._locks.hold([name]), self._documents.settling:
            self._refuse_taken(name)
            location = locations.location_of(self._documents.storage, name, request)
            metadata = new_table_metadata(request, location=location, uuid=str(uuid.uuid4()), now_ms=self._clock_ms())
            applied = _Applied(name, None, None, metadata)
            if request.get("stage-create"):
                self._checked_managed(applied, is_pipeline=is_pipeline)
                # DuckDB writes its manifests before it commits, and makes no folder for them.
                self._documents.storage.make_folder(f"{location}/metadata")
                return None, metadata
            prepared = self._write(applied, is_pipeline=is_pipeline)
            self._move([prepared], None, remember)
        return prepared.after, metadata

    def register(
        self,
        name: Name,
        location: str,
        *,
        is_overwriting: bool,
        remember: Remember | None = None,
        check: Callable[[Json], None] = lambda _metadata: None,
    ) -> Document:
        """Enter a table whose metadata file is already in the warehouse."""
        locations.check_name(name)
        self._store.namespace_properties(name.namespace)
        locations.checked_location(self._documents.storage, location)
        with self._locks.hold([name]), self._documents.settling:
            document = self._documents.read_foreign(location)
            metadata = registered_table_metadata(document.metadata)
            check(metadata)
            locations.checked_location(self._documents.storage, metadata["location"])
            if not metadata.get("table-uuid"):
                refuse("Cannot register a table without a uuid")
            self._places.refuse_managed(name, metadata)
            self._store.commit([self._registration(name, document, is_overwriting=is_overwriting)], None, remember)
            self._finish_later(None, document)
        return document

    def commit(
        self,
        commits: Sequence[TableCommit],
        *,
        is_pipeline: bool,
        publish: Publish | None = None,
        remember: Remember | None = None,
    ) -> list[Document]:
        """Apply these commits, all of them or none; returns what the tables are then."""
        names = [commit.name for commit in commits]
        if len(set(names)) != len(names):
            raise InvalidInput("a table stands twice in one transaction", hint="join its updates into one entry")
        with self._locks.hold(names):
            for _ in range(_TRIES_MAX):
                applied = [self._apply(commit, is_pipeline=is_pipeline) for commit in commits]
                is_settling = any(part.is_settling for part in applied)
                try:
                    with self._documents.settling if is_settling else contextlib.nullcontext():
                        prepared = self._prepare(applied, is_pipeline=is_pipeline)
                        self._move(prepared, publish, remember)
                except CommitConflict:
                    if publish:
                        raise
                    continue  # another process was faster: apply once more, to what is there now
                after = {part.change.name: part.after for part in prepared}
                return [after[name] for name in names]
        raise CommitConflict(f"Cannot commit {', '.join(map(str, names))}: too many others do", hint="try again")

    def drop(self, name: Name, *, is_purging: bool, is_forced: bool, remember: Remember | None = None) -> None:
        with self._locks.hold([name]):
            pointer = self.find(name)
            if not is_forced:
                self._refuse_managed(pointer, "dropped")
            document = self._documents.read(pointer.metadata_location) if is_purging else None
            self._store.drop(name, "table", remember)
        if document:
            self._afterwards.settle()  # a late hint would bring the folder back
            self._places.purge(document)

    def unregister(self, name: Name, *, is_forced: bool, remember: Remember | None = None) -> Document:
        """Take a table out of the catalog; its files stay. Returns what it was."""
        with self._locks.hold([name]):
            pointer = self.find(name)
            if not is_forced:
                self._refuse_managed(pointer, "dropped")
            document = self._documents.read_present(pointer.metadata_location)
            self._store.drop(name, "table", remember)
        return document

    def rename(
        self, source: Name, target: Name, remember: Remember | None = None, *, is_pipeline: bool = False
    ) -> None:
        locations.check_name(target)
        with self._locks.hold([source, target]):
            if not is_pipeline:
                self._refuse_managed(self.find(source), "renamed")
            self._store.rename(source, target, "table", remember)

    def adopt(self, name: Name) -> Document:
        """From now on only the pipeline changes this table's data; refused where it could not write the columns."""
        self._refuse_unwritable(self.load(name))
        update = {"action": "set-properties", "updates": {MANAGED: "true", _DELETE_OLD_METADATA: "true"}}
        return self.commit([TableCommit(name, [], [update])], is_pipeline=True)[0]

    # --- how ---------------------------------------------------------------------------------------------------------

    def _prepare(self, applied: Sequence[_Applied], *, is_pipeline: bool) -> list[_Prepared]:
        """Write the new file of each, or of none."""
        prepared: list[_Prepared] = []

        def write(part: _Applied) -> None:
            prepared.append(self._write(part, is_pipeline=is_pipeline))

        try:
            self._for_each(write, applied)
        except BaseException:
            self._discard(prepared)
            raise
        return prepared

    def _for_each(self, do: Callable[[_Part], object], parts: Sequence[_Part]) -> None:
        """At the same time where there are many, because the disk syncs ten files in hardly more time than one.

        Returns or raises only when none is under way any more.
        """
        if len(parts) == 1:
            do(parts[0])
            return
        running = [self._writers.submit(do, part) for part in parts]
        wait(running)
        for done in running:
            done.result()

    def _apply(self, commit: TableCommit, *, is_pipeline: bool) -> _Applied:
        requirements = as_objects(commit.requirements, "requirements")
        is_creating = any(requirement.get("type") == "assert-create" for requirement in requirements)
        pointer = self._find_or_none(commit.name, is_creating=is_creating)
        before = self._documents.read(pointer.metadata_location) if pointer else None
        check_requirements(before.metadata if before else None, requirements)
        is_guarded = pointer is not None and pointer.is_managed and not is_pipeline
        refs = refs_of(before.metadata) if before and is_guarded else {}
        if is_guarded and changes_data(as_objects(commit.updates, "updates"), refs):
            raise ManagedTable(
                f"{commit.name} is managed by DoLake: only its pipeline changes its data",
                hint="send changes to the lake instead, or write to a table of your own",
            )
        metadata = apply_updates(
            before.metadata if before else None,
            commit.updates,
            now_ms=self._clock_ms(),
            metadata_location=before.location if before else None,
            new_uuid=str(uuid.uuid4()),
        )
        return _Applied(commit.name, pointer, before, metadata)

    def _find_or_none(self, name: Name, *, is_creating: bool) -> Pointer | None:
        try:
            return self.find(name)
        except NoSuchTable:
            if not is_creating:
                raise
        locations.check_name(name)
        self._store.namespace_properties(name.namespace)
        self._refuse_taken(name)
        return None

    def _write(self, applied: _Applied, *, is_pipeline: bool) -> _Prepared:
        name, pointer, before, metadata = applied.name, applied.pointer, applied.before, applied.metadata
        storage = self._documents.storage
        if pointer is None or before is None:
            location = metadata.get("location") or locations.default_location(storage, name)
            metadata = metadata | {"location": locations.checked_location(storage, location)}
            applied = _Applied(name, None, None, metadata)
            is_managed = self._checked_managed(applied, is_pipeline=is_pipeline)
            document = self._documents.write(metadata, version=0)
            return _Prepared(self._creation(name, document, is_managed=is_managed), None, document)
        if metadata["location"] != before.metadata["location"]:
            locations.checked_location(storage, metadata["location"])
        if metadata is before.metadata:
            return _Prepared(Move(name, "table", pointer.version, before.location), before, before)
        is_managed = self._checked_managed(applied, is_pipeline=is_pipeline)
        document = self._documents.write(metadata, version=version_of(before.location) + 1, before=before)
        folders = folders_of(storage, metadata) if applied.is_settling or not pointer.folders else None
        move = Move(name, "table", pointer.version, document.location, is_managed, folders)
        return _Prepared(move, before, document)

    def _move(self, prepared: Sequence[_Prepared], publish: Publish | None, remember: Remember | None) -> None:
        changes = [part.change for part in prepared]
        try:
            self._store.commit(changes, publish, remember)
        except sqlite3.Error as error:
            # It may have happened: the files must stay.
            raise OutcomeUnknown(f"the catalog did not answer: {error}", hint="load the table, then decide") from error
        except OutcomeUnknown:
            raise  # the same
        except BaseException:
            self._discard(prepared)
            raise
        for part in prepared:
            if part.after is not part.before:
                self._finish_later(part.before, part.after)

    def _discard(self, prepared: Sequence[_Prepared]) -> None:
        for part in prepared:
            if part.after is not part.before:
                self._documents.discard(part.after.location)

    def _finish_later(self, before: Document | None, after: Document) -> None:
        self._newest[after.folder] = after
        self._afterwards.do(functools.partial(self._finish, before, after), delay_s=LATER_S)

    def _finish(self, before: Document | None, after: Document) -> None:
        """After the pointer has moved: leave the hint, and let old metadata files go where the table says so."""
        if self._newest.get(after.folder) is after:  # of commits in a row, the last one writes it
            del self._newest[after.folder]
            self._documents.hint(after)
        if before is None:
            return
        self._documents.forget(before.location)
        metadata = after.metadata
        if metadata.get("properties", {}).get(_DELETE_OLD_METADATA, "").lower() == "true":
            kept = {entry["metadata-file"] for entry in metadata.get("metadata-log", ())}
            ours = after.folder  # a log that was registered can name files of other tables
            for entry in before.metadata.get("metadata-log", ()):
                file = entry["metadata-file"]
                if file not in kept and file.rpartition("/")[0] == ours and not self._store.is_pointed_at(file):
                    if file in self._held:
                        self._passed_over.add(file)
                    else:
                        self._documents.discard(file)

    def _registration(self, name: Name, document: Document, *, is_overwriting: bool) -> Create | Move:
        new = self._creation(name, document, is_managed=False)
        with contextlib.suppress(NoSuchTable):
            if is_overwriting:
                pointer = self.find(name)
                self._refuse_managed(pointer, "replaced")
                return Move(name, "table", pointer.version, new.metadata_location, False, new.folders, new.uuid)
        return new

    def _creation(self, name: Name, document: Document, *, is_managed: bool) -> Create:
        uuid_, folders = document.metadata["table-uuid"], folders_of(self._documents.storage, document.metadata)
        return Create(name, "table", uuid_, document.location, is_managed, folders)

    def _refuse_taken(self, name: Name) -> None:
        for kind in ("table", "view"):
            with contextlib.suppress(NotFound):
                self._store.find(name, kind)
                same = "" if kind == "table" else " with same name"
                raise AlreadyExists(f"{kind.capitalize()}{same} already exists: {name}")

    def _refuse_unwritable(self, document: Document) -> None:
        current = document.metadata.get("current-schema-id")
        schema = next((each for each in document.metadata["schemas"] if each.get("schema-id") == current), None)
        if document.metadata.get("format-version", 1) > _FORMAT_MAX:
            raise IllegalArgument(f"DoLake writes tables up to format {_FORMAT_MAX}", hint="make the table so")
        for field in (schema or {}).get("fields", ()):
            if source_name(field["name"]) is None and field["type"] != "string":
                raise IllegalArgument(f"{field['name']} is a column of DoLake's own", hint="call it otherwise")
            if not isinstance(field["type"], str) and b'"required":true' in msgspec.json.encode(field["type"]):
                raise IllegalArgument(f"{field['name']} has parts that must not be null", hint="let them be null")
        odd = [field["name"] for field in (schema or {}).get("fields", ()) if not is_known(field["type"])]
        if odd:
            raise IllegalArgument(
                f"DoLake cannot write the types of the columns {', '.join(odd)[:200]}",
                hint="it writes boolean, int, long, float, double, decimal, date, timestamp, timestamptz, string, uuid,"
                " binary, and structs and lists of these",
            )

    def _refuse_managed(self, pointer: Pointer, what: str) -> None:
        if pointer.is_managed:
            raise ManagedTable(
                f"{pointer.name} is managed by DoLake and cannot be {what}",
                hint="to drop it anyway, add the query parameter force=true",
            )

    def _checked_managed(self, applied: _Applied, *, is_pipeline: bool) -> bool:
        """Whether the table is a managed one from now on. Who is not the pipeline makes none, and none's neighbour."""
        is_managed = str(applied.metadata.get("properties", {}).get(MANAGED, "")).lower() == "true"
        if is_pipeline:
            return is_managed
        if is_managed and not (applied.pointer and applied.pointer.is_managed):
            raise ManagedTable(
                f"{applied.name} cannot be made managed by setting {MANAGED}",
                hint="POST .../tables/{table}/adopt does that",
            )
        if applied.is_settling:
            self._places.refuse_managed(applied.name, applied.metadata)
        return is_managed
