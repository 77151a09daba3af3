"""The `dolake` command, in a process of its own or inside this one."""

from __future__ import annotations

import os
import subprocess
import sys

from typer.testing import CliRunner, Result

from dolake.cli.app import app

# Wide lines, so that no message is wrapped in the middle of a word that a test looks for.
_TERMINAL = {"COLUMNS": "400", "NO_COLOR": "1"}


def dolake(
    *arguments: object, environ: dict[str, str] | None = None, timeout_s: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("DOLAKE_")}
    return subprocess.run(
        [sys.executable, "-m", "dolake.cli", *map(str, arguments)],
        env=inherited | _TERMINAL | (environ or {}),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def invoke(*arguments: object, typed: str | None = None, **environ: str) -> Result:
    """Run it inside this process: starting one takes longer than most commands do."""
    without: dict[str, str | None] = {name: None for name in os.environ if name.startswith("DOLAKE_")}
    return CliRunner(env=without | _TERMINAL | environ).invoke(app, [*map(str, arguments)], input=typed)
