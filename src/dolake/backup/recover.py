"""Make a home from the copy in the store, after the machine was lost.

From cli/recover.py, which holds the home's lock. Promise: the lake is what it was at the copy's last round: every
change that was durable then, once; the tables are those that the copied catalog names, and what was published later
comes again from its sources. Until all of it is there no server starts on the home.
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import msgspec

from dolake.backup.base import RECOVERED_FILE, UNFINISHED_FILE, note_recovered
from dolake.backup.copying import sync_folders
from dolake.backup.database import DATABASE
from dolake.backup.store_copy import HOME_FILES, HOME_FOLDERS, Copy, fetch, find_copy
from dolake.catalog.base import Pointer
from dolake.catalog.documents import HINT_FILE, SUFFIX
from dolake.catalog.readers import current_snapshot_id
from dolake.catalog.sqlite import SqliteStore
from dolake.errors import Conflict, Damaged, NotFound
from dolake.journal import retention, segment
from dolake.journal.repair import check_journal
from dolake.storage.s3 import S3Storage

_PIPELINE = "pipeline"
_OPERATORS = {"dolake.toml", "tokens.json", "tokens.key", "tokens.lock", "tls"}
"""What is in no copy, and may be there before."""
_NOBODYS = {UNFINISHED_FILE, "server.lock", "server.log", "recovering.zip"}
_OURS = {DATABASE, "journal", RECOVERED_FILE, *HOME_FILES, *HOME_FOLDERS}


def recover(storage: S3Storage, home: Path) -> Copy:
    """Bring everything to its place. The caller holds the home's lock."""
    copy = find_copy(storage)
    if copy is None:
        raise NotFound(
            f"there is no copy of a home in {storage.root}",
            hint="journal.copy keeps one there; without it `dolake restore` takes a backup",
        )
    _refuse_what_is_there(home)
    mark = home / UNFINISHED_FILE
    mark.write_bytes(msgspec.json.encode({"backup": f"{storage.root} {copy.taken_ms}", "from": storage.root}))
    for name in _OURS:  # of a try that was stopped
        path = home / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    _bring_home(storage, copy, home)
    _bring_journal(storage, copy, home / "journal")
    pointers = _pointers(home / DATABASE)
    note_recovered(home, _snapshots(storage, pointers))
    for each in pointers:
        _leave_hint(storage, each)
    sync_folders(home)
    mark.unlink()
    sync_folders(home)
    return copy


def _refuse_what_is_there(home: Path) -> None:
    is_again = (home / UNFINISHED_FILE).exists()
    others = {path.name for path in home.iterdir()} - _NOBODYS - _OPERATORS if home.is_dir() else set()
    if others - (_OURS if is_again else set()):
        raise Conflict(
            f"{home} is not empty: it has {min(others)}", hint="recover into a new folder, or move that one away first"
        )


def _bring_home(storage: S3Storage, copy: Copy, home: Path) -> None:
    bundle = home / "recovering.zip"
    fetch(storage, copy.home, bundle)
    wanted = {DATABASE, *HOME_FILES}
    with zipfile.ZipFile(bundle) as opened:
        for name in opened.namelist():
            if name not in wanted and not name.startswith(tuple(f"{folder}/" for folder in HOME_FOLDERS)):
                raise Damaged(f"{copy.home.name} has {name[:80]!r} in it, which no copy has", hint="it is not ours")
            opened.extract(name, home)  # which keeps names inside
    bundle.unlink()


def _bring_journal(storage: S3Storage, copy: Copy, directory: Path) -> None:
    directory.mkdir()
    for each in copy.segments:
        fetch(storage, each.file, segment.path_of(directory, each.base))
    begins = copy.segments[0].base if copy.segments else 0
    places = {_PIPELINE: max(copy.published, begins)}
    (directory / retention.FILE_NAME).write_bytes(msgspec.json.encode(places))
    if copy.segments and (problems := check_journal(directory).problems):
        raise Damaged(f"the copied journal is damaged: {problems[0]}", hint="a version of it from before, if any")


def _pointers(database: Path) -> list[Pointer]:
    store = SqliteStore(database)
    try:
        return store.pointers()
    finally:
        store.close()


def _snapshots(storage: S3Storage, pointers: list[Pointer]) -> dict[str, int]:
    """Of managed tables that have one, by uuid. Reading them all shows that the store has what the catalog says."""
    found: dict[str, int] = {}
    for each in pointers:
        try:
            metadata = msgspec.json.decode(storage.read(each.metadata_location), type=dict[str, Any])
        except NotFound:
            raise Damaged(
                f"{each.name} has no metadata at {each.metadata_location}",
                hint="a bucket with versions has it still: bring it back, then run this again",
            ) from None
        snapshot_id = current_snapshot_id(metadata) if each.kind == "table" and each.is_managed else None
        if snapshot_id is not None:
            found[each.uuid] = snapshot_id
    return found


def _leave_hint(storage: S3Storage, pointer: Pointer) -> None:
    """Who reads without a catalog would go on with what was published after the copy."""
    if pointer.kind == "table":
        folder, _, name = pointer.metadata_location.rpartition("/")
        storage.overwrite(f"{folder}/{HINT_FILE}", name.removesuffix(SUFFIX).encode())
