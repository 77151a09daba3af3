"""Named subscriptions: what each wants, and how far its reader has come, in a small file for each.

From endpoint.py; the files are in the home's folder `subscriptions`. They never hold the journal: what it has let go is
read from the changes tables. Promise: an acknowledgement is said after its file is on disk, never before; a write that
fails leaves the position as it was, and its reader is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dolake.errors import NotFound, Unavailable
from dolake.journal.disk import Disk, write_file_atomically
from dolake.positions import Position
from dolake.query.announcing import Wish

logger = logging.getLogger(__name__)
_END = ".json"


class Named(Struct, frozen=True, rename="camel"):
    """A subscription whose position the server keeps."""

    name: str
    wish: Wish
    position: Position
    created_ms: int
    acknowledged_ms: int | None = None


write_file = partial(write_file_atomically, Disk())


class Names:
    """All named subscriptions. Lives on the event loop; files are written by a thread of its own."""

    def __init__(
        self, folder: Path, clock_ms: Callable[[], int], write: Callable[[Path, bytes], None] = write_file
    ) -> None:
        self._folder, self._clock_ms, self._write = folder, clock_ms, write
        self._known: dict[str, Named] = {}
        self._wanted: dict[str, Position] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="subscriptions")
        self._turns: dict[str, asyncio.Lock] = {}

    async def open(self) -> None:
        """Read what an earlier server has kept."""
        loop = asyncio.get_running_loop()
        self._known = {each.name: each for each in await loop.run_in_executor(self._thread, list, self._load())}

    def close(self) -> None:
        self._thread.shutdown()

    def __len__(self) -> int:
        return len(self._known)

    def all(self) -> list[Named]:
        return sorted(self._known.values(), key=lambda each: each.name)

    def find(self, name: str) -> Named | None:
        return self._known.get(name)

    async def keep(self, name: str, wish: Wish, position: Position) -> Named:
        """A new one at this position, or an earlier one with what it wants now."""
        async with self._turn(name):
            known = self._known.get(name)
            if known is None:
                known = Named(name, wish, position, self._clock_ms())
            elif known.wish == wish:
                return known
            return await self._save(replace(known, wish=wish))

    async def acknowledge(self, name: str, position: Position) -> Position:
        """Move it on; what is behind it already stays. Many at a time share a write."""
        if name in self._known:
            self._wanted[name] = max(position, self._wanted.get(name, 0))
        async with self._turn(name):
            known = self._known.get(name)
            if known is None:
                raise _unknown(name)
            if known.position >= position:
                return known.position
            wanted = max(position, self._wanted.pop(name, 0))  # who is refused now is not moved by the next one
            moved = replace(known, position=wanted, acknowledged_ms=self._clock_ms())
            return (await self._save(moved)).position

    async def drop(self, name: str) -> None:
        async with self._turn(name):
            if name not in self._known:
                raise _unknown(name)
            await self._in_thread(self._remove, name)
            del self._known[name]
            self._wanted.pop(name, None)

    def _turn(self, name: str) -> asyncio.Lock:
        return self._turns.setdefault(name, asyncio.Lock())

    async def _save(self, named: Named) -> Named:
        await self._in_thread(self._write, self._path(named.name), msgspec.json.encode(named))
        self._known[named.name] = named
        return named

    async def _in_thread(self, function: Callable[..., None], *args: object) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)
        except OSError as error:
            logger.warning("subscription not kept", extra={"reason": str(error)})
            raise Unavailable(
                f"the position could not be kept: {error.strerror or error}",
                hint="it is as it was before; try again when the disk has room",
            ) from error

    def _path(self, name: str) -> Path:
        return self._folder / (name + _END)

    def _remove(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)
        Disk().sync_directory(self._folder)

    def _load(self) -> Iterator[Named]:
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(self._folder.glob(f"*{_END}")):
            try:
                yield msgspec.json.decode(path.read_bytes(), type=Named)
            except (msgspec.DecodeError, OSError) as error:
                logger.error("subscription cannot be read", extra={"file": path.name, "reason": str(error)})


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no subscription {name[:80]}", hint="GET /v1/subscriptions lists them")
