"""Tables: create, load, commit, register, rename, drop. Everything here blocks and runs in the catalog's threads.

From rest.py; to the store (pointers), documents.py (metadata files) and commit.py (what a commit means). Promise: a
metadata file is durable before the pointer moves to it; commits to one table take turns and are applied to the newest
metadata; a commit of many tables moves all of them and the published position, or nothing.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

from dolake.catalog import locations
from dolake.catalog.base import CatalogStore, Create, Move, Name, Pointer, Publish, Published, Remember
from dolake.catalog.commit import apply_updates, check_requirements
from dolake.catalog.create import new_table_metadata
from dolake.catalog.documents import Document, Documents, version_of
from dolake.catalog.errors import AlreadyExists, CommitConflict, ManagedTable, NoSuchTable
from dolake.catalog.readers import changes_data
from dolake.catalog.register import registered_table_metadata
from dolake.catalog.values import Json, as_objects, read_text, refuse
from dolake.errors import InvalidInput, NotFound, OutcomeUnknown

MANAGED = "dolake.managed"
_DELETE_OLD_METADATA = "write.metadata.delete-after-commit.enabled"
_TRIES_MAX = 5
_WRITERS = 8
_Part = TypeVar("_Part")


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One table's part of a commit, as a client sends it."""

    name: Name
    requirements: Sequence[Json]
    updates: Sequence[Json]


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
        self._locks: dict[Name, threading.Lock] = {}
        self._locks_guard = threading.Lock()
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="catalog-writer")

    def close(self) -> None:
        self._writers.shutdown()

    # --- look --------------------------------------------------------------------------------------------------------

    def load(self, name: Name) -> Document:
        return self._documents.read_present(self._store.find(name, "table").metadata_location)

    def find(self, name: Name) -> Pointer:
        return self._store.find(name, "table")

    # --- change ------------------------------------------------------------------------------------------------------

    def load_all(self, names: Sequence[Name] | None = None) -> tuple[dict[Name, Document], Published]:
        """These tables, or all, and the published position, at one moment: never half of a publish."""
        pointers, published = self._store.snapshot(names)
        return {pointer.name: self._documents.read(pointer.metadata_location) for pointer in pointers}, published

    def read(self, location: str) -> Document:
        return self._documents.read(location)

    def create(
        self, name: Name, request: Json, *, is_pipeline: bool, remember: Remember | None = None
    ) -> tuple[Document | None, Json]:
        """A new table, or with `stage-create` only its metadata: nothing is stored then."""
        locations.check_name(name)
        self._store.namespace_properties(name.namespace)
        self._refuse_taken(name)
        wanted = request.get("location")
        storage = self._documents.storage
        location = (
            locations.checked_location(storage, read_text(request, "location"))
            if wanted
            else locations.default_location(storage, name)
        )
        metadata = new_table_metadata(request, location=location, uuid=str(uuid.uuid4()), now_ms=self._clock_ms())
        is_managed = self._checked_managed(name, metadata, is_pipeline=is_pipeline)
        if request.get("stage-create"):
            # DuckDB writes its manifests before it commits, and makes no folder for them.
            self._documents.storage.make_folder(f"{location}/metadata")
            return None, metadata
        document = self._documents.write(metadata, version=0)
        self._enter(
            Create(name, "table", metadata["table-uuid"], document.location, is_managed), document, remember=remember
        )
        return document, metadata

    def register(self, name: Name, location: str, *, is_overwriting: bool) -> Document:
        """Enter a table whose metadata file is already in the warehouse."""
        locations.check_name(name)
        self._store.namespace_properties(name.namespace)
        locations.checked_location(self._documents.storage, location)
        document = self._documents.read_foreign(location)
        metadata = registered_table_metadata(document.metadata)
        locations.checked_location(self._documents.storage, metadata["location"])
        if not metadata.get("table-uuid"):
            refuse("Cannot register a table without a uuid")
        with self._locked([name]):
            if is_overwriting:
                with contextlib.suppress(NoSuchTable):
                    self._refuse_managed(self.find(name), "replaced")
                    self._store.drop(name, "table")
            self._enter(Create(name, "table", metadata["table-uuid"], location), document, is_new_file=False)
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
        with self._locked(names):
            for _ in range(_TRIES_MAX):
                prepared = self._prepare(commits, is_pipeline=is_pipeline)
                try:
                    self._move(prepared, publish, remember)
                except CommitConflict:
                    if publish:
                        raise
                    continue  # another process was faster: apply once more, to what is there now
                self._for_each(self._finish, prepared)
                after = {part.change.name: part.after for part in prepared}
                return [after[name] for name in names]
        raise CommitConflict(f"Cannot commit {', '.join(map(str, names))}: too many others do", hint="try again")

    def drop(self, name: Name, *, is_purging: bool, is_forced: bool) -> None:
        with self._locked([name]):
            pointer = self.find(name)
            if not is_forced:
                self._refuse_managed(pointer, "dropped")
            document = self._documents.read(pointer.metadata_location) if is_purging else None
            self._store.drop(name, "table")
        if document:
            self._purge(document)

    def rename(self, source: Name, target: Name) -> None:
        locations.check_name(target)
        with self._locked([source, target]):
            self._refuse_managed(self.find(source), "renamed")
            self._store.rename(source, target, "table")

    def adopt(self, name: Name) -> Document:
        """From now on only the pipeline changes this table's data."""
        update = {"action": "set-properties", "updates": {MANAGED: "true", _DELETE_OLD_METADATA: "true"}}
        return self.commit([TableCommit(name, [], [update])], is_pipeline=True)[0]

    # --- how ---------------------------------------------------------------------------------------------------------

    def _prepare(self, commits: Sequence[TableCommit], *, is_pipeline: bool) -> list[_Prepared]:
        """Check and apply everything before the first file is written."""
        now_ms = self._clock_ms()
        applied = [(commit, *self._apply(commit, now_ms, is_pipeline=is_pipeline)) for commit in commits]
        prepared: list[_Prepared] = []

        def write(part: tuple[TableCommit, Pointer | None, Document | None, Json]) -> None:
            commit, pointer, before, metadata = part
            prepared.append(self._write(commit.name, pointer, before, metadata, is_pipeline=is_pipeline))

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

    def _apply(
        self, commit: TableCommit, now_ms: int, *, is_pipeline: bool
    ) -> tuple[Pointer | None, Document | None, Json]:
        requirements = as_objects(commit.requirements, "requirements")
        is_creating = any(requirement.get("type") == "assert-create" for requirement in requirements)
        pointer = self._find_or_none(commit.name, is_creating=is_creating)
        before = self._documents.read(pointer.metadata_location) if pointer else None
        check_requirements(before.metadata if before else None, requirements)
        if pointer and pointer.is_managed and not is_pipeline and changes_data(as_objects(commit.updates, "updates")):
            raise ManagedTable(
                f"{commit.name} is managed by DoLake: only its pipeline changes its data",
                hint="send changes to the lake instead, or write to a table of your own",
            )
        metadata = apply_updates(
            before.metadata if before else None,
            commit.updates,
            now_ms=now_ms,
            metadata_location=before.location if before else None,
            new_uuid=str(uuid.uuid4()),
        )
        return pointer, before, metadata

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

    def _write(
        self, name: Name, pointer: Pointer | None, before: Document | None, metadata: Json, *, is_pipeline: bool
    ) -> _Prepared:
        storage = self._documents.storage
        if pointer is None or before is None:
            metadata = metadata | {
                "location": locations.checked_location(
                    storage, metadata.get("location") or locations.default_location(storage, name)
                )
            }
            is_managed = self._checked_managed(name, metadata, is_pipeline=is_pipeline)
            document = self._documents.write(metadata, version=0)
            return _Prepared(
                Create(name, "table", metadata["table-uuid"], document.location, is_managed), None, document
            )
        if metadata["location"] != before.metadata["location"]:
            locations.checked_location(storage, metadata["location"])
        if metadata is before.metadata:
            return _Prepared(Move(name, "table", pointer.version, before.location), before, before)
        is_managed = self._checked_managed(name, metadata, is_pipeline=is_pipeline or pointer.is_managed)
        document = self._documents.write(metadata, version=version_of(before.location) + 1, before=before)
        return _Prepared(Move(name, "table", pointer.version, document.location, is_managed), before, document)

    def _move(self, prepared: Sequence[_Prepared], publish: Publish | None, remember: Remember | None) -> None:
        changes = [part.change for part in prepared]
        try:
            self._store.commit(changes, publish, remember)
        except sqlite3.Error as error:
            # It may have happened: the files must stay.
            raise OutcomeUnknown(f"the catalog did not answer: {error}", hint="load the table, then decide") from error
        except BaseException:
            self._discard(prepared)
            raise

    def _discard(self, prepared: Sequence[_Prepared]) -> None:
        for part in prepared:
            if part.after is not part.before:
                self._documents.discard(part.after.location)

    def _finish(self, part: _Prepared) -> None:
        """After the pointer has moved: leave the hint, and let old metadata files go where the table says so."""
        if part.after is part.before:
            return
        self._documents.hint(part.after)
        if part.before:
            self._documents.forget(part.before.location)
        metadata = part.after.metadata
        if part.before and metadata.get("properties", {}).get(_DELETE_OLD_METADATA, "").lower() == "true":
            kept = {entry["metadata-file"] for entry in metadata.get("metadata-log", ())}
            ours = part.after.location.rpartition("/")[0]  # a log that was registered can name files of other tables
            for entry in part.before.metadata.get("metadata-log", ()):
                file = entry["metadata-file"]
                if file not in kept and file.rpartition("/")[0] == ours and not self._store.is_pointed_at(file):
                    self._documents.discard(file)

    def _enter(
        self, change: Create, document: Document, *, is_new_file: bool = True, remember: Remember | None = None
    ) -> None:
        try:
            self._store.commit([change], None, remember)
        except BaseException as error:
            if is_new_file and not isinstance(error, sqlite3.Error):
                self._documents.discard(document.location)
            raise
        self._documents.hint(document)

    def _refuse_taken(self, name: Name) -> None:
        for kind in ("table", "view"):
            with contextlib.suppress(NotFound):
                self._store.find(name, kind)
                same = "" if kind == "table" else " with same name"
                raise AlreadyExists(f"{kind.capitalize()}{same} already exists: {name}")

    def _refuse_managed(self, pointer: Pointer, what: str) -> None:
        if pointer.is_managed:
            raise ManagedTable(
                f"{pointer.name} is managed by DoLake and cannot be {what}",
                hint="to drop it anyway, add the query parameter force=true",
            )

    def _checked_managed(self, name: Name, metadata: Json, *, is_pipeline: bool) -> bool:
        is_managed = str(metadata.get("properties", {}).get(MANAGED, "")).lower() == "true"
        if is_managed and not is_pipeline:
            raise ManagedTable(
                f"{name} cannot be made managed by setting {MANAGED}", hint="POST .../tables/{table}/adopt does that"
            )
        return is_managed

    def _purge(self, document: Document) -> None:
        """Remove the table's folder, unless another table or view lives in it."""
        folder = document.metadata["location"].rstrip("/")
        if not self._documents.storage.is_inside(folder):
            return
        below = locations.plain(folder) + "/"
        if not any(locations.plain(other).startswith(below) for other in self._store.metadata_locations()):
            self._documents.storage.delete_folder(folder)

    @contextlib.contextmanager
    def _locked(self, names: Sequence[Name]) -> Iterator[None]:
        """Commits to one table take turns; those to others go on."""
        with contextlib.ExitStack() as stack:
            for name in sorted(set(names), key=lambda each: (each.namespace, each.name)):
                with self._locks_guard:
                    lock = self._locks.setdefault(name, threading.Lock())
                stack.enter_context(lock)
            yield
