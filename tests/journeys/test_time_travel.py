"""Any moment of the past, every version of a row, and the way back: on a real server while a pipeline publishes.

004's blocks about time travel are here, with moments and snapshots of the test's own in place of its dates. A model in
memory says what each moment looked like.
"""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dolake.client import LakeClient, connect, create_lake_client
from dolake.errors import InvalidInput, NoSuchMoment, NoSuchSnapshot, UnknownTable
from tests.journeys.asking_support import a_moment, dicts, iso, now_ms
from tests.oracle.changes import TABLES, Group, Step, examples, groups
from tests.oracle.streams import Stream
from tests.support.changes import delete, insert, update
from tests.support.command import dolake
from tests.support.server import ServerProcess, post, refusal
from tests.support.tables import verified
from tools.duckdb_client import duck_on

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SETTINGS = """\
freshness_target_ms = 200
[compaction]
min_files_to_compact = 2
[maintenance]
small_files_max = 4
gc_grace_ms = 1
"""


@pytest.fixture(scope="module")
def server(lake: ServerProcess) -> ServerProcess:
    """The lake that other files use too; here `lake` is what a client calls it."""
    return lake


# --- moments ---------------------------------------------------------------------------------------------------------


@dataclass
class Past:
    """What two tables looked like after every change that was acknowledged."""

    dice: random.Random
    rows: dict[str, dict[str, dict[str, Any]]] = field(default_factory=lambda: {"stock": {}, "shop.prices": {}})
    moments: list[tuple[int, dict[str, list[dict[str, Any]]]]] = field(default_factory=list)

    def next_change(self, number: int) -> dict[str, Any]:
        """One change of a random row; later ones have a column more, and some move a row to another key."""
        table = self.dice.choice(list(self.rows))
        rows, key = self.rows[table], f"key-{self.dice.randrange(6)}"
        row: dict[str, Any] = {"name": key, "number": number} | ({"extra": f"e{number}"} if number > 60 else {})
        if key in rows and self.dice.random() < 0.25:
            return delete(table, key, **rows.pop(key))
        if key in rows and self.dice.random() < 0.2:
            target = f"key-{self.dice.randrange(6, 9)}"
            del rows[key]
            rows[target] = row
            return update(table, target, None, row, previousRowId=key)
        rows[key] = row
        return update(table, key, None, row) if self.dice.random() < 0.7 else insert(table, key, **row)

    def note(self, moment_ms: int) -> None:
        self.moments.append((moment_ms, {table: _sorted(list(rows.values())) for table, rows in self.rows.items()}))


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    filled = [{"name": None, "number": None, "extra": None} | row for row in rows]
    return sorted(filled, key=lambda row: (str(row["name"]), int(row["number"])))


async def test_every_moment_is_as_it_was_in_the_tail_and_in_the_tables_and_without_snapshots(
    server: ServerProcess,
) -> None:
    past = Past(random.Random(7))
    async with connect(server.url, source="history") as shop:
        await shop.send([insert("stock", "first", name="first", number=0)])
        await shop.send([insert("shop.prices", "first", name="first", number=0)])
        past.rows["stock"]["first"] = past.rows["shop.prices"]["first"] = {"name": "first", "number": 0}
        for number in range(1, 121):
            await shop.send(past.next_change(number))
            past.note(int((await a_moment()).timestamp() * 1000))
            if number % 20 == 0:  # some moments are asked about while they are young
                await _assert_right(shop, past, past.dice.sample(past.moments, 4))
    server.flush()
    lake = create_lake_client(url=server.url)
    await _assert_right(lake, past, past.dice.sample(past.moments, 15))
    _let_snapshots_go(server, "stock", "shop.prices")
    kept = await lake.list_snapshots("stock")
    assert len(kept) == 1, "this test is about moments without a snapshot"
    await _assert_right(lake, past, past.dice.sample(past.moments, 15))


async def _assert_right(lake: LakeClient, past: Past, moments: list[tuple[int, Any]]) -> None:
    """In one of the spellings of a moment, and both tables in one question."""
    for moment_ms, state in moments:
        spellings: list[int | str | datetime] = [
            moment_ms,
            iso(moment_ms),
            datetime.fromtimestamp(moment_ms / 1000, UTC),
        ]
        as_of = past.dice.choice(spellings)
        for table, rows in state.items():
            found = await lake.query(f"SELECT * FROM {table}", as_of=as_of)  # noqa: S608 - our own names
            assert _sorted(dicts(found)) == rows, (table, moment_ms)
        both = await lake.query(
            "SELECT (SELECT COUNT(*) FROM stock), (SELECT COALESCE(SUM(number), 0) FROM shop.prices) AS prices",
            as_of=as_of,
        )
        expected = (len(state["stock"]), sum(row["number"] for row in state["shop.prices"]))
        assert tuple(both.rows[0]) == expected, moment_ms


def _let_snapshots_go(server: ServerProcess, *tables: str) -> None:
    """All but the newest, and the files that only they named."""
    with server.configured("maintenance.snapshots_max = 1"):
        for table in tables:
            done = dolake("expire", table, "--url", server.url)
            assert done.returncode == 0, done.stderr


async def test_a_change_belongs_to_the_moment_of_its_own_commit(server: ServerProcess) -> None:
    """Event accuracy: as of the very millisecond of a version that version is there, and a millisecond before not."""
    async with connect(server.url, source="accuracy") as shop:
        for number in range(8):
            await shop.send(update("clock", "1", None, {"number": number}))
            await a_moment()
        for _ in ("in the tail", "published"):
            versions = await shop.query("SELECT number, _commit_timestamp FROM clock ORDER BY _position")
            assert [row.number for row in versions] == list(range(8))
            for number, moment in versions.rows[1:]:
                at = await shop.query("SELECT number FROM clock", as_of=moment)
                before = await shop.query("SELECT number FROM clock", as_of=moment - timedelta(milliseconds=1))
                assert (at.scalar(), before.scalar()) == (number, number - 1)
            await asyncio.to_thread(server.flush)


async def test_before_the_first_change_a_table_is_empty_and_a_warning_has_its_time(server: ServerProcess) -> None:
    """004 asks for yesterday's customers, of whom a lake that was made today knows nothing."""
    async with connect(server.url, source="crm") as crm:
        await crm.send(insert("Client", "1", name="Alice"))
        for _ in ("in the tail", "published"):
            oldest = (await crm.query("SELECT MIN(_commit_timestamp) AS oldest FROM Client")).rows[0].oldest
            for yesterday in (datetime.now(UTC) - timedelta(milliseconds=86_400_000), datetime(2024, 1, 14)):  # noqa: DTZ001
                nothing = await crm.query(as_of=yesterday, entity_type="Client")
                assert dicts(nothing) == []
                assert oldest.strftime("%Y-%m-%dT%H:%M:%S") in nothing.warnings[0]
                difference = await crm.diff("Client", from_=yesterday)
                assert (difference.counts.added, difference.counts.removed) == (1, 0)
                assert oldest.strftime("%Y-%m-%dT%H:%M:%S") in difference.warnings[0]
                with pytest.raises(NoSuchMoment):
                    await crm.rollback_to(table="Client", as_of=yesterday)
            first = await crm.query(as_of=oldest, entity_type="Client")
            assert dicts(first) == [{"name": "Alice"}]
            await asyncio.to_thread(server.flush)


async def test_sql_itself_can_name_the_moment_of_each_table(server: ServerProcess) -> None:
    async with connect(server.url, source="tills") as shop:
        await shop.send([insert("till", "1", amount=1), insert("safe", "1", amount=100)])
        first = await a_moment()
        await shop.send([update("till", "1", None, {"amount": 2}), update("safe", "1", None, {"amount": 200})])
        await asyncio.to_thread(server.flush)
        second = await a_moment()
        await shop.send([update("till", "1", None, {"amount": 3}), update("safe", "1", None, {"amount": 300})])
        for clause in ("FOR SYSTEM_TIME AS OF TIMESTAMP '{}'", "FOR TIMESTAMP AS OF '{}'"):
            at_first, at_second = (clause.format(each.isoformat()) for each in (first, second))
            sql = f"SELECT a.amount, b.amount, c.amount FROM till {at_first} a, till {at_second} b, till c"  # noqa: S608
            assert tuple((await shop.query(sql)).rows[0]) == (1, 2, 3), clause
        moment = f"FOR SYSTEM_TIME AS OF TIMESTAMP '{second.isoformat()}'"
        sql = f"SELECT safe.amount + till.amount AS total FROM safe {moment} CROSS JOIN till"  # noqa: S608
        mixed = await shop.query(sql, as_of=first)
        assert mixed.scalar() == 201, "what the SQL says of a table wins over what is said of all"


async def test_what_a_moment_showed_when_it_was_now_it_shows_for_ever(server: ServerProcess) -> None:
    """With rows of every kind: new columns, nested ones, values that fit nowhere; and after a rollback to it."""
    dice = random.Random(11)
    streams = [Stream(f"random-{number}", "", dice, lambda: server.url) for number in range(2)]
    changes = [
        Group([_ours(step) for step in each.steps], "none" if each.transaction == "none" else "ended")
        for each in examples(groups(), 60, 11)
    ]
    lake = create_lake_client(url=server.url)
    seen: list[tuple[datetime, str, Rows]] = []

    async def deliver(round_: int) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number, stream in enumerate(streams):
                share = stream.cut(stream.number(changes[round_ * 2 + number :: 20], is_ended=False))
                tasks.create_task(stream.deliver(share, pause_max_s=0.01, is_persisted=False))
        moment = await a_moment()
        for table in _OUR_TABLES.values():
            with suppress(UnknownTable):
                seen.append((moment, table, await _all_of(lake, table)))

    for round_ in range(10):
        await deliver(round_)
    await asyncio.to_thread(server.flush)
    for moment, table, rows in seen:
        assert await _all_of(lake, table, as_of=moment) == rows, (table, moment)
    for moment, table, rows in dice.sample(seen, 2):
        rollback = await lake.rollback_to(table=table, as_of=moment)
        again = await _all_of(lake, table, min_position=rollback.position)
        assert again.keys() == rows.keys()
        rescued = {key for found in (rows, again) for key, row in found.items() if "_rescued" in row}
        for key in rows.keys() - rescued:  # what fitted nowhere may have found a place since
            assert again[key] == rows[key], (table, moment, key)
    server.flush()
    verified(server.home)


Rows = dict[str, dict[str, Any]]
_OUR_TABLES = {name: f"travel.{name.rpartition('.')[2]}" for name in TABLES}
"""Other files of this lake use the oracle's names."""


def _ours(step: Step) -> Step:
    return replace(step, table=_OUR_TABLES[step.table])


async def _all_of(lake: LakeClient, table: str, **options: Any) -> Rows:
    """The rows of a table by key, without nulls, which a column that came later has in all earlier rows."""
    result = await lake.query(f"SELECT *, _key, _rescued FROM {table}", **options)  # noqa: S608 - our own names
    rows = [{name: _without_nulls(value) for name, value in row.items() if value is not None} for row in dicts(result)]
    return {str(row["_key"]): _whole(row) for row in rows}


def _whole(row: dict[str, Any]) -> dict[str, Any]:
    """With what may have been rescued or not, and been a text or not, depending on where publishes were cut.

    A fraction and 2^60 share no column of numbers; an empty list may come before anything tells its type. A column that
    takes anything has the type of all values of its first publish, and until then of those that have come so far.
    """
    rescued = json.loads(row.pop("_rescued", "{}"))
    either = {
        name: value for name, value in rescued.items() if name == "number" or value == [] or _takes_anything(name)
    }
    others = {name: value for name, value in rescued.items() if name not in either}
    whole = row | either | ({"_rescued": others} if others else {})
    return {name: _untyped(value) if _takes_anything(name) else value for name, value in whole.items()}


def _takes_anything(name: str) -> bool:
    return name.startswith(("mixed", "extra_", "a.b", "ID"))


def _untyped(value: Any) -> Any:
    """A value as it was before a column gave it a type: true and the text of true are the same here."""
    if isinstance(value, dict):
        return _without_nulls({name: _untyped(inner) for name, inner in value.items()})
    if isinstance(value, list):
        return [_untyped(each) for each in value]
    if not isinstance(value, str):
        return value
    with suppress(ValueError):
        return datetime.fromisoformat(value)
    with suppress(ValueError):
        return _untyped(json.loads(value))
    return value


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


# --- history ---------------------------------------------------------------------------------------------------------


async def test_naming_a_change_column_reads_every_version_of_that_table_alone(server: ServerProcess) -> None:
    async with connect(server.url, source="versions") as shop:
        await shop.send([insert("doc", "1", text="a"), insert("reader", "1", name="Ada")])
        await asyncio.to_thread(server.flush)
        await shop.send(update("doc", "1", {"text": "a"}, {"text": "b"}))
        await shop.send(delete("doc", "1", text="b"))
        await shop.send([update("reader", "1", None, {"name": "Bob"})])
        versions = await shop.query(
            "SELECT text, _operation, _key, _source, _sequence, _transaction, _before FROM doc ORDER BY _position"
        )
        assert [(row["_operation"], row.text, row["_key"]) for row in versions] == [
            ("INSERT", "a", "1"),
            ("UPDATE", "b", "1"),
            ("DELETE", "b", "1"),
        ]
        assert {row["_source"] for row in versions} == {"versions"}
        sequences = [row["_sequence"] for row in versions]
        assert sequences == sorted(sequences)
        joined = await shop.query(
            "SELECT d.text, r.name FROM doc d, reader r WHERE d._operation = 'UPDATE' ORDER BY d._position"
        )
        assert dicts(joined) == [{"text": "b", "name": "Bob"}], "the other table shows its present"
        assert dicts(await shop.query("SELECT * FROM doc")) == []
        *_, first = await shop.list_snapshots("doc")  # there may be newer ones by now
        early = await shop.query("SELECT text, _operation FROM doc", snapshot_id=first.snapshot_id)
        assert dicts(early) == [{"text": "a", "_operation": "INSERT"}], "history up to that snapshot"
        count = await shop.query("SELECT COUNT(*) FROM doc WHERE _commit_timestamp <= NOW()")
        assert count.rows[0].count == 3


async def test_a_users_own_column_of_that_name_wins_with_a_warning(server: ServerProcess) -> None:
    async with connect(server.url, source="own") as shop:
        await shop.send(insert("surgeries", "1", _operation="appendix", room=1))
        await shop.send(update("surgeries", "1", None, {"_operation": "hip", "room": 2}))
        for _ in ("in the tail", "published"):
            result = await shop.query("SELECT _operation, room FROM surgeries")
            assert [tuple(row) for row in result] == [("hip", 2)]
            assert any("_operation" in warning for warning in result.warnings), result.warnings
            await asyncio.to_thread(server.flush)


async def test_half_a_transaction_is_nowhere_and_the_whole_of_it_everywhere(server: ServerProcess) -> None:
    def part(table: str, *, is_end: bool = False) -> dict[str, Any]:
        return insert(table, "1", n=1) | {"metadata": {"transactionId": "t-1", "transactionEnd": is_end}}

    async with connect(server.url, source="halves") as shop:
        await shop.send([insert("debit", "0", n=0), insert("credit", "0", n=0)])
        sql = "SELECT (SELECT COUNT(*) FROM debit) AS debit, (SELECT COUNT(*) FROM credit) AS credit"
        await shop.send(part("debit"))
        middle = await a_moment()
        assert tuple((await shop.query(sql)).rows[0]) == (1, 1)
        await shop.send(part("credit", is_end=True))
        for _ in ("in the tail", "published"):
            assert tuple((await shop.query(sql)).rows[0]) == (2, 2)
            assert tuple((await shop.query(sql, as_of=middle)).rows[0]) == (1, 1)
            await asyncio.to_thread(server.flush)


# --- 004: snapshots, and the way back --------------------------------------------------------------------------------


async def test_004_a_snapshot_is_asked_for_listed_and_gone_back_to(server: ServerProcess) -> None:
    async with connect(server.url, source="things") as things:
        iceberg = create_lake_client(url=server.url)
        await things.send([insert("Purchase", f"{n}", number=n, state="new") for n in range(3)])
        await asyncio.to_thread(server.flush)
        (snap_42,) = [each for each in await iceberg.list_snapshots("Purchase") if each.is_current]
        await things.send(
            [
                update("Purchase", "0", None, {"number": 0, "state": "sent"}),
                delete("Purchase", "1", number=1, state="new"),
            ]
        )
        await things.send(insert("Purchase", "3", number=3, state="new", note="a new column"))
        await asyncio.to_thread(server.flush)
        broken_at = await a_moment()

        for snapshot_id in (snap_42.snapshot_id, int(snap_42.snapshot_id)):
            snapshot = await iceberg.query(snapshot_id=snapshot_id, entity_type="Purchase")
            assert sorted((row.number, row.state) for row in snapshot) == [(0, "new"), (1, "new"), (2, "new")]
        assert snapshot.freshness.snapshots["default.Purchase"] == snap_42.snapshot_id

        before = await iceberg.list_snapshots()
        moments = [each.timestamp for each in before if each.timestamp]
        assert moments == sorted(moments, reverse=True)
        assert len(moments) == len(before)
        assert snap_42.snapshot_id in {each.snapshot_id for each in before}

        rollback = await things.rollback_to(snap_42.snapshot_id)
        assert (rollback.changes.added, rollback.changes.removed, rollback.changes.changed) == (1, 1, 1)
        for _ in ("in the tail", "published"):
            rows = await things.query(entity_type="Purchase")
            assert sorted((row.number, row.state) for row in rows) == [(0, "new"), (1, "new"), (2, "new")]
            broken = await things.query('SELECT number, state FROM "Purchase" ORDER BY number', as_of=broken_at)
            assert [tuple(row) for row in broken] == [(0, "sent"), (2, "new"), (3, "new")], "history is kept"
            await asyncio.to_thread(server.flush)

        after = await iceberg.list_snapshots("Purchase")
        assert after[0].is_current
        assert after[0].snapshot_id not in {each.snapshot_id for each in before}, "a new snapshot"
        kept = {each.snapshot_id for each in after}
        assert {each.snapshot_id for each in before if each.table == "default.Purchase"} <= kept, "history is kept"
        versions = await things.query('SELECT _operation FROM "Purchase" WHERE number = 0 ORDER BY _position')
        assert len(versions) == 3

        await things.send(
            [update("Purchase", "0", None, {"number": 0, "state": "later"}), delete("Purchase", "1", number=1)]
        )
        await things.send(insert("Purchase", "3", number=3, state="again"))
        for _ in ("in the tail", "published"):
            rows = await things.query(entity_type="Purchase")
            assert sorted((row.number, row.state) for row in rows) == [(0, "later"), (2, "new"), (3, "again")]
            await asyncio.to_thread(server.flush)
    with duck_on(server.url) as duck:
        found = duck.execute('SELECT number, state FROM lake.default."Purchase" ORDER BY 1').fetchall()
        assert found == [(0, "later"), (2, "new"), (3, "again")]
    server.flush()
    verified(server.home)


async def test_a_table_goes_back_to_a_moment_between_two_snapshots(server: ServerProcess) -> None:
    async with connect(server.url, source="moments") as shop:
        await shop.send([insert("shelf", f"{n}", n=n, size="S") for n in range(20)])
        good = await a_moment()
        await shop.send([update("shelf", f"{n}", None, {"n": n, "size": "broken"}) for n in range(0, 20, 2)])
        await shop.send([update("shelf", "moved", None, {"n": 1, "size": "S"}, previousRowId="1")])
        await shop.send([insert("other", "1", n=1)])
        rollback = await shop.rollback_to(table="shelf", as_of=good)
        assert (rollback.changes.added, rollback.changes.removed, rollback.changes.changed) == (1, 1, 10)
        for _ in ("in the tail", "published"):
            rows = await shop.query("SELECT _key, n, size FROM shelf ORDER BY n")
            assert [tuple(row) for row in rows] == [(f"{n}", n, "S") for n in range(20)]
            assert (await shop.query("SELECT COUNT(*) FROM other")).scalar() == 1, "other tables stay"
            await asyncio.to_thread(server.flush)
        again = await shop.rollback_to(table="shelf", as_of=good)
        assert (again.changes.added, again.changes.removed, again.changes.changed) == (0, 0, 0)
    server.flush()
    verified(server.home)


async def test_a_snapshot_that_never_was_is_refused(server: ServerProcess) -> None:
    async with connect(server.url, source="refused") as shop:
        await shop.send(insert("guarded", "1", n=1))
        await asyncio.to_thread(server.flush)
        with pytest.raises(NoSuchSnapshot):
            await shop.query(snapshot_id=42, entity_type="guarded")
        with pytest.raises(NoSuchSnapshot):
            await shop.rollback_to(42, table="guarded")
        with pytest.raises((NoSuchSnapshot, InvalidInput)):
            await shop.query(snapshot_id="snap-forty-two", entity_type="guarded")
    status, error = refusal(server, "/v1/query", sql="SELECT * FROM guarded", asOf="last tuesday")
    assert status == 400, error


# --- what changed ----------------------------------------------------------------------------------------------------


async def test_a_diff_names_rows_added_removed_and_changed_between_any_two_moments(server: ServerProcess) -> None:
    async with connect(server.url, source="differ") as shop:
        await shop.send([insert("list", f"{n}", n=n, qty=1) for n in range(4)])
        await asyncio.to_thread(server.flush)
        (first,) = [each for each in await shop.list_snapshots("list") if each.is_current]
        start = await a_moment()
        await shop.send(
            [
                update("list", "0", None, {"n": 0, "qty": 2}),
                update("list", "1", None, {"n": 1, "qty": 5}),
                update("list", "1", None, {"n": 1, "qty": 1}),
                delete("list", "2", n=2, qty=1),
                insert("list", "4", n=4, qty=1),
                insert("list", "5", n=5, qty=1),
                delete("list", "5", n=5, qty=1),
            ]
        )
        end = await a_moment()
        for _ in ("in the tail", "published"):
            for from_, to in (
                (start, None),
                (start, end),
                (first, end),
                ({"snapshot_id": first.snapshot_id}, None),
            ):
                diff = await shop.diff("list", from_=from_, to=to)
                assert (diff.counts.added, diff.counts.removed, diff.counts.changed) == (1, 1, 1), (from_, to)
                assert [row["n"] for row in diff.added] == [4]
                assert [row["n"] for row in diff.removed] == [2]
                (changed,) = diff.changed
                assert (changed.key, changed.columns) == ("0", ["qty"])
                assert (changed.before["qty"], changed.after["qty"]) == (1, 2)
            await asyncio.to_thread(server.flush)
        backwards = await shop.diff("list", from_=end, to=start)
        assert [row["n"] for row in backwards.added] == [2]
        nothing = await shop.diff("list", from_=end)
        assert (nothing.added, nothing.removed, nothing.changed) == ([], [], [])
    answer = post(server, "/v1/diff", table="list", **{"from": now_ms() - 1})
    assert answer["counts"] == {"added": 0, "removed": 0, "changed": 0}


async def test_a_schema_has_its_versions_and_the_past_has_the_columns_of_now(server: ServerProcess) -> None:
    async with connect(server.url, source="schemas") as shop:
        await shop.send(insert("grown", "1", name="Alice"))
        await asyncio.to_thread(server.flush)
        young = await a_moment()
        await shop.send(insert("grown", "2", name="Bob", age=41))
        await asyncio.to_thread(server.flush)
        await shop.send(insert("grown", "3", name="Cyd", age=7, address={"city": "Oslo"}))
        await asyncio.to_thread(server.flush)
        schema = await shop.get_schema("grown")
        assert schema.version == 3
        assert [(field.name, field.type) for field in schema.fields][:2] == [("name", "string"), ("age", "long")]
        assert [each.version for each in schema.versions] == [1, 2, 3]
        assert [len(each.fields) for each in schema.versions] == [1, 2, 3]
        since = [each.since for each in schema.versions if each.since]
        assert since == sorted(since)
        then = await shop.query("SELECT name FROM grown", as_of=young)
        assert [row.name for row in then] == ["Alice"]
        with pytest.raises(InvalidInput):
            await shop.get_schema()  # of which of the lake's tables?
