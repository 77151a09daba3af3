"""Views: create, load, replace, register, rename, drop. Everything here blocks and runs in the catalog's threads.

From rest.py. Promise: as for tables, a metadata file is durable before the pointer moves to it, and a name is one
thing.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from dolake.catalog import locations
from dolake.catalog.base import CatalogStore, Create, Move, Name, Remember
from dolake.catalog.commit import apply_updates, check_requirements
from dolake.catalog.create import new_view_metadata
from dolake.catalog.documents import Document, Documents, version_of
from dolake.catalog.errors import CommitConflict
from dolake.catalog.places import folders_of
from dolake.catalog.register import registered_view_metadata
from dolake.catalog.values import Json, as_objects
from dolake.errors import OutcomeUnknown

_TRIES_MAX = 5


class Views:
    """See the module."""

    def __init__(self, store: CatalogStore, documents: Documents, clock_ms: Callable[[], int]) -> None:
        self._store, self._documents, self._clock_ms = store, documents, clock_ms

    def load(self, name: Name) -> Document:
        return self._documents.read(self._store.find(name, "view").metadata_location)

    def create(self, name: Name, request: Json, remember: Remember | None = None) -> Document:
        locations.check_name(name)
        self._store.namespace_properties(name.namespace)
        with self._documents.settling:
            location = locations.location_of(self._documents.storage, name, request)
            metadata = new_view_metadata(request, location=location, uuid=str(uuid.uuid4()), now_ms=self._clock_ms())
            return self._enter(name, metadata, remember)

    def register(
        self,
        name: Name,
        location: str,
        remember: Remember | None = None,
        check: Callable[[Json], None] = lambda _metadata: None,
    ) -> Document:
        locations.check_name(name)
        locations.checked_location(self._documents.storage, location)
        with self._documents.settling:
            document = self._documents.read_foreign(location)
            metadata = registered_view_metadata(document.metadata)
            check(metadata)
            locations.checked_location(self._documents.storage, metadata["location"])
            self._store.commit([self._creation(name, document)], None, remember)
        return document

    def replace(
        self, name: Name, requirements: Sequence[Json], updates: Sequence[Json], remember: Remember | None = None
    ) -> Document:
        for _ in range(_TRIES_MAX):
            pointer = self._store.find(name, "view")
            before = self._documents.read(pointer.metadata_location)
            check_requirements(before.metadata, as_objects(requirements, "requirements"))
            metadata = apply_updates(
                before.metadata, updates, now_ms=self._clock_ms(), metadata_location=before.location
            )
            if metadata is before.metadata:
                return before
            if metadata["location"] != before.metadata["location"]:
                locations.checked_location(self._documents.storage, metadata["location"])
            document = self._documents.write(metadata, version=version_of(before.location) + 1)
            move = Move(
                name, "view", pointer.version, document.location, folders=folders_of(self._documents.storage, metadata)
            )
            try:
                self._store.commit([move], None, remember)
            except CommitConflict:
                self._documents.discard(document.location)
                continue
            return document
        raise CommitConflict(f"Cannot commit {name}: too many others do", hint="try again")

    def drop(self, name: Name, remember: Remember | None = None) -> None:
        self._store.drop(name, "view", remember)

    def rename(self, source: Name, target: Name, remember: Remember | None = None) -> None:
        locations.check_name(target)
        self._store.rename(source, target, "view", remember)

    def _enter(self, name: Name, metadata: Json, remember: Remember | None) -> Document:
        document = self._documents.write(metadata, version=0)
        try:
            self._store.commit([self._creation(name, document)], None, remember)
        except OutcomeUnknown:
            raise  # it may have happened: the file must stay
        except Exception:
            self._documents.discard(document.location)
            raise
        return document

    def _creation(self, name: Name, document: Document) -> Create:
        uuid_, folders = document.metadata["view-uuid"], folders_of(self._documents.storage, document.metadata)
        return Create(name, "view", uuid_, document.location, folders=folders)
