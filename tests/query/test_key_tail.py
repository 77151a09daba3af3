"""The tail by key: the changes of a row between two positions, by whatever records they came."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dolake.journal.reader import JournalReader
from dolake.query import key_tail
from dolake.query.key_tail import KeyTail
from dolake.wire.binary import decode_raw_batch
from dolake.wire.messages import RawBatch
from tests.verify.lake import HandLake, delete, insert, update


def _random_change(chance: random.Random) -> dict[str, Any]:
    key, table = str(chance.randrange(12)), chance.choice(["items", "others"])
    match chance.randrange(5):
        case 0:
            return delete(key, {"n": 1}, table)
        case 1:
            moved = update(key, {"n": 1}, {"n": 2}, table)
            return moved | {"metadata": {"previousRowId": str(chance.randrange(12))}}
        case 2:
            return update(key, {"n": 1}, {"n": 2}, table)
        case _:
            return insert(key, table, n=1)


def _by_a_walk(journal: Path, table: str, key: str, start: int, end: int) -> list[int]:
    """Newest first, by looking at every change."""
    found = []
    with JournalReader(journal) as reader:
        for record in reader.read(start, end):
            for at, event in enumerate(decode_raw_batch(record.payload).events, record.position):
                metadata = msgspec.json.decode(event.metadata) if isinstance(event.metadata, msgspec.Raw) else {}
                moved = metadata.get("previousRowId") == key and event.operation == "UPDATE"
                if start <= at < end and event.table == table and (event.row_id == key or moved):
                    found.append(at)
    return found[::-1]


def test_a_key_has_all_its_changes_newest_first_however_the_tail_is_read(tmp_path: Path) -> None:
    chance, lake = random.Random(5), HandLake(tmp_path)
    journal = tmp_path / "journal"
    lake.append(insert("first"))
    tail = KeyTail(journal, has_source_in_key=False, bytes_max=2**30)
    start = 0
    for _ in range(60):
        lake.append(*(_random_change(chance) for _ in range(chance.randrange(1, 400))))
        if chance.random() < 0.3:
            lake.append_state({"at": chance.random()})
        end = tail.durable()
        if chance.random() < 0.3:
            tail.follow(start, end)
        if chance.random() < 0.3:
            start = chance.randrange(start, end)
        for table in ("items", "others"):
            part = tail.part(table, start, end)
            assert part is not None
            for key in ("0", "7", "none"):
                found = [each.position for each in part.changes((key, ""))]
                assert found == _by_a_walk(journal, table, key, start, end)
    tail.close()
    lake.close()


def test_a_transaction_ends_with_a_change_that_is_not_of_it_whatever_columns_that_has(tmp_path: Path) -> None:
    lake = HandLake(tmp_path)
    open_ended = insert("1", n=1) | {"metadata": {"transactionId": "t"}}
    lake.append(open_ended)
    tail = KeyTail(tmp_path / "journal", has_source_in_key=False, bytes_max=2**30)
    held = tail.part("items", 0, tail.durable())
    assert held is not None
    assert not list(held.changes(("1", "")))
    lake.append(insert("2", n={"transactionId": 5}))
    whole = tail.part("items", 0, tail.durable())
    assert whole is not None
    assert [each.position for each in whole.changes(("1", ""))] == [0]
    tail.close()
    lake.close()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The records that look-ups have read."""
    found: list[bytes] = []

    def decode(payload: bytes) -> RawBatch:
        found.append(payload)
        return decode_raw_batch(payload)

    monkeypatch.setattr(key_tail, "decode_raw_batch", decode)
    return found


def test_of_a_key_that_changes_all_the_time_only_the_newest_record_is_read(tmp_path: Path, read: list[bytes]) -> None:
    lake = HandLake(tmp_path)
    for number in range(20):
        lake.append(*(insert("hot", n=number) for _ in range(10)))
    tail = KeyTail(tmp_path / "journal", has_source_in_key=False, bytes_max=2**30)
    part = tail.part("items", 0, tail.durable())
    assert part is not None
    assert next(iter(part.changes(("hot", "")))).position == 199
    assert len(read) == 1
    tail.close()
    lake.close()


def test_a_record_with_many_of_the_keys_is_read_once(tmp_path: Path, read: list[bytes]) -> None:
    lake = HandLake(tmp_path)
    for number in range(3):
        lake.append(*(insert(str(key), n=number) for key in range(50)))
    tail = KeyTail(tmp_path / "journal", has_source_in_key=False, bytes_max=2**30)
    part = tail.part("items", 0, tail.durable())
    assert part is not None
    found = [[change.position for change in part.changes((str(key), ""))] for key in range(50)]
    assert found == [[100 + key, 50 + key, key] for key in range(50)]
    assert len(read) == 3
    tail.close()
    lake.close()
