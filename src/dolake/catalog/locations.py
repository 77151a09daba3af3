"""Which names the catalog takes, and where a table or view lies.

From tables.py and views.py. Pure. Promise: a name becomes a folder below the warehouse and nothing else, whatever is
in it; a location that a client asks for is honoured only inside the warehouse.
"""

from __future__ import annotations

import re
import unicodedata
import uuid

from dolake.catalog.base import Name, Namespace
from dolake.catalog.values import Json, read_text
from dolake.errors import InvalidInput
from dolake.storage.base import Storage
from dolake.tables.tiers import COLD

COPY_FOLDER = ".dolake-copy"
"""Of the warehouse: where a home's copy is kept, and no table."""
_PART_LENGTH_MAX_BYTES = 255
_DEPTH_MAX = 16
_FOLDER_LENGTH_MAX_BYTES = 200
_LOCATION_LENGTH_MAX_BYTES = 2000
_UNSAFE = re.compile(r"[^\w.\-=@+ ]")


def check_namespace(namespace: Namespace) -> Namespace:
    if not namespace or len(namespace) > _DEPTH_MAX:
        raise InvalidInput(f"a namespace has 1 to {_DEPTH_MAX} levels, this one {len(namespace)}")
    for part in namespace:
        _check_part(part, "a namespace level")
    return namespace


def check_name(name: Name) -> Name:
    check_namespace(name.namespace)
    _check_part(name.name, "a table or view name")
    return name


def location_of(storage: Storage, name: Name, request: Json) -> str:
    """Where a new table or view lies: as its request says, or where its name leads."""
    if request.get("location"):
        return checked_location(storage, read_text(request, "location"))
    return default_location(storage, name)


def default_location(storage: Storage, name: Name) -> str:
    """`warehouse/ns/table`; with a few random digits where that folder is taken or the name cannot be one."""
    folders = [_folder(part) for part in (*name.namespace, name.name)]
    location = "/".join((storage.root, *folders))
    if len(location.encode()) > _LOCATION_LENGTH_MAX_BYTES:
        location = f"{storage.root}/{folders[-1]}"
    is_plain = location.endswith("/".join((*name.namespace, name.name)))
    if is_plain and next(iter(storage.list(location)), None) is None:
        return location
    return f"{location}-{uuid.uuid4().hex[:12]}"


def checked_location(storage: Storage, wanted: str) -> str:
    """A location that a client chose, if it lies below the warehouse."""
    location = wanted.rstrip("/")
    if location.startswith("r2://"):  # the same place, in the spelling that all engines know
        location = "s3://" + location.removeprefix("r2://")
    is_plain = not {".", ".."} & set(location.split("/")) and len(location.encode()) <= _LOCATION_LENGTH_MAX_BYTES
    if (
        not is_plain
        or not storage.is_inside(location)
        or storage.tiers.of(storage.resolve(location)) == COLD
        or is_own(storage, storage.resolve(location))
    ):
        raise InvalidInput(
            f"location {wanted[:200]} is not inside the warehouse {storage.root}",
            hint="leave it out, or choose one below it",
        )
    return location


def is_own(storage: Storage, resolved: str) -> bool:
    """Whether this place, in its one spelling, lies in the home's copy or around it."""
    copy = f"{storage.root}/{COPY_FOLDER}/"
    return f"{resolved}/".startswith(copy) or copy.startswith(f"{resolved}/")


def _folder(part: str) -> str:
    folder = _UNSAFE.sub("_", part).encode()[:_FOLDER_LENGTH_MAX_BYTES].decode(errors="ignore")
    return "_" + folder if folder.strip(". ") == "" or folder == COPY_FOLDER else folder


def _check_part(part: str, what: str) -> None:
    if not part or len(part.encode(errors="surrogatepass")) > _PART_LENGTH_MAX_BYTES:
        raise InvalidInput(f"{what} has 1 to {_PART_LENGTH_MAX_BYTES} bytes, this one is {part[:40]!r}")
    for character in part:
        if unicodedata.category(character) in ("Cc", "Cs"):
            raise InvalidInput(f"{what} contains {character!r}, a character that no name may have")
