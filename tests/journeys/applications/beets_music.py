"""A music library of beets: items with attributes of their own, albums, and functions that only beets has in SQL."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from beets.library import Item, Library
from counting import Writes, main


def item(number: int) -> Item:
    return Item(title=f"song {number}", artist=f"band {number % 7}", path=f"/music/{number}.mp3".encode(), length=3.5)


def begin(path: str, writes: Writes) -> None:
    library = Library(path, directory="/music")
    for number in range(60):
        writes.do(lambda number=number: library.add(item(number)))


def work(path: str, writes: Writes) -> None:
    library = Library(path, directory="/music")
    for number in range(60, 90):
        writes.do(lambda number=number: library.add(item(number)))
    writes.do(lambda: library.add_album(list(library.items("artist:band 3"))))
    for each in library.items():
        each.year, each["mood"] = 1990 + each.id % 20, "calm"
        writes.do(each.store)
    for each in list(library.items("title:song 1")):
        writes.do(each.remove)


if __name__ == "__main__":
    main({"begin": begin, "work": work})
