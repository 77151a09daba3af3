"""`dolake prepare`: fetch and make once what Spark would otherwise need at its first start, and at each one."""

from __future__ import annotations

import subprocess
import sys

import typer

from dolake.cli.query import waiting


def prepare() -> None:
    """Get Java and Iceberg's jar, and make Spark's class archive, with which each start takes half as long."""
    with waiting() as say:
        say("preparing Spark")
        done = subprocess.run([sys.executable, "-m", "dolake.pipeline.classes"], check=False)  # it loads pyspark
    if done.returncode:
        raise typer.Exit(1)
    typer.echo("Spark is prepared")
