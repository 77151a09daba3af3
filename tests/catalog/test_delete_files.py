"""Which deletes apply to which data file, by the rules of the specification."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from pyiceberg.manifest import DataFileContent

from dolake.catalog.delete_files import PATH_FIELD_ID, DeleteFiles

POSITIONS, EQUALITY = DataFileContent.POSITION_DELETES, DataFileContent.EQUALITY_DELETES


@dataclass
class File:
    """What the index looks at."""

    file_path: str
    content: DataFileContent = DataFileContent.DATA
    spec_id: int = 0
    partition: tuple[Any, ...] = ("eu",)
    lower_bounds: dict[int, bytes] = field(default_factory=dict)
    upper_bounds: dict[int, bytes] = field(default_factory=dict)


def bounded(lower: str, upper: str, content: DataFileContent = POSITIONS) -> File:
    return File("d", content, 0, ("eu",), {PATH_FIELD_ID: lower.encode()}, {PATH_FIELD_ID: upper.encode()})


def applies(
    delete: File,
    number: int,
    *,
    to: File | None = None,
    of: int = 5,
    referenced: str | None = None,
    is_partitioned: bool = True,
) -> bool:
    deletes = DeleteFiles()
    deletes.add(delete, number, referenced=referenced, is_vector=False, is_partitioned=is_partitioned)
    return bool(deletes.of(to or File("b"), of))


@pytest.mark.parametrize(("number", "is_applied"), [(4, False), (5, True), (6, True)])
def test_position_deletes_apply_to_files_of_their_own_age_and_older(number: int, is_applied: bool) -> None:
    assert applies(File("d", POSITIONS), number) is is_applied
    assert applies(File("d", POSITIONS), number, referenced="b") is is_applied


@pytest.mark.parametrize(("number", "is_applied"), [(4, False), (5, False), (6, True)])
def test_equality_deletes_apply_to_older_files_alone(number: int, is_applied: bool) -> None:
    assert applies(File("d", EQUALITY), number) is is_applied
    assert applies(File("d", EQUALITY, 1, ()), number, is_partitioned=False) is is_applied


def test_deletes_of_another_partition_or_spec_do_not_apply() -> None:
    for content in (POSITIONS, EQUALITY):
        assert not applies(File("d", content, partition=("us",)), 9)
        assert not applies(File("d", content, spec_id=1), 9)


def test_deletes_that_name_their_file_apply_to_no_other() -> None:
    assert not applies(File("d", POSITIONS), 9, referenced="a")
    assert applies(bounded("b", "b"), 9)
    assert not applies(bounded("a", "a"), 9)
    assert applies(bounded("a", "c"), 9)
    assert not applies(bounded("c", "d"), 9)


def test_a_vector_stands_for_all_position_deletes_of_its_file() -> None:
    deletes = DeleteFiles()
    vector, old, equal = File("v", POSITIONS), File("d", POSITIONS), File("e", EQUALITY)
    deletes.add(old, 6, referenced="b", is_vector=False, is_partitioned=True)
    deletes.add(vector, 7, referenced="b", is_vector=True, is_partitioned=True)
    deletes.add(equal, 8, referenced=None, is_vector=False, is_partitioned=True)
    assert deletes.of(File("b"), 5) == [vector, equal]
    assert deletes.of(File("c"), 5) == [equal]
