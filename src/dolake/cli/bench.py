"""`dolake bench`: measure this machine; results are JSON with the machine's name.

The measurements live in benchmarks/ of the repository, one file for each thing that is measured.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dolake.errors import NotFound

app = typer.Typer(help="Measure DoLake on this machine.", no_args_is_help=True)
_ROOT = Path(__file__).parents[3]


@app.callback()
def options() -> None:
    """Measure DoLake on this machine."""


@app.command("ingest")
def ingest(
    seconds: Annotated[float, typer.Option(help="Length of each of the two phases.")] = 20,
    connections: Annotated[int, typer.Option(help="Connections that send at the same time.")] = 4,
    window: Annotated[int, typer.Option(help="Un-acknowledged batches per connection.")] = 4,
    batch_events: Annotated[int, typer.Option(help="Events per batch.")] = 500,
    rate: Annotated[float | None, typer.Option(help="Events/s of the latency phase; 20,000 otherwise.")] = None,
    encoding: Annotated[
        str, typer.Option(help="Some of json,msgpack,msgpack-maps; the first is the measure.")
    ] = "json",
    compress: Annotated[bool, typer.Option("--compress", help="Each of them compressed, too.")] = False,
    tls: Annotated[bool, typer.Option("--tls", help="Each of them over TLS, too.")] = False,
    door: Annotated[bool, typer.Option("--door", help="Each of them with limits and tokens, too.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the JSON here, too.")] = None,
    home: Annotated[Path | None, typer.Option(help="A folder on the disk to measure.")] = None,
) -> None:
    """Durable events per second, their cost, and how long an acknowledgement takes."""
    report = _benchmark("ingest").run_ingest_bench(
        seconds=seconds,
        connections=connections,
        window=window,
        batch_events=batch_events,
        rate_events_s=rate,
        encoding=encoding,
        compress=compress,
        tls=tls,
        door=door,
        out=out,
        home=home,
    )
    _show(report)


@app.command("idle")
def idle(
    connections: Annotated[int, typer.Option(help="Connections that say nothing but heartbeats.")] = 10_000,
    heartbeat: Annotated[float, typer.Option(help="Seconds between two heartbeats of a connection.")] = 30,
    seconds: Annotated[float, typer.Option(help="How long each of the two parts is watched.")] = 30,
    spark: Annotated[bool, typer.Option(help="With a pipeline that has gone to sleep.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write the JSON here, too.")] = None,
    home: Annotated[Path | None, typer.Option(help="A folder on the disk to measure.")] = None,
) -> None:
    """What idle connections and an idle lake cost, in memory and CPU; with its floors."""
    benchmark = _benchmark("idle")
    load = benchmark.Load(connections=connections, heartbeat_s=heartbeat, seconds=seconds, has_spark=spark)
    _show_floors(benchmark.run_idle_bench(load, out=out, home=home))


@app.command("catalog")
def catalog(
    out: Annotated[Path | None, typer.Option(help="Write the JSON here, too.")] = None,
    home: Annotated[Path | None, typer.Option(help="A folder on the disk to measure.")] = None,
) -> None:
    """Commits, loads and lists of the Iceberg catalog, beside PyIceberg's SqlCatalog; each with its floor."""
    _show_floors(_benchmark("catalog").run_catalog_bench(out=out, home=home))


@app.command("peers")
def peers(
    events: Annotated[int, typer.Option(help="Rows to insert.")] = 1_000_000,
    batches: Annotated[int, typer.Option(help="Batches of 1,000 updates and 50 deletes after that.")] = 100,
    only: Annotated[str, typer.Option(help="Some of dolake,spark,pyiceberg,ducklake; all of them otherwise.")] = "",
    peer_seconds: Annotated[float, typer.Option(help="How long PyIceberg may take for the batches.")] = 120,
    out: Annotated[Path | None, typer.Option(help="Write the JSON here, too.")] = None,
    home: Annotated[Path | None, typer.Option(help="A folder on the disk to measure.")] = None,
) -> None:
    """Inserts, and batches that must be visible one by one, beside Spark, PyIceberg and DuckLake; what each costs."""
    names = [name.strip() for name in only.split(",") if name.strip()]
    report = _benchmark("peers").run_peers_bench(
        events=events, batches=batches, only=names, peer_seconds=peer_seconds, out=out, home=home
    )
    _show_peers(report)


@app.command("upsert")
def upsert(
    rows: Annotated[list[int] | None, typer.Option(help="A table of this many rows; give it again for more.")] = None,
    updates: Annotated[int, typer.Option(help="Updates in a round, at random.")] = 10_000,
    rounds: Annotated[int, typer.Option(help="Rounds that count, after two that do not.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Write the JSON here, too.")] = None,
    home: Annotated[Path | None, typer.Option(help="A folder on the disk to measure.")] = None,
) -> None:
    """Random updates of large tables, beside Spark's MERGE INTO on the same data; each with its floor."""
    benchmark = _benchmark("upsert")
    load = benchmark.Load(rows=tuple(rows or benchmark.Load().rows), updates=updates, rounds=rounds)
    _show_floors(benchmark.run_upsert_bench(load, out=out, home=home))


@app.command("pipeline")
def pipeline(
    seconds: Annotated[float, typer.Option(help="How long to send, after a warm-up.")] = 180,
    warm_up: Annotated[float, typer.Option(help="Seconds of sending that do not count.")] = 30,
    lag: Annotated[int, typer.Option(help="Most events sent and not yet published.")] = 200_000,
    out: Annotated[Path | None, typer.Option(help="Write the JSON here, too.")] = None,
    home: Annotated[Path | None, typer.Option(help="A folder on the disk to measure.")] = None,
) -> None:
    """Events per second from a client to published tables, their cost and the memory; each with its floor."""
    benchmark = _benchmark("pipeline")
    load = benchmark.Load(seconds=seconds, warm_up_s=warm_up, lag_max_events=lag)
    _show_floors(benchmark.run_pipeline_bench(load, out=out, home=home))


@app.command("freshness")
def freshness(
    seconds: Annotated[float, typer.Option(help="How long to send, after a warm-up.")] = 60,
    rate: Annotated[int, typer.Option(help="Events per second.")] = 5_000,
    out: Annotated[Path | None, typer.Option(help="Write the JSON here, too.")] = None,
    home: Annotated[Path | None, typer.Option(help="A folder on the disk to measure.")] = None,
) -> None:
    """How long after its acknowledgement DuckDB sees a change; with its floors."""
    benchmark = _benchmark("freshness")
    load = benchmark.Load(seconds=seconds, rate_events_s=rate)
    _show_floors(benchmark.run_freshness_bench(load, out=out, home=home))


@app.command("cloud")
def cloud(
    seconds: Annotated[float, typer.Option(help="How long to send in each half, after a warm-up.")] = 60,
    rate: Annotated[int, typer.Option(help="Events per second.")] = 2_000,
    delay_ms: Annotated[int, typer.Option(help="How far away the store is.")] = 20,
    out: Annotated[Path | None, typer.Option(help="Write the JSON here, too.")] = None,
    home: Annotated[Path | None, typer.Option(help="A folder on the disk to measure.")] = None,
) -> None:
    """Freshness, throughput and requests of a lake in a store that is far away, beside one on a folder; with floors."""
    benchmark = _benchmark("cloud")
    load = benchmark.Load(seconds=seconds, rate_events_s=rate, delay_ms=delay_ms)
    _show_floors(benchmark.run_cloud_bench(load, out=out, home=home))


@app.command("breadth")
def breadth(
    seconds: Annotated[float, typer.Option(help="How long to send, after a warm-up.")] = 45,
    columns: Annotated[int, typer.Option(help="Columns of the wide table.")] = 300,
    tables: Annotated[int, typer.Option(help="Tables that get ten changes a second each.")] = 200,
    out: Annotated[Path | None, typer.Option(help="Write the JSON here, too.")] = None,
    home: Annotated[Path | None, typer.Option(help="A folder on the disk to measure.")] = None,
) -> None:
    """How soon changes are published when a table is wide, or tables are many; with its floors."""
    benchmark = _benchmark("breadth")
    load = benchmark.Load(seconds=seconds, columns=columns, tables=tables)
    _show_floors(benchmark.run_breadth_bench(load, out=out, home=home))


@app.command("hotkeys")
def hotkeys(
    seconds: Annotated[float, typer.Option(help="How long to send with maintenance, after a warm-up.")] = 600,
    compare_seconds: Annotated[float, typer.Option(help="The same without maintenance; 0 leaves it out.")] = 180,
    keys: Annotated[int, typer.Option(help="Rows that are updated, all of them in each batch.")] = 100,
    rate: Annotated[int, typer.Option(help="Updates per second, of all keys together.")] = 1_000,
    check_every: Annotated[float, typer.Option(help="Seconds between two checks.")] = 30,
    spark: Annotated[bool, typer.Option("--spark", help="Let Spark read the tables, too.")] = False,
    snapshots_max: Annotated[int, typer.Option(help="Snapshots that a table keeps.")] = 1_000,
    out: Annotated[Path | None, typer.Option(help="Write the JSON here, too.")] = None,
    home: Annotated[Path | None, typer.Option(help="A folder on the disk to measure.")] = None,
) -> None:
    """A few rows updated all the time, with maintenance and without: files, memory, read times, freshness."""
    benchmark = _benchmark("hotkeys")
    load = benchmark.Load(
        seconds=seconds,
        compare_seconds=compare_seconds,
        keys=keys,
        rate_events_s=rate,
        check_every_s=check_every,
        has_spark=spark,
        snapshots_max=snapshots_max,
    )
    _show_floors(benchmark.run_hotkeys_bench(load, out=out, home=home))


@app.command("soak")
def soak(
    seconds: Annotated[float, typer.Option(help="How long to send, after a warm-up.")] = 1_800,
    rate: Annotated[int, typer.Option(help="Events per second, over five tables.")] = 5_000,
    check_every: Annotated[float, typer.Option(help="Seconds between two checks.")] = 60,
    spark: Annotated[bool, typer.Option("--spark", help="Let Spark read the tables, too.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw files, metadata and memory over time here, as SVG.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the JSON here, too.")] = None,
    home: Annotated[Path | None, typer.Option(help="A folder on the disk to measure.")] = None,
) -> None:
    """Mixed changes for half an hour with all maintenance at work: files, memory, read times, and `dolake verify`."""
    benchmark = _benchmark("soak")
    load = benchmark.Load(seconds=seconds, rate_events_s=rate, check_every_s=check_every, has_spark=spark)
    _show_floors(benchmark.run_soak_bench(load, out=out, plot=plot, home=home))


@app.command("compact")
def compact(
    files: Annotated[int, typer.Option(help="Small files that the table has.")] = 1_000,
    rows_per_file: Annotated[int, typer.Option(help="Rows of each, of which a fifth is deleted.")] = 2_000,
    rate: Annotated[int, typer.Option(help="Updates per second meanwhile.")] = 2_000,
    tries: Annotated[int, typer.Option(help="How often Spark may try while updates go on.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Write the JSON here, too.")] = None,
    home: Annotated[Path | None, typer.Option(help="A folder on the disk to measure.")] = None,
) -> None:
    """Compaction while updates go on, beside Spark's own rewrite_data_files on the same rows."""
    benchmark = _benchmark("compact")
    load = benchmark.Load(files=files, rows_per_file=rows_per_file, rate_events_s=rate, tries=tries)
    _show_floors(benchmark.run_compact_bench(load, out=out, home=home))


@app.command("publishes")
def publishes(
    count: Annotated[int, typer.Option(help="Publishes of one table, one after the other.")] = 3_600,
    out: Annotated[Path | None, typer.Option(help="Write the JSON here, too.")] = None,
    home: Annotated[Path | None, typer.Option(help="A folder on the disk to measure.")] = None,
) -> None:
    """A table's metadata and the time to load it after thousands of publishes."""
    benchmark = _benchmark("publishes")
    _show_floors(benchmark.run_publishes_bench(benchmark.Load(count=count), out=out, home=home))


@app.command("query")
def query(
    rows: Annotated[int, typer.Option(help="Rows of the table, of which 1 % are updated.")] = 10_000_000,
    unflushed: Annotated[int, typer.Option(help="Changes that are not published in the second part.")] = 10_000,
    repeats: Annotated[int, typer.Option(help="How often each query runs; the median counts.")] = 15,
    keys: Annotated[int, typer.Option(help="Rows of the table whose past is asked for.")] = 1_000_000,
    changes: Annotated[int, typer.Option(help="Changes of these rows; 0 leaves the past out.")] = 10_000_000,
    out: Annotated[Path | None, typer.Option(help="Write the JSON here, too.")] = None,
    home: Annotated[Path | None, typer.Option(help="A folder on the disk to measure.")] = None,
) -> None:
    """Our SQL beside DuckDB on the same table, with un-flushed changes, and about the past; each with its floor."""
    benchmark = _benchmark("query")
    load = benchmark.Load(rows=rows, unflushed=unflushed, repeats=repeats, keys=keys, changes=changes)
    _show_floors(benchmark.run_query_bench(load, out=out, home=home))


@app.command("lookup")
def lookup(
    rows: Annotated[int, typer.Option(help="Rows of the table.")] = 5_000_000,
    seconds: Annotated[float, typer.Option(help="How long to look up while changes come.")] = 30,
    rate: Annotated[int, typer.Option(help="Changes per second.")] = 20_000,
    out: Annotated[Path | None, typer.Option(help="Write the JSON here, too.")] = None,
    home: Annotated[Path | None, typer.Option(help="A folder on the disk to measure.")] = None,
) -> None:
    """Rows by their keys, quiet and beside a stream, and the same by SQL; each with its floor."""
    benchmark = _benchmark("lookup")
    load = benchmark.Load(rows=rows, seconds=seconds, rate_events_s=rate)
    _show_floors(benchmark.run_lookup_bench(load, out=out, home=home))


@app.command("live")
def live(
    seconds: Annotated[float, typer.Option(help="How long to send at that rate, after a warm-up.")] = 30,
    rate: Annotated[int, typer.Option(help="Events per second, over three tables.")] = 20_000,
    tiny_batches: Annotated[int, typer.Option(help="Batches of 10 rows, beside DuckLake; 0 leaves them out.")] = 1_000,
    rounds: Annotated[int, typer.Option(help="How often these are sent; the median counts.")] = 3,
    rows: Annotated[int, typer.Option(help="Rows of the table that batches change; 0 leaves them out.")] = 1_000_000,
    batches: Annotated[int, typer.Option(help="Batches of 1,000 updates and 50 deletes, beside DuckLake.")] = 100,
    out: Annotated[Path | None, typer.Option(help="Write the JSON here, too.")] = None,
    home: Annotated[Path | None, typer.Option(help="A folder on the disk to measure.")] = None,
) -> None:
    """How soon after its acknowledgement our SQL shows a change, under load and beside DuckLake; with its floors."""
    benchmark = _benchmark("live")
    load = benchmark.Load(
        seconds=seconds, rate_events_s=rate, tiny_batches=tiny_batches, rounds=rounds, rows=rows, batches=batches
    )
    _show_floors(benchmark.run_live_bench(load, out=out, home=home))


@app.command("subscribe")
def subscribe(
    subscribers: Annotated[int, typer.Option(help="Subscribers; one of ten has a condition of its own.")] = 1_000,
    tables: Annotated[int, typer.Option(help="Tables; each subscriber wants one.")] = 10,
    rate: Annotated[int, typer.Option(help="Changes per second, over all tables.")] = 5_000,
    seconds: Annotated[float, typer.Option(help="How long to send at that rate, after a warm-up.")] = 30,
    pipeline: Annotated[bool, typer.Option(help="With Spark, which publishes meanwhile.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write the JSON here, too.")] = None,
    home: Annotated[Path | None, typer.Option(help="A folder on the disk to measure.")] = None,
) -> None:
    """Whether a thousand subscribers get exactly their changes, and how soon; also beside one that reads nothing."""
    benchmark = _benchmark("subscribe")
    load = benchmark.Load(
        subscribers=subscribers, tables=tables, rate_events_s=rate, seconds=seconds, has_pipeline=pipeline
    )
    _show_floors(benchmark.run_subscribe_bench(load, out=out, home=home))


@app.command("sqlite-source")
def sqlite_source(
    transactions: Annotated[int, typer.Option(help="Single-row transactions of each kind.")] = 20_000,
    backlog: Annotated[int, typer.Option(help="Changes that wait when the source starts.")] = 400_000,
    seconds: Annotated[float, typer.Option(help="How long to write at a rate.")] = 20,
    rate: Annotated[int, typer.Option(help="Row changes per second of it.")] = 20_000,
    pipeline: Annotated[bool, typer.Option("--pipeline", help="With Spark publishing beside it.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the JSON here, too.")] = None,
    home: Annotated[Path | None, typer.Option(help="A folder on the disk to measure.")] = None,
) -> None:
    """Row changes a second from a SQLite commit to a durable ack, and what that costs the writer; with its floors."""
    benchmark = _benchmark("sqlite_source")
    load = benchmark.Load(
        transactions=transactions, backlog=backlog, seconds=seconds, rate_changes_s=rate, has_pipeline=pipeline
    )
    _show_floors(benchmark.run_sqlite_source_bench(load, out=out, home=home))


@app.command("sqlite-writers")
def sqlite_writers(
    transactions: Annotated[int, typer.Option(help="Of each kind of writers.")] = 10_000,
    rounds: Annotated[int, typer.Option(help="In how many turns.")] = 5,
    pauses: Annotated[int, typer.Option(help="Transactions that pause before they write.")] = 10,
    bulk_rows: Annotated[int, typer.Option(help="Rows that one statement updates.")] = 200_000,
    out: Annotated[Path | None, typer.Option(help="Write the JSON here, too.")] = None,
    home: Annotated[Path | None, typer.Option(help="A folder on the disk to measure.")] = None,
) -> None:
    """Transactions of an application that fail while its SQLite file is followed; with their floors."""
    benchmark = _benchmark("sqlite_writers")
    load = benchmark.Load(transactions=transactions, rounds=rounds, pauses=pauses, bulk_rows=bulk_rows)
    _show_floors(benchmark.run_sqlite_writers_bench(load, out=out, home=home))


@app.command("flood")
def flood(
    seconds: Annotated[float, typer.Option(help="How long each kind of flood lasts.")] = 10,
    hostile: Annotated[int, typer.Option(help="Connections that send as fast as they can.")] = 20,
    out: Annotated[Path | None, typer.Option(help="Write the JSON here, too.")] = None,
    home: Annotated[Path | None, typer.Option(help="A folder on the disk to measure.")] = None,
) -> None:
    """Acks of a well-behaved client, and SQL, while others flood the server; with its floors."""
    benchmark = _benchmark("flood")
    _show_floors(benchmark.run_flood_bench(benchmark.Load(seconds=seconds, hostile=hostile), out=out, home=home))


def _benchmark(name: str) -> Any:
    if not (_ROOT / "benchmarks").is_dir():
        raise NotFound("the benchmarks are not installed", hint="they live in the repository: run this from a clone")
    sys.path.insert(0, str(_ROOT))
    return importlib.import_module(f"benchmarks.{name}")


def _show_floors(report: dict[str, Any]) -> None:
    """On a terminal what was promised and what was measured; the JSON has the rest."""
    console = Console(highlight=False)
    if not console.is_terminal:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
        return
    title = f"{report['benchmark']} on {report['machine']['name']}"
    if "commits" in report:
        commits = Table("snapshots", "p50 ms", "p99 ms", "SqlCatalog p50 ms", "times faster")
        for row in report["commits"]:
            keys = ("snapshots", "p50_ms", "p99_ms", "sqlcatalog_p50_ms", "times_faster")
            commits.add_row(*(f"{row[key]:,}" for key in keys))
        console.print(commits)
    floors = Table("", "measured", "promised", "", title=title)
    for floor in report["floors"]:
        promised = f"at least {floor['at_least']:,}" if "at_least" in floor else f"at most {floor['at_most']:,}"
        floors.add_row(floor["name"], f"{floor['measured']:,}", promised, "met" if floor["met"] else "missed")
    console.print(floors)


def _show_peers(report: dict[str, Any]) -> None:
    """On a terminal a row for each system, with ~ where a figure is an estimate; the JSON has the rest."""
    console = Console(highlight=False)
    if not console.is_terminal:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
        return
    shown = Table(
        "",
        "inserts: wall / CPU s",
        "batches: wall / CPU s",
        "visible p50 / p95 s",
        "files, MB",
        "right",
        title=f"peers on {report['machine']['name']}",
    )
    for name, system in report["systems"].items():
        inserts, changes = system["inserts"], system["changes"]
        about = "~" if changes["is_estimate"] else ""
        shown.add_row(
            name,
            f"{inserts['wall_s']:,} / {inserts['cpu_s']:,}",
            f"{about}{changes['wall_s']:,} / {about}{changes['cpu_s']:,}",
            f"{changes['visible_p50_s']} / {changes['visible_p95_s']}",
            f"{changes['files']:,}, {changes['mb']:,}",
            "yes" if inserts["right"] and changes["right"] else "no",
        )
    console.print(shown)
    for floor in report["floors"]:
        verdict = "met" if floor["met"] else "missed"
        console.print(f"{floor['name']}: {floor['measured']:,}, promised at most {floor['at_most']:,}: {verdict}")


def _show(report: dict[str, Any]) -> None:
    """A table for eyes on a terminal, JSON for everything else."""
    console = Console(highlight=False)
    if not console.is_terminal:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
        return
    report = {**report, **report.get("variants", {})}
    phases = [
        name for name, value in report.items() if isinstance(value, dict) and "seconds" in value and "events" in value
    ]
    shown = Table("", *phases, title=f"{report['benchmark']} on {report['machine']['name']}")
    for key in report[phases[0]]:
        shown.add_row(key, *(str(report[phase].get(key, "")) for phase in phases))
    console.print(shown)
