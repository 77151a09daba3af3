"""Where a token of some namespaces may have files: in the folders of its namespaces, and nowhere else.

From rest.py, for what a request says, and query/reader.py, for what a table's manifests say: else a tenant could enter
another's files as a table of his own, and have the server read them to him. Promise: whoever sees the whole lake is
not asked; places are compared with links followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dolake.catalog.documents import METADATA_PATH
from dolake.errors import DoLakeError, Forbidden
from dolake.identity.grants import Grant
from dolake.storage.base import Storage

_PLACES = frozenset(
    (
        "location",
        "metadata-location",
        "metadata-file",
        "manifest-list",
        "manifests",
        "statistics-path",
        METADATA_PATH,
        "write.data.path",
        "write.object-storage.path",
        "write.folder-storage.path",
    )
)
"""Keys of requests and of metadata whose values are places of files, however deep they stand."""


def check_places(storage: Storage, grant: Grant, document: Any) -> None:
    """Refuse a request or a table's metadata that names a place which is not the token's."""
    if not grant.is_lake_wide:
        check_paths(storage, grant, _places_in(document))


def check_paths(storage: Storage, grant: Grant, places: Iterable[str]) -> None:
    if grant.namespaces is None:
        return
    roots = (storage.tiers.warm, storage.tiers.cold)
    folders = tuple("/".join((root, *each)) for root in roots for each in grant.namespaces)
    for place in places:
        if not _is_within(storage, place, folders):
            raise Forbidden(
                "this names files outside of the folders of the token's namespaces", hint="leave the location out"
            )


def _is_within(storage: Storage, place: object, folders: tuple[str, ...]) -> bool:
    if not isinstance(place, str):
        return False
    try:
        found = storage.resolve(place)
    except (DoLakeError, OSError, ValueError):
        return False
    return any(found == folder or found.startswith(f"{folder}/") for folder in folders)


def _places_in(document: Any) -> Iterator[str]:
    waiting = [document]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            for key, value in node.items():
                if key in _PLACES:
                    yield from (each for each in (value if isinstance(value, list) else [value]) if each)
                elif isinstance(value, dict | list):
                    waiting.append(value)
        elif isinstance(node, list):
            waiting += node
