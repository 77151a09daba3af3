"""Make a home from a backup, and check a backup without making anything.

From cli/backup.py, which holds the home's lock. Promise: until every file is there with the bytes that were backed up,
the home has a mark that keeps a server from starting on it, and no catalog; a restore that was stopped goes on when it
is run again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dolake.backup.base import UNFINISHED_FILE
from dolake.backup.copying import Copied, Meter, Progress, checksum, copy_file, require_room, sync_folders
from dolake.backup.database import DATABASE
from dolake.backup.manifest import Manifest, StoredFile, load_manifest
from dolake.backup.table_files import STORE, bring_to_store, is_in_store
from dolake.errors import Conflict, Damaged, InvalidInput, NotFound
from dolake.journal.mark import FILE_NAME as MARK_FILE
from dolake.journal.repair import check_journal

if TYPE_CHECKING:
    from dolake.storage.s3 import S3Storage

_LAST = (f"journal/{MARK_FILE}", DATABASE)
"""Without these nobody takes the folder for a lake."""
_NOBODYS = {UNFINISHED_FILE, "server.lock", "server.log"}


def check_backup(folder: Path, *, progress: Progress = lambda _what, _done, _total: None) -> tuple[Manifest, list[str]]:
    """Read every byte of a backup; returns what is wrong with it."""
    manifest = load_manifest(folder)
    meter = Meter(progress)
    meter.begin("checking", manifest.size_bytes)
    problems = [problem for file in manifest.files if (problem := _problem(folder, file, meter))]
    if not problems:
        journal = check_journal(folder / "runs" / manifest.id / "home" / "journal")
        problems = [f"journal: {problem}" for problem in journal.problems]
    return manifest, problems


def refuse_to_restore(folder: Path, home: Path) -> Manifest:
    """Everything that can be said before the first byte is written."""
    manifest = load_manifest(folder)
    if manifest.table_count and not manifest.store and home.resolve() != Path(manifest.home).resolve():
        raise InvalidInput(
            f"this backup is of {manifest.home}, and tables name their files by full paths",
            hint=f"restore to --home {manifest.home}; to keep it elsewhere, make that path a link to the folder first",
        )
    others = {path.name for path in home.iterdir()} - _NOBODYS if home.is_dir() else set()
    if others and _restoring(home) != manifest.id:
        raise Conflict(
            f"{home} is not empty: it has {min(others)}",
            hint="a restore never mixes with what is there; move the folder away first",
        )
    return manifest


def restore(
    folder: Path,
    home: Path,
    *,
    storage: S3Storage | None = None,
    progress: Progress = lambda _what, _done, _total: None,
) -> Manifest:
    """Bring every file to its place, those of tables in a store to the store. The caller holds the home's lock."""
    manifest = refuse_to_restore(folder, home)
    if manifest.store and (storage is None or storage.root != manifest.store):
        raise InvalidInput(
            f"the tables of this backup were in {manifest.store}, and name their files by that",
            hint="set storage.location to it, and the store's address and keys",
        )
    home.mkdir(parents=True, exist_ok=True)
    mark = home / UNFINISHED_FILE
    mark.write_bytes(msgspec.json.encode({"backup": manifest.id, "from": str(folder.resolve())}))
    sync_folders(home)
    meter = Meter(progress)
    missing = [file for file in manifest.files if not _is_there(home, file, storage)]
    require_room(home, sum(file.size for file in missing if not file.place.startswith(STORE)))
    meter.begin("restoring", sum(file.size for file in missing))
    for file in sorted(missing, key=lambda each: each.place in _LAST):
        _bring(folder, home, file, storage, meter)
    if problems := check_journal(home / "journal").problems:
        raise Damaged(f"the restored journal is damaged: {problems[0]}", hint="use another backup")
    sync_folders(home)
    mark.unlink()
    sync_folders(home)
    return manifest


def _bring(folder: Path, home: Path, file: StoredFile, storage: S3Storage | None, meter: Meter) -> None:
    target = home / file.place  # an absolute place stays one
    in_store = storage if file.place.startswith(STORE) else None
    try:
        if in_store:
            copied = bring_to_store(in_store, folder / file.kept, file, meter)
        else:
            copied = copy_file(folder / file.kept, target, meter)
    except FileNotFoundError:
        raise NotFound(f"the backup lacks {file.kept}", hint="use another backup") from None
    if copied != Copied(file.size, file.crc32c):
        if not in_store:
            target.unlink()
        raise Damaged(
            f"{folder / file.kept} is not as it was backed up",
            hint="use another backup; this home is not usable until a restore has finished",
        )


def _is_there(home: Path, file: StoredFile, storage: S3Storage | None) -> bool:
    """From a restore that was stopped, in a shared place outside the home, or in a store that was not lost."""
    if storage and file.place.startswith(STORE):
        return is_in_store(storage, file)
    path = home / file.place
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    return checksum(path, Meter(lambda _what, _done, _total: None)).crc32c == file.crc32c


def _problem(folder: Path, file: StoredFile, meter: Meter) -> str:
    try:
        found = checksum(folder / file.kept, meter)
    except FileNotFoundError:
        return f"{file.kept} is missing"
    if found.size != file.size:
        return f"{file.kept} has {found.size} bytes and should have {file.size}"
    return "" if found.crc32c == file.crc32c else f"{file.kept} is not as it was backed up"


def _restoring(home: Path) -> str | None:
    try:
        return str(msgspec.json.decode((home / UNFINISHED_FILE).read_bytes(), type=dict[str, str])["backup"])
    except (FileNotFoundError, msgspec.DecodeError, KeyError):
        return None
