"""The parts of the demo that need no lake: the shop, its clock, and what a reading looks like."""

from __future__ import annotations

import io
import itertools
from collections import deque
from pathlib import Path

from rich.console import Console

from dolake.cli.demo_shop import ORDERS, TABLES, Seller, open_shop, rows_of, ticks
from dolake.cli.demo_view import Reading, View, line_of, sparkline

READING = Reading(elapsed_s=12.2, durable=41_210, rate=3_012.4, lag_ms=35.4, in_sql_ms=120.1, in_tables_s=1.94)


def test_the_shop_sells_about_as_much_as_it_was_told(tmp_path: Path) -> None:
    assert open_shop(tmp_path) == sum(len(rows_of(tmp_path, table)) for table in TABLES)
    seller = Seller(tmp_path)
    for _ in range(20):
        seller.sell(100)
    counts = {table: opened.total_changes for table, opened in seller._files.items()}
    seller.close()
    assert sum(counts.values()) == 20 * 100
    orders = rows_of(tmp_path, "orders")
    assert len(orders) > ORDERS
    assert {row[4] for row in orders} >= {"new", "paid", "delivered"}
    sold = sum(1_000_000 - row[2] for row in rows_of(tmp_path, "inventory"))
    assert sold == sum(row[2] for row in rows_of(tmp_path, "customers")) == 20 * 20


def test_ticks_come_at_the_rate() -> None:
    assert list(itertools.islice(ticks(5_000), 3)) == [100, 100, 100]
    assert next(ticks(10)) == 5


def test_a_reading_is_a_plain_line_where_there_is_no_terminal() -> None:
    written = io.StringIO()
    view = View(Console(file=written, width=130, highlight=False))
    with view.watching():
        view.take(READING)
        view.take(READING)  # the same two seconds
    assert written.getvalue() == f"   {line_of(READING)}\n"
    assert line_of(READING) == (
        "  12 s    41,210 durable   3,012/s   lag 35 ms   newest in SQL 120 ms old   tables 1.9 s behind"
    )


def test_a_reading_is_a_picture_on_a_terminal() -> None:
    written = io.StringIO()
    view = View(Console(file=written, width=130, force_terminal=True, highlight=False))
    with view.watching():
        view.take(READING)
    assert "changes a second become durable" in written.getvalue()


def test_bars_are_as_high_as_the_values() -> None:
    assert sparkline(deque([0.0, 4.0, 8.0])) == " ▄█"
    assert sparkline(deque([0.0])) == " "
