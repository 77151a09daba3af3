"""What the tests of this room share: a small lake with a bit of everything, and one with nothing in it."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.verify.lake import HandLake, delete, insert, update


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[HandLake, Path]:
    """Three publishes: rows of many kinds, updates and deletes, a key that moves, values that do not fit.

    Made once, because syncing takes its time; each test gets these files back, at the place that they name.
    """
    folder = tmp_path_factory.mktemp("verify")
    lake = HandLake(folder / "home")
    lake.publish(
        *(insert(str(n), n=n, word=f"word {n}", at="2026-01-02T03:04:05Z", o={"a": n}, l=["x"]) for n in range(20)),
        insert("7", "shop.orders", total=1.5),
    )
    lake.publish(
        update("3", {"n": 3, "word": "word 3"}, {"n": 33, "word": "three", "o": {"a": 1}}),
        update("4", {"n": "no number"}, {"n": "four", "word": "w"}),
        delete("5", {"n": 5}),
        delete("never there", {"n": 0}),
        update("66", {"n": 6, "word": "word 6"}, {"n": 66, "l": []}, metadata={"previousRowId": "6"}),
        insert("8", "shop.orders", total=2.5),
    )
    lake.publish(insert("5", n=55), delete("7", {"total": 1.5}, "shop.orders"), source="other")
    lake.close()
    shutil.copytree(folder / "home", folder / "copy")
    return lake, folder / "copy"


@pytest.fixture
def lake(original: tuple[HandLake, Path]) -> Iterator[HandLake]:
    lake, files = copy.copy(original[0]), original[1]
    lake.files = copy.deepcopy(lake.files)
    shutil.rmtree(lake.home)
    shutil.copytree(files, lake.home)
    lake.open()
    yield lake
    lake.close()


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[HandLake]:
    lake = HandLake(tmp_path)
    yield lake
    lake.close()
