"""`dolake recover`: a home from the copy that `journal.copy` keeps in the store."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dolake.cli.address import HomeOption
from dolake.errors import InvalidInput
from dolake.server.home import Home
from dolake.settings import load_settings
from dolake.storage.opening import open_store, place_of


def recover(
    home: HomeOption = Path("dolake-home"),
    config: Annotated[
        Path | None,
        typer.Option("--config", envvar="DOLAKE_CONFIG", help="Settings file; HOME/dolake.toml otherwise."),
    ] = None,
) -> None:
    """Make a new home from the copy in the store, when the machine is lost that `journal.copy` was set on."""
    from dolake.backup.journal_copy import stream_ends  # here: botocore takes its time, other commands do without it
    from dolake.backup.recover import recover as bring_back
    from dolake.storage.s3 import S3Storage

    settings = load_settings(home=home, config_file=config, environ=os.environ, flags={}).current
    place = place_of(settings.lake, settings.storage, settings.catalog)
    if place.is_local:
        hint = "storage.location says where the store is, in HOME/dolake.toml or the environment"
        raise InvalidInput("there is no store to recover from", hint=hint)
    storage = open_store(place)
    assert isinstance(storage, S3Storage)
    try:
        with Home(home, is_restoring=True):
            copy = bring_back(storage, home)
    finally:
        storage.close()
    taken = datetime.fromtimestamp(copy.taken_ms / 1000, tz=UTC).isoformat(timespec="seconds")
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"recovered to {home}, as of {taken}: {copy.position:,} changes, {copy.published:,} of them in tables",
        markup=False,
    )
    for end in stream_ends(home / "journal"):
        console.print(f"  {end.stream}: durable up to sequence {end.sequence:,} (epoch {end.epoch})", markup=False)
    console.print("Sources send again what came after that. docs/howto/run-on-s3.md says what else to do.")
