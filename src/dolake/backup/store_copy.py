"""The home's copy in the store: sealed segments and the catalog, so that a lost machine is not a lost lake.

From server/journal_copy.py, round after round; to recover.py. The order of a round makes it one moment:

1. Send the segments that were sealed since the last round; most of the bytes, and nothing depends on when.
2. Copy the catalog: everything before its position P is in the tables that it names, which are in the store already.
3. Seal what is durable and send it: so the copied journal ends at P or behind it.
4. Write `copy.json`, which names all of it. Before this the copy is the one that it was.

Promise: what `copy.json` names is there, and so is the metadata that its catalog points at (`hold`), whatever is
published meanwhile. Keys, tokens and certificates are in no copy.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import google_crc32c
import msgspec

import dolake
from dolake.backup.database import DATABASE, copy_database, copy_store_of
from dolake.catalog.locations import COPY_FOLDER
from dolake.catalog.sqlite import SqliteStore
from dolake.errors import Conflict, Damaged, NotFound
from dolake.journal import segment
from dolake.journal.retention import SealedSegment
from dolake.positions import Position
from dolake.settings import CatalogSettings

if TYPE_CHECKING:
    from dolake.storage.s3 import S3Storage

FORMAT_VERSION = 1
HOME_FILES = ("format.json", "settings-changed.json")
HOME_FOLDERS = ("subscriptions",)
"""What the copy has of the home beside journal and catalog. The key index is built anew from the tables."""
_MANIFEST = "copy.json"
_SCRATCH = "copying.tmp"
_CHUNK_BYTES = 1 << 20
_LONG_AGO = (1980, 1, 1, 0, 0, 0)
"""The time of every file in a bundle: the same files are the same bytes."""


class CopiedFile(msgspec.Struct, frozen=True):
    """A file of the copy, by its name there."""

    name: str
    size: int
    crc32c: int


class CopiedSegment(msgspec.Struct, frozen=True):
    """A sealed segment: changes from `base` up to `end`."""

    base: Position
    end: Position
    file: CopiedFile


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """What `copy.json` says: `position` changes are in it, and those before `published` are in its catalog's tables."""

    version: int = FORMAT_VERSION
    dolake: str
    taken_ms: int
    journal_id: str
    writer: str
    """Of the server's start that wrote it: two servers that copy to one place would remove each other's files."""
    position: Position
    published: Position
    home: CopiedFile
    segments: list[CopiedSegment]


class Journal(Protocol):
    """As far as a copy needs it: journal/embedded.py's."""

    @property
    def directory(self) -> Path: ...
    def sealed(self) -> list[SealedSegment]: ...
    def seal(self) -> list[SealedSegment]: ...
    @property
    def head(self) -> tuple[Position, int]: ...


class StoreCopy:
    """Keeps the copy of one home up to date. All of it blocks; one thread at a time."""

    def __init__(
        self,
        home: Path,
        storage: S3Storage,
        catalog: CatalogSettings,
        journal: Journal,
        journal_id: str,
        *,
        hold: Callable[[frozenset[str]], None],
        clock_ms: Callable[[], int],
    ) -> None:
        self._home, self._storage, self._catalog, self._journal = home, storage, catalog, journal
        self._journal_id, self._hold, self._clock_ms = journal_id, hold, clock_ms
        self._writer = secrets.token_hex(8)
        self._sent: dict[tuple[Position, Position], CopiedSegment] = {}
        """Of this start: after a restore the copy before may have other changes at these positions."""
        self._uploaded: set[str] = set()
        self._held: frozenset[str] = frozenset()
        """The metadata that the copy in the store points at."""
        self.last: Copy | None = None
        """What the store has of this server; None before the first round."""

    def bring_up_to_now(self) -> Copy:
        """One round. What fails leaves the copy as it was; the next round goes on."""
        before = find_copy(self._storage)
        self._refuse_another(before)
        self._send(self._journal.sealed())
        with self._bundled() as (bundle, published, metadata):
            self._hold(metadata | self._held)
            self._send(self._journal.seal())
            self._send_newest_if_none()
            home = self._send_bundle(bundle, before)
        segments = _needed(list(self._sent.values()), published)
        copy = Copy(
            dolake=dolake.__version__,
            taken_ms=self._clock_ms(),
            journal_id=self._journal_id,
            writer=self._writer,
            position=segments[-1].end,
            published=published,
            home=home,
            segments=segments,
        )
        if before is None or _contents(copy) != _contents(before):
            self._storage.overwrite(_location(self._storage, _MANIFEST), msgspec.json.encode(copy))
        self._remove_needless(before, copy)
        self._held = metadata
        self._hold(metadata)
        self.last = copy
        return copy

    def _refuse_another(self, found: Copy | None) -> None:
        if found is not None and found.journal_id != self._journal_id:
            raise Conflict(
                "the copy of another lake is in this place, and stays as it is",
                hint=f"`dolake recover` makes a home of it; if nobody needs it, remove {COPY_FOLDER} from the store",
            )
        if found is not None and self.last is not None and found.writer != self._writer:
            raise Conflict(
                "another server copies its journal to this place",
                hint="stop the other one; a machine that was replaced must not come back",
            )

    # --- segments -----------------------------------------------------------------------------------------------------

    def _send(self, sealed: Sequence[SealedSegment]) -> None:
        for each in sealed:
            if (each.base, each.end) not in self._sent:
                self._send_segment(each.base, each.end, each.size)
        # Those that were removed here are published. The last one stays: without it streams would be forgotten.
        there = {(each.base, each.end) for each in sealed} | {max(self._sent, default=None)}
        self._sent = {key: self._sent[key] for key in sorted(self._sent) if key in there}

    def _send_newest_if_none(self) -> None:
        """Of a journal of which all was published and removed: the segment under way knows how far each stream is."""
        if not self._sent:
            base, size = self._journal.head
            self._send_segment(base, base, size)

    def _send_segment(self, base: Position, end: Position, size: int) -> None:
        name = f"journal/{base:020d}-{end:020d}-{self._writer}{segment.SUFFIX}"
        file = self._upload(segment.path_of(self._journal.directory, base), name, size)
        self._sent[base, end] = CopiedSegment(base, end, file)

    def _upload(self, path: Path, name: str, size: int) -> CopiedFile:
        crc, left = 0, size
        upload = self._storage.open_upload(_location(self._storage, name))
        self._uploaded.add(name)
        with path.open("rb", buffering=0) as opened:
            while left and (piece := opened.read(min(left, _CHUNK_BYTES))):
                upload.write(piece)
                crc = google_crc32c.extend(crc, piece)
                left -= len(piece)
        upload.close()
        return CopiedFile(name, upload.tell(), crc)

    # --- the home -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _bundled(self) -> Iterator[tuple[Path, Position, frozenset[str]]]:
        """Catalog and small files as one file; the catalog's position, and the metadata that it points at."""
        scratch = self._home / _SCRATCH
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            copy_store_of(self._home, scratch / DATABASE, self._catalog)
            with contextlib.closing(SqliteStore(scratch / DATABASE)) as store:
                published, pointers = store.published().position, store.pointers()
            _flatten(scratch / DATABASE)
            bundle = scratch / "home.zip"
            _write_bundle(bundle, self._home, scratch / DATABASE)
            yield bundle, published, frozenset(each.metadata_location for each in pointers)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _send_bundle(self, bundle: Path, before: Copy | None) -> CopiedFile:
        """Of a lake in which nothing has changed the one that is there does."""
        data = bundle.read_bytes()
        size, crc = len(data), google_crc32c.value(data)
        if before and (before.home.size, before.home.crc32c) == (size, crc):
            return before.home
        return self._upload(bundle, f"home/{self._clock_ms()}-{secrets.token_hex(4)}.zip", size)

    def _remove_needless(self, before: Copy | None, now: Copy) -> None:
        """What only the copy before named, and what was published before any copy named it."""
        needless = ((_names(before) if before else set()) | self._uploaded) - _names(now)
        self._storage.delete_all(_location(self._storage, name) for name in needless)
        self._uploaded = _names(now)


def find_copy(storage: S3Storage) -> Copy | None:
    """What is in the store; None where nothing was ever copied to it."""
    location = _location(storage, _MANIFEST)
    try:
        copy = msgspec.json.decode(storage.read(location), type=Copy)
    except NotFound:
        return None
    except msgspec.DecodeError as error:
        raise Damaged(
            f"{location} cannot be read: {error}", hint="a version of it from before, if you have one"
        ) from None
    if copy.version != FORMAT_VERSION:
        raise Damaged(
            f"{location} has format {copy.version}", hint="use the DoLake release that wrote it, or a newer one"
        )
    return copy


def fetch(storage: S3Storage, file: CopiedFile, target: Path) -> None:
    """Bring a file of the copy here, and see that it is the one that was sent."""
    crc = 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with storage.open_download(_location(storage, file.name)) as source, target.open("wb") as written:
        while piece := source.read(_CHUNK_BYTES):
            written.write(piece)
            crc = google_crc32c.extend(crc, piece)
        written.flush()
        os.fsync(written.fileno())
    if (target.stat().st_size, crc) != (file.size, file.crc32c):
        raise Damaged(f"{file.name} in the store is not as it was copied", hint="a version of it from before, if any")


def _location(storage: S3Storage, name: str) -> str:
    return f"{storage.root}/{COPY_FOLDER}/{name}"


def _names(copy: Copy) -> set[str]:
    return {copy.home.name, *(each.file.name for each in copy.segments)}


def _contents(copy: Copy) -> tuple[object, ...]:
    return copy.writer, copy.position, copy.published, copy.home, copy.segments


def _needed(sent: Sequence[CopiedSegment], published: Position) -> list[CopiedSegment]:
    """Those with changes that are in no table yet, and the last one always."""
    return [each for each in sent if each.end > published or each is sent[-1]]


def _flatten(database: Path) -> None:
    """Into the one file that is copied, without the log beside it."""
    flat = database.with_suffix(".flat")
    copy_database(database, flat)
    flat.replace(database)


def _write_bundle(target: Path, home: Path, database: Path) -> None:
    files = {DATABASE: database}
    files |= {name: home / name for name in HOME_FILES if (home / name).is_file()}
    for folder in HOME_FOLDERS:
        found = sorted((home / folder).rglob("*")) if (home / folder).is_dir() else []
        files |= {str(path.relative_to(home)): path for path in found if path.is_file() and path.suffix != ".tmp"}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as bundle:
        for name, path in files.items():
            with contextlib.suppress(FileNotFoundError):
                bundle.writestr(zipfile.ZipInfo(name, _LONG_AGO), path.read_bytes(), zipfile.ZIP_DEFLATED, 1)
