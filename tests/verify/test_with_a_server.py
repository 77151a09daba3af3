"""A real server with a real Spark: verify beside a stream, when all has stopped, and after a lost machine."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from dolake.backup.take import take_backup
from dolake.client import connect
from tests.support.aio import run
from tests.support.command import dolake
from tests.support.server import ServerProcess, status_of, wait_for
from tests.support.tables import verified

pytestmark = [pytest.mark.spark, pytest.mark.own_lake]
_WAIT_S = 120.0
_PAUSE_S = 0.2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home, settings = tmp_path_factory.mktemp("lake"), "freshness_target_ms = 200"
    with ServerProcess(home, settings=settings, has_pipeline=True, has_queries=False) as server:
        yield server


def changes_from(first: int) -> Iterator[dict[str, Any]]:
    """Inserts, updates, deletes and moved keys; columns that come later, at the top and inside; values that misfit."""
    for n in range(first, first + 100):
        key, row = str(n), {"n": n, "o": {"a": n}, "l": [{"x": n}]}
        yield {"table": "stream.items", "operation": "INSERT", "rowId": key, "after": row}
        if n % 3 == 0:
            after = row | {"o": {"a": n, "b": "later"}, "l": [{"y": n}], f"column {n // 500}": True, "n": "no number"}
            yield {"table": "stream.items", "operation": "UPDATE", "rowId": key, "before": row, "after": after}
        if n % 5 == 0:
            yield {"table": "stream.items", "operation": "DELETE", "rowId": key, "before": row}
        if n % 7 == 1:
            move = {"rowId": f"moved {n}", "before": row, "after": {"n": -n}, "metadata": {"previousRowId": key}}
            yield {"table": "stream.items", "operation": "UPDATE", **move}
        yield {"table": "others", "operation": "UPDATE", "rowId": str(n % 10), "after": {"last": n}}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("positions", [2, pytest.param(6, marks=pytest.mark.chaos)])
def test_beside_a_stream_of_changes_nothing_is_named_that_is_not_so(server: ServerProcess, positions: int) -> None:
    is_over = threading.Event()

    def stream() -> None:
        async def sending() -> None:
            async with connect(server.url, source="shop") as client:
                first = 0
                while not is_over.is_set():
                    await client.send(list(changes_from(first)))
                    first += 100
                    await asyncio.sleep(_PAUSE_S)  # a stream, and not a flood that the pipeline works off for minutes

        run(sending(), timeout_s=10 * _WAIT_S)

    sender = threading.Thread(target=stream)
    sender.start()
    try:
        reports: list[dict[str, Any]] = []
        while len({report["position"] for report in reports if report["position"]}) < positions:
            reports.append(verified(server.home))
    finally:
        is_over.set()
        sender.join()
    server.flush()
    last = verified(server.home)
    assert last["position"] == status_of(server)["durablePosition"] > reports[-1]["position"]
    assert {table["table"] for table in last["tables"]} == {"default.others", "stream.items"}


async def test_a_server_that_was_killed_leaves_nothing_that_differs(server: ServerProcess) -> None:
    async with connect(server.url, source="other") as client:
        await client.send([{**change, "table": "killed"} for change in changes_from(0)])
    server.kill()
    verified(server.home)
    server.start()
    server.flush()
    report = verified(server.home)
    assert "default.killed" in {table["table"] for table in report["tables"]}


def test_a_lost_machine_comes_back_from_its_backup_and_sources_send_the_rest_again(
    server: ServerProcess, tmp_path: Path
) -> None:
    """The source keeps what it sent under sequences of its own, as an outbox does."""
    outbox = [{**change, "sequence": n} for n, change in enumerate(itertools.islice(rows_of_a_shop(), 3_000), start=1)]

    async def sending(start: int, end: int) -> int:
        async with connect(server.url, source="outbox") as client:
            begin = client.last_durable_sequence if start < 0 else start
            for first in range(begin, end, 100):
                await client.send(outbox[first : min(first + 100, end)])
            return begin

    run(sending(0, 1_000), timeout_s=_WAIT_S)
    server.flush()
    sender = threading.Thread(target=lambda: run(sending(1_000, 2_000), timeout_s=_WAIT_S))
    sender.start()
    manifest = take_backup(server.home, server.home / "warehouse", tmp_path / "backup")
    sender.join()
    run(sending(2_000, 2_500), timeout_s=_WAIT_S)  # acknowledged, and only in the home that is lost
    server.kill()
    lose(server.home)

    answer = dolake("restore", tmp_path / "backup", "--home", server.home)
    assert answer.returncode == 0, answer.stderr
    assert verified(server.home)["position"] == manifest.published
    server.start()
    begin = run(sending(-1, 3_000), timeout_s=_WAIT_S)
    (kept,) = [end.sequence for end in manifest.streams if end.stream == "outbox"]
    assert 1_000 <= kept == begin < 2_500
    server.flush()
    verified(server.home)
    rows = load_catalog("lake", type="rest", uri=server.url).load_table("default.kept").scan().to_arrow()
    found = dict(zip(rows["_key"].to_pylist(), rows["n"].to_pylist(), strict=True))
    expected: dict[str, int] = {}
    for change in outbox:
        if change["operation"] == "DELETE":
            expected.pop(change["rowId"], None)
        else:
            expected[change["rowId"]] = change["after"]["n"]
    assert found == expected
    last = verified(server.home)["position"]
    server.stop()
    assert verified(server.home)["position"] == last


def lose(home: Path) -> None:
    """The folder goes when nobody writes there any more: the server's children end a moment after it."""

    def is_lost() -> bool:
        shutil.rmtree(home, ignore_errors=True)
        return not home.exists()

    wait_for(is_lost, "the folder is gone")


def rows_of_a_shop() -> Iterator[dict[str, Any]]:
    for n in itertools.count():
        key = str(n * 7 % 400)
        row = {"table": "kept", "rowId": key}
        yield row | ({"operation": "DELETE"} if n % 11 == 0 else {"operation": "UPDATE", "after": {"n": n}})
