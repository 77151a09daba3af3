"""`dolake bench`: measure this machine; results are JSON with the machine's name."""

from __future__ import annotations

import typer

app = typer.Typer(help="Measure DoLake on this machine.", no_args_is_help=True)


@app.command("ingest")
def ingest() -> None:
    """Durable events per second."""


@app.callback()
def options() -> None:
    """Measure DoLake on this machine."""
