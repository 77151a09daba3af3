"""`dolake backup` and `dolake restore`: a whole lake in another folder, and back."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dolake.cli.address import HomeOption
from dolake.errors import NotFound
from dolake.server.home import Home
from dolake.settings import Settings, load_settings
from dolake.storage.local import path_of
from dolake.storage.opening import open_storage, open_store, place_of

if TYPE_CHECKING:
    from dolake.backup.manifest import Manifest
    from dolake.storage.s3 import S3Storage

FolderArgument = Annotated[Path, typer.Argument(help="The folder of the backup.")]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", envvar="DOLAKE_CONFIG", help="Settings file; HOME/dolake.toml otherwise.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def backup(
    folder: FolderArgument,
    home: HomeOption = Path("dolake-home"),
    config: ConfigOption = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only read every byte of the backup there and compare.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Copy the lake, beside its running server or without one; a second time only what is new."""
    from dolake.backup.restore import check_backup  # here and below: Arrow takes its time, other commands do without it
    from dolake.backup.take import take_backup

    if check:
        with _bar() as progress:
            manifest, problems = check_backup(folder, progress=progress)
        _show(manifest, problems, as_json=as_json, did="every byte read" if not problems else "damaged")
        if problems:
            raise typer.Exit(1)
        return
    if not home.is_dir():
        raise NotFound(f"no folder {home}", hint="--home names the server's folder")
    settings = load_settings(home=home, config_file=config, environ=os.environ, flags={}).current
    with _store_of(settings) as storage, _bar() as progress:
        manifest = take_backup(
            home,
            home / settings.lake.r2_base_path,
            folder,
            cold=_cold_folder(home, settings),
            catalog=settings.catalog,
            storage=storage,
            progress=progress,
        )
    _show(manifest, [], as_json=as_json, did=f"in {folder}")


def restore(
    folder: FolderArgument,
    home: HomeOption = Path("dolake-home"),
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a home from a backup. Until it is whole no server starts on it; run it again if it was stopped."""
    from dolake.backup.restore import refuse_to_restore
    from dolake.backup.restore import restore as bring_back

    manifest = refuse_to_restore(folder, home)
    settings = Settings()
    if manifest.store:  # where that is, the settings say that were backed up; keys come from the environment
        kept = folder / "runs" / manifest.id / "home"
        settings = load_settings(home=kept, config_file=config, environ=os.environ, flags={}).current
    with _store_of(settings) as storage, Home(home, is_restoring=True), _bar() as progress:
        manifest = bring_back(folder, home, storage=storage, progress=progress)
    _show(manifest, [], as_json=as_json, did=f"restored to {home}")


def _cold_folder(home: Path, settings: Settings) -> Path | None:
    """None where the tables are in a store, and so not in the home."""
    place = place_of(settings.lake, settings.storage, settings.catalog)
    return path_of(open_storage(home, settings.lake, place).tiers.cold) if place.is_local else None


@contextlib.contextmanager
def _store_of(settings: Settings) -> Iterator[S3Storage | None]:
    """The store, where the tables are in one."""
    place = place_of(settings.lake, settings.storage, settings.catalog)
    if place.is_local:
        yield None
        return
    from dolake.storage.s3 import S3Storage

    storage = open_store(place)
    assert isinstance(storage, S3Storage)
    with contextlib.closing(storage):
        yield storage


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[str, int, int], None]]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=max(total, done) or None)

        yield show


def _show(manifest: Manifest, problems: list[str], *, as_json: bool, did: str) -> None:
    if as_json:
        told = msgspec.to_builtins(manifest) | {"files": len(manifest.files), "sizeBytes": manifest.size_bytes}
        told |= {"problems": problems}
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(told)).decode() + "\n")
        return
    console = Console(highlight=False, soft_wrap=True)
    for problem in problems:
        console.print(f"damaged: {problem}", style="red", markup=False)
    taken = datetime.fromtimestamp(manifest.taken_ms / 1000, tz=UTC).isoformat(timespec="seconds")
    console.print(
        f"backup of {taken}, {did}: {manifest.position:,} changes durable, {manifest.published:,} of them in "
        f"{manifest.table_count} tables; {len(manifest.files):,} files, {manifest.size_bytes:,} bytes",
        markup=False,
    )
    for name in manifest.indexes_left_out:
        console.print(f"note: the key index of {name} moved meanwhile; it is built anew when the table is next written")
    if did.startswith("restored") and manifest.streams:
        console.print("What came after that is not here. Each source goes on behind what is durable:")
        shown = Table("stream", box=None, padding=(0, 3, 0, 3))
        for title in ("epoch", "durable up to sequence"):
            shown.add_column(title, justify="right")
        for stream in manifest.streams:
            shown.add_row(stream.stream, str(stream.epoch), f"{stream.sequence:,}")
        console.print(shown)
        console.print(
            "docs/howto/back-up-and-restore.md says what sources do by themselves and what they need you for."
        )
