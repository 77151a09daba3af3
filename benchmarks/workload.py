"""What every system of peers.py gets to do: one table of orders, inserted once, then changed batch by batch.

To peers.py and ducklake.py, which have it written to a folder, and to contenders.py, which reads it there; ducklake.py
also takes tiny batches of new rows, and the questions about them. Promise: the same sizes give the same rows on every
machine, and `expected` says what a right table adds up to after the inserts and each batch. Amounts are quarters, so
that sums of doubles are exact in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = 12
UPDATES, DELETES = 1_000, 50
AGGREGATES = (
    "SELECT count(*) FROM {table}",
    "SELECT sum(amount) FROM {table}",
    "SELECT avg(qty) FROM {table}",
    "SELECT min(created), max(updated) FROM {table}",
    "SELECT region, count(*) FROM {table} GROUP BY region",
    "SELECT status, sum(amount) FROM {table} GROUP BY status",
    "SELECT count(DISTINCT customer) FROM {table}",
    "SELECT sum(qty) FROM {table} WHERE region = 'eu-west'",
    "SELECT sku, sum(amount) AS s FROM {table} GROUP BY sku ORDER BY s DESC LIMIT 5",
)
_SEED = 20261115
_REGIONS = np.array(["eu-west", "eu-east", "us-west", "us-east", "ap-south", "ap-north", "sa-east", "af-south"])
_STATUS = np.array(["new", "paid", "packed", "sent", "done", "returned"])
_CHANNELS = np.array(["web", "app", "shop", "phone"])
_ALPHABET = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz0123456789 ", dtype=np.uint8)
_START = np.datetime64("2026-01-01T00:00:00", "us")
_NOTE_LENGTH = 40


@dataclass(frozen=True, slots=True)
class Totals:
    """What a right table adds up to."""

    count: int
    amount: float
    qty: int


@dataclass(frozen=True, slots=True)
class Workload:
    """A folder with inserts.parquet and a file of changes for each batch."""

    folder: Path
    events: int
    batches: int
    expected: tuple[Totals, ...]
    """After the inserts, then after each batch."""


def write_workload(folder: Path, *, events: int, batches: int) -> Workload:
    """Every batch updates 1,000 rows and deletes 50 others, all at random among those that are left."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(_SEED)
    inserts = _rows(np.arange(1, events + 1, dtype=np.int64), rng, _START)
    pq.write_table(inserts, inserts_file(folder), compression="zstd")
    amount, qty = inserts["amount"].to_numpy().copy(), inserts["qty"].to_numpy().astype(np.int64)
    is_left = np.ones(events, bool)
    expected = [_totals(amount, qty, is_left)]
    for number in range(batches):
        keys = rng.choice(np.flatnonzero(is_left), UPDATES + DELETES, replace=False) + 1
        changes = _rows(keys.astype(np.int64), rng, _START + np.timedelta64(30 + number, "D"))
        updated, deleted = keys[:UPDATES] - 1, keys[UPDATES:] - 1
        amount[updated] = changes["amount"].to_numpy()[:UPDATES]
        qty[updated] = changes["qty"].to_numpy()[:UPDATES]
        is_left[deleted] = False
        expected.append(_totals(amount, qty, is_left))
        operations = pa.array(["U"] * UPDATES + ["D"] * DELETES)
        pq.write_table(changes.add_column(0, "op", operations), batch_file(folder, number), compression="zstd")
    return Workload(folder, events, batches, tuple(expected))


def inserts_file(folder: Path) -> Path:
    return folder / "inserts.parquet"


def batch_file(folder: Path, number: int) -> Path:
    """Columns: `op`, U or D, then the row."""
    return folder / f"batch-{number:05d}.parquet"


def tiny_batches(count: int, rows: int) -> list[pa.Table]:
    """New rows, so many in each batch."""
    rng = np.random.default_rng(_SEED)
    firsts = range(1, count * rows + 1, rows)
    return [
        _rows(np.arange(first, first + rows), rng, _START + np.timedelta64(30 + number, "D"))
        for number, first in enumerate(firsts)
    ]


def updated_by(number: int) -> str:
    """What stands in `updated` of the rows that this batch changes, as ISO 8601 text."""
    return f"{np.datetime_as_string(_START + np.timedelta64(30 + number, 'D'))}Z"


def as_dicts(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as an application has them, with times as ISO 8601 text."""
    columns = []
    for column in table.columns:
        values = column.to_numpy()
        is_time = pa.types.is_timestamp(column.type)
        columns.append((np.datetime_as_string(values, timezone="UTC") if is_time else values).tolist())
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _rows(ids: npt.NDArray[np.int64], rng: np.random.Generator, updated: np.datetime64) -> pa.Table:
    count = len(ids)
    notes = _ALPHABET[rng.integers(0, len(_ALPHABET), (count, _NOTE_LENGTH))].view(f"S{_NOTE_LENGTH}").ravel()
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "customer": pa.array(np.char.add("cust-", rng.integers(0, 50_000, count).astype("U6"))),
            "region": pa.array(_REGIONS[rng.integers(0, len(_REGIONS), count)]),
            "status": pa.array(_STATUS[rng.integers(0, len(_STATUS), count)]),
            "amount": pa.array(rng.integers(1, 40_000, count) * 0.25),
            "qty": pa.array(rng.integers(1, 20, count), pa.int32()),
            "sku": pa.array(np.char.add("sku-", rng.integers(0, 5_000, count).astype("U5"))),
            "note": pa.array(notes.astype("U")),
            "channel": pa.array(_CHANNELS[rng.integers(0, len(_CHANNELS), count)]),
            "discount": pa.array(rng.integers(0, 40, count) * 0.25),
            "created": pa.array(_START + (ids * 1000).astype("timedelta64[us]"), pa.timestamp("us")),
            "updated": pa.array(np.full(count, updated), pa.timestamp("us")),
        }
    )


def _totals(amount: npt.NDArray[np.float64], qty: npt.NDArray[np.int64], is_left: npt.NDArray[np.bool_]) -> Totals:
    return Totals(int(is_left.sum()), float(amount[is_left].sum()), int(qty[is_left].sum()))
