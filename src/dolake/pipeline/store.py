"""The storage that data files are written to: one for each process, in the driver and in each of Spark's workers.

From __main__.py, which says where the warehouse is, and from staging.py, which tells the workers with each job; to all
who write and read data files. Without a word it is this machine's own files.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dolake.settings import DoLakeConfig
from dolake.storage.base import Storage
from dolake.storage.local import LocalStorage
from dolake.storage.opening import Place, open_storage, open_store
from dolake.tables.tiers import Tiers

_place = Place()


def use(place: Place) -> None:
    """From now on this process writes there."""
    global _place
    _place = place


def store() -> Storage:
    return _opened(_place)


def is_local() -> bool:
    return _place.is_local


def tiers_of(home: str, lake: DoLakeConfig) -> Tiers:
    """The lake's two places. The storage of this process knows all of this machine's files, and so not which."""
    return open_storage(Path(home), lake, _place).tiers if _place.is_local else store().tiers


@functools.lru_cache(maxsize=1)
def _opened(place: Place) -> Storage:
    return LocalStorage(Path("/")) if place.is_local else open_store(place)


def in_store(do: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same function for a worker that may not know the place yet."""
    return do if _place.is_local else functools.partial(_do_there, _place, do)


def _do_there(place: Place, do: Callable[[Any], Any], job: Any) -> Any:
    use(place)
    return do(job)
