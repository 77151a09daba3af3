"""`dolake demo`: the product's main job in a minute, with a crash in the middle: changes become Iceberg tables."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from dolake.cli.child import ChildServer
from dolake.cli.shop import Shop
from dolake.client import LakeClient, connect
from dolake.errors import Damaged
from dolake.journal.reader import JournalReader
from dolake.tables.layout import CHANGES_SUFFIX, KEY
from dolake.wire.messages import decode_raw_batch

_CHANGES_FIRST = 2_000
_CHANGES_CRASH = 20_000
_SEND_AT_ONCE = 250
_KILL_AFTER = 5_000
_PUBLISH_WAIT_S = 300.0


def demo(
    once: Annotated[
        bool, typer.Option("--once", help="End by itself; so it does wherever output is not a terminal.")
    ] = False,
) -> None:
    """Start a server, stream a small shop's changes into it, kill it, and read the Iceberg tables that come of it."""
    console = Console(highlight=False)
    is_ending = once or not console.is_terminal
    with tempfile.TemporaryDirectory(prefix="dolake-demo-") as folder:
        server = ChildServer(Path(folder) / "home", has_pipeline=True)
        try:
            with server:
                asyncio.run(_show(console, server))
                if not is_ending:
                    _keep_serving(console, server)
                server.stop()
        except KeyboardInterrupt:
            console.print("stopped")
            sys.exit(0)


async def _show(console: Console, server: ChildServer) -> None:
    shop = Shop()
    console.rule("[bold]DoLake demo")
    console.print(f"A server is ready at {server.url}; its home is a temporary folder. Spark starts meanwhile.\n")
    async with connect(server.url, source="shop") as lake:
        await _stream(console, lake, shop)
        await _crash(console, server, lake, shop)
        _compare(console, server, shop)
        await _publish(console, lake)
        _read_tables(console, server, shop)


async def _stream(console: Console, lake: LakeClient, shop: Shop) -> None:
    console.print(f"[bold]1. Streaming.[/bold] {_CHANGES_FIRST:,} changes of a small shop, acknowledged when on disk:")
    shown = Table("changes", "sequences", "journal position", "durable after", box=None, padding=(0, 3, 0, 3))
    for part in range(_CHANGES_FIRST // _SEND_AT_ONCE):
        started = time.perf_counter()
        receipt = await lake.send(list(shop.changes(_SEND_AT_ONCE)))
        took_ms = 1000 * (time.perf_counter() - started)
        if part < 4:
            sequences = f"{receipt.sequence_first} to {receipt.sequence_last}"
            shown.add_row(str(receipt.change_count), sequences, f"{receipt.position:,}", f"{took_ms:.1f} ms")
    console.print(shown)
    console.print(f"   ... {lake.last_durable_sequence:,} changes are durable.\n")


async def _crash(console: Console, server: ChildServer, lake: LakeClient, shop: Shop) -> None:
    console.print(f"[bold]2. A crash.[/bold] {_CHANGES_CRASH:,} more, and kill -9 in the middle of them:")
    before = lake.last_durable_sequence
    columns = (TextColumn("   {task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("durable", total=_CHANGES_CRASH)

        def report() -> None:
            progress.update(bar, completed=lake.last_durable_sequence - before)

        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(lake.send(list(shop.changes(_CHANGES_CRASH))))
            await _until(lambda: lake.last_durable_sequence - before >= _KILL_AFTER or sending.done(), report)
            acked, process = lake.last_durable_sequence, server.pid
            await asyncio.to_thread(server.kill)
            console.print(f"   killed process {process} with {acked:,} changes acknowledged")
            started = time.perf_counter()
            await asyncio.to_thread(server.start)
            took_ms = 1000 * (time.perf_counter() - started)
            status = await lake.status()
            recovered = status["durablePosition"]
            console.print(
                f"   restarted in {took_ms:.0f} ms; the journal has {recovered:,}: nothing acknowledged is lost"
            )
            if recovered < acked:
                raise Damaged(f"the journal has {recovered} changes, {acked} were acknowledged")
            await _until(sending.done, report)
    console.print(
        f"   the client reconnected by itself and sent the rest: {lake.last_durable_sequence:,} are durable\n"
    )


async def _until(is_so: Callable[[], bool], report: Callable[[], None]) -> None:
    while not is_so():
        report()
        await asyncio.sleep(0.002)
    report()


def _compare(console: Console, server: ChildServer, shop: Shop) -> None:
    """Read the journal as another process would, apply every change, and compare with the shop's own books."""
    console.print("[bold]3. The books.[/bold] Every change read back from the journal, by another process:")
    found: dict[str, dict[str, object]] = {name: {} for name in shop.tables}
    counts: Counter[str] = Counter()
    sequences: list[int] = []
    with JournalReader(server.home / "journal") as reader:
        for record in reader.read():
            for event in decode_raw_batch(record.payload).events:
                counts[event.table] += 1
                sequences.append(event.sequence)
                if isinstance(event.after, msgspec.Raw):
                    found[event.table][event.row_id] = msgspec.json.decode(event.after)
                else:
                    found[event.table].pop(event.row_id, None)
    shown = Table("table", "changes", "rows in the shop", "rows from the journal", "", box=None, padding=(0, 3, 0, 3))
    for name, rows in shop.tables.items():
        is_same = rows == found[name]
        mark = "[green]same[/green]" if is_same else "[red]different[/red]"
        shown.add_row(name, f"{counts[name]:,}", f"{len(rows):,}", f"{len(found[name]):,}", mark)
    console.print(shown)
    is_once = sequences == list(range(1, shop.change_count + 1))
    answer = "yes" if is_once else "NO"
    console.print(f"   sent {shop.change_count:,}, kept {len(sequences):,}, each once and in order: {answer}\n")
    if not is_once or shop.tables != found:
        raise Damaged("the journal does not hold what the shop sent")


async def _publish(console: Console, lake: LakeClient) -> None:
    """Wait until Spark has written everything into the tables."""
    console.print("[bold]4. The tables.[/bold] Spark writes the journal into Iceberg tables:")
    columns = (TextColumn("   {task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("published", total=lake.last_durable_sequence)
        async with asyncio.timeout(_PUBLISH_WAIT_S):
            while True:
                status = await lake.status()
                progress.update(bar, completed=status["committedPosition"])
                last = status["pipeline"].get("lastPublish")
                if last and last["position"] >= status["durablePosition"]:
                    break
                await asyncio.sleep(0.1)
    console.print(f"   Spark {status['pipeline']['sparkVersion']} is up; the last publish took {last['tookMs']} ms\n")


def _read_tables(console: Console, server: ChildServer, shop: Shop) -> None:
    """Read the tables as any engine would: through the Iceberg REST catalog."""
    from pyiceberg.catalog import load_catalog  # takes half a second, which others need not wait for

    catalog = load_catalog("lake", type="rest", uri=server.url)
    shown = Table("table", "rows in the shop", "rows in Iceberg", "changes kept", "", box=None, padding=(0, 3, 0, 3))
    for name, rows in shop.tables.items():
        columns = tuple(next(iter(rows.values())))
        scan = catalog.load_table(f"default.{name}").scan(selected_fields=(KEY, *columns))
        found = {row.pop(KEY): row for row in scan.to_arrow().to_pylist()}
        changes = catalog.load_table(f"default.{name}{CHANGES_SUFFIX}").scan().to_arrow().num_rows
        is_same = found == rows
        mark = "[green]same[/green]" if is_same else "[red]different[/red]"
        shown.add_row(f"default.{name}", f"{len(rows):,}", f"{len(found):,}", f"{changes:,}", mark)
        if not is_same:
            console.print(shown)
            raise Damaged(f"the table {name} is not what the shop has")
    console.print(shown)
    console.print(f"   read by PyIceberg from {server.url}; DuckDB, Spark and Trino read the same\n")


def _keep_serving(console: Console, server: ChildServer) -> None:
    console.print(f"The server goes on at [bold]{server.url}[/bold] until Ctrl-C. Try, in another terminal:\n")
    console.print(f"   curl {server.url}/status")
    console.print(f"   dolake journal dump --home {server.home} --events --follow\n")
    server.wait_exit()
