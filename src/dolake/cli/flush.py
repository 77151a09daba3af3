"""`dolake flush`: publish what waits, now, and return when the Iceberg tables have it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import typer

from dolake.cli import showing
from dolake.cli.address import HomeOption, UrlOption, lake_at
from dolake.cli.query import cancelled_by_ctrl_c, waiting
from dolake.cli.tables import JsonOption
from dolake.client.sync import http_of

_WAIT_MAX_S = 90.0
"""Longer than the server waits for a publish, so that its own words about it arrive."""


def flush(home: HomeOption = Path("dolake-home"), url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Publish now, and wait until the Iceberg tables have every change sent before."""
    http = http_of(lake_at(home, url))
    with cancelled_by_ctrl_c(), waiting("publishing"):
        done = asyncio.run(http.ask("POST", "/flush", dict[str, Any], {}, silence_max_s=_WAIT_MAX_S))
    if as_json:
        sys.stdout.write(showing.json_line(done))
    elif done["success"]:
        count, position = done["eventsFlushed"], done["committedPosition"]
        changes = f"{count:,} {'change' if count == 1 else 'changes'} published" if count else "nothing was waiting"
        showing.output().print(f"{changes}; the tables are at position {position:,}")
    else:
        showing.notes().print(f"not published: {done.get('message', '')}", soft_wrap=True, markup=False)
    if not done["success"]:
        raise typer.Exit(1)
