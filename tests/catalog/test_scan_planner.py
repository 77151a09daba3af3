"""Planning scans of tables whose files cannot be trusted, because somebody else wrote them, and of large ones."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dolake.catalog.documents import Document
from dolake.catalog.errors import IllegalArgument, MissingFile, NoSuchPlanTask
from dolake.catalog.manifests import Manifests
from dolake.catalog.pages import Pages, unpacked
from dolake.catalog.scan_planner import plan
from dolake.catalog.scans import Scan, read_scan
from dolake.errors import DoLakeError, Forbidden, InvalidInput
from dolake.storage.local import LocalStorage, path_of
from tests.catalog.examples import Json
from tests.catalog.test_partitions import forged, many_partitions, with_manifest_list, written_table


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "warehouse")


def go_on() -> None:
    """For ever."""


def planned(document: Document, storage: LocalStorage, **body: Any) -> list[Json]:
    scan = read_scan({key.replace("_", "-"): value for key, value in body.items()}, document.metadata)
    pages = plan(document.metadata, scan, Manifests(storage, go_on, lambda _paths: None), Pages(1_000, 2**26))
    found = [msgspec.json.decode(b"{" + unpacked(page) + b"}") for page in pages]
    return [task for page in found for task in page["file-scan-tasks"]]


def test_manifests_outside_the_warehouse_are_not_read(storage: LocalStorage, tmp_path: Path) -> None:
    outside, inside = written_table(tmp_path / "elsewhere"), written_table(tmp_path / "warehouse")
    theirs = outside.metadata["snapshots"][0]["manifest-list"]
    for location in (theirs, "/etc/hostname", "s3://bucket/x.avro", "https://example.org/x.avro"):
        with pytest.raises(InvalidInput):
            planned(with_manifest_list(inside, location), storage)
    own_list = tmp_path / "warehouse" / "own.avro"
    own_list.write_bytes(path_of(theirs).read_bytes())  # the list is inside, and names manifests that are not
    with pytest.raises(InvalidInput, match="outside the warehouse"):
        planned(with_manifest_list(inside, f"file://{own_list}"), storage)


def test_no_file_is_read_before_it_is_checked_whose_it_is(storage: LocalStorage, tmp_path: Path) -> None:
    document, asked = written_table(tmp_path / "warehouse"), list[str]()

    def check(paths: list[str]) -> None:
        asked.extend(paths)
        if len(asked) == 2:
            raise Forbidden("not yours")

    manifests, scan = Manifests(storage, go_on, check), read_scan({}, document.metadata)
    with pytest.raises(Forbidden):
        plan(document.metadata, scan, manifests, Pages(1_000, 2**26))
    assert asked[0] == document.metadata["snapshots"][0]["manifest-list"]
    assert asked[1].endswith("-m0.avro")


@pytest.mark.parametrize("kind", ["snap-*.avro", "*-m0.avro"])
def test_broken_manifests_are_refused_in_words(storage: LocalStorage, tmp_path: Path, kind: str) -> None:
    document, chance = written_table(tmp_path / "warehouse"), random.Random(1)
    (path,) = path_of(document.metadata["snapshots"][0]["manifest-list"]).parent.glob(kind)
    good, refused = path.read_bytes(), 0
    for _ in range(150):
        bad = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        path.write_bytes(bad[: chance.randrange(len(bad))] if chance.random() < 0.3 else bad)
        try:
            planned(document, storage, filter={"type": "gt", "term": "id", "value": 1}, stats_fields=["id"])
        except (IllegalArgument, InvalidInput, MissingFile):
            refused += 1
    assert refused > 40
    path.unlink()
    with pytest.raises(MissingFile, match="a manifest of the table is missing"):
        planned(document, storage)


def test_a_table_that_cannot_be_planned_is_refused_in_words(storage: LocalStorage, tmp_path: Path) -> None:
    document = written_table(tmp_path / "warehouse")
    (snapshot,) = document.metadata["snapshots"]
    old = {key: value for key, value in snapshot.items() if key != "manifest-list"} | {"manifests": []}
    with pytest.raises(IllegalArgument, match="names its manifests one by one"):
        planned(forged(document, snapshots=[old]), storage)
    odd = {"id": 1, "name": "id", "required": False, "type": "variant"}
    with pytest.raises(IllegalArgument, match="schema cannot be planned with"):
        planned(forged(document, schemas=[document.metadata["schemas"][0] | {"fields": [odd]}]), storage)
    with pytest.raises(IllegalArgument, match="spec 0, which the table does not have"):
        planned(forged(document, **{"partition-specs": []}), storage)
    gone: list[tuple[Scan, type[DoLakeError]]] = [(Scan(5, 0), NoSuchPlanTask), (Scan(5, 9), NoSuchPlanTask)]
    gone.append((Scan(snapshot["snapshot-id"], 0, 5), NoSuchPlanTask))
    for scan, error in gone:
        with pytest.raises(error):
            plan(document.metadata, scan, Manifests(storage, go_on, lambda _paths: None), Pages(1, 2**20))


def test_ten_thousand_files_are_planned_in_no_time(storage: LocalStorage, tmp_path: Path) -> None:
    document = many_partitions(tmp_path / "warehouse", 10_000)
    began_s = time.process_time()
    assert len(planned(document, storage)) == 10_003
    assert time.process_time() - began_s < 6.0  # half a second, where nobody else is at work
    early = {"type": "lt", "term": "at", "value": "1970-01-03T00:00:00"}
    left = [
        (task["data-file"]["spec-id"], task["residual-filter"]) for task in planned(document, storage, filter=early)
    ]
    assert sorted(left, key=str) == [(0, True), (0, True), (1, early), (1, early), (1, early)]
