"""The templates, the shop's books and the meter that the benchmarks of the pipeline share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.meter import Meter
from benchmarks.shop import TABLES, Shop
from benchmarks.stream import KEY
from dolake.wire.messages import CDCBatchMessage, CDCEvent, validate_cdc_batch_message
from tools.raw_websocket import MASKED


def read_by_the_server(frame: bytearray) -> CDCBatchMessage:
    """Take the head and the mask off and check the batch as strictly as the receiver does."""
    text = bytes(frame).translate(MASKED)
    return validate_cdc_batch_message(text[text.index(b'{"type"') :])


def batches(shop: Shop, count: int) -> Iterator[CDCBatchMessage]:
    """What the server gets of this shop's first batches."""
    sequence = 1_000_000_000
    for number in range(1, count + 1):
        template, keys = shop.next()
        yield read_by_the_server(template.frame(number, sequence, keys))
        sequence += len(template)


def apply(rows: dict[str, dict[int, CDCEvent]], event: CDCEvent) -> None:
    """What a database with these changes has; a change that no database would send fails."""
    key, table = int(event.row_id), rows[event.table]
    for image in (event.before, event.after):
        assert image is None or image["id"] == key
        assert image is None or image["note"] == f"parcel {key}"
    assert (key in table) == (event.operation != "INSERT")
    if event.operation == "DELETE":
        del table[key]
    else:
        table[key] = event


@pytest.mark.parametrize("size", [100, 1_000])
def test_the_books_equal_a_database_that_applied_every_batch(size: int) -> None:
    shop = Shop("bench", batch_events=size)
    rows: dict[str, dict[int, CDCEvent]] = {table: {} for table in TABLES}
    sequence = 1_000_000_000
    for number, batch in enumerate(batches(shop, 40), 1):
        assert batch.sequence_number == number
        for event in batch.events:
            assert event.sequence == sequence
            apply(rows, event)
            sequence += 1
    for table in TABLES:
        assert len(rows[table]) == shop.living[table].count
        assert sum(rows[table]) == shop.living[table].key_sum
    assert sum(shop.changes.values()) == 40 * size
    assert KEY not in rows[TABLES[0]]


def test_seven_of_ten_changes_are_inserts_and_one_of_twenty_is_a_delete() -> None:
    shop = Shop("bench", batch_events=100)
    *_, last = batches(shop, 20)
    words = [event.operation for event in last.events]
    assert [words.count(word) for word in ("INSERT", "UPDATE", "DELETE")] == [70, 25, 5]
    assert all(len(event.after or event.before or {}) == 9 for event in last.events)


@contextmanager
def busy_tree() -> Iterator[subprocess.Popen[bytes]]:
    """A process that works for ever, below one that waits for its stdin to end."""
    work = f"subprocess.Popen([{sys.executable!r}, '-c', 'while True: pass'])"
    script = f"import subprocess, sys; child = {work}; sys.stdin.read(); child.kill(); child.wait()"
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)


def test_the_meter_counts_a_process_and_what_it_started() -> None:
    with busy_tree() as process:
        meter = Meter(process.pid)
        with meter.watching(every_s=0.02):
            while meter.cpu_s().get("pipeline", 0.0) < 0.1:  # what it knows no better name for
                assert meter.seconds < 30
        assert {"client", "server", "pipeline"} <= meter.memory_mb().keys()
        meter.restart()
        assert meter.cpu_s()["server"] == 0.0
