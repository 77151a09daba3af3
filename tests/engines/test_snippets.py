"""The snippets of the README and of «Connect engines», run as they are written against a real server.

Tables of the names that they use are made by PyIceberg first, so that no Spark is needed; Spark has tests of its own.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from dolake.storage.duck import extension_file
from tests.support.server import ServerProcess

pytestmark = pytest.mark.own_lake
ROOT = Path(__file__).resolve().parents[2]
DEFAULT_URL = "http://127.0.0.1:8787"
_FENCE = re.compile(r"^```([\w ]+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("snippets")) as server:
        catalog = load_catalog("lake", type="rest", uri=server.url)
        catalog.create_namespace("default")
        catalog.create_namespace("shop")
        orders = pa.table({"id": [1, 2], "amount": [4.0, 8.5]})
        catalog.create_table("default.orders", schema=orders.schema).append(orders)
        yield server


def blocks_of(page: str, section: str) -> list[tuple[str, str]]:
    """Language and text of each block between this heading and the next."""
    text = (ROOT / page).read_text()
    body = re.split(r"^## ", text.partition(f"\n## {section}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    return [(block[1], block[2]) for block in _FENCE.finditer(body)]


def run_python(text: str, url: str) -> str:
    answer = subprocess.run(
        [sys.executable, "-c", text.replace(DEFAULT_URL, url)], capture_output=True, text=True, timeout=120, check=False
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def run_duckdb(text: str, url: str) -> list[tuple[object, ...]]:
    """Statement by statement; the extension comes from its wheel, and not from a download."""
    with duckdb.connect() as duck:
        for name in ("avro", "httpfs", "iceberg"):
            duck.execute(f"LOAD '{extension_file(name)}'")
        found: list[tuple[object, ...]] = []
        for statement in filter(None, map(str.strip, text.replace(DEFAULT_URL, url).split(";"))):
            if statement not in ("INSTALL iceberg", "LOAD iceberg"):
                result = duck.execute(statement)
                found = result.fetchall() if statement.startswith("SELECT") else found
        return found


def test_the_readme_s_snippets_read_the_table(server: ServerProcess) -> None:
    blocks = dict(blocks_of("README.md", "Connect your engines"))
    assert {"python pyiceberg", "python polars", "sql duckdb"} <= blocks.keys()
    assert "8.5" in run_python(blocks["python pyiceberg"], server.url)
    assert "8.5" in run_python(blocks["python polars"], server.url)
    assert run_duckdb(blocks["sql duckdb"], server.url) == [(2, 12.5)]


def test_the_guide_s_snippets_do_what_they_say(server: ServerProcess) -> None:
    page = "docs/howto/connect-engines.md"
    ((_, pyiceberg),) = blocks_of(page, "PyIceberg")
    assert "Grace" in run_python(pyiceberg, server.url)
    (_, duck), (_, folder) = blocks_of(page, "DuckDB")
    assert run_duckdb(duck, server.url) == [(1, "Ada"), (2, "Grace")]
    without_catalog = folder.replace("<warehouse>", str(server.home / "warehouse"))
    assert sorted(run_duckdb(without_catalog, server.url)) == [(1, "Ada"), (2, "Grace")]
    ((_, polars),) = blocks_of(page, "Polars")
    assert "Grace" in run_python(polars, server.url)
    ((_, pinned),) = blocks_of(page, "One point in time for all tables")
    run_duckdb(pinned, server.url)
