"""What can go wrong with the key index that its caller can mend."""

from __future__ import annotations

from dolake.errors import Conflict


class StaleIndex(Conflict):
    """The index is of another snapshot, missing or damaged. The writer rebuilds it; a reader loads the table anew."""

    code = "stale_index"


def stale(what: str) -> StaleIndex:
    """The one way to say it: what is wrong, and the way out."""
    return StaleIndex(what, hint="rebuild the key index from the table's key column")
