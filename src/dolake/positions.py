"""Where a change stands on its way, and how far each part of DoLake has come.

A `Position` counts changes: position 1200 means «the first 1,200 changes of the journal». The first change has
`_position` 0, a batch of three changes after it covers 1 to 3 and ends at position 4. So an end position is also how
many changes lie before it, and the difference of two positions is a number of changes: that is what lag is. There is
one exception: a batch without changes, which only carries a state of its source, takes one position too, so that it has
a place that nothing else has. No change is at that position, as in a gap that a repair left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Position = int
"""How many changes of the journal lie before this place."""

START: Position = 0

CircuitBreakerState = Literal["closed", "open", "half-open"]
"""Whether publishing works (closed), keeps failing (open), or is being tried again (half-open)."""


@dataclass(frozen=True, slots=True)
class Milestones:
    """The five milestones that a change passes. `sent` is known to its client alone; the server counts the others."""

    received: Position = START
    """Taken from a socket and valid; not yet promised to anybody."""
    durable: Position = START
    """On disk, after fdatasync. From here on it is acknowledged and can never be lost."""
    committed: Position = START
    """In the Iceberg tables, by one publish over all tables."""
    announced: Position = START
    """Told to subscribers."""
