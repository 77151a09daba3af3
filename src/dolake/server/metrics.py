"""Every metric by name, read from the parts at the moment /metrics is asked.

docs/reference/metrics.md lists them; a tidy test compares.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from dolake.catalog.plans import Plans
from dolake.identity.grants import EVERYTHING, Grant
from dolake.receiver.freshness import SECONDS_BUCKETS as FRESHNESS_BUCKETS
from dolake.receiver.stats import ACK_BUCKETS_S
from dolake.server.auth import Doorkeeper
from dolake.server.lake import Lake
from dolake.server.quarantine import Quarantines, quarantines_of
from dolake.server.query_process import LOOKUP_BUCKETS, QUERY_STATES, SECONDS_BUCKETS, QueryStats
from dolake.server.sources import SOURCE_STATES, Sources
from dolake.server.spark_process import PIPELINE_STATES, PipelineStats
from dolake.server.upkeep import JobBoard
from dolake.subscriptions.endpoint import Subscriptions

_UPKEEP = {
    "files_before": "Files that compactions have read.",
    "files_after": "Files that they have written.",
    "bytes_before": "Bytes that compactions have read.",
    "bytes_after": "Bytes that they have written.",
    "rows_dropped": "Deleted rows that compactions have let go.",
    "snapshots_expired": "Snapshots that were let go.",
    "files_removed": "Files that nothing named any more.",
    "bytes_removed": "Their bytes.",
    "files_moved": "Files written by moves to another tier.",
    "bytes_moved": "Their bytes.",
}

_STATES = ("idle", "receiving", "flushing", "recovering", "error")
_BREAKER = ("closed", "open", "half-open")
_FOR_ALL = {
    "dolake_state",
    "dolake_ready",
    "dolake_degraded",
    "dolake_circuit_breaker",
    "dolake_committed_position",
    "dolake_journal_durable_position",
    "dolake_pipeline_state",
    "dolake_query_state",
}
"""Figures of the whole lake that say nothing of anybody's tables or traffic."""


def metrics_text(lake: Lake, grant: Grant = EVERYTHING) -> tuple[bytes, str]:
    """All of them; of a token of some namespaces, how the lake is and the figures of its own tables."""
    registry = CollectorRegistry()
    if grant.is_lake_wide:
        ProcessCollector(registry=registry)
        registry.register(_Figures(lake))
    else:
        registry.register(_Some(_Figures(lake), grant))
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Some(Collector):
    """What a token of some namespaces may see: a few figures of the lake, and what has a table of its own as label."""

    def __init__(self, figures: Collector, grant: Grant) -> None:
        self._figures, self._grant = figures, grant

    def collect(self) -> Iterator[Metric]:
        for family in self._figures.collect():
            family.samples = [each for each in family.samples if self._shows(family.name, each.labels)]
            if family.samples or family.name in _FOR_ALL:
                yield family

    def _shows(self, name: str, labels: dict[str, str]) -> bool:
        return self._grant.sees_table(labels["table"]) if "table" in labels else name in _FOR_ALL


class _Figures(Collector):
    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def collect(self) -> Iterator[Metric]:
        lake = self._lake
        yield _one_of("dolake_state", "What the server is doing.", "state", _STATES, lake.state)
        yield GaugeMetricFamily("dolake_ready", "1 when a batch sent now can be kept.", value=float(lake.is_ready))
        what = "1 while something other than keeping batches fails; /health says what."
        yield GaugeMetricFamily("dolake_degraded", what, value=float(bool(lake.problems())))
        what = "Segments of the journal read since the start, and how many there are."
        segments = GaugeMetricFamily("dolake_recovery_segments", what, labels=["of"])
        segments.add_metric(["done"], lake.recovery_done)
        segments.add_metric(["total"], lake.recovery_total)
        yield segments
        if lake.state == "recovering":
            return
        yield from self._door(lake.doorkeeper)
        yield from self._receiver()
        yield from self._journal()
        yield from self._publish()
        yield from self._quarantine(quarantines_of(lake))
        if lake.has_catalog:
            yield from self._plans(lake.catalog.plans)
            delegation = lake.catalog.delegation
            what = "What clients were given to reach files in a store: keys, signed requests, or neither."
            yield _by_label("dolake_store_access", what, "outcome", delegation.counts if delegation else {})
        yield from self._sources(lake.sources)
        if lake.pipeline:
            yield from self._pipeline(lake.pipeline.stats)
            yield from self._upkeep(lake.pipeline.jobs)
        if lake.query:
            yield from self._query(lake.query.stats)
        if lake.subscriptions:
            yield from self._subscriptions(lake.subscriptions)

    def _door(self, keeper: Doorkeeper) -> Iterator[Metric]:
        what = "Log-ins that failed: without a token, or with one that is not valid."
        yield _by_label("dolake_logins_failed", what, "reason", {"missing": 0, "invalid": 0} | keeper.login_counts)
        what = "Requests that were refused because their token does not allow them."
        yield CounterMetricFamily("dolake_requests_forbidden", what, value=keeper.forbidden_count)

    def _receiver(self) -> Iterator[Metric]:
        receiver, stats = self._lake.receiver, self._lake.receiver.stats
        yield GaugeMetricFamily("dolake_connections", "Open WebSocket connections.", value=receiver.connection_count)
        yield GaugeMetricFamily("dolake_sources", "Sources with a connection.", value=receiver.speakers.source_count)
        yield CounterMetricFamily("dolake_connections_opened", "Connections opened.", value=stats.connection_count)
        yield CounterMetricFamily("dolake_messages_received", "Messages received.", value=stats.message_count)
        yield CounterMetricFamily("dolake_received_bytes", "Bytes received in messages.", value=stats.byte_count)
        what = "Changes that were durable before and were sent again."
        yield CounterMetricFamily("dolake_duplicate_changes", what, value=stats.duplicate_change_count)
        yield _by_label("dolake_acks", "Acknowledgements sent.", "status", stats.ack_counts)
        yield _by_label("dolake_nacks", "Refusals sent.", "reason", stats.nack_counts)
        yield from self._limits()
        seconds = HistogramMetricFamily("dolake_ack_seconds", "From a batch's arrival to its acknowledgement.")
        seconds.add_metric([], _cumulative(ACK_BUCKETS_S, stats.ack_buckets), stats.ack_seconds)
        yield seconds

    def _limits(self) -> Iterator[Metric]:
        limiter, pressure = self._lake.limiter, self._lake.receiver.pressure
        what = "What the limits have refused."
        yield _by_label("dolake_limited", what, "what", limiter.refused_counts)
        what = "Open connections that limits hold for."
        yield GaugeMetricFamily("dolake_limited_connections", what, value=limiter.limited_connection_count)
        what = "Addresses whose rates are remembered."
        yield GaugeMetricFamily("dolake_limited_addresses", what, value=limiter.address_count)
        yield GaugeMetricFamily("dolake_load", "1 is as much as the server can do.", value=round(pressure.load, 3))
        yield GaugeMetricFamily("dolake_loop_lag_seconds", "How late work is begun.", value=pressure.lag_ms / 1000)

    def _journal(self) -> Iterator[Metric]:
        journal, stats = self._lake.journal, self._lake.journal.stats
        yield CounterMetricFamily("dolake_journal_batches", "Batches made durable.", value=stats.batch_count)
        yield CounterMetricFamily("dolake_journal_changes", "Changes made durable.", value=stats.change_count)
        yield CounterMetricFamily("dolake_journal_bytes", "Bytes made durable.", value=stats.byte_count)
        yield CounterMetricFamily("dolake_journal_syncs", "Calls of fdatasync.", value=stats.sync_count)
        yield CounterMetricFamily("dolake_journal_sync_seconds", "Time in fdatasync.", value=stats.sync_seconds)
        yield CounterMetricFamily("dolake_journal_refused_batches", "Batches not written.", value=stats.refused_count)
        yield GaugeMetricFamily("dolake_journal_used_bytes", "Bytes that hold records.", value=journal.used_bytes)
        yield GaugeMetricFamily("dolake_journal_size_max_bytes", "The limit.", value=journal.size_max_bytes)
        copied = self._lake.journal_copy.position if self._lake.journal_copy else 0
        yield GaugeMetricFamily("dolake_journal_copied_position", "Changes copied to the store.", value=copied)
        yield GaugeMetricFamily("dolake_journal_segments", "Segment files.", value=journal.segment_count)
        what = "Bytes received and not yet on disk."
        yield GaugeMetricFamily("dolake_journal_in_flight_bytes", what, value=journal.in_flight_bytes)
        yield GaugeMetricFamily("dolake_journal_durable_position", "Durable changes.", value=journal.durable)
        yield GaugeMetricFamily("dolake_journal_oldest_position", "First position kept.", value=journal.oldest)
        yield GaugeMetricFamily("dolake_streams", "Streams ever seen.", value=journal.stream_count)
        yield GaugeMetricFamily("dolake_tables", "Tables ever seen.", value=len(self._lake.receiver.tables))

    def _publish(self) -> Iterator[Metric]:
        progress, tail = self._lake.progress, self._lake.progress.tail
        yield GaugeMetricFamily("dolake_committed_position", "Changes in the Iceberg tables.", value=tail.committed)
        yield GaugeMetricFamily("dolake_unpublished_changes", "Durable, not yet committed.", value=tail.change_count)
        yield GaugeMetricFamily("dolake_unpublished_bytes", "Durable, not yet committed.", value=tail.byte_count)
        yield CounterMetricFamily("dolake_publishes", "Publishes done.", value=progress.flush_count)
        yield CounterMetricFamily("dolake_publish_failures", "Publishes failed.", value=progress.failure_count)
        yield _one_of("dolake_circuit_breaker", "Whether publishing works.", "state", _BREAKER, progress.breaker)
        for name, what, found in (
            ("dolake_visibility_seconds", "From durable to published, for each change.", progress.visibility),
            ("dolake_publish_duration_seconds", "How long publishes took.", progress.publish_times),
        ):
            times = HistogramMetricFamily(name, what)
            times.add_metric([], _cumulative(FRESHNESS_BUCKETS, found.counts), found.seconds)
            yield times
        lags = progress.tables.lags(self._lake.clock_ms())
        for unit, what in (("changes", "Changes"), ("bytes", "Bytes"), ("seconds", "Age of the oldest change")):
            family = GaugeMetricFamily(f"dolake_table_lag_{unit}", f"{what} not yet in the table.", labels=["table"])
            for table, lag in sorted(lags.items()):
                family.add_metric([table], getattr(lag, unit))
            yield family

    def _quarantine(self, quarantines: Quarantines) -> Iterator[Metric]:
        what = "Entries of quarantines that were sent again."
        yield _by_label("dolake_quarantine_replayed", what, "table", quarantines.replayed)
        what = "Entries of quarantines that were let go."
        yield _by_label("dolake_quarantine_dropped", what, "table", quarantines.dropped)

    def _pipeline(self, stats: PipelineStats) -> Iterator[Metric]:
        yield _one_of("dolake_pipeline_state", "What the pipeline is doing.", "state", PIPELINE_STATES, stats.state)
        yield GaugeMetricFamily("dolake_pipeline_generation", "Which pipeline may publish.", value=stats.generation)
        yield CounterMetricFamily("dolake_pipeline_starts", "Starts of the process.", value=stats.start_count)
        what = "Memory of the pipeline's processes, Spark's included, after the last publish."
        yield GaugeMetricFamily("dolake_pipeline_memory_bytes", what, value=stats.memory_bytes)
        yield CounterMetricFamily("dolake_publish_seconds", "Time spent in publishes.", value=stats.publish_seconds)
        yield CounterMetricFamily("dolake_written_rows", "Rows written to state tables.", value=stats.rows_written)
        yield CounterMetricFamily("dolake_written_files", "Files written.", value=stats.files_written)
        yield CounterMetricFamily("dolake_written_bytes", "Bytes of these files.", value=stats.bytes_written)
        what = "Changes that could not be written, and went to their table's quarantine."
        yield _by_label("dolake_quarantined_changes", what, "table", stats.quarantined_counts)
        what = "Changes of which a value did not fit its column."
        yield _by_label("dolake_rescued_changes", what, "table", stats.rescued_counts)
        rows = GaugeMetricFamily("dolake_key_index_rows", "Rows in the key index.", labels=["table"])
        sizes = GaugeMetricFamily("dolake_key_index_bytes", "Its size on disk.", labels=["table"])
        for name, table in sorted(stats.tables.items()):
            rows.add_metric([name], table.index_rows)
            sizes.add_metric([name], table.index_bytes)
        yield rows
        yield sizes

    def _upkeep(self, board: JobBoard) -> Iterator[Metric]:
        yield _by_label("dolake_upkeep_jobs", "Jobs of upkeep that have ended.", "state", board.ended_counts)
        for name, what in _UPKEEP.items():
            yield CounterMetricFamily(f"dolake_upkeep_{name}", what, value=board.totals[name])
        what = "Keys that were forgotten."
        yield CounterMetricFamily("dolake_upkeep_keys_forgotten", what, value=board.forgotten_count)
        what = "The longest that a publish waited for upkeep."
        yield GaugeMetricFamily("dolake_upkeep_waited_seconds_max", what, value=board.waited_max_ms / 1000)

    def _plans(self, plans: Plans) -> Iterator[Metric]:
        yield _by_label("dolake_scan_plans", "Scans planned, by how that ended.", "outcome", plans.outcome_counts)
        yield GaugeMetricFamily("dolake_scan_plans_kept", "Plans that are made or kept.", value=plans.kept_count)
        yield GaugeMetricFamily("dolake_scan_plans_kept_bytes", "Their memory.", value=plans.kept_bytes)

    def _query(self, stats: QueryStats) -> Iterator[Metric]:
        what = "What the query process is doing."
        yield _one_of("dolake_query_state", what, "state", QUERY_STATES, stats.state)
        yield CounterMetricFamily("dolake_query_process_starts", "Starts of the process.", value=stats.start_count)
        yield GaugeMetricFamily("dolake_query_running", "Queries at work.", value=stats.figures.running)
        yield GaugeMetricFamily("dolake_query_queued", "Queries that wait.", value=stats.figures.queued)
        what = "Memory of the query process."
        yield GaugeMetricFamily("dolake_query_memory_bytes", what, value=stats.figures.memory_bytes)
        yield _by_label("dolake_queries", "Questions by how they ended.", "outcome", stats.outcome_counts)
        seconds = HistogramMetricFamily("dolake_query_seconds", "From a question to the end of its answer.")
        seconds.add_metric([], _cumulative(SECONDS_BUCKETS, stats.seconds_counts), stats.seconds)
        yield seconds
        yield _by_label("dolake_lookups", "Look-ups by key by how they ended.", "outcome", stats.lookup_counts)
        seconds = HistogramMetricFamily("dolake_lookup_seconds", "From a look-up by key to its answer.")
        seconds.add_metric([], _cumulative(LOOKUP_BUCKETS, stats.lookup_seconds_counts), stats.lookup_seconds)
        yield seconds

    def _sources(self, sources: Sources) -> Iterator[Metric]:
        what = "What each source that the server runs is doing."
        states = GaugeMetricFamily("dolake_source_state", what, labels=["source", "state"])
        starts = CounterMetricFamily("dolake_source_starts", "Starts of its process.", labels=["source"])
        pending = GaugeMetricFamily("dolake_source_pending", "Changes that it has not brought.", labels=["source"])
        lag = GaugeMetricFamily("dolake_source_lag_seconds", "Age of the oldest of them.", labels=["source"])
        what = "Its tables whose copy is not complete."
        copying = GaugeMetricFamily("dolake_source_tables_copying", what, labels=["source"])
        for each in sources:
            for state in SOURCE_STATES:
                states.add_metric([each.name, state], float(each.state == state))
            starts.add_metric([each.name], each.child.start_count)
            pending.add_metric([each.name], each.pending)
            lag.add_metric([each.name], each.lag_ms / 1000)
            copying.add_metric([each.name], each.copying_count)
        yield from (states, starts, pending, lag, copying)

    def _subscriptions(self, subscriptions: Subscriptions) -> Iterator[Metric]:
        feeds, stats = subscriptions.feeds, subscriptions.feeds.stats
        yield GaugeMetricFamily("dolake_subscribers", "Subscribers connected.", value=len(feeds.subscribers))
        what = "Named subscriptions."
        yield GaugeMetricFamily("dolake_subscriptions_named", what, value=len(subscriptions.names))
        yield CounterMetricFamily("dolake_subscription_batches", "Batches sent.", value=stats.batch_count)
        yield CounterMetricFamily("dolake_subscription_events", "Events in them.", value=stats.event_count)
        yield CounterMetricFamily("dolake_subscription_bytes", "Their bytes.", value=stats.byte_count)
        yield CounterMetricFamily("dolake_subscription_rounds", "Rounds.", value=stats.round_count)
        yield CounterMetricFamily("dolake_subscription_round_seconds", "Time in them.", value=stats.round_seconds)
        what = "Subscriptions that the server has ended."
        yield _by_label("dolake_subscriptions_ended", what, "code", stats.ended_counts)


def _one_of(name: str, what: str, label: str, names: tuple[str, ...], current: str) -> Metric:
    family = GaugeMetricFamily(name, what, labels=[label])
    for each in names:
        family.add_metric([each], float(each == current))
    return family


def _by_label(name: str, what: str, label: str, counts: dict[str, int]) -> Metric:
    family = CounterMetricFamily(name, what, labels=[label])
    for key, count in sorted(counts.items()):
        family.add_metric([key], count)
    return family


def _cumulative(bounds: tuple[float, ...], counts: list[int]) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for bound, count in zip((*bounds, float("inf")), counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
    return buckets
