"""What a storage promises: bytes by location, written once and durable when the call returns.

From the catalog, which keeps metadata files here, the pipeline, which writes data files, and the upkeep, which removes
what nobody needs. Engines read and write the same locations with their own file systems.
tests/contracts/test_storage.py holds every backend to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from dolake.tables.tiers import Tiers


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file below a location."""

    location: str
    size: int
    modified_ms: int


class Storage(Protocol):
    """All calls block; the room that uses a storage owns the threads for it."""

    is_quick: bool
    """Whether asking for a file costs next to nothing, so that it can be done on every load."""
    root: str
    """The warehouse's own location; everything DoLake writes is below it, but for old partitions."""
    tiers: Tiers
    """The warehouse, and where old partitions go."""

    client_options: dict[str, str]
    """What engines must know, in Iceberg's words, to read files with keys of their own; never a secret."""

    def is_inside(self, location: str) -> bool:
        """Whether files may lie here: below the warehouse, its cold place, or another root that the settings name."""

    def resolve(self, location: str) -> str:
        """The one spelling of a place inside, links followed; InvalidInput for others."""

    def read(self, location: str) -> bytes:
        """The whole file; NotFound when there is none."""

    def write(self, location: str, data: bytes) -> None:
        """Write a new file, durable when this returns; Conflict when something is there already."""

    def replace(self, location: str, data: bytes) -> None:
        """Write a file whether it is there or not; readers see the old bytes or the new ones, never a mix.

        Others may see the new bytes a second later: stores take one write a second for one name.
        """

    def open_read(self, location: str) -> Any:
        """The file, to be read in pieces from anywhere in it, as Arrow takes one; NotFound when there is none."""

    def open_write(self, location: str) -> Any:
        """A new file under way, as Arrow takes one: its bytes are there, all of them, when it was closed."""

    def sync(self, locations: Iterable[str]) -> None:
        """Make durable what somebody else has written, files and folders; nothing to do where storage always is."""

    def size(self, location: str) -> int:
        """In bytes; NotFound when there is no file."""

    def make_folder(self, location: str) -> None:
        """Make a folder where storage has such things: some engines write into one without making it."""

    def delete(self, location: str) -> None:
        """Remove a file; a missing one is no error."""

    def delete_all(self, locations: Iterable[str]) -> None:
        """The same for many."""

    def set_aside(self, location: str) -> str:
        """Take everything below a location out of sight at once; returns where it is now, to be removed."""

    def delete_folder(self, location: str) -> None:
        """Remove everything below a location."""

    def exists(self, location: str) -> bool:
        """Whether there is a file."""

    def list(self, location: str) -> Iterator[StoredFile]:
        """Every file below a location."""

    def close(self) -> None:
        """Write what still waits, and let go of connections."""
