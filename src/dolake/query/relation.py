"""What a statement's table reference becomes: a SELECT that DuckDB runs, and what is to be told about it.

From reader.py, one per reference; to guard.py, which puts it into the statement, and worker.py, which tells the facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Relation:
    """The rows of one table at one moment."""

    table: str
    """With its namespace."""
    sql: str
    """A SELECT without parameters, which names the columns and the hidden ones."""
    columns: tuple[str, ...]
    """Those that `*` shows."""
    hidden: tuple[str, ...] = ()
    """Those that can be named, and that `*` leaves out."""
    arrow: Mapping[str, pa.Table] = field(default_factory=dict)
    """What `sql` names beside files: to be registered under these names first."""
    snapshot_id: int | None = None
    tail_rows: int = 0
    warnings: tuple[str, ...] = ()
