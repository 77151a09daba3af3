"""The settings themselves: type, default, bounds and one line of meaning, each said once and said here.

To names.py, which reads this by inspection, and to docs/reference/settings.md, which a tidy test holds to these words.
A Struct built directly is trusted, so that a test can build its section in one line; load_settings() is what checks.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta, Struct

from dolake.settings.journal import JournalSettings
from dolake.settings.stores import StorageSettings
from dolake.settings.upkeep import MaintenanceSettings
from dolake.settings.words import BYTES_MAX, COUNT_MAX, DAYS_MAX, GIB, KIB, MIB, MS_MAX, RESTART
from dolake.settings.words import says as _says
from dolake.settings.words import whole as _whole
from dolake.tables.names import problem_with_table_name
from dolake.tables.ordering import problem_with_sort_word
from dolake.tables.partitions import problem_with_partition_word
from dolake.tables.rules import problem_with_mask
from dolake.tables.types import parse_type

_ORIGIN = re.compile(r"^https?://(\[[0-9a-f:.]+\]|[a-z0-9_][a-z0-9._-]*)(:[0-9]{1,5})?\Z")


def problem_with_networks(networks: Iterable[str]) -> str:
    """What is wrong with the first bad entry, or an empty string."""
    for network in networks:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            return str(error)
    return ""


def _pem_file(description: str) -> Meta:
    return Meta(max_length=4096, description=description, extra={**RESTART, "allowed": "empty, or a path"})


def problem_with_origins(origins: Iterable[str]) -> str:
    """What is wrong with the first bad entry, or an empty string."""
    for origin in origins:
        if not _ORIGIN.match(origin):
            return f"{origin[:200]!r} is no origin: scheme, host and port, in small letters and without a path"
    return ""


def problem_with_master(master: str) -> str:
    """Spark's tasks read the journal's files, so the workers must be on this machine; or an empty string."""
    if master.startswith("local"):
        return ""
    return (
        "Spark's workers would run elsewhere and could not read the journal, which is a folder of this machine;"
        " a remote master needs a journal that its workers can read, such as Kafka"
    )


# Patterns end in \Z, because $ would also let a line break through.
_BUCKET_NAME = Meta(
    pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z",
    max_length=255,
    description="Bucket that holds the lakehouse, where `storage.location` names none.",
    extra={**RESTART, "allowed": "up to 255 letters, digits, dots, hyphens or underscores"},
)
_WAREHOUSE_PATH = Meta(
    pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*\Z",
    max_length=1024,
    description="Path of the Iceberg tables inside the home, or inside the bucket if `storage.location` names none.",
    extra={**RESTART, "allowed": "a path such as `warehouse` or `team/lake`, without a slash at either end"},
)
_HOST = Meta(
    pattern=r"^[A-Za-z0-9.:_%-]+\Z",
    max_length=255,
    description="Address to listen on.",
    extra={**RESTART, "allowed": "a host name or an IP address"},
)
_BASE_PATH = Meta(
    pattern=r"^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*\Z",
    max_length=255,
    description="Path under which every route answers too.",
    extra={**RESTART, "allowed": "empty, or a path such as `/lakehouse` with a slash in front and none at the end"},
)
_ORIGINS = Meta(
    max_length=1000,
    description="Sites whose pages may use this server from a browser.",
    extra={
        "allowed": "a list of origins such as `https://app.example.com`; each is named, `*` is none",
        "check": problem_with_origins,
    },
)
_NETWORKS = Meta(
    max_length=1000,
    description="Networks whose clients are not limited; by default the private ranges and loopback.",
    extra={
        "allowed": "a list of IP networks such as `10.0.0.0/8`, `192.0.2.7` or `fd00::/8`",
        "check": problem_with_networks,
    },
)
_PROXIES = Meta(
    max_length=1000,
    description="Proxies whose X-Forwarded-For says who the client is; others' is ignored.",
    extra={
        "allowed": "a list of IP networks such as `127.0.0.1` or `10.0.0.0/8`",
        "check": problem_with_networks,
    },
)

_LOCATION_ROOTS = Meta(
    max_length=100,
    description="Places outside the warehouse below which clients may put tables of their own.",
    extra={**RESTART, "allowed": "a list of absolute paths such as `/data/shared`, or of `s3://bucket/path`"},
)


def problem_with_store(store: str) -> str:
    """Who sends back what was shown would lose the password."""
    return "*** stands for a password that is not shown" if re.search(r":\*{3}@|password=\*{3}", store) else ""


_CATALOG_STORE = Meta(
    pattern=r"^(sqlite|postgres(ql)?://[^\s\x00]+)\Z",
    max_length=4096,
    description="Where the catalog keeps its pointers: `sqlite`, a file in the home, or the address of a Postgres.",
    extra={
        **RESTART,
        "allowed": "`sqlite`, or `postgresql://user:password@host:5432/database`",
        "check": problem_with_store,
    },
)
_CATALOG_SCHEMA = Meta(
    pattern=r"^[a-z_][a-z0-9_]{0,62}\Z",
    description="Schema of that Postgres which holds this lake's catalog; one for each lake.",
    extra={**RESTART, "allowed": "a name of small letters, digits and `_`"},
)

_TYPE_WORDS = "decimal(10,2), date, timestamp, timestamptz, uuid, binary, int, long, float, double, boolean, string"


class TableSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What its owner wants of one table; what is not said here is as in the lake."""

    columns: dict[str, str] = {}
    """Declared types by the source's names."""
    include_columns: tuple[str, ...] | None = None
    exclude_columns: tuple[str, ...] = ()
    mask: dict[str, str] = {}
    infer_timestamps: bool | None = None
    rebuild_rows_max: Annotated[int, Meta(ge=0, le=COUNT_MAX)] | None = None
    fail_stop: bool = False
    partition_by: str | tuple[str, ...] = ()
    sort_by: str | tuple[str, ...] = ()
    target_file_size_bytes: Annotated[int, Meta(ge=KIB, le=BYTES_MAX)] | None = None
    parquet_row_group_size: Annotated[int, Meta(ge=1, le=COUNT_MAX)] | None = None
    parquet_compression: Literal["none", "snappy", "gzip", "zstd"] | None = None
    archive_after_days: Annotated[int, Meta(ge=0, le=DAYS_MAX)] | None = None
    format_version: Literal[2, 3] = 2


def problem_with_tables(tables: Mapping[str, TableSettings]) -> str:
    """What is wrong with the first bad entry, or an empty string."""
    for name, table in tables.items():
        if problem := problem_with_table_name(name):
            return f"the name {name!r} {problem}"
        for column, type_ in table.columns.items():
            if parse_type(type_) is None:
                return f"{name}: column {column!r} cannot have the type {type_!r}; types are {_TYPE_WORDS}"
        for column, mask in table.mask.items():
            if problem := problem_with_mask(mask):
                return f"{name}: the mask {mask!r} of column {column!r} {problem}"
        if problem := _problem_with_layout(table):
            return f"{name}: {problem}"
    return ""


def _problem_with_layout(table: TableSettings) -> str:
    for key, words, problem_with in (
        ("partition_by", table.partition_by, problem_with_partition_word),
        ("sort_by", table.sort_by, problem_with_sort_word),
    ):
        for word in words if isinstance(words, tuple) else (words,) if words else ():
            if problem := problem_with(word):
                return f"{key} {word!r} {problem}"
    return ""


_TABLES = Meta(
    max_length=10_000,
    description="What single tables are to be like, by the source's name of the table; see below.",
    extra={"allowed": 'sections such as `[tables."shop.orders"]`', "check": problem_with_tables},
)
_PATTERNS = {"allowed": "a list of table names, in which `*` stands for anything"}

PRIVATE_NETWORKS = (
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "127.0.0.0/8",
    "fc00::/7",
    "::1/128",
)


class DoLakeConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lakehouse: when changes are published, how much may wait, what counts as sent twice."""

    r2_bucket_name: Annotated[str, _BUCKET_NAME] = "lakehouse-data"
    r2_base_path: Annotated[str, _WAREHOUSE_PATH] = "warehouse"
    flush_threshold_events: Annotated[int, _whole("Publish when this many changes wait.", 1, COUNT_MAX)] = 10_000
    flush_threshold_bytes: Annotated[int, _whole("Publish when this many bytes wait.", 1, BYTES_MAX)] = 32 * MIB
    flush_threshold_ms: Annotated[int, _whole("Publish when the oldest change waits this long.", 1, MS_MAX)] = 60_000
    flush_interval_ms: Annotated[int, _whole("Publish what waits at this interval.", 1, MS_MAX)] = 30_000
    max_buffer_size: Annotated[
        int,
        _whole(
            "Most bytes received and not yet on disk, over all connections; at the bound the server stops reading.",
            KIB,
            BYTES_MAX,
        ),
    ] = 128 * MIB
    enable_fallback: Annotated[
        bool,
        _says(
            "While publishing fails (circuit breaker open), keep batches in the journal with status `fallback`;"
            " if false, refuse them with `buffer_full`."
        ),
    ] = True
    max_fallback_size: Annotated[int, _whole("Most bytes taken while the circuit breaker is open.", 0, BYTES_MAX)] = (
        64 * MIB
    )
    enable_deduplication: Annotated[
        bool,
        _says(
            "Recognise what was sent before by its event sequences; if false, batches are written as they come,"
            " so a resent batch is kept twice."
        ),
    ] = True
    deduplication_window_ms: Annotated[
        int,
        _whole(
            "How long content is remembered, to tell a resent event from a new one under an old sequence;"
            " older than that, an old sequence is a duplicate.",
            0,
            MS_MAX,
        ),
    ] = 300_000
    parquet_row_group_size: Annotated[int, _whole("Rows per Parquet row group to aim at.", 1, COUNT_MAX)] = 100_000
    parquet_compression: Annotated[
        Literal["none", "snappy", "gzip", "zstd"], _says("Compression of Parquet files.")
    ] = "snappy"
    freshness_target_ms: Annotated[
        int, _whole("How old a change may be when other engines see it; publish that early.", 1, MS_MAX)
    ] = 2_000
    key_scope: Annotated[
        Literal["table", "source"],
        _says("What a row id is unique in: the table, or the table and the source that sent it.", RESTART),
    ] = "table"
    transaction_wait_max_ms: Annotated[
        int, _whole("Longest wait for the end of a transaction; then what came of it is published.", 0, MS_MAX)
    ] = 10_000
    transaction_bytes_max: Annotated[
        int, _whole("Most bytes that wait for the end of a transaction; then what came is published.", KIB, BYTES_MAX)
    ] = 64 * MIB
    infer_timestamps: Annotated[
        bool, _says("Make columns of times from texts that are ISO 8601 date and time; if false they stay text.")
    ] = True
    columns_max: Annotated[
        int, _whole("Most columns of a table, fields of objects included; what is more goes to `_rescued`.", 1, 10_000)
    ] = 1_000
    struct_fields_max: Annotated[
        int, _whole("Fields from which a new object counts as a map, and becomes a column of JSON text.", 1, 10_000)
    ] = 200
    rebuild_rows_max: Annotated[
        int,
        _whole(
            "Changes up to which a table's whole numbers become fractions when one comes; later it waits in"
            " `_rescued`.",
            0,
            COUNT_MAX,
        ),
    ] = 1_000_000
    partition_by: Annotated[
        Literal["", "date"],
        _says(
            "How tables are partitioned that have no partitions of their own: `date` means by day, where a table has"
            " a column of days or times.",
            {"allowed": "empty, or `date`"},
        ),
    ] = ""
    archive_after_days: Annotated[
        int,
        _whole("Days after which a partition by time moves to the cold location; 0 means never.", 0, DAYS_MAX),
    ] = 0
    include_tables: Annotated[tuple[str, ...], _says("Tables that the lake takes.", _PATTERNS)] = ("*",)
    exclude_tables: Annotated[tuple[str, ...], _says("Tables that the lake leaves out.", _PATTERNS)] = ()
    mask_secret: Annotated[
        str, _says("What goes into every hash of a masked value.", {"allowed": "any text; keep it to yourself"})
    ] = ""
    tables: Annotated[dict[str, TableSettings], _TABLES] = {}


class RateLimitConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one client may ask of the server, and how it is asked to slow down."""

    connections_per_second: Annotated[
        int, _whole("Most new connections per second from one address.", 1, COUNT_MAX)
    ] = 20
    messages_per_second: Annotated[
        int,
        _whole(
            "Most messages per connection and second; of this and the burst's bucket the smaller wins.", 1, COUNT_MAX
        ),
    ] = 100
    burst_capacity: Annotated[int, _whole("Messages that may come in one burst.", 1, COUNT_MAX)] = 50
    refill_rate: Annotated[int, _whole("Burst tokens refilled per second.", 1, COUNT_MAX)] = 10
    max_payload_size: Annotated[
        int, _whole("Largest message in bytes; a larger one gets `payload_too_large`.", 1, GIB)
    ] = 4 * MIB
    max_event_size: Annotated[int, _whole("Largest event in bytes; a larger one gets `event_too_large`.", 1, GIB)] = MIB
    max_connections_per_source: Annotated[int, _whole("Most connections per client id.", 1, COUNT_MAX)] = 5
    max_connections_per_ip: Annotated[int, _whole("Most connections per IP address.", 1, COUNT_MAX)] = 30
    subnet_rate_limit_threshold: Annotated[
        int, _whole("Most connections from one network: /24 of IPv4, /64 of IPv6.", 1, COUNT_MAX)
    ] = 100
    whitelisted_ips: Annotated[tuple[str, ...], _NETWORKS] = PRIVATE_NETWORKS
    backpressure_threshold: Annotated[
        float, Meta(gt=0.0, le=1.0, description="Buffer utilization from which acks suggest a delay.")
    ] = 0.8
    base_retry_delay_ms: Annotated[int, _whole("First retry delay of the exponential backoff.", 1, MS_MAX)] = 100
    max_retry_delay_ms: Annotated[int, _whole("Longest retry delay of the exponential backoff.", 1, MS_MAX)] = 30_000
    http_requests_per_second: Annotated[
        int, _whole("Most HTTP requests per second from one address; more get 429.", 1, COUNT_MAX)
    ] = 100
    load_shedding_lag_ms: Annotated[
        int,
        _whole(
            "How late the server may be with its work before it refuses batches with `load_shedding`: strangers' from"
            " here on, everybody's at twice as much.",
            1,
            MS_MAX,
        ),
    ] = 500


class CompactionConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When small data files become few large ones."""

    min_files_to_compact: Annotated[int, _whole("Files before a compaction starts.", 2, COUNT_MAX)] = 5
    max_files_to_compact: Annotated[int, _whole("Most files in one compaction.", 2, COUNT_MAX)] = 100
    target_file_size_bytes: Annotated[int, _whole("File size that a compaction aims at.", KIB, BYTES_MAX)] = 128 * MIB
    auto_compact: Annotated[bool, _says("Compact, expire and clean without being asked.")] = True
    compaction_interval_ms: Annotated[int, _whole("Time between two looks at all tables.", 1, MS_MAX)] = 3_600_000


class ServerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The process and its socket."""

    host: Annotated[str, _HOST] = "127.0.0.1"
    port: Annotated[int, _whole("Port to listen on; 0 takes any free one.", 0, 65_535, RESTART)] = 8787
    base_path: Annotated[str, _BASE_PATH] = "/lakehouse"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _says("Least level that is logged.", RESTART)
    ] = "info"
    log_format: Annotated[
        Literal["console", "json"], _says("Logs as lines for people or as JSON for programs.", RESTART)
    ] = "console"
    shutdown_wait_ms: Annotated[int, _whole("Longest wait for open work when the server stops.", 0, MS_MAX)] = 10_000
    message_size_max_bytes: Annotated[
        int,
        _whole("Hard limit of the socket: a longer message closes the connection unread.", KIB, 2 * GIB - 1, RESTART),
    ] = 16 * MIB
    tables_max: Annotated[int, _whole("Most tables that sources may name.", 1, COUNT_MAX)] = 10_000
    compression: Annotated[
        bool, _says("Read compressed messages from clients that offer them; counts for new connections.")
    ] = True
    ping_ms: Annotated[
        int,
        _whole(
            "Silence after which a connection is pinged; half as long without an answer, and it is dropped."
            " Counts for new connections.",
            100,
            MS_MAX,
        ),
    ] = 60_000
    tls_certificate: Annotated[str, _pem_file("The server's certificate, with those that lead to its authority.")] = ""
    tls_key: Annotated[str, _pem_file("The key of the certificate, without a password.")] = ""
    cors_origins: Annotated[tuple[str, ...], _ORIGINS] = ()
    trusted_proxies: Annotated[tuple[str, ...], _PROXIES] = ()
    request_wait_max_ms: Annotated[
        int,
        _whole(
            "Longest wait for the head of a request, and for its body after that; and between two requests.",
            100,
            MS_MAX,
            RESTART,
        ),
    ] = 120_000


_SPARK_MASTER = Meta(
    pattern=r"^[A-Za-z0-9\[\]*,:/._-]+\Z",
    max_length=1024,
    description="Spark master that runs the pipeline.",
    extra={**RESTART, "allowed": "`local[*]`, `local[2]` and so on", "check": problem_with_master},
)
_SPARK_SETTINGS = Meta(
    max_length=100,
    description="More settings for Spark; they win over DoLake's own.",
    extra={**RESTART, "allowed": "a list of `key=value` such as `spark.executor.heartbeatInterval=30s`"},
)


class PipelineSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The Spark process that writes changes into Iceberg tables."""

    enabled: Annotated[bool, _says("Run the pipeline; if false, changes stay in the journal.", RESTART)] = True
    spark_master: Annotated[str, _SPARK_MASTER] = "local[*]"
    driver_memory_bytes: Annotated[int, _whole("Memory of Spark's Java process.", 512 * MIB, BYTES_MAX, RESTART)] = (
        2 * GIB
    )
    spark_settings: Annotated[tuple[str, ...], _SPARK_SETTINGS] = ()
    jar_cache: Annotated[
        str,
        _says(
            "Folder for Spark's jars; empty means `~/.cache/dolake`, or `DOLAKE_CACHE`.",
            {**RESTART, "allowed": "empty, or a path"},
        ),
    ] = ""
    idle_ms: Annotated[int, _whole("Stop Spark when no change came for this long.", 1, MS_MAX)] = 30 * 60 * 1000
    batch_events_max: Annotated[int, _whole("Most changes in one publish.", 1, COUNT_MAX)] = 200_000
    batch_bytes_max: Annotated[int, _whole("Most journal bytes in one publish.", KIB, BYTES_MAX)] = 128 * MIB
    retry_delay_ms: Annotated[int, _whole("First wait after a publish failed; doubles each time.", 1, MS_MAX)] = 1_000
    retry_delay_max_ms: Annotated[int, _whole("Longest wait after a publish failed.", 1, MS_MAX)] = 30_000
    nice: Annotated[
        int, _whole("How far Spark stands back where cores are few, from 0 (not at all) to 19.", 0, 19, RESTART)
    ] = 5


class CatalogSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The Iceberg REST catalog."""

    location_roots: Annotated[tuple[str, ...], _LOCATION_ROOTS] = ()
    store: Annotated[str, _CATALOG_STORE] = "sqlite"
    store_schema: Annotated[str, _CATALOG_SCHEMA] = "dolake"
    plan_wait_ms: Annotated[
        int,
        _whole(
            "Longest that a scan's planning is waited for, before its client is told to ask again.", 0, MS_MAX, RESTART
        ),
    ] = 20_000
    plan_timeout_ms: Annotated[int, _whole("Longest that planning one scan takes.", 1, MS_MAX, RESTART)] = 120_000
    plan_tasks_max: Annotated[int, _whole("Most files in one answer of a planned scan.", 1, COUNT_MAX, RESTART)] = 1_000
    plan_memory_max_bytes: Annotated[
        int, _whole("Most memory for planned scans; one of them has at most half of it.", MIB, BYTES_MAX, RESTART)
    ] = 128 * MIB


class QuerySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The process that answers SQL, and what one query may take."""

    enabled: Annotated[bool, _says("Run the process that answers SQL.", RESTART)] = True
    timeout_ms: Annotated[int, _whole("Longest that a query runs which names no time of its own.", 1, MS_MAX)] = 60_000
    timeout_max_ms: Annotated[int, _whole("Longest time that a query may name.", 1, MS_MAX)] = 600_000
    memory_max_bytes: Annotated[
        int, _whole("Most memory of all queries; what does not fit goes to disk.", 64 * MIB, BYTES_MAX, RESTART)
    ] = GIB
    tail_max_bytes: Annotated[
        int, _whole("Most memory for changes that are not in the tables yet.", MIB, BYTES_MAX)
    ] = 512 * MIB
    spill_max_bytes: Annotated[int, _whole("Most disk for what does not fit into memory.", 0, BYTES_MAX, RESTART)] = (
        10 * GIB
    )
    threads: Annotated[int, _whole("Threads that work on queries; 0 means one per core.", 0, 1_024, RESTART)] = 0
    concurrency_max: Annotated[int, _whole("Most queries that run at a time; others wait.", 1, 1_000)] = 4
    queue_max: Annotated[
        int, _whole("Most queries that wait; at the bound there is `too_many_queries`.", 0, 100_000)
    ] = 64
    queue_wait_max_ms: Annotated[int, _whole("Longest that a query waits for its turn.", 0, MS_MAX)] = 10_000
    rows_max: Annotated[int, _whole("Most rows of an answer; one that is cut says so.", 1, COUNT_MAX)] = 1_000_000
    spark_enabled: Annotated[
        bool, _says("Let Spark answer large questions, in a process that comes with the first of them.")
    ] = True
    spark_scan_bytes: Annotated[
        int, _whole("Bytes of data files to read from which a question is large.", 0, BYTES_MAX)
    ] = 16 * GIB
    spark_memory_bytes: Annotated[
        int, _whole("Memory of that Spark's Java process.", 512 * MIB, BYTES_MAX, RESTART)
    ] = 2 * GIB
    spark_idle_ms: Annotated[
        int, _whole("Stop that Spark when no large question came for this long.", 1, MS_MAX, RESTART)
    ] = 600_000


class SubscriptionSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes that are told to those who subscribe."""

    subscribers_max: Annotated[int, _whole("Most subscribers at a time.", 0, 100_000)] = 10_000
    names_max: Annotated[int, _whole("Most named subscriptions.", 0, 100_000)] = 1_000
    interval_ms: Annotated[
        int, _whole("Least time between two rounds; what comes meanwhile goes into one batch.", 1, 60_000)
    ] = 50
    heartbeat_ms: Annotated[int, _whole("After so long without a batch a heartbeat is sent.", 10, MS_MAX)] = 15_000
    too_slow_after_ms: Annotated[
        int, _whole("Who takes nothing for so long, though something waits, is disconnected.", 10, MS_MAX)
    ] = 30_000
    buffer_max_bytes: Annotated[
        int, _whole("Bytes that wait for one subscriber before it is sent no more.", KIB, BYTES_MAX)
    ] = MIB
    batch_events_max: Annotated[int, _whole("Most changes in one batch.", 1, 1_000_000)] = 5_000
    batch_bytes_max: Annotated[int, _whole("Most bytes of one batch, unless one change has more.", KIB, GIB)] = MIB


DEFAULT_DOLAKE_CONFIG = DoLakeConfig()
DEFAULT_RATE_LIMIT_CONFIG = RateLimitConfig()
DEFAULT_COMPACTION_CONFIG = CompactionConfig()


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it: one section per part."""

    lake: DoLakeConfig = DEFAULT_DOLAKE_CONFIG
    rate_limit: RateLimitConfig = DEFAULT_RATE_LIMIT_CONFIG
    compaction: CompactionConfig = DEFAULT_COMPACTION_CONFIG
    server: ServerSettings = ServerSettings()
    journal: JournalSettings = JournalSettings()
    catalog: CatalogSettings = CatalogSettings()
    storage: StorageSettings = StorageSettings()
    pipeline: PipelineSettings = PipelineSettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()
    query: QuerySettings = QuerySettings()
    subscriptions: SubscriptionSettings = SubscriptionSettings()


@dataclass(frozen=True, slots=True)
class Order:
    """Two settings of which one bounds the other; every rule between settings has this form."""

    smaller: str
    larger: str
    relation: Literal["at most", "less than", "at most half of"] = "at most"

    def holds(self, small: int, large: int) -> bool:
        match self.relation:
            case "at most":
                return small <= large
            case "less than":
                return small < large
            case "at most half of":
                return small * 2 <= large

    def __str__(self) -> str:
        return f"{self.smaller} must be {self.relation} {self.larger}"


ORDERS = (
    Order("rate_limit.base_retry_delay_ms", "rate_limit.max_retry_delay_ms"),
    Order("rate_limit.max_event_size", "rate_limit.max_payload_size"),
    Order("rate_limit.max_payload_size", "server.message_size_max_bytes", "less than"),
    Order("compaction.min_files_to_compact", "compaction.max_files_to_compact"),
    Order("pipeline.retry_delay_ms", "pipeline.retry_delay_max_ms"),
    Order("query.timeout_ms", "query.timeout_max_ms"),
    Order("journal.group_size_max_bytes", "journal.segment_size_bytes"),
    Order("journal.segment_size_bytes", "journal.size_max_bytes", "at most half of"),
)
