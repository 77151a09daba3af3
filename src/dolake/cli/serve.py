"""`dolake serve`: run a server until Ctrl-C or SIGTERM.

What only a server needs is loaded by serve() itself: other commands use run_loop() and start fast.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dolake.cli.address import HomeOption

if TYPE_CHECKING:
    from dolake.settings import SettingsStore


def serve(
    home: HomeOption = Path("dolake-home"),
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 for any free one.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", envvar="DOLAKE_CONFIG", help="Settings file; HOME/dolake.toml otherwise.")
    ] = None,
    follow: Annotated[
        list[Path] | None,
        typer.Option("--follow", help="A SQLite file to follow; give it again for more.", metavar="FILE"),
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(help="console or json.")] = None,
) -> None:
    """Receive changes, keep them, serve them."""
    from rich.console import Console

    from dolake.server import lifecycle
    from dolake.settings import SourceSettings, followed_source
    from dolake.telemetry import start_logging

    flags = {
        "server.host": host,
        "server.port": port,
        "server.log_level": log_level,
        "server.log_format": log_format,
    }
    settings = open_settings(home, config, flags)
    server = settings.current.server
    start_logging(server.log_level, server.log_format)
    console = Console(stderr=True, highlight=False)

    followed: list[SourceSettings] = []
    for path in dict.fromkeys(follow or ()):
        followed.append(followed_source(path, [*settings.sources, *followed]))

    def say_ready(url: str) -> None:
        if console.is_terminal:
            console.print(f"DoLake is ready at [bold]{url}[/bold] (Ctrl-C stops it)")

    def say(text: str) -> None:
        if console.is_terminal:
            console.print(text, markup=False, soft_wrap=True)

    run_loop(lifecycle.serve(home, settings, say_ready, followed=tuple(followed), say=say))


def open_settings(home: Path, config: Path | None, flags: dict[str, Any]) -> SettingsStore:
    """All layers of settings, read once."""
    from dolake.settings import load_settings

    home.mkdir(parents=True, exist_ok=True)
    return load_settings(home=home, config_file=config, environ=os.environ, flags=flags)


def run_loop(main: Any) -> None:
    """On uvloop where it is installed: the same code with a third less CPU per batch."""
    try:
        import uvloop
    except ModuleNotFoundError:
        asyncio.run(main)
    else:
        uvloop.run(main)
