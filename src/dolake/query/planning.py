"""Which files of its tables a question reads, and which it need not: for the plan, and for what an answer tells.

From answering.py; plan.py knows the bounds of the files. DuckDB prunes by the same bounds when it runs the statement.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile

from dolake.catalog.base import Name
from dolake.query.engine import Params
from dolake.query.lake import Json, LakeTable
from dolake.query.plan import Condition, Manifests, PlannedFile, planned
from dolake.query.reader import View
from dolake.query.relation import Relation
from dolake.query.statement import Filter, ParameterRef, Reference
from dolake.tables.layout import CHANGES_SUFFIX
from dolake.tables.tiers import COLD, WARM, Tier, Tiers

_FILES_MAX = 1_000
"""A plan names so many files of each kind; its figures are of all."""
_SNAPSHOTS_MAX = 64


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a question: how the statement names it, what it became, and what its partition wants of it."""

    view: View
    reference: Reference
    relation: Relation
    conditions: tuple[Condition, ...] = ()

    def read(self) -> tuple[LakeTable, Json] | None:
        """What is read: the table that is named, or that of its changes, and the snapshot; None for the tail alone."""
        namespace = tuple(self.reference.namespace.split("."))
        for name in (self.reference.table, self.reference.table + CHANGES_SUFFIX):
            table = self.view.moment.tables.get(Name(namespace, name))
            snapshot = table.find_snapshot(self.relation.snapshot_id) if table else None
            if table and snapshot:
                return table, snapshot
        return None


@dataclass(frozen=True, slots=True)
class Reading:
    """How many files a question opens and how many it need not, and how large those are that it opens."""

    read: int
    pruned: int
    byte_count: int

    @property
    def files(self) -> dict[str, int]:
        return {"read": self.read, "pruned": self.pruned}


class _KeptManifests(Manifests):
    """The files of the last snapshots, which never change: reading their list takes longer than many a query."""

    def __init__(self, io: FileIO | None = None) -> None:
        super().__init__(io)
        self._kept: OrderedDict[str, list[DataFile]] = OrderedDict()
        self._keeping = threading.Lock()

    def files(self, snapshot: Json) -> Iterator[DataFile]:
        path = str(snapshot["manifest-list"])
        with self._keeping:
            found = self._kept.get(path)
        if found is None:
            found = list(super().files(snapshot))
            with self._keeping:
                self._kept[path] = found
                while len(self._kept) > _SNAPSHOTS_MAX:
                    self._kept.popitem(last=False)
        return iter(found)


class Planner:
    """Counts files, for the plan and for answers."""

    def __init__(self, io: FileIO | None = None, tiers: Tiers | None = None) -> None:
        self._manifests, self._tiers = _KeptManifests(io), tiers

    def reading_of(self, tables: Iterable[Table], params: Params) -> Reading:
        """What is read of all tables."""
        files = [file for each in tables for file in self._planned(each, params)]
        kept = [file for file in files if file.reason is None]
        return Reading(len(kept), len(files) - len(kept), _bytes_of(kept))

    def plan_of(self, table: Table, params: Params) -> dict[str, Any]:
        """One table of a plan."""
        files, relation = self._planned(table, params), table.relation
        kept = [file for file in files if file.reason is None]
        pruned = [file for file in files if file.reason is not None]
        return {
            "table": relation.table,
            "snapshotId": None if relation.snapshot_id is None else str(relation.snapshot_id),
            "files": {"kept": len(kept), "pruned": len(pruned)},
            "bytes": {"kept": _bytes_of(kept), "pruned": _bytes_of(pruned)},
            "partitions": {"kept": _partitions_of(kept), "pruned": _partitions_of(pruned)},
            "tiers": {tier: _tier_of(tier, kept) for tier in (WARM, COLD)},
            "reads": [
                {"file": file.path, "tier": file.tier, "bytes": file.byte_count, "partition": file.partition}
                for file in kept[:_FILES_MAX]
            ],
            "reasons": [{"file": file.path, "tier": file.tier, "reason": file.reason} for file in pruned[:_FILES_MAX]],
            "tailRows": relation.tail_rows,
        }

    def _planned(self, table: Table, params: Params) -> Sequence[PlannedFile]:
        found = table.read()
        if found is None:
            return ()
        conditions = [each for filter_ in table.reference.filters if (each := _condition(filter_, params))]
        return planned(self._manifests, *found, [*conditions, *table.conditions], self._tiers)


def _condition(filter_: Filter, params: Params) -> Condition | None:
    """With the values of the parameters; None where one is not known."""
    try:
        values = tuple(_value(each, params) for each in filter_.values)
    except (KeyError, IndexError, ValueError):
        return None
    return Condition(filter_.column, filter_.op, values)


def _value(value: Any, params: Params) -> Any:
    if not isinstance(value, ParameterRef):
        return value
    return params[value.name] if isinstance(params, Mapping) else params[int(value.name) - 1]


def _tier_of(tier: Tier, kept: Sequence[PlannedFile]) -> dict[str, int]:
    """What is read of a tier."""
    inside = [file for file in kept if file.tier == tier]
    return {"files": len(inside), "bytes": _bytes_of(inside)}


def _bytes_of(files: Sequence[PlannedFile]) -> int:
    return sum(file.byte_count for file in files)


def _partitions_of(files: Sequence[PlannedFile]) -> list[str]:
    return sorted({file.partition for file in files if file.partition})
