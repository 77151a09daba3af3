"""The `dolake` command: one file per command."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point. The light client has no command line, and says how to get one."""
    try:
        from dolake.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "google_crc32c", "psutil", "prometheus_client", "numpy"):
            raise
        sys.exit(
            f"dolake: {error.name} is missing. The command line comes with the server: pip install 'dolake[server]'"
        )
    app()
