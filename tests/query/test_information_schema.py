"""`information_schema`: what the asker may see of tables, columns and namespaces, and nothing of anybody else."""

from __future__ import annotations

from typing import Any

import pytest

from dolake.errors import UnknownTable
from dolake.identity.grants import Grant
from tests.query.asking import Asker, Named
from tests.verify.lake import HandLake, insert

MINE = Grant("mine", "mine", namespaces=(("mine",),))


def listed(asker: Asker, kind: str, grant: Grant | None = None) -> list[tuple[Any, ...]]:
    reference = Named(kind, "information_schema")
    view = asker.view(reference, **({"grant": grant} if grant else {}))
    return [tuple(row.values()) for row in asker.fetch(view.relation(reference))]


def test_published_and_unpublished_tables_are_listed(hand_lake: HandLake, asker: Asker) -> None:
    hand_lake.publish(insert("a", "items", n=1))
    hand_lake.append(insert("a", "shop.notes", text="x"))
    found = listed(asker, "tables")
    assert ("lake", "default", "items", "BASE TABLE") in found
    assert ("lake", "default", "items__changes", "BASE TABLE") in found
    assert ("lake", "shop", "notes", "BASE TABLE") in found
    assert {("lake", "default"), ("lake", "shop")} <= set(listed(asker, "schemata"))


def test_columns_have_their_places_and_types_also_those_that_only_the_tail_has(
    hand_lake: HandLake, asker: Asker
) -> None:
    hand_lake.publish(insert("a", "items", n=1, address={"city": "Ulm"}, tags=["x"]))
    hand_lake.append(insert("b", "items", price=1.5))
    found = [row[3:] for row in listed(asker, "columns") if row[1:3] == ("default", "items")]
    assert found == [
        ("n", 1, "YES", "BIGINT"),
        ("address", 2, "YES", 'STRUCT("city" VARCHAR)'),
        ("tags", 3, "YES", "VARCHAR[]"),
        ("price", 4, "YES", "DOUBLE"),
    ]


def test_a_grant_sees_its_own_namespaces_and_no_trace_of_others(hand_lake: HandLake, asker: Asker) -> None:
    hand_lake.publish(insert("a", "mine.items", n=1), insert("a", "theirs.secrets", pin=1))
    hand_lake.append(insert("a", "mine.fresh", n=1), insert("a", "theirs.fresh", pin=1))
    assert {row[1:3] for row in listed(asker, "tables", MINE)} == {
        ("mine", "items"),
        ("mine", "items__changes"),
        ("mine", "fresh"),
    }
    assert {row[1] for row in listed(asker, "columns", MINE)} == {"mine"}
    assert listed(asker, "schemata", MINE) == [("lake", "mine")]
    assert asker.reader.tables_seen(MINE) == ["mine.fresh", "mine.items", "mine.items__changes"]


def test_there_are_no_other_tables_in_it(asker: Asker) -> None:
    with pytest.raises(UnknownTable):
        listed(asker, "orders")
