"""What a catalog store promises: the pointers of all tables and views, and the lake's published position.

From catalog/tables.py and views.py, which decide what to change; to SQLite or Postgres.
tests/contracts/test_catalog_store.py holds every backend to it.

1. A name is one thing: a table or a view, never both, within its namespace. 2. `commit` moves all its pointers and
the published row in one transaction, or nothing; each pointer only if it is still at the version that the caller saw.
3. What `commit` returned from survives a crash. 4. `snapshot` reads many pointers and the published row at one
moment: never half of a commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from dolake.positions import Position

Namespace = tuple[str, ...]
Kind = Literal["table", "view"]
SEPARATOR = "\x1f"
"""Between the parts of a namespace, in keys of the store and in paths of Iceberg REST."""

PIPELINE_HEADER = "X-DoLake-Pipeline"
"""Who shows the server's secret in it is the pipeline."""
PUBLISHED_FROM, PUBLISHED_TO, GENERATION = "dolake.published-from", "dolake.published-to", "dolake.generation"
"""In the summary of each snapshot of a publish: the stretch of the journal that it covers, and who made it."""
REPLACED_AT = "dolake.replaced-at"
"""In the summary of a snapshot whose successors are gone: from this position on the table was another."""


@dataclass(frozen=True, slots=True)
class Name:
    """A table or view by its full name."""

    namespace: Namespace
    name: str

    def __str__(self) -> str:
        return ".".join((*self.namespace, self.name))


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where a table or view is now. `version` rises with each commit."""

    name: Name
    kind: Kind
    uuid: str
    metadata_location: str
    version: int
    is_managed: bool = False
    folders: tuple[str, ...] = ()
    """Where its files lie; empty where an older release entered it."""


@dataclass(frozen=True, slots=True)
class Create:
    """Enter a new name."""

    name: Name
    kind: Kind
    uuid: str
    metadata_location: str
    is_managed: bool = False
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Move:
    """Point an existing name to new metadata, if it is still at `version`. What is None stays as it was.

    With a `uuid` the name is another table from now on.
    """

    name: Name
    kind: Kind
    version: int
    metadata_location: str
    is_managed: bool | None = None
    folders: tuple[str, ...] | None = None
    uuid: str | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """The lake-wide row: everything before `position` is in the tables, as written by pipeline number `generation`."""

    position: Position
    generation: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Swap the published row: only from this position, and only for this generation."""

    from_position: Position
    to_position: Position
    generation: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a listing; `next` is the token for the rest, or None at the end."""

    items: list[str]
    next: str | None


@dataclass(frozen=True, slots=True)
class Remember:
    """The answer to a request with an Idempotency-Key, kept in the same transaction as what it changed.

    An answer of status 200 without a body shows metadata: the store keeps where that is.
    """

    key: str
    until_ms: int
    status: int
    body: bytes = b""
    now_ms: int = 0
    """An answer under this key that is valid then is somebody else's: the change is refused."""


class CatalogStore(Protocol):
    """All calls block; the catalog owns the threads for it."""

    def create_namespace(
        self, namespace: Namespace, properties: dict[str, str], remember: Remember | None = None
    ) -> None: ...
    def namespace_properties(self, namespace: Namespace) -> dict[str, str]: ...
    def update_namespace(
        self, namespace: Namespace, updates: dict[str, str], removals: Sequence[str]
    ) -> tuple[list[str], list[str], list[str]]:
        """Returns what was updated, removed and missing."""

    def drop_namespace(self, namespace: Namespace, remember: Remember | None = None) -> None: ...
    def list_namespaces(self, parent: Namespace, after: str | None, limit: int | None) -> Page: ...
    def list_names(self, namespace: Namespace, kind: Kind, after: str | None, limit: int | None) -> Page: ...
    def find(self, name: Name, kind: Kind) -> Pointer: ...
    def commit(
        self, changes: Sequence[Create | Move], publish: Publish | None = None, remember: Remember | None = None
    ) -> None: ...
    def drop(self, name: Name, kind: Kind, remember: Remember | None = None) -> Pointer: ...
    def rename(self, source: Name, target: Name, kind: Kind, remember: Remember | None = None) -> None: ...
    def snapshot(self, names: Sequence[Name] | None, *, skips_missing: bool = False) -> tuple[list[Pointer], Published]:
        """These tables (or all of them; those that there are) and the published row, at one moment."""

    def is_pointed_at(self, metadata_location: str) -> bool: ...
    def pointers(self, *, is_managed: bool = False) -> list[Pointer]:
        """Every table and view, or those that are managed."""

    def published(self) -> Published: ...
    def time_of(self, position: Position) -> int | None:
        """When the lake reached this position, or the last one published before it."""

    def position_at(self, time_ms: int) -> Position | None:
        """How far the lake was published at this time; None before its first publish."""

    def begin_generation(self) -> Published:
        """A new pipeline starts: from now on only its generation may publish."""

    def claim(self, journal: str, durable: Position, *, has_pipeline: bool) -> str:
        """Say whose journal the published row counts; this one is durable up to here. Returns whose it is now.

        It is the first one's, until a server with a pipeline comes; then it is that one's for good. It is nobody's
        where this journal ends before the row. Of servers with one journal, which only a copied home makes, the last
        to claim owns the lake: the others begin no generation any more.
        """

    def recall_answer(self, key: str, now_ms: int) -> bytes | None: ...
    def keep_answer(self, key: str, answer: bytes, until_ms: int) -> None: ...
    def forget_answers(self, now_ms: int) -> None: ...
    def close(self) -> None: ...
