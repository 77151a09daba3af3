"""What the tables of a lake have: as PyIceberg reads them, and as `dolake verify` compares them with the journal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyiceberg.catalog.rest import RestCatalog

from tests.support.command import dolake


def rows_of(catalog: RestCatalog, table: str) -> dict[str, dict[str, Any]]:
    """By key."""
    rows = catalog.load_table(table).scan().to_arrow().to_pylist()
    by_key = {row.pop("_key"): row for row in rows}
    assert len(by_key) == len(rows), "a key has two rows"
    return by_key


def changes_of(catalog: RestCatalog, table: str) -> list[dict[str, Any]]:
    rows = catalog.load_table(f"{table}__changes").scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: row["_position"])


def types_of(catalog: RestCatalog, table: str) -> dict[str, str]:
    """Of the columns that the source has."""
    fields = catalog.load_table(table).schema().fields
    return {field.name: str(field.field_type) for field in fields if not field.name.startswith("_")}


def files_of(catalog: RestCatalog, table: str) -> list[Any]:
    return list(catalog.load_table(table).scan().plan_files())


def verified(home: Path, *, environ: dict[str, str] | None = None, timeout_s: float = 240) -> dict[str, Any]:
    """The report of `dolake verify`, which finds no difference."""
    done = dolake("verify", "--home", home, "--json", environ=environ, timeout_s=timeout_s)
    report: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
    differing = [check for check in report.get("checks", []) if check["differences"]]
    assert (done.returncode, differing) == (0, []), done.stdout + done.stderr
    return report
