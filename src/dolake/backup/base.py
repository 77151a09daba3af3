"""What a home says of its own past: that it is being restored, or was recovered without its key indexes.

From restore.py and recover.py; the mark is set before the first byte and taken away after the last. To server/home.py,
which looks for it first, and to verify.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from dolake.errors import Damaged

UNFINISHED_FILE = "restore-unfinished.json"
RECOVERED_FILE = "recovered.json"


def refuse_unfinished(home: Path) -> None:
    """Half a lake must not be served: what is missing would look as if it had never been there."""
    if (home / UNFINISHED_FILE).exists():
        raise Damaged(
            f"a restore of {home} did not finish",
            hint="run `dolake restore` again with the same backup: it goes on where it stopped",
        )


def note_recovered(home: Path, snapshots: Mapping[str, int]) -> None:
    """These tables, by uuid, have no key index until they are next written, if they are still at these snapshots."""
    (home / RECOVERED_FILE).write_bytes(msgspec.json.encode({"withoutIndex": dict(snapshots)}))


def awaited_indexes(home: Path) -> dict[str, int]:
    """The same, to look up."""
    try:
        found = msgspec.json.decode((home / RECOVERED_FILE).read_bytes(), type=dict[str, dict[str, int]])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}
    return found.get("withoutIndex", {})
