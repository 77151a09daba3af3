"""A small shop that lives in four SQLite files, and the process that sells in it while you watch.

For the demo. Any program could write to these files in its place: DoLake's triggers are in them, not in this code.
`python -m dolake.cli.demo_shop FOLDER RATE` sells until SIGTERM, about RATE changes a second.
"""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

TABLES = ("customers", "inventory", "orders", "events")
CUSTOMERS, ORDERS, EVENTS = 2_000, 10_000, 5_000
_SCHEMA = {
    "customers": "id INTEGER PRIMARY KEY, name TEXT NOT NULL, orders INTEGER NOT NULL, spent REAL NOT NULL",
    "inventory": "product_id TEXT PRIMARY KEY, product_name TEXT, quantity INTEGER, reorder_point INTEGER",
    "orders": "id INTEGER PRIMARY KEY, customer_id INTEGER, product_id TEXT, amount REAL, status TEXT,"
    " created_at DATETIME",
    "events": "id INTEGER PRIMARY KEY, user_id INTEGER, kind TEXT, order_id INTEGER, at_ms INTEGER, date DATE",
}
_NAMES = ("Ada", "Björn", "Chloé", "Dilip", "Emeka", "Fatima", "Grete", "Hana", "Iris", "João", "Kenji", "Lena")
_PRODUCTS = ("lamp", "chair", "desk", "shelf", "rug", "vase", "clock", "mirror", "stool", "bench", "frame", "pot")
_NEXT = {"new": "paid", "paid": "sent", "sent": "delivered"}
_TICK_S = 0.02
_BUSY_WAIT_S = 30.0
Row = tuple[Any, ...]


def file_of(folder: Path, table: str) -> Path:
    return folder / f"{table}.db"


def connect(folder: Path, table: str) -> sqlite3.Connection:
    """As any application would: WAL mode, so that readers and writers do not wait for each other."""
    opened = sqlite3.connect(file_of(folder, table), timeout=_BUSY_WAIT_S, isolation_level=None)
    opened.execute("PRAGMA journal_mode = WAL")
    opened.execute("PRAGMA synchronous = NORMAL")
    return opened


def open_shop(folder: Path) -> int:
    """Make the four files with what the shop had before anybody streamed it; returns how many rows that is."""
    dice = random.Random(7)  # noqa: S311 - a story, not a secret
    rows: dict[str, list[Row]] = {
        "customers": [(n, f"{dice.choice(_NAMES)} {n}", 0, 0.0) for n in range(1, CUSTOMERS + 1)],
        "inventory": [(f"p{n}", name, 1_000_000, 50) for n, name in enumerate(_PRODUCTS)],
        "orders": [_order(dice, n, "delivered") for n in range(1, ORDERS + 1)],
        "events": [_event(dice, n, "visit", None) for n in range(1, EVENTS + 1)],
    }
    for table in TABLES:
        with contextlib.closing(connect(folder, table)) as opened:
            opened.execute(f"CREATE TABLE {table} ({_SCHEMA[table]})")
            opened.execute("BEGIN")
            places = ", ".join("?" * len(rows[table][0]))
            opened.executemany(f"INSERT INTO {table} VALUES ({places})", rows[table])  # noqa: S608
            opened.execute("COMMIT")
    return sum(map(len, rows.values()))


def rows_of(folder: Path, table: str) -> list[Row]:
    """The truth: every row of a table, in the order of its key."""
    with contextlib.closing(connect(folder, table)) as opened:
        return opened.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()  # noqa: S608


class Seller:
    """Sells: new orders, orders that move on or are cancelled, stock that shrinks, customers who spend, events."""

    def __init__(self, folder: Path) -> None:
        self._dice = random.Random(11)  # noqa: S311
        self._files = {table: connect(folder, table) for table in TABLES}
        self._open: list[tuple[int, str]] = []
        """Orders that may still change, with their status."""
        self._next = {table: self._count(table) + 1 for table in ("orders", "events")}

    def close(self) -> None:
        for opened in self._files.values():
            opened.close()

    def sell(self, change_count: int) -> None:
        """About so many changes, in one transaction of each file."""
        orders = max(1, change_count // 5)
        work: dict[str, list[tuple[str, Row]]] = {table: [] for table in TABLES}
        for _ in range(orders):
            self._new_order(work)
            self._move_an_order(work)
        for table, statements in work.items():
            opened = self._files[table]
            opened.execute("BEGIN IMMEDIATE")
            for statement, row in statements:
                opened.execute(statement, row)
            opened.execute("COMMIT")

    def _new_order(self, work: dict[str, list[tuple[str, Row]]]) -> None:
        number = self._take("orders")
        row = _order(self._dice, number, "new")
        self._open.append((number, "new"))
        work["orders"].append(("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?)", row))
        _, customer, product, amount, *_ = row
        work["inventory"].append(("UPDATE inventory SET quantity = quantity - 1 WHERE product_id = ?", (product,)))
        spend = "UPDATE customers SET orders = orders + 1, spent = round(spent + ?, 2) WHERE id = ?"
        work["customers"].append((spend, (amount, customer)))
        event = _event(self._dice, self._take("events"), "order", number)
        work["events"].append(("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", event))

    def _move_an_order(self, work: dict[str, list[tuple[str, Row]]]) -> None:
        place = self._dice.randrange(len(self._open))
        number, status = self._open[place]
        after = _NEXT[status]
        if status == "new" and self._dice.random() < 0.1:
            work["orders"].append(("DELETE FROM orders WHERE id = ?", (number,)))
            after = "delivered"
        else:
            work["orders"].append(("UPDATE orders SET status = ? WHERE id = ?", (after, number)))
        if after == "delivered":  # it changes no more
            self._open[place] = self._open[-1]
            self._open.pop()
        else:
            self._open[place] = number, after

    def _take(self, table: str) -> int:
        self._next[table] += 1
        return self._next[table] - 1

    def _count(self, table: str) -> int:
        (highest,) = self._files[table].execute(f"SELECT max(id) FROM {table}").fetchone()  # noqa: S608
        return int(highest)


def _order(dice: random.Random, number: int, status: str) -> Row:
    product = f"p{dice.randrange(len(_PRODUCTS))}"
    amount = dice.randrange(500, 50_000) / 100
    return number, dice.randrange(1, CUSTOMERS + 1), product, amount, status, _now()


def _event(dice: random.Random, number: int, kind: str, order: int | None) -> Row:
    return number, dice.randrange(1, CUSTOMERS + 1), kind, order, time.time_ns() // 1_000_000, _now()[:10]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ticks(rate: int) -> Iterator[int]:
    """How many changes are due, tick by tick; what was missed is made up for only up to a second."""
    due_s, began_s = 0.0, time.monotonic()
    while True:
        now_s = time.monotonic() - began_s
        if now_s < due_s:
            time.sleep(due_s - now_s)
        due_s = max(due_s, now_s - 1.0) + _TICK_S
        yield max(5, round(rate * _TICK_S))


def main(folder: Path, rate: int) -> int:
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the demo, which stops us
    seller = Seller(folder)
    for count in ticks(rate):
        if stopping:
            break
        seller.sell(count)
    seller.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
