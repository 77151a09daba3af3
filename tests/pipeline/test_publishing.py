"""A real server with a real Spark: what becomes of changes, and of publishes that fail."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyiceberg.catalog.rest import RestCatalog

from dolake.client import connect
from dolake.pipeline.classes import archive_of
from dolake.pipeline.java import find_java
from tests.support.aio import run
from tests.support.changes import delete, insert, send, update
from tests.support.server import ServerProcess, children_of, is_published, status_of, wait_for
from tests.support.speaker import Speaker, batch, event
from tests.support.tables import changes_of, files_of, rows_of

pytestmark = pytest.mark.spark
_WAIT_S = 120.0
SETTINGS = """\
freshness_target_ms = 300
transaction_wait_max_ms = 60_000
[pipeline]
batch_events_max = 1_000
"""


def test_a_table_is_made_of_what_its_rows_say(lake: ServerProcess, catalog: RestCatalog) -> None:
    row = {"n": 1, "f": 1.5, "b": True, "s": "x", "t": "2026-01-02T03:04:05Z", "o": {"a": 1}, "l": ["p", "q"]}
    send(lake.url, insert("kinds", "1", **row), insert("kinds", "2", n=2, later="new"))
    lake.flush()
    types = {field.name: str(field.field_type) for field in catalog.load_table("default.kinds").schema().fields}
    assert types == {
        "_key": "string",
        "_rescued": "string",
        "n": "long",
        "f": "double",
        "b": "boolean",
        "s": "string",
        "t": "timestamptz",
        "o": types["o"],
        "l": "list<string>",
        "later": "string",
    }
    rows = rows_of(catalog, "default.kinds")
    assert rows["1"]["o"] == {"a": 1}
    assert rows["1"]["later"] is rows["2"]["f"] is None
    send(lake.url, insert("kinds", "3", n="no number", brand_new={"x": 1}))
    lake.flush()
    third = rows_of(catalog, "default.kinds")["3"]
    assert (third["n"], json.loads(third["_rescued"]), third["brand_new"]) == (None, {"n": "no number"}, {"x": 1})


def test_spark_runs_from_the_class_archive_that_make_has_made(lake: ServerProcess) -> None:
    java = find_java()
    assert java is not None
    archive = archive_of(java)
    assert archive.is_file(), "run `make java`"
    (process,) = [each for each in psutil.Process(lake.pid).children(recursive=True) if each.name() == "java"]
    assert str(archive) in {mapped.path for mapped in process.memory_maps()}, "Java refused it in silence"


def test_the_state_is_what_a_dictionary_would_be(lake: ServerProcess, catalog: RestCatalog) -> None:
    send(lake.url, *(insert("shop.items", str(n), n=n) for n in range(5)))
    lake.flush()
    send(
        lake.url,
        update("shop.items", "0", {"n": 0}, {"n": 10}),
        update("shop.items", "0", {"n": 10}, {"n": 20}),
        delete("shop.items", "1", n=1),
        insert("shop.items", "1", n=11),
        delete("shop.items", "2", n=2),
        delete("shop.items", "never there", n=0),
        update("shop.items", "33", {"n": 3}, {"n": 33}, previousRowId="3"),
    )
    lake.flush()
    assert {key: row["n"] for key, row in rows_of(catalog, "shop.items").items()} == {
        "0": 20,
        "1": 11,
        "33": 33,
        "4": 4,
    }
    last = changes_of(catalog, "shop.items")[-7:]
    assert [(row["_operation"], row["_key"], row["n"], row["_before"] and row["_before"]["n"]) for row in last] == [
        ("UPDATE", "0", 10, 0),
        ("UPDATE", "0", 20, 10),
        ("DELETE", "1", 1, 1),
        ("INSERT", "1", 11, None),
        ("DELETE", "2", 2, 2),
        ("DELETE", "never there", 0, 0),
        ("UPDATE", "33", 33, 3),
    ]
    assert {row["_source"] for row in last} == {"shop"}


def test_an_upsert_opens_no_file_of_rows(lake: ServerProcess, catalog: RestCatalog) -> None:
    """The key index says where the old rows are: so it costs what the batch costs, however large the table is."""
    send(lake.url, *(insert("large", str(n), n=n) for n in range(20)))
    lake.flush()
    files = [Path(task.file.file_path.removeprefix("file://")) for task in files_of(catalog, "default.large")]
    aside = [path.rename(path.with_name(f"{path.name}.aside")) for path in files]
    try:
        send(lake.url, update("large", "3", {"n": 3}, {"n": 33}), delete("large", "4", n=4))
        lake.flush()
    finally:
        for path, moved in zip(files, aside, strict=True):
            moved.rename(path)
    wanted = {str(n): n for n in range(20) if n != 4} | {"3": 33}
    assert {key: row["n"] for key, row in rows_of(catalog, "default.large").items()} == wanted


def test_all_tables_of_a_publish_have_one_moment_and_the_position_of_the_journal(
    lake: ServerProcess, catalog: RestCatalog
) -> None:
    send(lake.url, insert("left", "1", n=1), insert("right", "1", n=1))
    lake.flush()
    heads = [catalog.load_table(f"default.{name}").current_snapshot() for name in ("left", "left__changes", "right")]
    assert len({head.timestamp_ms for head in heads if head}) == 1
    position = lake.get("/v1/published")[1]["position"]
    assert {head.summary["dolake.published-to"] for head in heads if head and head.summary} == {str(position)}
    assert status_of(lake)["committedPosition"] == status_of(lake)["durablePosition"] == position


def test_a_transaction_is_visible_as_a_whole_or_not_at_all(lake: ServerProcess, catalog: RestCatalog) -> None:
    def part(number: int, *, is_last: bool = False) -> dict[str, Any]:
        metadata = {"transactionId": "t1", "transactionEnd": is_last}
        return insert("ledger", str(number), n=number) | {"metadata": metadata}

    send(lake.url, insert("ledger", "0", n=0), source="bank")
    lake.flush()
    send(lake.url, insert("ledger", "before", n=-1), part(1), part(2), source="bank")
    ends = status_of(lake)["durablePosition"]
    wait_for(lambda: status_of(lake)["committedPosition"] == ends - 2, "what is before the transaction is published")
    assert set(rows_of(catalog, "default.ledger")) == {"0", "before"}
    send(lake.url, part(3, is_last=True), source="bank")
    lake.flush()
    assert set(rows_of(catalog, "default.ledger")) == {"0", "before", "1", "2", "3"}


def test_a_backlog_is_cut_into_publishes(lake: ServerProcess, catalog: RestCatalog) -> None:
    before = lake.get("/v1/write-stats")[1]["publish"]["count"]
    send(lake.url, *(insert("many", str(n), n=n) for n in range(5_000)))
    lake.flush()
    assert lake.get("/v1/write-stats")[1]["publish"]["count"] - before >= 5
    assert len(rows_of(catalog, "default.many")) == 5_000


async def test_senders_hear_when_their_changes_are_in_the_tables(lake: ServerProcess) -> None:
    async with Speaker(lake.url) as speaker:
        assert (await speaker.ask(batch(1, [event(1, table="heard")], source="listener")))["status"] == "buffered"
        answer = await speaker.ask({"type": "flush_request", "sourceDoId": "listener"})
        while answer.get("status") != "persisted":
            answer = await speaker.hear(_WAIT_S)
    assert answer["sequenceNumber"] == 1
    assert status_of(lake)["journal"]["consumers"]["pipeline"] == status_of(lake)["committedPosition"]


async def test_states_of_sources_hold_up_neither_publishes_nor_queries(
    lake: ServerProcess, catalog: RestCatalog
) -> None:
    async with connect(lake.url, source="stateful") as client:
        for number in (1, 2):
            await client.send([insert("stateful", str(number), n=number)], source_state={"at": number})
            behind = (await client.send_state({"at": None, "behind": number})).position
            count = await client.query("SELECT count(*) AS n FROM stateful", min_position=behind)
            assert [row["n"] for row in count.rows] == [number]
            _, published = await asyncio.to_thread(lake.get, "/flush", method="POST")
            assert published["committedPosition"] == published["durablePosition"] == behind
        assert client.source_state == {"behind": 2}
    assert set(await asyncio.to_thread(rows_of, catalog, "default.stateful")) == {"1", "2"}
    assert status_of(lake)["buffer"]["eventCount"] == 0


def test_a_warehouse_that_cannot_be_written_opens_the_breaker_and_heals_by_itself(
    lake: ServerProcess, catalog: RestCatalog
) -> None:
    send(lake.url, insert("sick", "0", n=0))
    lake.flush()
    data = lake.home / "warehouse" / "default" / "sick__changes" / "data"
    aside = data.with_name("data-aside")
    data.rename(aside)
    data.write_text("not a folder")
    send(lake.url, *(insert("sick", str(n), n=n) for n in range(1, 4)))
    wait_for(lambda: status_of(lake)["circuitBreakerState"] == "open", "the breaker opens")
    assert lake.get("/v1/write-stats")[1]["publish"]["lastFailure"]

    async def fallback() -> str:
        async with Speaker(lake.url) as speaker:
            answer = await speaker.ask(batch(1, [event(1, table="sick", row_id="4")], source="patient"))
            return str(answer["status"])

    assert run(fallback(), timeout_s=_WAIT_S) == "fallback"
    assert set(rows_of(catalog, "default.sick")) == {"0"}
    data.unlink()
    aside.rename(data)
    wait_for(lambda: is_published(lake), "everything flows again")
    assert set(rows_of(catalog, "default.sick")) == {"0", "1", "2", "3", "4"}
    assert [row["_key"] for row in changes_of(catalog, "default.sick")] == ["0", "1", "2", "3", "4"]
    assert status_of(lake)["circuitBreakerState"] == "closed"


def test_two_spellings_of_a_name_are_one_table(lake: ServerProcess, catalog: RestCatalog) -> None:
    send(lake.url, insert("spelt", "1", n=1), insert("default.spelt", "2", n=2), insert("spelt", "3", n=3))
    lake.flush()
    send(lake.url, update("default.spelt", "1", {"n": 1}, {"n": 11}), delete("default.spelt", "3", n=3))
    lake.flush()
    assert {key: row["n"] for key, row in rows_of(catalog, "default.spelt").items()} == {"1": 11, "2": 2}
    assert len(changes_of(catalog, "default.spelt")) == 5


def test_a_table_of_somebody_else_is_left_alone(lake: ServerProcess, catalog: RestCatalog) -> None:
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    catalog.create_table("default.theirs", Schema(NestedField(1, "id", LongType())))
    send(lake.url, insert("theirs", "1", n=1))
    wait_for(lambda: "somebody else" in lake.get("/v1/write-stats")[1]["publish"]["lastFailure"], "it says why")
    catalog.drop_table("default.theirs")
    lake.flush()
    assert set(rows_of(catalog, "default.theirs")) == {"1"}


def test_a_pipeline_that_dies_is_replaced_and_an_index_that_is_gone_or_damaged_is_made_anew(
    lake: ServerProcess, catalog: RestCatalog
) -> None:
    for table in ("phoenix", "damaged"):
        send(lake.url, *(insert(table, str(n), n=n) for n in range(10)))
    lake.flush()
    before = status_of(lake)["pipeline"]
    (child,) = children_of(lake, "dolake.pipeline")
    tree = [child, *child.children(recursive=True)]
    child.kill()
    folders = {
        table: lake.home / "keyindex" / str(catalog.load_table(f"default.{table}").metadata.table_uuid)
        for table in ("phoenix", "damaged")
    }
    shutil.rmtree(folders["phoenix"])
    (run,) = folders["damaged"].glob("*.run")
    content = bytearray(run.read_bytes())
    content[-1] ^= 0xFF
    run.write_bytes(content)
    for table in ("phoenix", "damaged"):
        send(lake.url, update(table, "3", {"n": 3}, {"n": 33}), delete(table, "4", n=4))
    # A flush that the dead one was asked for fails, and says that the changes go out later.
    wait_for(lambda: status_of(lake)["pipeline"]["generation"] > before["generation"], "another one comes")
    lake.flush()
    assert status_of(lake)["pipeline"]["generation"] == before["generation"] + 1
    for table in ("phoenix", "damaged"):
        rows = rows_of(catalog, f"default.{table}")
        assert {key: row["n"] for key, row in rows.items()} == {str(n): n for n in range(10) if n != 4} | {"3": 33}
    _, alive = psutil.wait_procs(tree, timeout=_WAIT_S)
    assert not alive, "the dead pipeline left processes behind"


def test_a_pipeline_that_dies_with_one_of_the_two_tables_made_or_grown_is_not_stuck(
    lake: ServerProcess, catalog: RestCatalog
) -> None:
    lake.crash_at("half_grown")
    send(lake.url, insert("growing", "1", n=1))
    wait_for(lambda: not lake.is_crash_due, "it dies between making the two")
    send(lake.url, insert("growing", "2", n="no number any more"))
    wait_for(lambda: is_published(lake), "its successor publishes")
    assert {key: row["n"] for key, row in rows_of(catalog, "default.growing").items()} == {"1": 1, "2": None}

    lake.crash_at("half_grown")
    send(lake.url, update("growing", "1", {"n": 1}, {"n": 2, "new": {"x": 1}}))
    wait_for(lambda: not lake.is_crash_due, "it dies between growing the two")
    wait_for(lambda: is_published(lake), "its successor publishes")
    assert rows_of(catalog, "default.growing")["1"]["new"] == {"x": 1}
    assert [row["new"] for row in changes_of(catalog, "default.growing")] == [None, None, {"x": 1}]


async def _tell_a_state(url: str) -> None:
    async with connect(url, source="idle") as client:
        await client.send_state({"at": 1})


def test_spark_sleeps_when_nothing_comes_and_wakes_with_the_first_change_for_all_that_came_meanwhile(
    lake: ServerProcess, catalog: RestCatalog
) -> None:
    """A large publish is written in slices that agree.

    The first slice has not seen the column that the last one brings, and both change the same keys.
    """
    lake.get("/v1/config", method="PATCH", body={"pipelineIdleMs": 200, "pipelineBatchEventsMax": 200_000})
    wait_for(lambda: status_of(lake)["pipeline"]["state"] == "sleeping", "Spark sleeps")
    wait_for(lambda: not children_of(lake, "dolake.pipeline"), "its process has ended")
    lake.get("/v1/config", method="PATCH", body={"pipelineIdleMs": 3_600_000})
    run(_tell_a_state(lake.url))
    assert status_of(lake)["pipeline"]["state"] == "sleeping", "a state alone wakes nobody"
    lake.flush()
    assert status_of(lake)["pipeline"]["state"] == "sleeping", "nor does a wish to publish it"
    send(lake.url, insert("sleeper", "1", n=1))  # and while Spark starts, the rest
    count = 45_000
    send(
        lake.url,
        *(insert("sliced", str(n), n=n) for n in range(count - 2)),
        update("sliced", "0", {"n": 0}, {"n": -1, "late": {"x": 1}}),
        delete("sliced", "1", n=1),
    )
    wait_for(lambda: is_published(lake), "it woke and published")
    assert set(rows_of(catalog, "default.sleeper")) == {"1"}
    rows = rows_of(catalog, "default.sliced")
    assert len(rows) == count - 3
    assert (rows["0"]["n"], rows["0"]["late"], rows["2"]["late"]) == (-1, {"x": 1}, None)
    assert sum(row["n"] for row in rows.values()) == sum(range(count - 2)) - 1 - 1
    assert len(changes_of(catalog, "default.sliced")) == count


@pytest.mark.own_lake
def test_a_server_that_stops_publishes_what_it_has_and_leaves_no_process(tmp_path: Path) -> None:
    """That a killed one leaves none is what the oracle looks at after each kill."""
    settings = "freshness_target_ms = 60_000"
    with ServerProcess(tmp_path, settings=settings, has_pipeline=True, has_queries=False) as server:
        wait_for(lambda: status_of(server)["pipeline"]["state"] == "ready", "Spark is up")
        send(server.url, insert("last", "1", n=1))
        tree = psutil.Process(server.pid).children(recursive=True)
        assert server.stop() == 0
        _, alive = psutil.wait_procs(tree, timeout=_WAIT_S)
        assert not alive, "stopping left processes behind"
    with ServerProcess(tmp_path, has_pipeline=False) as again:
        assert status_of(again)["committedPosition"] == 1
