"""Which storage the settings mean: a folder of the home, or a place in a store.

From whoever keeps or reads files of the lake. The store's client is loaded only where there is a store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dolake.errors import InvalidInput
from dolake.settings import CatalogSettings, DoLakeConfig, StorageSettings
from dolake.storage.base import Storage
from dolake.storage.local import LocalStorage

if TYPE_CHECKING:
    from dolake.storage.delegation import Delegation


class Place(msgspec.Struct, frozen=True):
    """Where the tables are, and how to get there; an empty location is a folder of this machine."""

    location: str = ""
    settings: StorageSettings = StorageSettings()
    roots: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        return not self.location


def place_of(lake: DoLakeConfig, storage: StorageSettings, catalog: CatalogSettings | None = None) -> Place:
    """What the settings say, put together."""
    scheme, _, rest = storage.location.partition("://")
    if not scheme:
        return Place(settings=storage, roots=catalog.location_roots if catalog else ())
    bucket, _, path = rest.partition("/")
    location = f"s3://{bucket or lake.r2_bucket_name}/{path or lake.r2_base_path}"
    roots = [root for root in (catalog.location_roots if catalog else ()) if "://" in root]
    return Place(location, storage, tuple(roots))


def open_storage(home: Path, lake: DoLakeConfig, place: Place) -> Storage:
    """The warehouse, and the other places where tables may be."""
    if not place.is_local:
        return open_store(place)
    roots = [Path(root) for root in place.roots if "://" not in root]
    return LocalStorage(home / lake.r2_base_path, roots, _cold_folder(home, place.settings.cold_location))


def open_store(place: Place, roots: Sequence[str] = ()) -> Storage:
    """The same for a place in a store."""
    from dolake.storage.s3 import S3Storage  # 40 MB that a lake on a folder does without

    return S3Storage(place.location, place.settings, (*place.roots, *roots))


def open_delegation(storage: Storage, settings: StorageSettings, clock_ms: Callable[[], int]) -> Delegation | None:
    """What clients are handed to reach the files; None where they bring their own keys, or where there is no store."""
    if settings.vending == "off" or storage.root.startswith("file:"):
        return None
    from dolake.storage.delegation import Delegation
    from dolake.storage.s3 import S3Storage

    assert isinstance(storage, S3Storage)
    return Delegation(storage, settings, clock_ms)


def _cold_folder(home: Path, cold: str) -> Path | None:
    if "://" in cold:
        hint = "name a folder, or set storage.location to a place in a store, too"
        raise InvalidInput(
            f"the tables are in a folder, so they cannot have {cold} as storage.cold_location", hint=hint
        )
    return home / cold if cold else None
