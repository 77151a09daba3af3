"""The words between the server and its pipeline process: orders one way, reports the other, one JSON line each.

From server/spark_process.py, which writes orders to the child's stdin and reads reports from its stdout; to
__main__.py, which does the opposite. The child ends when its stdin does, so it cannot outlive its server.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from dolake.positions import Position
from dolake.settings import (
    CatalogSettings,
    CompactionConfig,
    DoLakeConfig,
    MaintenanceSettings,
    PipelineSettings,
    Settings,
    StorageSettings,
)
from dolake.tables.maintenance import Rules
from dolake.tables.thinning import Steps
from dolake.tables.tiers import Tier

JobKind = Literal["files", "deletes", "tiers", "manifests", "snapshots", "garbage", "columns"]
JobState = Literal["queued", "running", "done", "failed", "cancelled"]


class Sections(Struct, frozen=True):
    """The settings that the pipeline follows."""

    pipeline: PipelineSettings
    lake: DoLakeConfig
    compaction: CompactionConfig
    maintenance: MaintenanceSettings
    storage: StorageSettings = StorageSettings()
    catalog: CatalogSettings = CatalogSettings()

    @classmethod
    def of(cls, settings: Settings) -> Sections:
        return cls(
            settings.pipeline,
            settings.lake,
            settings.compaction,
            settings.maintenance,
            settings.storage,
            settings.catalog,
        )

    @property
    def rules(self) -> Rules:
        """When upkeep is due."""
        compaction, maintenance = self.compaction, self.maintenance
        return Rules(
            min_files_to_compact=compaction.min_files_to_compact,
            max_files_to_compact=compaction.max_files_to_compact,
            target_file_size_bytes=compaction.target_file_size_bytes,
            deleted_share_max=maintenance.deleted_share_max,
            small_files_max=maintenance.small_files_max,
            manifests_max=maintenance.manifests_max,
            snapshots=Steps(
                all_ms=maintenance.snapshots_all_ms,
                minutely_ms=maintenance.snapshots_minutely_ms,
                hourly_ms=maintenance.snapshots_hourly_ms,
                daily_ms=maintenance.snapshot_age_max_ms,
                count_max=maintenance.snapshots_max,
            ),
            memory_max_bytes=maintenance.memory_max_bytes,
            move_size_max_bytes=maintenance.move_size_max_bytes,
        )


class Start(Struct, frozen=True, tag="start"):
    """The first order: all that the pipeline needs to know."""

    home: str
    journal: str
    catalog_uri: str
    secret: str
    generation: int
    published: Position
    settings: Sections
    log_level: str = "info"
    log_format: Literal["console", "json"] = "console"


class Publish(Struct, frozen=True, tag="publish"):
    """Publish everything before this position, with the settings of now."""

    to: Position
    settings: Sections


class Maintain(Struct, frozen=True, tag="maintain"):
    """Do what is due for these source tables, now."""

    job_id: str
    settings: Sections
    tables: tuple[str, ...]
    kinds: tuple[JobKind, ...] = ()
    """None means all."""
    partitions: tuple[str, ...] = ()
    """Compact or move these alone, such as `dt=2024-01-15`."""
    to: Tier | None = None
    """Move there; None means what is old enough for the cold tier."""
    retype: dict[str, str] = {}
    """Give these columns these types, beside those that should get others anyway."""


class Forget(Struct, frozen=True, tag="forget"):
    """Let every row of this key go, of all that is published before `to`, and whatever else comes until it lands."""

    job_id: str
    settings: Sections
    table: str
    key: str
    to: Position
    source: str | None = None
    """Of the rows, where that is a part of the key."""
    is_patient: bool = False
    """Files that nothing names any more wait for `gc_grace_ms`, for those who are reading them."""


class Cancel(Struct, frozen=True, tag="cancel"):
    """Stop this job before its next piece."""

    job_id: str


Order = Start | Publish | Maintain | Forget | Cancel


class Ready(Struct, frozen=True, tag="ready"):
    """Spark is up."""

    spark_version: str
    start_ms: int


class TableReport(Struct, frozen=True):
    """What a publish did to one source table."""

    table: str
    changes: int
    rows_written: int
    rows_deleted: int
    files_written: int
    bytes_written: int
    index_rows: int
    index_bytes: int
    rescued: int = 0
    """Changes of which a value did not fit its column."""


class Published(Struct, frozen=True, tag="published"):
    """One publish, visible now."""

    position: Position
    tables: list[TableReport]
    took_ms: int
    steps_ms: dict[str, int]
    memory_bytes: int


class Reached(Struct, frozen=True, tag="reached"):
    """The order is done, as far as it could be: open transactions may hold back what comes after them."""

    position: Position
    waiting_since_ms: int | None = None


class TableForgotten(Struct, frozen=True, rename="camel"):
    """What became of one Iceberg table when a key was forgotten."""

    table: str
    files_rewritten: int = 0
    snapshots_expired: int = 0
    tags_removed: tuple[str, ...] = ()
    """Tags and branches that named one of these snapshots."""
    files_removed: int = 0
    bytes_removed: int = 0


class Forgotten(Struct, frozen=True, rename="camel"):
    """What a job that forgets a key has done. The key itself is not in it."""

    position: Position = 0
    """Whatever of the key was published before this is forgotten."""
    keys: int = 1
    """The key, and those that its row had before or after it."""
    rows_removed: int = 0
    changes_blanked: int = 0
    tables: tuple[TableForgotten, ...] = ()
    journal_bytes_removed: int = 0
    last_byte_ms: int | None = None
    """When the last byte was gone, or will be; None where that depends on what `waits` says."""
    waits: tuple[str, ...] = ()
    """What still holds something of the key, and until when."""
    outside: tuple[str, ...] = ()
    """What DoLake does not reach."""


class JobReport(Struct, frozen=True, tag="job"):
    """How far a job of upkeep is; the last one of a job has a state in which it stays."""

    job_id: str
    kind: str
    table: str
    state: JobState
    reason: str = ""
    started_ms: int = 0
    took_ms: int = 0
    pieces_done: int = 0
    pieces_total: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rows_dropped: int = 0
    snapshots_expired: int = 0
    files_removed: int = 0
    bytes_removed: int = 0
    files_moved: int = 0
    bytes_moved: int = 0
    waited_ms: int = 0
    """How long publishes were held up, at most in one piece."""
    forgotten: Forgotten | None = None
    """Of a job that forgets a key."""


class Failed(Struct, frozen=True, tag="failed"):
    """A publish failed; nothing of it is visible, everything of it is in the journal."""

    reason: str


Report = Ready | Published | Reached | Failed | JobReport

_encode = msgspec.json.Encoder().encode
decode_order: Any = msgspec.json.Decoder(Order).decode
decode_report: Any = msgspec.json.Decoder(Report).decode


def to_line(word: Order | Report) -> bytes:
    return _encode(word) + b"\n"
