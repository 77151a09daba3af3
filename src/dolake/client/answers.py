"""What the lake says about itself: its tables, their snapshots and schemas, differences, plans, running queries.

From reading.py, which decodes them from JSON; to the caller. A server that is newer may say more: what is not named
here is left out.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from dolake.client.results import Column
from dolake.client.rows import Row, layout_of
from dolake.client.values import reader_of
from dolake.positions import Position


class _Said(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Anything that the server says."""


class Table(_Said, frozen=True, rename="camel", kw_only=True):
    """A table of the lake. `rows` and `updated_at` are those of the last publish."""

    namespace: str
    name: str
    managed: bool = True
    snapshot_id: str | None = None
    updated_at: datetime | None = None
    rows: int | None = None
    rescued: dict[str, int | None] = {}
    """Columns of which values did not fit, and in how many rows; None where that could not be told in time."""

    @property
    def full_name(self) -> str:
        """With its namespace: `default.orders`."""
        return f"{self.namespace}.{self.name}"


class Snapshot(_Said, frozen=True, rename="camel", kw_only=True):
    """A table at one moment. `position` says how far into the journal it reaches, `rows` how many a reader finds."""

    snapshot_id: str
    table: str
    timestamp: datetime | None = None
    operation: str | None = None
    position: Position | None = None
    added_records: int | None = None
    deleted_records: int | None = None
    total_records: int | None = None
    rows: int | None = None
    added_files: int | None = None
    total_files: int | None = None
    is_current: bool = False


class Subscription(_Said, frozen=True, rename="camel", kw_only=True):
    """A named subscription. `lag` counts the durable changes behind its position."""

    name: str
    tables: list[str]
    position: Position
    lag: int = 0
    connected: bool = False
    token: str = ""
    operations: list[str] = []
    where: str = ""
    columns: list[str] = []
    transactions: bool = False
    created_ms: int | None = None
    acknowledged_ms: int | None = None


class SubscriptionList(_Said, frozen=True):
    """What the server lists."""

    subscriptions: list[Subscription]


class Field(_Said, frozen=True, rename="camel", kw_only=True):
    """A column of a table, with its Iceberg type."""

    name: str
    type: Any
    id: int | None = None
    required: bool = False
    comment: str = ""


class SchemaVersion(_Said, frozen=True, rename="camel", kw_only=True):
    """The columns that a table had from `since` on."""

    version: int
    since: datetime | None = None
    fields: list[Field] = []


class TableSchema(_Said, frozen=True, rename="camel", kw_only=True):
    """The columns of a table, and those that it had before."""

    table: str
    version: int
    fields: list[Field] = []
    versions: list[SchemaVersion] = []


class Counts(_Said, frozen=True, rename="camel", kw_only=True):
    """How many rows came, went and changed."""

    added: int = 0
    removed: int = 0
    changed: int = 0


class Rollback(_Said, frozen=True, rename="camel", kw_only=True):
    """A table is as it was again; `position` is behind the changes that made it so."""

    table: str
    position: Position
    changes: Counts = Counts()


class TableForgotten(_Said, frozen=True, rename="camel", kw_only=True):
    """What became of one Iceberg table when a key was forgotten."""

    table: str
    files_rewritten: int = 0
    snapshots_expired: int = 0
    tags_removed: list[str] = []
    files_removed: int = 0
    bytes_removed: int = 0


class Forgotten(_Said, frozen=True, rename="camel", kw_only=True):
    """A key was forgotten, as far as it was published before `position`; `waits` says what is not gone yet."""

    position: Position
    keys: int = 1
    rows_removed: int = 0
    changes_blanked: int = 0
    tables: list[TableForgotten] = []
    journal_bytes_removed: int = 0
    last_byte_ms: int | None = None
    waits: list[str] = []
    outside: list[str] = []


class Quarantine(_Said, frozen=True, rename="camel", kw_only=True):
    """A table that has changes which could not be written, and how many."""

    namespace: str
    name: str
    entries: int

    @property
    def full_name(self) -> str:
        """With its namespace: `default.orders`."""
        return f"{self.namespace}.{self.name}"


class QuarantineEntry(_Said, frozen=True, rename="camel", kw_only=True):
    """A change that could not be written, and why; `event` is its JSON text. Its position names it."""

    table: str
    position: Position
    reason: str
    operation: str
    key: str
    sequence: int
    source: str
    event: str


class RefusedEntry(_Said, frozen=True, rename="camel", kw_only=True):
    """An entry that stays where it is, or is not there, and why."""

    position: Position
    reason: str


class Replay(_Said, frozen=True, rename="camel", kw_only=True):
    """Entries were sent again; `position` is behind their changes."""

    table: str
    position: Position
    replayed: int
    refused: list[RefusedEntry] = []


class Drop(_Said, frozen=True, rename="camel", kw_only=True):
    """Entries are gone; `position` is behind the changes that made it so."""

    table: str
    position: Position
    dropped: int
    refused: list[RefusedEntry] = []


class ChangedRow(_Said, frozen=True, rename="camel", kw_only=True):
    """One row before and after, and the columns that differ."""

    key: str
    before: Row
    after: Row
    columns: list[str] = []


class Diff(_Said, frozen=True, rename="camel", kw_only=True):
    """What is different in a table between two moments. `counts` has all of it, the lists at most `limit` each."""

    table: str
    from_: Any = msgspec.field(default=None, name="from")
    to: Any = None
    counts: Counts = Counts()
    added: list[Row] = []
    removed: list[Row] = []
    changed: list[ChangedRow] = []
    truncated: bool = False
    columns: list[Column] = []
    warnings: list[str] = []


class PrunedFile(_Said, frozen=True, rename="camel", kw_only=True):
    """A data file that need not be opened, and why."""

    file: str = ""
    tier: str = "warm"
    reason: str = ""


class ReadFile(_Said, frozen=True, rename="camel", kw_only=True):
    """A data file that would be read."""

    file: str = ""
    tier: str = "warm"
    bytes: int = 0
    partition: str = ""


class TablePlan(_Said, frozen=True, rename="camel", kw_only=True):
    """What would be read of one table."""

    table: str
    snapshot_id: str | None = None
    files: dict[str, int] = {}
    bytes: dict[str, int] = {}
    partitions: dict[str, list[Any]] = {}
    tiers: dict[str, dict[str, int]] = {}
    reads: list[ReadFile] = []
    reasons: list[PrunedFile] = []
    tail_rows: int = 0


class Plan(_Said, frozen=True, rename="camel", kw_only=True):
    """How a question would be answered."""

    engine: str = ""
    tables: list[TablePlan] = []
    sql: str = ""
    warnings: list[str] = []


class Route(_Said, frozen=True, rename="camel", kw_only=True):
    """Which engine would answer a question, and why; with what would be read."""

    engine: str
    reason: str = ""
    tables: list[TablePlan] = []
    warnings: list[str] = []


class RunningQuery(_Said, frozen=True, rename="camel", kw_only=True):
    """A question that is being answered; cancel() takes its `query_id`."""

    query_id: str
    sql: str = ""
    started_at: datetime | None = None
    elapsed_ms: int | float = 0
    state: str = ""
    progress: dict[str, int] | None = None
    """Of one that Spark answers: tasks `done`, of a `total` that is known so far."""


class Reached(_Said, frozen=True, rename="camel", kw_only=True):
    """A place in the journal that something has reached, and when; `sequence` is a source's own number there."""

    position: Position = 0
    at: datetime | None = None
    age_ms: int | float = 0
    lag_changes: int = 0
    sequence: int = 0


class Milestones(_Said, frozen=True, rename="camel", kw_only=True):
    """How far a table or a source has come: for senders, for other engines, and for DoLake's own SQL."""

    durable: Reached = Reached()
    published: Reached = Reached()
    visible: Reached = Reached()


class LakeFreshness(Milestones, frozen=True, rename="camel", kw_only=True):
    """The same of the lake, and of each table and source that has sent since the server started."""

    at: datetime | None = None
    target_ms: int = 0
    tables: dict[str, Milestones] = {}
    sources: dict[str, Milestones] = {}


class TierHeld(_Said, frozen=True, rename="camel", kw_only=True):
    """What a table has in a tier."""

    files: int = 0
    rows: int = 0
    bytes: int = 0


class TierFigures(TierHeld, frozen=True, rename="camel", kw_only=True):
    """What a tier holds, and what that costs a month."""

    tier: str
    price_per_gb_month: float = 0.0
    cost_per_month: float = 0.0


class TableTiers(_Said, frozen=True, rename="camel", kw_only=True):
    """Where the files of a table are."""

    namespace: str
    table: str
    warm: TierHeld = TierHeld()
    cold: TierHeld = TierHeld()


class TierList(_Said, frozen=True, rename="camel", kw_only=True):
    """All tiers, and what each table has in them."""

    tiers: list[TierFigures] = []
    tables: list[TableTiers] = []
    archive_after_days: int = 0
    cold_location: str = ""


class Job(_Said, frozen=True, rename="camel", kw_only=True):
    """Upkeep that was asked for: how far it is."""

    job_id: str
    table: str = ""
    state: str = ""
    reason: str = ""
    pieces_done: int = 0
    pieces_total: int = 0


class Changed(_Said, frozen=True, rename="camel", kw_only=True):
    """What a change of settings did: in effect, waiting for a restart, or overruled, with what by."""

    applied: list[str] = []
    needs_restart: list[str] = []
    overruled: dict[str, str] = {}


class TablePage(_Said, frozen=True, rename="camel", kw_only=True):
    tables: list[Table]
    next_page_token: str | None = None


class SnapshotList(_Said, frozen=True, rename="camel", kw_only=True):
    snapshots: list[Snapshot]


class QuarantineList(_Said, frozen=True, rename="camel", kw_only=True):
    tables: list[Quarantine]


class QuarantinePage(_Said, frozen=True, rename="camel", kw_only=True):
    entries: list[QuarantineEntry]
    next_after: Position | None = None


class QueryList(_Said, frozen=True, rename="camel", kw_only=True):
    queries: list[RunningQuery]


def diff_of(data: bytes) -> Diff:
    """A diff, its rows read by their columns' types where the server tells them."""
    columns = {column.name: column for column in msgspec.json.decode(data, type=_Columns).columns}
    readers = {name: read for name, column in columns.items() if (read := reader_of(column.type)) is not None}

    def as_row(kind: type, found: Any) -> Any:
        if kind is not Row:
            raise NotImplementedError
        values = [
            readers[name](value) if value is not None and name in readers else value for name, value in found.items()
        ]
        return Row(layout_of(list(found)), values)

    return msgspec.json.decode(data, type=Diff, dec_hook=as_row)


class _Columns(msgspec.Struct):
    columns: list[Column] = []
