"""The sources that the server runs: `[[sources]]` of dolake.toml, `dolake serve --follow` and `dolake sources add`.

From layers.py, which leaves this part of the file to us, and from the server's routes; to server/sources.py. Promise: a
SourceSettings was checked; its path is absolute, and its name can stand in an address.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from dolake.errors import SettingsError
from dolake.suggestions import closest
from dolake.tables.names import problem_with_table_name
from dolake.wire.source_lines import OUTBOX_MAX_BYTES, SourceKind

SECTION = "sources"
SOURCES_MAX = 1_000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


class SourceSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One database to follow."""

    name: str = ""
    """Its name in commands, logs and figures; without one the name of the file."""
    kind: SourceKind = "sqlite"
    path: str
    """A SQLite file, or a folder of files of one schema."""
    tables: tuple[str, ...] = ()
    """Names, or patterns with `*`; empty is all."""
    exclude: tuple[str, ...] = ()
    mask: dict[str, str] = {}
    """By `table.column`, what is kept of its values: `hash`, `redact` or `truncate(3)`."""
    namespace: str = ""
    source: str = ""
    """The stream's name in the lake; empty is the name of the file."""
    outbox_max_bytes: Annotated[int, msgspec.Meta(ge=0)] = OUTBOX_MAX_BYTES
    """With WAL the outbox is trimmed beyond this size, also while the application writes."""

    @property
    def stream(self) -> str:
        path = Path(self.path)
        return self.source or (path.name if path.is_dir() else path.stem)


def read_sources(entries: Any, folder: Path, origin: str) -> tuple[SourceSettings, ...]:
    """All of one file; paths are relative to its folder. Two of one name are refused."""
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise SettingsError(f"{SECTION} is a list", hint=f"write [[{SECTION}]] above each source; {origin}")
    found: list[SourceSettings] = []
    for entry in entries:
        made = checked_source(entry, folder, origin)
        refuse_same(made, found, origin)
        found.append(made)
    return tuple(found)


def checked_source(entry: Any, folder: Path | None, origin: str) -> SourceSettings:
    """One source as somebody wrote it. Without a folder its path must be absolute."""
    if not isinstance(entry, Mapping):
        raise SettingsError(f"a source is a table of settings, not {str(entry)[:80]!r}", hint=origin)
    fields = [field.name for field in msgspec.structs.fields(SourceSettings)]
    for name in entry:
        if name not in fields:
            alike = closest(str(name), fields)
            meant = f"did you mean {alike}? " if alike else f"a source has {', '.join(fields)}; "
            raise SettingsError(f"{SECTION}.{name} is not a setting", hint=meant + origin)
    try:
        source = msgspec.convert(entry, SourceSettings)
    except msgspec.ValidationError as error:
        raise SettingsError(f"a source is not right: {error}", hint=origin) from None
    return _completed(source, folder, origin)


def _completed(source: SourceSettings, folder: Path | None, origin: str) -> SourceSettings:
    path = Path(source.path)
    if not source.path or "\0" in source.path:
        raise SettingsError("a source needs a path", hint=f"the SQLite file of your application; {origin}")
    if folder is not None:
        path = folder / path.expanduser()
    elif not path.is_absolute():
        raise SettingsError(
            f"the path {source.path!r} is not absolute", hint="write it from / on, as the server sees it"
        )
    path = Path(os.path.abspath(path))  # noqa: PTH100 - without `..`, and a link keeps the name that streams are called by
    name = source.name or name_of(path)
    if not _NAME.fullmatch(name):
        hint = f"1 to 100 letters, digits, dots, hyphens or underscores; {origin}"
        raise SettingsError(f"{name[:100]!r} cannot be the name of a source", hint=hint)
    if source.namespace and (problem := problem_with_table_name(f"{source.namespace}.t")):
        raise SettingsError(f"{source.namespace!r} cannot be a namespace: it {problem}", hint=origin)
    for pattern in (*source.tables, *source.exclude):
        if not pattern:
            raise SettingsError(f"{pattern!r} cannot be a table or a pattern of tables", hint=origin)
    return msgspec.structs.replace(source, name=name, path=str(path))


def name_of(path: Path) -> str:
    """The name of a source that was given none."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-.")[:100] or "source"


def followed_source(path: Path, others: Sequence[SourceSettings] = ()) -> SourceSettings:
    """The one of `--follow`: the name of its file, with a number where another has that name already."""
    source = checked_source({"path": str(path)}, Path.cwd(), "--follow")
    taken = {each.name for each in others}
    names = (source.name, *(f"{source.name[:90]}-{number}" for number in range(2, SOURCES_MAX)))
    return msgspec.structs.replace(source, name=next(each for each in names if each not in taken))


def refuse_same(source: SourceSettings, others: Sequence[SourceSettings], origin: str = "") -> None:
    """Two sources differ in name, path and stream: two files of one stream would mix their rows."""
    where = origin and f"; {origin}"
    for other in others:
        if source.name == other.name:
            raise SettingsError(f"there are two sources {source.name!r}", hint=f"give each its own name{where}")
        if source.path == other.path:
            raise SettingsError(
                f"{source.path} is followed already, as {other.name}",
                hint=f"keep one of {other.name} and {source.name}{where}",
            )
        if source.stream == other.stream:
            raise SettingsError(
                f"{source.path} and {other.path} would both be the stream {source.stream!r}, and their rows would mix",
                hint=f'give one of them another name in the lake: source = "..." in dolake.toml, or --source{where}',
            )
