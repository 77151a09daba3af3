"""What somebody may do: scopes, the namespaces he sees, and the sources he speaks as. Pure.

From tokens.py and server/auth.py, which find out who asks; to every room that shows, changes or takes something.
Promise: what is outside of a grant's namespaces does not exist for it; a namespace stands for itself and all below it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import msgspec

from dolake.tables.names import split_table_name

Scope = Literal["ingest", "read", "write", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
Namespace = tuple[str, ...]

_INCLUDED: dict[Scope, tuple[Scope, ...]] = {
    "ingest": ("ingest",),
    "read": ("read",),
    "write": ("write", "read"),  # nobody commits to what he cannot load
    "admin": SCOPES,
}


def with_included(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """These, and those that they include."""
    return frozenset(each for scope in scopes for each in _INCLUDED[scope])


@dataclass(frozen=True, slots=True)
class Grant:
    """What one token may do, or everybody where there are none."""

    id: str
    name: str
    scopes: frozenset[Scope] = frozenset(SCOPES)
    namespaces: tuple[Namespace, ...] | None = None
    """None is the whole lake."""
    sources: tuple[str, ...] | None = None
    """Names, or beginnings that end in `*`; None is any."""
    expires_ms: int | None = None

    @property
    def is_lake_wide(self) -> bool:
        return self.namespaces is None

    @property
    def is_administrator(self) -> bool:
        """Of the whole lake, and not of some namespaces."""
        return self.namespaces is None and "admin" in self.scopes

    def may(self, scopes: Iterable[Scope]) -> bool:
        """Whether one of these is granted."""
        return not self.scopes.isdisjoint(scopes)

    def sees(self, namespace: Namespace) -> bool:
        return self.namespaces is None or any(namespace[: len(each)] == each for each in self.namespaces)

    def passes(self, namespace: Namespace) -> bool:
        """Whether it is seen, or lies on the way to one that is."""
        return self.sees(namespace) or any(each[: len(namespace)] == namespace for each in self.namespaces or ())

    def sees_table(self, name: str) -> bool:
        """The same for a table as sources name it: `orders`, `shop.orders`."""
        return self.namespaces is None or self.sees(split_table_name(name)[0])

    def speaks_as(self, source: str) -> bool:
        return self.sources is None or any(
            source.startswith(each[:-1]) if each.endswith("*") else source == each for each in self.sources
        )

    def knows_source(self, source: str) -> bool:
        """Whether its name may be shown: of the whole lake any; else only those that the token names."""
        if self.sources is None:
            return self.namespaces is None
        return self.speaks_as(source)


EVERYTHING = Grant("everything", "everything")
"""For what no client asked: the server's own questions."""
NOBODY_YET = Grant("open", "everybody on this machine")
"""While there is no token at all."""
PIPELINE = Grant("pipeline", "the pipeline")


class _Told(msgspec.Struct):
    id: str
    scopes: list[Scope]
    namespaces: list[list[str]] | None
    sources: list[str] | None


def to_header(grant: Grant) -> str:
    """For the query process, which shows no more than this grant sees."""
    namespaces = None if grant.namespaces is None else [list(each) for each in grant.namespaces]
    sources = None if grant.sources is None else list(grant.sources)
    told = _Told(grant.id, sorted(grant.scopes), namespaces, sources)
    return base64.b64encode(msgspec.json.encode(told)).decode()


def from_header(text: str) -> Grant:
    told = msgspec.json.decode(base64.b64decode(text), type=_Told)
    namespaces = None if told.namespaces is None else tuple(map(tuple, told.namespaces))
    sources = None if told.sources is None else tuple(told.sources)
    return Grant(told.id, told.id, frozenset(told.scopes), namespaces, sources)
