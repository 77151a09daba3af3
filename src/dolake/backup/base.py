"""The mark of a home that is being restored: whoever opens a home looks for it first.

From restore.py, which sets it before the first byte and takes it away after the last; to server/home.py and verify.
"""

from __future__ import annotations

from pathlib import Path

from dolake.errors import Damaged

UNFINISHED_FILE = "restore-unfinished.json"


def refuse_unfinished(home: Path) -> None:
    """Half a lake must not be served: what is missing would look as if it had never been there."""
    if (home / UNFINISHED_FILE).exists():
        raise Damaged(
            f"a restore of {home} did not finish",
            hint="run `dolake restore` again with the same backup: it goes on where it stopped",
        )
