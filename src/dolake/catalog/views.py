"""Views: create, load, replace, register, rename, drop. Everything here blocks and runs in the catalog's threads.

From rest.py. Promise: as for tables, a metadata file is durable before the pointer moves to it, and a name is one
thing.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from dolake.catalog import locations
from dolake.catalog.base import CatalogStore, Create, Move, Name
from dolake.catalog.commit import apply_updates, check_requirements
from dolake.catalog.create import new_view_metadata
from dolake.catalog.documents import Document, Documents, version_of
from dolake.catalog.errors import CommitConflict
from dolake.catalog.register import registered_view_metadata
from dolake.catalog.values import Json, as_objects, read_text

_TRIES_MAX = 5


class Views:
    """See the module."""

    def __init__(self, store: CatalogStore, documents: Documents, clock_ms: Callable[[], int]) -> None:
        self._store, self._documents, self._clock_ms = store, documents, clock_ms

    def load(self, name: Name) -> Document:
        return self._documents.read(self._store.find(name, "view").metadata_location)

    def create(self, name: Name, request: Json) -> Document:
        locations.check_name(name)
        self._store.namespace_properties(name.namespace)
        storage = self._documents.storage
        location = (
            locations.checked_location(storage, read_text(request, "location"))
            if request.get("location")
            else locations.default_location(storage, name)
        )
        metadata = new_view_metadata(request, location=location, uuid=str(uuid.uuid4()), now_ms=self._clock_ms())
        return self._enter(name, metadata)

    def register(self, name: Name, location: str) -> Document:
        locations.check_name(name)
        locations.checked_location(self._documents.storage, location)
        document = self._documents.read_foreign(location)
        metadata = registered_view_metadata(document.metadata)
        locations.checked_location(self._documents.storage, metadata["location"])
        self._store.commit([Create(name, "view", metadata["view-uuid"], location)])
        return document

    def replace(self, name: Name, requirements: Sequence[Json], updates: Sequence[Json]) -> Document:
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
            try:
                self._store.commit([Move(name, "view", pointer.version, document.location)])
            except CommitConflict:
                self._documents.discard(document.location)
                continue
            return document
        raise CommitConflict(f"Cannot commit {name}: too many others do", hint="try again")

    def drop(self, name: Name) -> None:
        self._store.drop(name, "view")

    def rename(self, source: Name, target: Name) -> None:
        locations.check_name(target)
        self._store.rename(source, target, "view")

    def _enter(self, name: Name, metadata: Json) -> Document:
        document = self._documents.write(metadata, version=0)
        try:
            self._store.commit([Create(name, "view", metadata["view-uuid"], document.location)])
        except Exception:
            self._documents.discard(document.location)
            raise
        return document
