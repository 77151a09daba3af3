"""The lake at one moment: where its tables are, how far it is published, and what their metadata says.

From the catalog's store and metadata files, which this process only reads; to reader.py. Promise: all tables of one
question are of the same publish.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dolake.catalog.base import PUBLISHED_TO, SEPARATOR, CatalogStore, Name, Namespace, Pointer
from dolake.catalog.documents import Documents
from dolake.positions import Position
from dolake.storage.base import Storage
from dolake.tables.layout import CHANGES_SUFFIX, OURS, columns_of
from dolake.tables.types import Columns

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table as the catalog has it now."""

    name: Name
    metadata: Json
    is_managed: bool

    @property
    def uuid(self) -> str:
        return str(self.metadata["table-uuid"])

    @property
    def schema(self) -> Json:
        current = self.metadata["current-schema-id"]
        return next(each for each in self.metadata["schemas"] if each["schema-id"] == current)

    @property
    def columns(self) -> Columns:
        """The source's columns; for a table that DoLake manages."""
        return columns_of(self.schema)

    @property
    def names(self) -> tuple[str, ...]:
        """Of all columns."""
        return tuple(field["name"] for field in self.schema["fields"])

    @property
    def has_uuids(self) -> bool:
        """Whether a column, or a part of one, is a uuid."""
        return _names_uuid(self.schema)

    @property
    def is_ours(self) -> bool:
        """Whether the pipeline writes it: a state, or changes."""
        return self.is_managed and OURS in self.metadata.get("properties", {})

    @property
    def is_waiting(self) -> bool:
        """Whether somebody has made it for the pipeline, which has not written to it yet."""
        return self.is_managed and not self.is_ours and self.snapshot is None

    @property
    def pinned_columns(self) -> frozenset[str]:
        """Columns that divide or sort the table, or once did: these keep their types."""
        lists = (*self.metadata.get("partition-specs", ()), *self.metadata.get("sort-orders", ()))
        ids = {field["source-id"] for each in lists for field in each["fields"]}
        return frozenset(field["name"] for field in self.schema["fields"] if field["id"] in ids)

    @property
    def snapshot(self) -> Json | None:
        return self.find_snapshot(self.metadata.get("current-snapshot-id"))

    def find_snapshot(self, id_: int | None) -> Json | None:
        # Mostly it is the last of thousands.
        newest_first = reversed(self.metadata.get("snapshots") or ())
        return next((each for each in newest_first if each["snapshot-id"] == id_), None)

    def snapshot_at(self, time_ms: int) -> Json | None:
        """The last one that was made up to this time and is still there."""
        made = [each for each in self.metadata.get("snapshots") or () if each["timestamp-ms"] <= time_ms]
        return max(made, key=lambda each: int(each.get("sequence-number", 0)), default=None)


def _names_uuid(type_: Any) -> bool:
    match type_:
        case dict():
            kinds = (type_.get(key) for key in ("type", "element", "key", "value", "fields"))
            return any(_names_uuid(each) for each in kinds)
        case list():
            return any(map(_names_uuid, type_))
        case _:
            return bool(type_ == "uuid")


def position_of(snapshot: Json) -> Position:
    """How far the journal is in this snapshot."""
    return int((snapshot.get("summary") or {}).get(PUBLISHED_TO, 0))


@dataclass(frozen=True, slots=True)
class LakeMoment:
    """Tables, and the position up to which all of them are published."""

    position: Position
    tables: dict[Name, LakeTable]

    def state_and_changes(self, name: Name) -> tuple[LakeTable | None, LakeTable | None]:
        changes = Name(name.namespace, name.name + CHANGES_SUFFIX)
        return self.tables.get(name), self.tables.get(changes)


class LakeFiles:
    """Reads the catalog; many threads may."""

    def __init__(self, store: CatalogStore, storage: Storage) -> None:
        self.storage, self._store, self._documents = storage, store, Documents(storage)

    def published(self) -> Position:
        return self._store.published().position

    def tables(self) -> list[Pointer]:
        """Where every table is now; views are none."""
        return [each for each in self._store.pointers() if each.kind == "table"]

    def namespaces(self) -> Iterator[Namespace]:
        """Every namespace that was made in the catalog, also without a table."""
        waiting: list[Namespace] = [()]
        while waiting:
            for key in self._store.list_namespaces(waiting.pop(), None, None).items:
                namespace = tuple(key.split(SEPARATOR))
                waiting.append(namespace)
                yield namespace

    def moment(self, names: Iterable[Name]) -> LakeMoment:
        """These tables, those that there are."""
        pointers, published = self._store.snapshot(list(dict.fromkeys(names)), skips_missing=True)
        tables = {
            pointer.name: LakeTable(
                pointer.name, self._documents.read(pointer.metadata_location).metadata, pointer.is_managed
            )
            for pointer in pointers
        }
        return LakeMoment(published.position, tables)

    def close(self) -> None:
        self._store.close()


def scratch_of(home: Path) -> Path:
    """Where the query process may write."""
    return home / "query"
