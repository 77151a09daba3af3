"""What is hot, warm and cold: a client asks, moves, and says from when on partitions are old.

Part of reading.py's Reading, and so of every client.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Literal
from urllib.parse import urlencode

from dolake import errors
from dolake.client.answers import Changed, Job, TierList
from dolake.client.http import Http

_L3 = {
    "bucket": "r2_bucket_name",
    "archive_after_days": "archive_after_days",
    "archiveAfterDays": "archive_after_days",
    "partition_by": "partition_by",
    "partitionBy": "partition_by",
    "cold_location": "storage.cold_location",
    "cold_class": "storage.cold_class",
}


class Tiering(ABC):
    """Needs what Reading has: a connection."""

    _http: Http

    @abstractmethod
    def _check_usable(self) -> None: ...

    async def tiers(self, table: str | None = None) -> TierList:
        """Rows, bytes and cost a month of each tier, and what each table has in it.

        for tier in (await lake.tiers()).tiers:
            print(tier.tier, tier.rows, tier.bytes, tier.cost_per_month)
        """
        self._check_usable()
        query = "" if table is None else f"?{urlencode(_where(table))}"
        return await self._http.ask("GET", f"/v1/tiers{query}", TierList)

    async def move(self, table: str, *, to: Literal["warm", "cold"], partitions: Iterable[str] = ()) -> Job:
        """Move partitions of a table to the cold tier, or back; returns when that has begun.

        job = await lake.move("events", to="warm", partitions=["date=2024-01-15"])

        Without partitions: to the cold tier what is older than archive_after_days, and to the warm one everything.
        """
        self._check_usable()
        body: dict[str, Any] = {**_where(table), "to": to}
        if named := list(partitions):
            body["partitions"] = named
        return await self._http.ask("POST", "/v1/tiers/move", Job, body, is_reading=False)

    async def configure_storage(self, *, l3: Mapping[str, Any]) -> Changed:
        """Say where old partitions go, and from when on they are old. Needs an admin's token of the whole lake.

        changed = await lake.configure_storage(l3={"archive_after_days": 30, "partition_by": "date"})
        print(changed.applied, changed.needs_restart)

        l3: `archive_after_days`; `partition_by`; `bucket`, which holds the lake; `cold_location`; `cold_class`.
        """
        self._check_usable()
        if unknown := sorted(set(l3) - set(_L3)):
            raise errors.InvalidInput(f"l3 has no {unknown[0]!r}", hint=f"it has {', '.join(sorted(_L3))}")
        patch = {_L3[name]: value for name, value in l3.items()}
        return await self._http.ask("PATCH", "/v1/config", Changed, patch, is_reading=False)

    @property
    def storage(self) -> Storage:
        """`lake.storage.configure(l3=...)`: the same under another name."""
        return Storage(self)


class Storage:
    """The lake's storage, as far as a client can change it."""

    def __init__(self, lake: Tiering) -> None:
        self._lake = lake

    async def configure(self, *, l3: Mapping[str, Any]) -> Changed:
        """See configure_storage of the client."""
        return await self._lake.configure_storage(l3=l3)


def _where(table: str) -> dict[str, str]:
    namespace, _, name = table.rpartition(".")
    return {"namespace": namespace or "default", "table": name}
