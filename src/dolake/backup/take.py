"""Take a backup of a home, beside its running server or without one, in the order that makes it one moment.

1. Hold the journal: from now on nothing that is removed is lost to us.
2. Copy the catalog: everything before its position P is in the tables that it names.
3. Copy the journal up to what is durable now: it begins before P and ends behind it. So 2 and 3 together are all that
   was acknowledged before the backup began, and what is in both is there once, because P says where to go on.
   Settings and subscriptions are copied before it, so that no reader of the copy is ahead of its end.
4. Copy the files that the copied catalog names. They never change, and go only after `maintenance.gc_grace_ms`; where
   one has gone all the same, everything begins again with a later moment, and what was copied is not copied again.
5. Write the manifest. Before this the folder is the backup that it was, or none.

From cli/backup.py. A folder that holds a backup already gets only what is new.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import dolake
from dolake.backup.base import refuse_unfinished
from dolake.backup.catalog_copy import CatalogCopy, copy_catalog, copy_indexes
from dolake.backup.copying import Copied, Meter, Progress, checksum, copy_file, require_room, sync_folders
from dolake.backup.database import DATABASE, copy_database
from dolake.backup.journal_copy import HeldJournal, stream_ends
from dolake.backup.manifest import FILE_NAME, Manifest, StoredFile, find_manifest, store_manifest
from dolake.backup.table_files import FILES, STORE, TableFiles, table_files
from dolake.catalog.stores import MOVED_FILE, SQLITE
from dolake.errors import Conflict, Damaged, InvalidInput, NotFound, Unavailable
from dolake.journal.repair import check_journal
from dolake.settings import CatalogSettings

if TYPE_CHECKING:
    from dolake.storage.s3 import S3Storage

_CATALOG = CatalogSettings()
_MOMENTS_MAX = 3
_RUNS = "runs"
_OWN = {_RUNS, FILES, FILE_NAME, FILE_NAME + ".tmp"}
_OF_THE_PROCESS = {"server.lock", "server.json", "server.log"}
_ELSEWHERE = {"journal", "keyindex", "query", "spark", "upkeep"}
"""Folders that are copied in their own way, or made anew by who needs them."""
_SQLITE = b"SQLite format 3\0"


def take_backup(
    home: Path,
    warehouse: Path,
    folder: Path,
    *,
    cold: Path | None = None,
    catalog: CatalogSettings = _CATALOG,
    storage: S3Storage | None = None,
    clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    progress: Progress = lambda _what, _done, _total: None,
) -> Manifest:
    """Make `folder` a backup of this home, or bring the one that it holds up to now.

    With a `storage` that is where the tables are, and the backup has their files, too.
    """
    home, warehouse = home.resolve(), warehouse.resolve()
    _refuse(home, folder, catalog)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        places = (warehouse, cold.resolve()) if cold else (warehouse,)
        files = table_files(home, storage)
        taking = _Taking(home, places, folder.resolve(), catalog, files, clock_ms, Meter(progress))
        for _ in range(_MOMENTS_MAX):
            with contextlib.suppress(FileNotFoundError):
                return taking.take()
    raise Unavailable(
        "files that the catalog names went while they were copied, again and again",
        hint="`dolake verify` says whether some are lost; else raise maintenance.gc_grace_ms, then try again",
    )


class _Taking:
    def __init__(
        self,
        home: Path,
        places: Sequence[Path],
        folder: Path,
        catalog: CatalogSettings,
        files: TableFiles,
        clock_ms: Callable[[], int],
        meter: Meter,
    ) -> None:
        self._home, self._places, self._folder, self._catalog = home, places, folder, catalog
        self._files, self._clock_ms, self._meter = files, clock_ms, meter
        self._copied: dict[str, StoredFile] = {}
        """Files that never change, by where they are kept: those of the backup before this one, and of this one."""
        if earlier := find_manifest(folder):
            self._copied = {file.kept: file for file in earlier.files if file.kept.startswith(f"{FILES}/")}

    def take(self) -> Manifest:
        taken_ms = self._clock_ms()
        run_id = f"{taken_ms}-{secrets.token_hex(4)}"
        run = self._folder / _RUNS / run_id
        with contextlib.closing(HeldJournal(self._home / "journal")) as journal:
            catalog = copy_catalog(self._home, run / "home", self._catalog, self._files)
            self._meter.begin("key indexes", 0)
            copy_indexes(catalog, self._home, run / "home" / "keyindex", self._meter)
            self._copy_others(run / "home")  # before the journal's end: no subscription is ahead of it
            position = journal.copy(run / "home" / "journal", catalog.published, self._meter)
        fixed = self._copy_named(catalog)
        if problems := check_journal(run / "home" / "journal").problems:
            hint = "`dolake journal check` says more about the journal of the home"
            raise Damaged(f"the copy of the journal is damaged: {problems[0]}", hint=hint)
        manifest = Manifest(
            id=run_id,
            dolake=dolake.__version__,
            taken_ms=taken_ms,
            home=str(self._home),
            store=root if (root := self._files.storage.root).startswith(STORE) else "",
            position=position,
            published=catalog.published,
            files=[*fixed, *self._changing(run), *self._hints(run, catalog)],
            streams=stream_ends(run / "home" / "journal"),
            table_count=sum(pointer.kind == "table" for pointer in catalog.pointers),
            indexes_left_out=catalog.indexes_left_out,
        )
        sync_folders(self._folder)
        store_manifest(self._folder, manifest)
        self._remove_needless(manifest)
        return manifest

    def _copy_named(self, catalog: CatalogCopy) -> list[StoredFile]:
        """Every file of the tables. Metadata first, from memory: it may be gone already."""
        from dolake.catalog.named_files import named_files  # takes a second to load

        fixed = [self._keep_bytes(location, data) for location, data in catalog.metadata.items()]
        self._meter.begin("reading manifests", 0)
        named: set[str] = set()
        for document in catalog.documents():
            named |= named_files(document, self._files.storage)
        wanted = {self._files.place_of(location)[1]: location for location in sorted(named)}  # whatever its spelling
        new = {kept: location for kept, location in wanted.items() if not self._is_kept(kept, location)}
        size = sum(map(self._files.size, new.values()))
        require_room(self._folder, size)
        self._meter.begin("tables", size)
        for kept, location in new.items():
            self._copied[kept] = self._files.copy(location, self._folder / kept, self._meter)
        return [*fixed, *(self._copied[kept] for kept in wanted)]

    def _is_kept(self, kept: str, location: str) -> bool:
        known = self._copied.get(kept)
        return known is not None and self._files.is_kept(location, known)

    def _keep_bytes(self, location: str, data: bytes) -> StoredFile:
        place, kept = self._files.place_of(location)
        if kept not in self._copied:
            target = self._folder / kept
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            self._copied[kept] = _stored(place, kept, _synced(target))
        return self._copied[kept]

    def _copy_others(self, target: Path) -> None:
        """Settings, and whatever else stands in the home."""
        for folder, names, files in os.walk(self._home):
            here = Path(folder)
            is_top = here == self._home
            names[:] = [
                name for name in names if here / name not in self._places and not (is_top and name in _ELSEWHERE)
            ]
            for name in files:
                path = here / name
                if _is_lasting(path) and not (is_top and name in (_OF_THE_PROCESS | {DATABASE, MOVED_FILE})):
                    with contextlib.suppress(FileNotFoundError):
                        _copy_other(path, target / path.relative_to(self._home), self._meter)

    def _changing(self, run: Path) -> Iterator[StoredFile]:
        """The files of this run alone."""
        root = run / "home"
        for path in sorted(root.rglob("*")):
            if path.is_file():
                place, kept = str(path.relative_to(root)), str(path.relative_to(self._folder))
                yield _stored(place, kept, _synced(path))

    def _hints(self, run: Path, catalog: CatalogCopy) -> Iterator[StoredFile]:
        """For readers without a catalog: each table's newest metadata, as of this backup."""
        for number, (location, data) in enumerate(sorted(catalog.hints.items())):
            kept = run / "hints" / str(number)
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(data)
            yield _stored(self._files.place_of(location)[0], str(kept.relative_to(self._folder)), _synced(kept))

    def _remove_needless(self, manifest: Manifest) -> None:
        """What only the backup before this one needed."""
        for run in (self._folder / _RUNS).iterdir():
            if run.name != manifest.id:
                shutil.rmtree(run, ignore_errors=True)
        needed = {file.kept for file in manifest.files}
        for path in (self._folder / FILES).rglob("*"):
            if path.is_file() and str(path.relative_to(self._folder)) not in needed:
                path.unlink()


def _refuse(home: Path, folder: Path, catalog: CatalogSettings) -> None:
    refuse_unfinished(home)
    has_file = catalog.store != SQLITE or (home / DATABASE).is_file()
    if not has_file or not (home / "journal").is_dir():
        raise NotFound(f"no lake in {home}", hint="--home names the server's folder, which has `catalog.db` in it")
    if folder.resolve().is_relative_to(home):
        raise InvalidInput(
            f"{folder} lies inside the home", hint="a backup belongs on another disk, at least elsewhere"
        )
    if folder.is_dir() and (strange := sorted(path.name for path in folder.iterdir() if path.name not in _OWN)):
        raise InvalidInput(f"{folder} holds other things, such as {strange[0]}", hint="name an empty or new folder")


def _is_lasting(path: Path) -> bool:
    is_passing = path.suffix in (".tmp", ".sock", ".log") or path.name.endswith(("-wal", "-shm", "-journal"))
    return not is_passing and path.is_file() and not path.is_symlink()


def _copy_other(path: Path, target: Path, meter: Meter) -> None:
    with path.open("rb") as opened:
        is_database = opened.read(len(_SQLITE)) == _SQLITE
    if is_database:
        copy_database(path, target)
    else:
        copy_file(path, target, meter)


def _synced(path: Path) -> Copied:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return checksum(path, Meter(lambda _what, _done, _total: None))


def _stored(place: str, kept: str, copied: Copied) -> StoredFile:
    return StoredFile(place, kept, copied.size, copied.crc32c)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two backups into one folder would remove each other's files."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"another backup into {folder} is running", hint="wait for its end") from None
        yield
    finally:
        os.close(descriptor)
