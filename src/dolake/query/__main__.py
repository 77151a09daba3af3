"""The query process: `python -m dolake.query`, started by the server and never by hand.

From server/query_process.py, which says in the first line of stdin what there is to know (link.py has the words).
Promise: it ends when stdin does, whatever it is doing, so it never outlives its server; all it writes is its scratch.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

import psutil

from dolake.catalog.pyiceberg_files import StorageIO
from dolake.catalog.stores import open_store
from dolake.errors import DoLakeError
from dolake.pipeline.store import use
from dolake.query.answering import Parts
from dolake.query.engine import Engine
from dolake.query.guard import parse
from dolake.query.lake import LakeFiles, scratch_of
from dolake.query.link import Figures, Follow, LetGo, Ready, Report, Sections, Start, decode_word, to_line
from dolake.query.planning import Planner
from dolake.query.reader import LakeReader, open_reader
from dolake.query.rows_link import link_path
from dolake.query.rows_threads import serve_rows
from dolake.query.spark_engine import SparkEngine
from dolake.query.watch import Watch
from dolake.query.worker import Worker, listening
from dolake.settings.tables import lake_rules
from dolake.storage.duck import duck_store
from dolake.storage.local import path_of
from dolake.storage.opening import open_storage, place_of
from dolake.tables.tiers import Tiers
from dolake.telemetry import start_logging

logger = logging.getLogger("dolake.query")

_FIGURES_EVERY_S = 0.5
_MEMORY_STEP_BYTES = 4 * 1024 * 1024
_SWITCH_S = 0.0005
"""Python's own 5 ms would be most of a look-up's time whenever a statement or the tail is at work in another thread."""
_OOM_SCORE = 500
"""Where the machine itself runs out of memory, Linux is to end this process and not the server."""


def main() -> None:
    # Whatever prints must not get between the reports.
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the server, which lets us go
    start = decode_word(sys.stdin.buffer.readline())
    assert isinstance(start, Start), "the first word says how to start"
    start_logging(start.log_level, start.log_format)
    sys.setswitchinterval(_SWITCH_S)
    os.umask(0o077)  # neither the socket nor the scratch is for anybody else
    Path(start.socket).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE))
    worker = Worker(start.settings.query)
    try:
        worker.parts, reader = open_parts(Path(start.home).resolve(), start.settings, worker.watch)
        warm_up(worker.parts)
    except DoLakeError as error:
        logger.error("query process could not start", extra={"reason": str(error)})
        sys.exit(1)
    # What is imported stays. Python's collector would walk all of it every few seconds beside a stream, for 100 to 300
    # ms, and every look-up waits meanwhile.
    gc.collect()
    gc.freeze()
    reader.start()
    serve_rows(reader.lookup, link_path(Path(start.socket)))
    asyncio.run(_serve(worker, reader, start.socket, reports))


async def _serve(worker: Worker, reader: LakeReader, socket: str, reports: BinaryIO) -> None:
    loop = asyncio.get_running_loop()

    def follow(settings: Sections) -> None:
        worker.follow(settings.query)
        reader.tail.bytes_max = settings.query.tail_max_bytes
        reader.tail.use(lake_rules(settings.lake))
        reader.lookup.tail.bytes_max = settings.query.tail_max_bytes
        reader.lookup.rules = lake_rules(settings.lake)
        reader.transaction_wait_max_ms = settings.lake.transaction_wait_max_ms

    def listen() -> None:
        try:
            for line in sys.stdin.buffer:
                word = decode_word(line)
                if isinstance(word, LetGo):
                    reader.lookup.let_go()
                    continue
                assert isinstance(word, Follow)
                loop.call_soon_threadsafe(follow, word.settings)
        finally:
            os._exit(0)  # the server is gone, and whoever waits for an answer with it

    async with listening(worker, socket):
        threading.Thread(target=listen, name="words", daemon=True).start()
        _report(reports, Ready(round(1000 * (time.time() - psutil.Process().create_time()))))
        await _tell_figures(worker, reports)


def open_parts(home: Path, settings: Sections, watch: Watch) -> tuple[Parts, LakeReader]:
    """What answers are made with, on an empty scratch folder."""
    scratch = scratch_of(home)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    place = place_of(settings.lake, settings.storage, settings.catalog)
    storage = open_storage(home, settings.lake, place)
    use(place)  # rows that changes in the tail build on are read as the pipeline reads them
    files = LakeFiles(open_store(home, settings.catalog), storage)
    reader = open_reader(
        home,
        files,
        lake_rules(settings.lake),
        has_source_in_key=settings.lake.key_scope == "source",
        tail_max_bytes=settings.query.tail_max_bytes,
        wait_max_ms=settings.lake.transaction_wait_max_ms,
    )
    query = settings.query
    spark: SparkEngine | None = None
    if place.is_local:  # in a store Spark would need a way of its own to files that no catalog names
        spark = SparkEngine(scratch, settings.pipeline, query.spark_memory_bytes, query.spark_idle_ms)
    folders = _folders(home, settings, storage.tiers) if place.is_local else []
    store = duck_store(storage)
    watch.store_s = store.patience_s if store else 0.0
    engine = Engine(query, folders, scratch, watch, store)
    return Parts(reader, engine, Planner(StorageIO(storage), storage.tiers), spark), reader


def _folders(home: Path, settings: Sections, tiers: Tiers) -> list[Path]:
    """Where DuckDB may read."""
    roots = map(Path, settings.catalog.location_roots)
    return [path.resolve() for path in (home / settings.lake.r2_base_path, path_of(tiers.cold), *roots)]


def warm_up(parts: Parts) -> None:
    """What only the first question would pay for."""
    sql = parse("SELECT count(*) AS n FROM (SELECT 1 AS x) AS t WHERE x = 1").bind([])
    with parts.engine.start(sql) as running:
        for _ in running.batches():
            pass


async def _tell_figures(worker: Worker, reports: BinaryIO) -> None:
    """For as long as there is a server: what this process is doing, when that has changed."""
    last: Figures | None = None
    while True:
        memory_bytes = worker.watch.resident_bytes() // _MEMORY_STEP_BYTES * _MEMORY_STEP_BYTES
        figures = Figures(worker.slots.running, worker.slots.queued, memory_bytes)
        if figures != last:
            _report(reports, figures)
            last = figures
        worker.let_go()
        await asyncio.sleep(_FIGURES_EVERY_S)


def _report(reports: BinaryIO, report: Report) -> None:
    with contextlib.suppress(BrokenPipeError):  # stdin says the same, and that ends us
        reports.write(to_line(report))
        reports.flush()


if __name__ == "__main__":
    main()
