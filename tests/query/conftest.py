"""A lake made by hand, and who asks it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.query.asking import Asker, asking
from tests.verify.lake import HandLake, insert


@pytest.fixture
def hand_lake(tmp_path: Path) -> Iterator[HandLake]:
    made = HandLake(tmp_path)
    made.append(insert("first", "others"))  # or there would be no journal yet
    yield made
    made.close()


@pytest.fixture
def asker(hand_lake: HandLake) -> Iterator[Asker]:
    with asking(hand_lake.home) as found:
        yield found
