"""From the configuration of a source to what runner.py runs. The one place where a kind of source is opened.

From __main__.py, in a thread, because it waits for files. Promise: what cannot be followed is refused in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dolake.changes import StreamId
from dolake.errors import InvalidInput, NotFound
from dolake.sources.base import Source
from dolake.sources.runner import Shard
from dolake.sources.sqlite import SqliteSource, enable_cdc, is_enabled
from dolake.sources.sqlite.store import in_words
from dolake.wire.source_lines import StartSource

SUFFIXES = (".db", ".sqlite", ".sqlite3")


def shards_of(start: StartSource) -> list[Shard]:
    """The streams of this source: one for a file, one for each file of a folder."""
    path = Path(start.path)
    files = _files_in(path) if path.is_dir() else [path]
    is_shared = len(files) > 1
    name = start.source or (path.name if is_shared else files[0].stem)
    return [_shard(file, StreamId(name, file.stem if is_shared else ""), start, is_shared) for file in files]


def _files_in(folder: Path) -> Sequence[Path]:
    files = sorted(each for each in folder.iterdir() if each.suffix in SUFFIXES and each.is_file())
    if not files:
        raise NotFound(f"{folder} has no SQLite files", hint=f"their names end in {', '.join(SUFFIXES)}")
    if len({file.stem for file in files}) < len(files):
        raise InvalidInput(
            f"{folder} has two files of the same name", hint="a stream is named after its file: follow them one by one"
        )
    return files


def _shard(path: Path, stream: StreamId, start: StartSource, is_shared: bool) -> Shard:
    is_first = True

    def open_source() -> Source:
        nonlocal is_first
        if not path.is_file():
            raise NotFound(f"{path} does not exist", hint="it is followed as soon as your application has made it")
        with in_words(path):
            if not is_enabled(path) or (is_first and (start.tables or start.exclude)):
                enable_cdc(path, [*(start.tables or ("*",)), *(f"!{each}" for each in start.exclude)])
            is_first = False
            return SqliteSource(path, namespace=start.namespace, is_shared=is_shared)

    return Shard(stream, open_source)
