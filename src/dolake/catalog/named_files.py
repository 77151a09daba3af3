"""Every file that a table's metadata names: what must be kept, and what must be copied.

From pipeline/garbage.py, which removes what is not among them, and from backup/, which copies them. PyIceberg reads the
manifests, so who imports this waits a second.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.manifest import read_manifest_list

from dolake.catalog.pyiceberg_files import StorageIO
from dolake.storage.base import Storage

Json = dict[str, Any]


def named_files(metadata: Json, storage: Storage, known_manifests: dict[str, set[str]] | None = None) -> set[str]:
    """Manifest lists, manifests, data files and statistics of all snapshots, as the metadata spells them. Manifests
    never change: with `known_manifests` none of them is read twice."""
    io = StorageIO(storage)
    known = {} if known_manifests is None else known_manifests
    named: set[str] = set()
    for kind in ("statistics", "partition-statistics"):
        named |= {entry["statistics-path"] for entry in metadata.get(kind, ())}
    manifests: dict[str, Any] = {}
    for snapshot in metadata.get("snapshots", ()):
        location = snapshot["manifest-list"]
        named.add(location)
        manifests |= {each.manifest_path: each for each in read_manifest_list(io.new_input(location))}
    for path, manifest in manifests.items():
        named.add(path)
        if path not in known:
            known[path] = {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io)}
        named |= known[path]
    return named
