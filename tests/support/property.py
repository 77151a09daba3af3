"""How many examples a property test tries: all of them in `make chaos`, a quarter in `make test`."""

from __future__ import annotations

from hypothesis import settings

_SHARE = 4
_EXAMPLES_MIN = 10


def examples(count: int) -> int:
    """To be given to @settings(max_examples=...); `count` is for `make chaos` (`--hypothesis-profile=all`)."""
    if settings.get_current_profile_name() == "all":
        return count
    return min(count, max(count // _SHARE, _EXAMPLES_MIN))
