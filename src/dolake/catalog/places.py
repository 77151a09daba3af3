"""Whose files lie where: nobody's are removed with another table, and nobody writes among those of a managed one.

From tables.py. Places are compared with links followed, because one folder can be spelled in many ways.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterable

from dolake.catalog.base import CatalogStore, Name, Pointer
from dolake.catalog.documents import METADATA_PATH, Document, Documents
from dolake.catalog.errors import ManagedTable
from dolake.catalog.values import Json
from dolake.errors import DoLakeError
from dolake.storage.base import Storage
from dolake.tables.tiers import COLD

logger = logging.getLogger(__name__)
_DATA_PATHS = ("write.data.path", "write.object-storage.path", "write.folder-storage.path")
_HINT = "write to a table of your own, in a folder of its own"


def folders_of(storage: Storage, metadata: Json) -> tuple[str, ...]:
    """The folders in which a table's or view's files lie, old ones too, as it says itself, links followed."""
    properties = metadata.get("properties") or {}
    paths = [*storage.tiers.folders(metadata["location"]), *(properties.get(key) for key in _DATA_PATHS)]
    return tuple(dict.fromkeys(_resolved(storage, path) for path in paths if path))


def _resolved(storage: Storage, location: str) -> str:
    """What lies outside the warehouse stays as it is spelled: nothing is removed or written there."""
    try:
        return storage.resolve(location)
    except (DoLakeError, OSError, ValueError):
        return location


class Places:
    """See the module."""

    def __init__(self, store: CatalogStore, documents: Documents) -> None:
        self._store, self._documents, self._storage = store, documents, documents.storage

    def purge(self, document: Document) -> None:
        """Remove the folder of a table that was dropped; where others have files in it, all of it stays.

        The table is gone already, so what goes wrong here is told to the log alone.
        """
        folder = document.metadata["location"]
        try:
            if self._storage.is_inside(folder):
                is_removed = self._remove(self._storage.resolve(folder))
                if is_removed:
                    self._storage.delete_folder(self._storage.tiers.folder(folder, COLD))
        except (DoLakeError, OSError, sqlite3.Error):
            logger.warning("purge failed", extra={"folder": folder}, exc_info=True)

    def _remove(self, folder: str) -> bool:
        # Most of the looking is done before others must wait; what was entered meanwhile is looked at while they do.
        seen = set(self._store.pointers())
        if self._is_shared(folder, seen):
            return False
        with self._documents.settling:
            if self._is_shared(folder, set(self._store.pointers()) - seen):
                return False
            aside = self._storage.set_aside(folder)
        self._storage.delete_folder(aside)  # which can take long; its old place is free already
        return True

    def _is_shared(self, folder: str, pointers: Iterable[Pointer]) -> bool:
        for pointer in pointers:
            if self._has_files_in(pointer, folder):
                logger.warning("purge left the files", extra={"folder": folder, "because_of": str(pointer.name)})
                return True
        return False

    def refuse_managed(self, name: Name, metadata: Json) -> None:
        """Nobody's table may be a managed one's twin, or write among its files."""
        uuid, metadata_path = str(metadata.get("table-uuid")), (metadata.get("properties") or {}).get(METADATA_PATH)
        wanted = {*folders_of(self._storage, metadata), _resolved(self._storage, metadata_path or metadata["location"])}
        for pointer in self._store.pointers(is_managed=True):
            if pointer.name == name:
                continue
            if pointer.uuid.lower() == uuid.lower():
                raise ManagedTable(
                    f"this is {pointer.name}, which is managed by DoLake: it has one name", hint=_HINT, is_others=True
                )
            for folder in self._folders(pointer):
                if any(_is_taken(place, folder) for place in wanted):
                    raise ManagedTable(
                        f"{folder} belongs to {pointer.name}, which is managed by DoLake", hint=_HINT, is_others=True
                    )

    def are_managed(self, places: Iterable[str]) -> bool:
        """Whether a managed table's files lie there, or in a folder below, or in one around it."""
        places = tuple(places)
        return any(
            f"{folder}/".startswith(f"{place}/") or f"{place}/".startswith(f"{folder}/")
            for pointer in self._store.pointers(is_managed=True)
            for folder in (*self._folders(pointer), pointer.metadata_location.rpartition("/")[0])
            for place in places
        )

    def _has_files_in(self, pointer: Pointer, folder: str) -> bool:
        """Also where the folder is a part of the other's: that one's data can be in there."""
        return _resolved(self._storage, pointer.metadata_location).startswith(f"{folder}/") or any(
            f"{folder}/".startswith(f"{other}/") or other.startswith(f"{folder}/") for other in self._folders(pointer)
        )

    def _folders(self, pointer: Pointer) -> tuple[str, ...]:
        if not pointer.folders:
            with contextlib.suppress(DoLakeError, OSError):
                return folders_of(self._storage, self._documents.read(pointer.metadata_location).metadata)
        return pointer.folders


def _is_taken(place: str, folder: str) -> bool:
    """A nested namespace's tables lie beside a table's files, in folders of their own; that is no harm."""
    return place == folder or any(f"{place}/".startswith(f"{folder}/{part}/") for part in ("metadata", "data"))
