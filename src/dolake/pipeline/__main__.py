"""The pipeline process: `python -m dolake.pipeline`, started by the server and never by hand.

From server/spark_process.py, which writes orders to stdin and reads reports from stdout (link.py has the words).
Promise: it ends when stdin does, whatever it is doing, and Spark with it, so it never outlives its server.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO, NoReturn

from py4j.protocol import Py4JJavaError, Py4JNetworkError

from dolake.errors import DoLakeError, Unavailable
from dolake.pipeline.cut import Cut
from dolake.pipeline.link import (
    Cancel,
    Failed,
    Forget,
    Maintain,
    Order,
    Publish,
    Reached,
    Ready,
    Report,
    Start,
    decode_order,
    to_line,
)
from dolake.pipeline.maintenance import Asked, Upkeep
from dolake.pipeline.priority import stand_back
from dolake.pipeline.publish import Publisher, Replaced
from dolake.pipeline.retyping import Retyper
from dolake.pipeline.spark import start_spark
from dolake.pipeline.store import use
from dolake.storage.opening import place_of
from dolake.telemetry import start_logging

logger = logging.getLogger("dolake.pipeline")

EXIT_REPLACED = 3
_REASON_LENGTH_MAX = 500
_PRESSED_SHARE = 0.2
"""A publish with more than this share of the most that it may have: there is hardly time for anything else."""


class Link:
    """The two ends of the pipe to the server."""

    def __init__(self, orders: BinaryIO, reports: BinaryIO) -> None:
        self._orders, self._reports = orders, reports
        self._reporting = threading.Lock()
        self.inbox: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self.upkeep_inbox: queue.SimpleQueue[Asked | list[str]] = queue.SimpleQueue()
        self.cancelled: set[str] = set()

    def listen(self) -> None:
        """Read orders until the server is gone, and then end at once: whatever is half done is not visible."""
        try:
            for line in self._orders:
                self.take(decode_order(line))
        finally:
            os._exit(0)

    def take(self, order: Order) -> None:
        """Upkeep has a thread of its own, and waits for no publish."""
        match order:
            case Maintain() | Forget():
                self.upkeep_inbox.put(order)
            case Cancel():
                self.cancelled.add(order.job_id)
            case _:
                self.inbox.put(order)

    def report(self, word: Report) -> None:
        with self._reporting:
            self._reports.write(to_line(word))
            self._reports.flush()


def main() -> int:
    # Whatever prints, in Python or in Java, must not get between the reports.
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the server, which tells us
    link = Link(sys.stdin.buffer, reports)
    threading.Thread(target=link.listen, name="orders", daemon=True).start()
    start = link.inbox.get()
    assert isinstance(start, Start), "the first order says how to start"
    start_logging(start.log_level, start.log_format)
    stand_back(start.settings.pipeline.nice)
    scratch = Path(start.home, "spark")
    shutil.rmtree(scratch, ignore_errors=True)
    began = time.monotonic()
    try:
        place = place_of(start.settings.lake, start.settings.storage, start.settings.catalog)
        use(place)
        if place.settings.profile:
            os.environ["AWS_PROFILE"] = place.settings.profile  # for Java, which looks there
        spark = start_spark(start.settings.pipeline, scratch, has_store=not place.is_local)
        publisher = Publisher(spark, start)
        publisher.retype_at_once = Retyper(publisher).retype_at_once
        upkeep = Upkeep(publisher, start, link.upkeep_inbox, link.cancelled, link.report)
        upkeep.start()
        link.report(Ready(spark.version, round((time.monotonic() - began) * 1000)))
        while True:
            _obey(link, publisher, upkeep, _newest(link.inbox))
    except Replaced as error:
        logger.error("pipeline replaced", extra={"reason": error.message})
        return EXIT_REPLACED
    except DoLakeError as error:
        link.report(Failed(f"{error.message}; {error.hint}"))
        return 1


def _newest(inbox: queue.SimpleQueue[Order]) -> Publish:
    """The last order that waits: it covers those before it."""
    order = inbox.get()
    with contextlib.suppress(queue.Empty):
        while True:
            order = inbox.get_nowait()
    assert isinstance(order, Publish)
    return order


def _obey(link: Link, publisher: Publisher, upkeep: Upkeep, order: Publish) -> None:
    """Publish up to where the order says, in as many publishes as that takes."""
    publisher.follow(order.settings)
    upkeep.follow(order.settings)
    try:
        while publisher.position < order.to:
            result = publisher.publish_next(order.to)
            if isinstance(result, Cut):
                link.report(Reached(result.end, result.waiting_since_ms))
                return
            link.report(result)
            changes = sum(table.changes for table in result.tables)
            is_pressed = changes > _PRESSED_SHARE * order.settings.pipeline.batch_events_max
            upkeep.published([table.table for table in result.tables], is_pressed=is_pressed)
        link.report(Reached(publisher.position))
    except Replaced:
        raise
    except Py4JNetworkError as error:
        raise Unavailable(f"Spark's Java process is gone: {error}", hint="the server starts it again") from error
    except Exception as error:
        if not isinstance(error, DoLakeError | OSError | Py4JJavaError):
            logger.exception("publish stopped by a mistake of ours")
        link.report(Failed(_reason(error)))  # the server logs it


def _reason(error: Exception) -> str:
    """In one line; of an error in one of Spark's workers, what was raised there."""
    text = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(("\t", "  "))]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|NotFound|Unavailable)\b", line)]
    return (raised or lines or [type(error).__name__])[-1 if raised else 0][:_REASON_LENGTH_MAX]


def run() -> NoReturn:
    """Leave without Python's own end, which aborts while the thread of `listen` waits for stdin."""
    code = 1
    try:
        code = main()
    except BaseException:
        logger.exception("pipeline stopped by an error that it does not know")
    finally:
        os._exit(code)


if __name__ == "__main__":
    run()
