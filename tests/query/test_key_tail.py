"""The tail by key: the changes of a row between two positions, by whatever records they came."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec

from dolake.journal.reader import JournalReader
from dolake.query.key_tail import KeyTail
from dolake.wire.binary import decode_raw_batch
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
