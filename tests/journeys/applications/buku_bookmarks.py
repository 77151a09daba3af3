"""Bookmarks in buku, which numbers its rows anew when one is deleted."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from buku import BukuDb
from counting import Writes, main


def begin(path: str, writes: Writes) -> None:
    marks = BukuDb(dbfile=path)
    for number in range(60):
        writes.do(lambda n=number: marks.add_rec(f"http://example.org/{n}", f"page {n}", f",tag {n % 4},", fetch=False))


def work(path: str, writes: Writes) -> None:
    marks = BukuDb(dbfile=path)
    for number in range(60, 120):
        writes.do(lambda n=number: marks.add_rec(f"http://example.org/{n}", f"page {n}", ",new,", "words", fetch=False))
    for number in (3, 30, 100):
        writes.do(lambda n=number: marks.delete_rec(n, delay_commit=False, chatty=False))
    for number in range(1, 40):
        writes.do(lambda n=number: marks.update_rec(n, title_in=f"changed {n}", url=f"http://example.com/{n}"))
    writes.do(lambda: marks.append_tag_at_index({1, 2, 3}, ",more,"))


if __name__ == "__main__":
    main({"begin": begin, "work": work})
