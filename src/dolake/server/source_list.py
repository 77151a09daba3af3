"""Which sources this server runs, and which of them are paused: dolake.toml, `--follow` and sources.json together.

From sources.py. Promise: what was added, removed or paused is on disk before it counts, so that a restart finds it.
Those of the file and of the command line are removed where they are written, but can be paused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from dolake.errors import Conflict, Damaged, DoLakeError, InvalidInput, NotFound
from dolake.journal.disk import Disk, write_file_atomically
from dolake.settings import SourceSettings
from dolake.settings.sources import SOURCES_MAX, refuse_same

SOURCES_FILE = "sources.json"
Origin = Literal["file", "flag", "added"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A source, and who named it."""

    settings: SourceSettings
    origin: Origin
    is_paused: bool


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: int = 1
    sources: tuple[SourceSettings, ...] = ()
    paused: tuple[str, ...] = ()


class SourceList:
    """All sources of one home. Its methods wait for the disk; one caller at a time."""

    def __init__(
        self, home: Path, of_file: Sequence[SourceSettings] = (), of_flags: Sequence[SourceSettings] = ()
    ) -> None:
        self._home, self._path = home, home / SOURCES_FILE
        self._kept = self._read()
        self._fixed: dict[str, tuple[SourceSettings, Origin]] = {}
        for settings in of_file:
            self._fixed[settings.name] = settings, "file"
        self._refuse_clashes(of_file)
        known = [*of_file, *self._kept.sources]
        for settings in of_flags:
            if all(settings.path != each.path for each in known):  # one that is known already is followed already
                refuse_same(settings, known)
                self._fixed[settings.name] = settings, "flag"
                known.append(settings)
        for settings in known:
            self._refuse_own(settings)

    def entries(self) -> list[Entry]:
        """By name."""
        found = [Entry(*each, each[0].name in self._kept.paused) for each in self._fixed.values()]
        found += [Entry(each, "added", each.name in self._kept.paused) for each in self._kept.sources]
        return sorted(found, key=lambda each: each.settings.name)

    def entry(self, name: str) -> Entry:
        for each in self.entries():
            if each.settings.name == name:
                return each
        raise NotFound(f"there is no source {name[:100]!r}", hint="`dolake sources` lists them")

    def add(self, settings: SourceSettings) -> Entry:
        """Raises InvalidInput for one that the list cannot have."""
        others = [each.settings for each in self.entries()]
        if len(others) >= SOURCES_MAX:
            raise Conflict(f"there are {len(others)} sources", hint="remove some: `dolake sources remove NAME`")
        self._refuse_own(settings)
        refuse_same(settings, others)
        self._write(sources=(*self._kept.sources, settings))
        return self.entry(settings.name)

    def remove(self, name: str) -> Entry:
        """The file that was followed stays as it is, and so do the tables of the lake."""
        found = self.entry(name)
        if found.origin != "added":
            where = "dolake.toml" if found.origin == "file" else "the command line of the server, as --follow"
            raise Conflict(
                f"the source {name!r} is written in {where}",
                hint=f"remove it there and start the server again, or pause it: `dolake sources pause {name}`",
            )
        self._write(
            sources=tuple(each for each in self._kept.sources if each.name != name),
            paused=tuple(each for each in self._kept.paused if each != name),
        )
        return found

    def pause(self, name: str, *, is_paused: bool) -> Entry:
        self.entry(name)
        paused = {each.settings.name for each in self.entries() if each.is_paused} - {name}
        self._write(paused=tuple(sorted(paused | {name} if is_paused else paused)))
        return self.entry(name)

    def _refuse_clashes(self, of_file: Sequence[SourceSettings]) -> None:
        """Somebody wrote a source into dolake.toml that had been added before."""
        for settings in of_file:
            try:
                refuse_same(settings, self._kept.sources)
            except DoLakeError as error:
                raise InvalidInput(
                    f"dolake.toml and {self._path} do not fit: {error.message}",
                    hint="remove it from dolake.toml, or from sources.json while no server runs",
                ) from None

    def _refuse_own(self, settings: SourceSettings) -> None:
        """The server writes to the files of its home with each batch: to follow them would never end."""
        path, home = Path(settings.path).resolve(), self._home.resolve()
        if path == home or home in path.parents:
            raise InvalidInput(
                f"{settings.path} cannot be followed: it belongs to the lake", hint=f"the home is {self._home}"
            )

    def _read(self) -> _File:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_File)
        except FileNotFoundError:
            return _File()
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            hint = "repair it, or remove it: then add the sources again, which go on where they were"
            raise Damaged(f"{self._path} cannot be read: {error}", hint=hint) from None

    def _write(self, **changes: tuple[SourceSettings, ...] | tuple[str, ...]) -> None:
        kept = msgspec.structs.replace(self._kept, **changes)
        write_file_atomically(Disk(), self._path, msgspec.json.format(msgspec.json.encode(kept)) + b"\n")
        self._kept = kept
