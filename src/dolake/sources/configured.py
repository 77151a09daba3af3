"""From the configuration of a source to what runner.py runs. The one place where a kind of source is opened.

From __main__.py and cli/source.py, in a thread, because it waits for files. Promise: what cannot be followed is refused
in words, and before any file is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from dolake.client import connect
from dolake.errors import DoLakeError, NotFound
from dolake.sources.runner import Shard
from dolake.sources.sqlite.attachment import Choice, plan_all
from dolake.sources.sqlite.lake_view import LakeView, read_view
from dolake.sources.sqlite.store import Store
from dolake.wire.source_lines import StartSource

logger = logging.getLogger("dolake.sources")
SUFFIXES = (".db", ".sqlite", ".sqlite3")
_WAIT_MAX_S = 10.0


def files_of(start: StartSource) -> list[Path]:
    """The files that are meant; each can be opened."""
    path = Path(start.path)
    files = files_in(path) if path.is_dir() else [path]
    for file in files:
        if not file.exists():
            raise NotFound(f"{file} does not exist", hint="it is followed as soon as your application has made it")
        Store(file).close()
    return files


def files_in(folder: Path) -> list[Path]:
    """The SQLite files of a folder."""
    files = sorted(each for each in folder.iterdir() if each.suffix in SUFFIXES and each.is_file())
    if not files:
        raise NotFound(f"{folder} has no SQLite files", hint=f"their names end in {', '.join(SUFFIXES)}")
    return files


def shards_of(start: StartSource, files: Sequence[Path], view: LakeView) -> list[Shard]:
    """The streams of this source: one for a file, one for each file of a folder."""
    path = Path(start.path)
    choice = Choice(
        namespace=start.namespace,
        # What the configuration leaves out stays as it was chosen: a mask must not end by being mentioned nowhere.
        tables=start.tables or None,
        exclude=start.exclude or None,
        masks=start.mask or None,
        source=start.source or None,
        outbox_max_bytes=start.outbox_max_bytes,
        shards_of=(start.source or path.name) if path.is_dir() else None,
    )
    return [each.carry_out() for each in plan_all(files, choice, view)]


async def view_of(url: str, token: str | None) -> LakeView:
    """What the lake knows about streams."""
    return read_view(await connect(url, token=token).sources())


async def awaited_view_of(url: str, token: str | None) -> LakeView:
    """The same, as soon as the server answers."""
    wait_s = 0.2
    while True:
        try:
            return await view_of(url, token)
        except DoLakeError as error:
            if not error.retryable:
                raise
            logger.warning("the lake cannot be reached yet", extra={"problem": str(error)})
        await asyncio.sleep(wait_s)
        wait_s = min(_WAIT_MAX_S, wait_s * 2)
