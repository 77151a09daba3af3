"""Animals in sqlite-utils, which makes a table anew for `transform`, and takes what has another form by upsert."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from counting import Writes, main
from sqlite_utils import Database


def begin(path: str, writes: Writes) -> None:
    db = Database(path)
    animals = [{"id": n, "name": f"animal {n}", "age": str(n % 9), "weight": n * 1.5, "extra": "x"} for n in range(200)]
    writes.do(lambda: db["animals"].insert_all(animals, pk="id"))
    writes.do(lambda: db["visits"].insert_all([{"animal": n % 50, "said": f"visit {n}"} for n in range(100)]))


def work(path: str, writes: Writes) -> None:
    db = Database(path)
    animals = db["animals"]
    writes.do(lambda: animals.transform(types={"age": int}, drop={"extra"}, rename={"weight": "kilograms"}))
    writes.do(
        lambda: animals.upsert_all(
            [{"id": n, "name": f"again {n}", "born": "2026-02-03"} for n in range(150, 260)], pk="id", alter=True
        )
    )
    writes.do(lambda: db["visits"].transform(column_order=("said", "animal")))
    writes.do(lambda: animals.extract("born", table="births", fk_column="birth_id"))
    writes.do(lambda: animals.enable_fts(["name"], create_triggers=True))
    for number in range(60):
        writes.do(lambda number=number: animals.update(number, {"name": f"named {number}", "age": number}))
        writes.do(lambda number=number: db["visits"].insert({"said": f"new {number}", "animal": number}))
    writes.do(lambda: animals.delete_where("id > ? and id < ?", [180, 190]))
    writes.do(lambda: animals.create_index(["name", "age"]))
    writes.do(lambda: db["diary"].insert({"day": "2026-03-01", "data": b"\x00\x01", "more": {"a": [1, 2]}}, pk="day"))
    writes.do(lambda: animals.transform(drop={"birth_id"}))


if __name__ == "__main__":
    main({"begin": begin, "work": work})
