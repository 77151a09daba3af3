"""What a question sees of the lake: the newest state, the past and every version, each beside a model of it."""

from __future__ import annotations

import random
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dolake.errors import InvalidInput, NoSuchSnapshot, TooStale, Unavailable, UnknownTable
from tests.query.asking import Asker, Named, asking
from tests.verify.lake import HandLake, delete, insert, update

CHANGE = frozenset({"_operation"})
_KEYS = 6
_TABLES = ("items", "shop.notes")


def shown(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The user's columns by key."""
    found = {row["_key"]: {name: value for name, value in row.items() if not name.startswith("_")} for row in rows}
    assert len(found) == len(rows), "a key twice"
    return found


# --- live ------------------------------------------------------------------------------------------------------------


def test_a_table_that_was_never_published_is_there_with_its_first_change(hand_lake: HandLake, asker: Asker) -> None:
    hand_lake.append(insert("a", n=1), insert("b", n=2))
    assert shown(asker.rows("items")[0]) == {"a": {"n": 1}, "b": {"n": 2}}


def test_published_rows_and_the_tail_are_one_table(hand_lake: HandLake, asker: Asker) -> None:
    hand_lake.publish(insert("a", n=1), insert("b", n=2), insert("c", n=3))
    hand_lake.append(update("a", {"n": 1}, {"n": 10}), delete("b", {"n": 2}), insert("d", n=4))
    assert shown(asker.rows("items")[0]) == {"a": {"n": 10}, "c": {"n": 3}, "d": {"n": 4}}
    assert asker.last is not None
    assert asker.last.freshness()["tailRows"] == 2


def test_without_a_key_index_the_answer_is_the_same(hand_lake: HandLake, asker: Asker) -> None:
    hand_lake.publish(insert("a", n=1), insert("b", n=2), insert("c", n=3))
    hand_lake.append(update("a", {"n": 1}, {"n": 10}), delete("b", {"n": 2}))
    shutil.rmtree(hand_lake.home / "keyindex")
    assert shown(asker.rows("items")[0]) == {"a": {"n": 10}, "c": {"n": 3}}


def test_a_column_that_only_the_tail_has_is_null_in_older_rows(hand_lake: HandLake, asker: Asker) -> None:
    hand_lake.publish(insert("a", n=1, address={"city": "Ulm"}, tags=[{"x": 1}]))
    hand_lake.append(insert("b", n=2, phone="1", address={"city": "Bonn", "zip": "5"}, tags=[{"x": 1, "y": "z"}]))
    assert shown(asker.rows("items")[0]) == {
        "a": {"n": 1, "phone": None, "address": {"city": "Ulm", "zip": None}, "tags": [{"x": 1, "y": None}]},
        "b": {"n": 2, "phone": "1", "address": {"city": "Bonn", "zip": "5"}, "tags": [{"x": 1, "y": "z"}]},
    }


def test_a_new_column_gets_the_type_that_all_values_of_the_tail_ask_for(hand_lake: HandLake, asker: Asker) -> None:
    hand_lake.append(insert("a", price=10))
    assert shown(asker.rows("items")[0]) == {"a": {"price": 10}}
    hand_lake.append(insert("b", price=10.5))
    assert shown(asker.rows("items")[0]) == {"a": {"price": 10.0}, "b": {"price": 10.5}}


def test_a_row_that_moved_to_another_key_is_not_shown_twice(hand_lake: HandLake, asker: Asker) -> None:
    hand_lake.publish(insert("a", n=1))
    hand_lake.append(update("b", {"n": 1}, {"n": 2}, metadata={"previousRowId": "a"}))
    assert shown(asker.rows("items")[0]) == {"b": {"n": 2}}


def test_half_a_transaction_is_not_shown_and_others_go_on(hand_lake: HandLake, asker: Asker) -> None:
    hand_lake.publish(insert("a", n=1))
    hand_lake.append(insert("b", n=2) | {"metadata": {"transactionId": "t"}}, source="bank")
    hand_lake.append(insert("c", n=3), source="shop")
    assert set(shown(asker.rows("items")[0])) == {"a", "c"}
    hand_lake.append(insert("d", n=4) | {"metadata": {"transactionId": "t", "transactionEnd": True}}, source="bank")
    assert set(shown(asker.rows("items")[0])) == {"a", "b", "c", "d"}


def test_an_answer_that_must_be_fresh_is_refused_rather_than_older(
    hand_lake: HandLake, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_900_000_000_000_000_000)  # behind the clock of the lake
    hand_lake.publish(insert("a", n=1))
    assert asker.rows("items", max_age_ms=0)
    hand_lake.append(insert("b", n=2) | {"metadata": {"transactionId": "t"}}, source="bank")
    assert asker.rows("items")
    with pytest.raises(TooStale):
        asker.rows("items", max_age_ms=0, timeout_s=0.05)
    with pytest.raises(InvalidInput):
        asker.rows("items", max_age_ms=0, as_of=1)
    hand_lake.append(insert("d", n=4) | {"metadata": {"transactionId": "t", "transactionEnd": True}}, source="bank")
    assert len(asker.rows("items", max_age_ms=0)[0]) == 3


def test_what_was_published_meanwhile_is_neither_lost_nor_doubled(hand_lake: HandLake, asker: Asker) -> None:
    for number in range(5):
        hand_lake.append(insert(f"k{number}", n=number))
        assert len(shown(asker.rows("items")[0])) == number + 1
        hand_lake.publish_all()
        assert len(shown(asker.rows("items")[0])) == number + 1


def test_a_publish_takes_nothing_from_a_view_that_is_being_made(hand_lake: HandLake, asker: Asker) -> None:
    hand_lake.publish(insert("a", n=1))
    hand_lake.append(insert("b", n=2))
    view = asker.view(named := Named("items"))
    hand_lake.publish(insert("c", n=3))
    asker.reader.tail.follow(hand_lake.store.published().position, asker.reader.tail.durable())  # as the follower does
    assert shown(asker.fetch(view.relation(named))) == {"a": {"n": 1}, "b": {"n": 2}}
    view.close()
    assert set(shown(asker.rows("items")[0])) == {"a", "b", "c"}
    assert asker.reader.tail.table("items") is None or not asker.reader.tail.table("items")._chunks  # type: ignore[union-attr]


def test_a_new_table_gets_columns_after_changes_that_had_none(hand_lake: HandLake, asker: Asker) -> None:
    hand_lake.append({"operation": "DELETE", "table": "items", "row_id": "a", "before": None})
    assert not asker.rows("items")[0]
    hand_lake.append(insert("b", n=1))
    assert shown(asker.rows("items")[0]) == {"b": {"n": 1}}


def test_a_new_column_that_only_a_row_before_has_is_known(hand_lake: HandLake, asker: Asker) -> None:
    first: dict[str, Any] = {"n": 1, "": True}
    hand_lake.append(insert("a", **first))
    hand_lake.append(update("a", {"n": 1, "old": "x"}, {"n": 2, "": False}))
    rows = asker.rows("items")[0]
    assert [(row["n"], row["old"], row["_rescued"]) for row in rows] == [(2, None, '{"":false}')]


def test_shards_that_reuse_ids_have_rows_of_their_own(tmp_path: Path) -> None:
    lake = HandLake(tmp_path, has_source_in_key=True)
    lake.publish(insert("1", n=1), source="north")
    lake.append(insert("1", n=2), source="south")
    lake.append(update("1", {"n": 1}, {"n": 3}), source="north")
    with asking(tmp_path, has_source_in_key=True) as asker:
        for _ in range(2):
            rows = asker.rows("items")[0]
            assert {(row["_source"], row["n"]) for row in rows} == {("north", 3), ("south", 2)}
            named = Named("items", hidden=frozenset({"_source"}))
            assert len(asker.rows(named)[0]) == len(rows), "who owns a row can be asked; that is no history"
            shutil.rmtree(tmp_path / "keyindex", ignore_errors=True)
    lake.close()


def test_a_table_that_nobody_has_written_is_an_error(asker: Asker) -> None:
    with pytest.raises(UnknownTable, match=r"default\.nothing"):
        asker.rows("nothing")


def test_a_position_that_is_not_durable_is_waited_for_and_then_refused(hand_lake: HandLake, asker: Asker) -> None:
    hand_lake.append(insert("a", n=1))
    assert asker.rows("items", min_position=2)
    with pytest.raises(Unavailable, match="position 99 is not durable"):
        asker.rows("items", min_position=99, timeout_s=0.05)


def test_the_tail_has_a_limit(hand_lake: HandLake, asker: Asker) -> None:
    asker.reader.tail.bytes_max = 1_000
    hand_lake.append(insert("a", text="x" * 2_000))
    with pytest.raises(Unavailable, match="wait to be published"):
        asker.rows("items")


# --- the past and every version --------------------------------------------------------------------------------------


def test_before_its_first_change_a_table_is_empty_and_a_warning_says_since_when_it_exists(
    hand_lake: HandLake, asker: Asker
) -> None:
    hand_lake.publish(insert("a", n=1))
    hand_lake.append(insert("a", "later", n=1))
    for table in ("items", "later"):
        view = asker.view(Named(table), as_of="2020-01-01")
        relation = view.relation(Named(table))
        assert (relation.columns, asker.fetch(relation)) == (("n",), [])
        (warning,) = view.warnings
        assert "did not exist at 2020-01-01T00:00:00" in warning
        assert "its first change came at 2027-01-15T08:00" in warning
        assert view.freshness()["position"] == 0
    with pytest.raises(UnknownTable):
        asker.rows("nothing", as_of="2020-01-01")


def test_a_snapshot_by_its_number_its_digits_or_with_a_prefix(hand_lake: HandLake, asker: Asker) -> None:
    hand_lake.publish(insert("a", n=1))
    first = hand_lake.metadata("default.items")["current-snapshot-id"]
    hand_lake.publish(insert("b", n=2))
    for id_ in (first, str(first), f"snap-{first}"):
        assert set(shown(asker.rows("items", snapshot_id=id_)[0])) == {"a"}
    assert set(shown(asker.rows(Named("items", snapshot_id=first))[0])) == {"a"}
    with pytest.raises(NoSuchSnapshot, match="no snapshot 77"):
        asker.rows("items", snapshot_id=77)


def test_naming_a_column_of_a_change_shows_every_version(hand_lake: HandLake, asker: Asker) -> None:
    hand_lake.publish(insert("a", n=1), update("a", {"n": 1}, {"n": 2}))
    hand_lake.append(update("a", {"n": 2}, {"n": 3}), delete("a", {"n": 3}))
    rows = asker.rows(Named("items", hidden=CHANGE))[0]
    versions = [(row["_operation"], row["n"]) for row in sorted(rows, key=lambda row: row["_position"])]
    assert versions == [("INSERT", 1), ("UPDATE", 2), ("UPDATE", 3), ("DELETE", 3)]
    assert rows == asker.rows("items__changes")[0]
    assert not asker.rows("items")[0]


def test_with_a_snapshot_the_versions_that_it_has_seen_are_shown(hand_lake: HandLake, asker: Asker) -> None:
    hand_lake.publish(insert("a", n=1), update("a", {"n": 1}, {"n": 2}))
    then = hand_lake.metadata("default.items")["current-snapshot-id"]
    hand_lake.publish(update("a", {"n": 2}, {"n": 3}))
    rows = asker.rows(Named("items", hidden=CHANGE), snapshot_id=then)[0]
    assert sorted((row["_operation"], row["n"]) for row in rows) == [("INSERT", 1), ("UPDATE", 2)]


def test_what_was_rescued_of_the_row_before_is_not_in_the_past_of_the_state(hand_lake: HandLake, asker: Asker) -> None:
    hand_lake.publish(insert("a", n=1), insert("b", n=1))
    hand_lake.publish(update("a", {"n": 1, "": True}, {"n": 2}), update("b", {"n": 1, "": True}, {"n": 2, "": [1]}))
    live = {row["_key"]: row["_rescued"] for row in asker.rows("items")[0]}
    versions = asker.rows(Named("items", hidden=CHANGE))[0]
    last_ms = round(max(row["_commit_timestamp"] for row in versions).timestamp() * 1000)
    hand_lake.publish(insert("c", n=1))
    past = {row["_key"]: row["_rescued"] for row in asker.rows("items", as_of=last_ms)[0]}
    assert past == live == {"a": None, "b": '{"":[1]}'}


def test_a_sources_own_column_wins_over_history(hand_lake: HandLake, asker: Asker) -> None:
    hand_lake.publish(insert("a", _operation="cut", n=1), update("a", {"n": 1}, {"_operation": "sew", "n": 2}))
    view = asker.view(named := Named("items", hidden=CHANGE))
    rows = asker.fetch(view.relation(named))
    assert [(row["_operation"], row["n"]) for row in rows] == [("sew", 2)]
    assert "_operation" in view.warnings[0]


# --- beside a model --------------------------------------------------------------------------------------------------


@dataclass
class Model:
    """Every change, and what of them is to be seen."""

    lake: HandLake
    chance: random.Random
    changes: list[dict[str, Any]] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    now: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    _open: dict[str, str] = field(default_factory=dict)
    _transactions: int = 0

    def step(self) -> None:
        if self.chance.random() < 0.25:
            self.lake.publish_all()
            return
        source = self.chance.choice(("north", "south"))
        batch = [self._change(source) for _ in range(self.chance.randint(1, 4))]
        self._mark_transaction(source, batch)
        self.lake.append(*[each["sent"] for each in batch], source=source)
        time_ms = next(self.lake._clock) - 1_000
        self.changes += [each | {"source": source, "at": time_ms} for each in batch]

    def _change(self, source: str) -> dict[str, Any]:
        """Each source has keys of its own, so that what is held of one does not mix with the other."""
        table = self.chance.choice(_TABLES)
        key = f"{source}-{self.chance.randrange(_KEYS)}"
        old = self.now.get((table, key))
        row = {"n": self.chance.randrange(100)} | ({"more": "x"} if self.chance.random() < 0.2 else {})
        free = [name for at in range(_KEYS) if (table, name := f"{source}-{at}") not in self.now]
        if old is None:
            sent = insert(key, table, **row)
        elif self.chance.random() < 0.3:
            sent, row = delete(key, old, table), {}
        elif free and self.chance.random() < 0.2:
            moved_to = free[0]
            sent = update(moved_to, old, row, table, metadata={"previousRowId": key})
            del self.now[table, key]
            key, previous = moved_to, key
            self.now[table, key] = row
            return {"sent": sent, "table": table, "key": key, "row": row, "previous": previous}
        else:
            sent = update(key, old, row, table)
        if row:
            self.now[table, key] = row
        else:
            self.now.pop((table, key), None)
        return {"sent": sent, "table": table, "key": key, "row": row, "previous": None}

    def _mark_transaction(self, source: str, batch: list[dict[str, Any]]) -> None:
        id_ = self._open.get(source)
        if id_ is None:
            if self.chance.random() < 0.6:
                return
            self._transactions += 1
            id_ = self._open[source] = f"t{self._transactions}"
        for each in batch:
            each["sent"]["metadata"] = each["sent"].get("metadata", {}) | {"transactionId": id_}
            each["transaction"] = id_
        if self.chance.random() < 0.6:
            batch[-1]["sent"]["metadata"]["transactionEnd"] = True
            del self._open[source]

    def seen(self, count: int) -> list[dict[str, Any]]:
        """The first so many changes, without the transactions that are not whole among them."""
        first = self.changes[:count]
        ended = {each["transaction"] for each in first if each["sent"].get("metadata", {}).get("transactionEnd")}
        return [each for each in first if each.get("transaction") is None or each["transaction"] in ended]

    def state(self, count: int) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {table: {} for table in _TABLES}
        for each in self.seen(count):
            own = found[each["table"]]
            if each["previous"]:
                own.pop(each["previous"], None)
            if each["row"]:
                own[each["key"]] = each["row"]
            else:
                own.pop(each["key"], None)
        return found


def without_nulls(rows: dict[str, Any]) -> dict[str, Any]:
    return {key: {name: value for name, value in row.items() if value is not None} for key, row in rows.items()}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("has_index", [True, False])
def test_now_and_any_moment_and_all_versions_are_as_a_model_says(tmp_path: Path, seed: int, has_index: bool) -> None:
    lake = HandLake(tmp_path)
    model = Model(lake, random.Random(seed))
    references = [Named("items"), Named("notes", "shop")]
    for table in _TABLES:
        change = insert("north-0", table, n=0, more="y")
        lake.append(change, source="north")
        model.now[table, "north-0"] = {"n": 0, "more": "y"}
        first = {"sent": change, "table": table, "key": "north-0", "row": {"n": 0, "more": "y"}, "previous": None}
        model.changes.append(first | {"source": "north", "at": next(lake._clock) - 1_000})
    with asking(tmp_path) as asker:
        for _ in range(25):
            model.step()
            if not has_index:
                shutil.rmtree(tmp_path / "aside", ignore_errors=True)
                if (tmp_path / "keyindex").exists():
                    (tmp_path / "keyindex").rename(tmp_path / "aside")
            found = [without_nulls(shown(rows)) for rows in asker.rows(*references)]
            if not has_index and (tmp_path / "aside").exists():
                (tmp_path / "aside").rename(tmp_path / "keyindex")
            assert found == list(model.state(len(model.changes)).values())
        if seed % 2:
            for name in ("default.items", "shop.notes"):
                if name in lake.files:
                    snapshots = lake.metadata(name)["snapshots"]
                    lake.expire(name, [each["snapshot-id"] for each in snapshots[:-1]])
        check_the_past(model, asker, references)
    lake.close()


def check_the_past(model: Model, asker: Asker, references: list[Named]) -> None:
    times = sorted({each["at"] for each in model.changes})
    for at in times[1:]:
        for time_ms in (at, at + 500):
            count = sum(each["at"] <= time_ms for each in model.changes)
            found = [without_nulls(shown(rows)) for rows in asker.rows(*references, as_of=time_ms)]
            assert found == list(model.state(count).values()), f"at {time_ms}, {count} changes"
    versions = asker.rows(*[Named(each.table, each.namespace, CHANGE) for each in references])
    whole = model.seen(len(model.changes))
    for table, rows in zip(_TABLES, versions, strict=True):
        assert len(rows) == sum(each["table"] == table for each in whole)
