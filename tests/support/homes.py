"""Homes as releases wrote them, kept as text: `python -m tests.support.homes NAME` writes today's, once per format.

A home is packed into one JSON file: the catalog as SQL, text files as text, others as base64. Where the home's own path
stands in them, `{HOME}` takes its place.
"""

from __future__ import annotations

import base64
import contextlib
import json
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.aio import run
from tests.support.lake import running_lake
from tests.support.speaker import Speaker, batch, events

FOLDER = Path(__file__).resolve().parents[1] / "server" / "homes"
CATALOG = "catalog.db"
_PLACE = "{HOME}"
_PASSING = ("server.lock", "server.json")


def pack(home: Path) -> dict[str, dict[str, object]]:
    """Everything that a server left there when it ended."""
    files: dict[str, dict[str, object]] = {}
    for path in sorted(home.rglob("*")):
        name = str(path.relative_to(home))
        if not path.is_file() or name in _PASSING:
            continue
        if name == CATALOG:
            with contextlib.closing(sqlite3.connect(path)) as opened:
                (version,) = opened.execute("PRAGMA user_version").fetchone()
                files[name] = {"sql": _placed(home, "\n".join(opened.iterdump())), "userVersion": version}
        elif path.suffix in (".json", ".text", ".toml"):
            files[name] = {"text": _placed(home, path.read_text())}
        else:
            files[name] = {"base64": base64.b64encode(path.read_bytes().rstrip(b"\0")).decode()}
    return files


def unpack(name: str, home: Path) -> None:
    """Make the home that this file holds."""
    unpack_files(json.loads((FOLDER / f"{name}.json").read_text()), home)


def unpack_files(files: dict[str, Any], home: Path) -> None:
    """Make a home of what `pack` returned."""
    for path, kept in files.items():
        target = home / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if "sql" in kept:
            with contextlib.closing(sqlite3.connect(target)) as opened:
                opened.executescript(kept["sql"].replace(_PLACE, str(home)))
                opened.execute(f"PRAGMA user_version = {kept['userVersion']}")
        elif "text" in kept:
            target.write_text(kept["text"].replace(_PLACE, str(home)))
        else:
            target.write_bytes(base64.b64decode(kept["base64"]) + bytes(4096))


def _placed(home: Path, text: str) -> str:
    return text.replace(str(home.resolve()), _PLACE).replace(str(home), _PLACE)


async def _make(home: Path) -> None:
    """Two streams, one in its second epoch, a namespace and a table; changed settings."""
    from dolake.catalog.base import Name

    async with running_lake(home) as (lake, url):
        async with Speaker(url) as speaker:
            await speaker.ask(batch(1, events(1, 5), source="shop"))
            await speaker.ask(batch(2, events(6, 9, table="shop.orders"), source="shop"))
        async with Speaker(url) as speaker:
            await speaker.ask({"type": "connect", "sourceDoId": "restored", "sourceEpoch": 3, "protocolVersion": 1})
            await speaker.ask(batch(1, events(1, 2), source="restored"))
        catalog = lake.catalog
        schema = {
            "type": "struct",
            "schema-id": 0,
            "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}],
        }
        await catalog.run(catalog.store.create_namespace, ("shop",), {"owner": "Ada"})
        request = {"name": "users", "schema": schema}
        await catalog.run(catalog.tables.create, Name(("shop",), "users"), request, is_pipeline=False)


def main(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        run(_make(home))
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / f"{name}.json").write_text(json.dumps(pack(home), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
