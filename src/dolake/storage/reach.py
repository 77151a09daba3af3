"""How far somebody reaches in a store: below which places he may read files, and below which he may write. Pure.

From catalog/access.py, which knows whose table it is; to s3_keys.py and s3_signing.py, which hand out no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

CATALOGS_OWN = (".metadata.json", "/version-hint.text")
"""How files end that the catalog alone writes: who could replace them could say what he likes of a table, unchecked."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Places are spelled `s3://bucket/folder`, without a slash at the end. What may be written may also be read."""

    reads: tuple[str, ...]
    writes: tuple[str, ...] = ()

    def may_read(self, location: str) -> bool:
        return is_below(location, self.reads)

    def may_write(self, location: str) -> bool:
        return is_below(location, self.writes) and not location.endswith(CATALOGS_OWN)


@dataclass(frozen=True, slots=True)
class Unsigned:
    """A request to the store, as a client describes it who has no keys."""

    method: str
    uri: str
    headers: Mapping[str, list[str]]
    body: str | None = None


def is_below(location: str, places: Iterable[str]) -> bool:
    """The slash matters: `lake/ns/t2/file` is not below `lake/ns/t`."""
    return any(location.startswith(f"{place}/") for place in places)
