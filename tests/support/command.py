"""The `dolake` command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys


def dolake(
    *arguments: object, environ: dict[str, str] | None = None, timeout_s: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run it to its end. Wide lines, so that no message is wrapped in the middle of a word that a test looks for."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("DOLAKE_")}
    return subprocess.run(
        [sys.executable, "-m", "dolake.cli", *map(str, arguments)],
        env=inherited | {"COLUMNS": "400", "NO_COLOR": "1"} | (environ or {}),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
