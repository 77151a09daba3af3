"""The `dolake` command: one file per command."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point. The light client has no command line, and says how to get one."""
    if sys.argv[1:] == ["--version"]:  # scripts ask it often, and the rest takes its time to load
        from dolake import __version__

        print(f"dolake {__version__}")
        return
    try:
        from dolake.cli.app import app

        app()
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "google_crc32c", "psutil", "prometheus_client", "numpy"):
            raise
        sys.exit(
            f"dolake: {error.name} is missing. The command line comes with the server: "
            "install DoLake with the extra [server] (docs/howto/install.md)"
        )
