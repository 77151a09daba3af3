"""Readers in other processes: one snapshot each, whatever the writer does meanwhile."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from dolake.keyindex import Changes, KeyIndex, KeyIndexView, StaleIndex, rebuild
from dolake.keyindex.disk import Disk
from dolake.keyindex.manifest import INDEX, load_manifest, store_manifest
from tests.keyindex.support import block, places

ROOT = Path(__file__).resolve().parents[2]
KEYS = range(30)
READ = """
import json, sys
from pathlib import Path
import numpy as np
from dolake.keyindex import Hashes, KeyIndexView

view = KeyIndexView.open(Path(sys.argv[1]), int(sys.argv[2]))
for line in sys.stdin:
    hi, lo = json.loads(line)
    file, position = view.look_up(Hashes(np.array(hi, np.uint64), np.array(lo, np.uint64)))
    print(json.dumps([[view.paths.get(id_) for id_ in file.tolist()], position.tolist()]), flush=True)
print(json.dumps(sorted(name for name in sys.modules if name.startswith(("pyspark", "py4j", "aiohttp", "pyarrow")))))
"""
WRITE = """
import sys
from pathlib import Path
from dolake.keyindex import Changes, KeyIndex
from tests.keyindex.support import block

index = KeyIndex.open(Path(sys.argv[1]), 1)
for snapshot_id in range(2, 80):
    index.stage(Changes([block(str(snapshot_id), {3: snapshot_id})]), snapshot_id)
    index.promote()
    index.merge()
"""


def test_a_view_of_another_process_answers_for_its_snapshot_while_the_writer_goes_on(tmp_path: Path) -> None:
    index = rebuild(tmp_path, 1, [block("a", {key: key for key in range(10)})])
    command = [sys.executable, "-c", READ, str(tmp_path), "1"]
    question = json.dumps([half.tolist() for half in block("", {3: 0, 20: 0}).hashes]) + "\n"
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        for snapshot_id in range(2, 6):
            reader.stdin.write(question)
            reader.stdin.flush()
            assert json.loads(reader.stdout.readline()) == [["a", None], [3, 0]]
            index.stage(Changes([block(str(snapshot_id), {3: 99, 20: 1, 21: 1})]), snapshot_id)
            index.promote()
            index.merge()
        assert not (tmp_path / "000000000001.run").exists()  # it reads from a file that has no name any more
        reader.stdin.close()
        assert json.loads(reader.stdout.readline()) == []  # and it loaded nothing heavy


def test_opening_a_view_changes_nothing(tmp_path: Path) -> None:
    index = rebuild(tmp_path, 1, [block("a", {1: 1})])
    index.stage(Changes([block("b", {1: 2})]), 2)
    (tmp_path / "000000000077.run").write_bytes(b"being written")
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert places(KeyIndexView.open(tmp_path, 1), KEYS) == {1: ("a", 1)}
    assert places(KeyIndexView.open(tmp_path, 2), KEYS) == {1: ("b", 2)}  # published, and about to be promoted
    with pytest.raises(StaleIndex):
        KeyIndexView.open(tmp_path, 3)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_a_view_can_be_opened_at_any_time_beside_a_writer_that_merges(tmp_path: Path) -> None:
    rebuild(tmp_path, 1, [block("a", {key: key for key in range(10)})])
    right_count = 0
    with subprocess.Popen([sys.executable, "-c", WRITE, str(tmp_path)], cwd=ROOT) as writer:
        while writer.poll() is None:
            manifest = load_manifest(tmp_path / INDEX)
            assert manifest is not None
            assert manifest.snapshot_id is not None
            with contextlib.suppress(StaleIndex):  # the writer was quicker
                assert places(KeyIndexView.open(tmp_path, manifest.snapshot_id), [3]) == wanted(manifest.snapshot_id)
                right_count += 1
    assert right_count
    assert writer.returncode == 0
    assert places(KeyIndex.open(tmp_path, 79), [3]) == wanted(79)


def wanted(snapshot_id: int) -> dict[int, tuple[str, int]]:
    return {3: ("a", 3) if snapshot_id == 1 else (str(snapshot_id), snapshot_id)}


def test_a_view_verifies_every_byte_when_asked(tmp_path: Path) -> None:
    rebuild(tmp_path, 1, [block("a", {key: key for key in range(10)})])
    path = next(tmp_path.glob("*.run"))
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    view = KeyIndexView.open(tmp_path, 1)
    with pytest.raises(StaleIndex):
        view.verify()


def test_an_index_that_points_to_a_file_it_does_not_list_is_stale(tmp_path: Path) -> None:
    index = rebuild(tmp_path, 1, [block("a", {1: 1})])
    store_manifest(tmp_path / INDEX, msgspec.structs.replace(index.view.manifest, files=()), Disk())
    view = KeyIndexView.open(tmp_path, 1)
    with pytest.raises(StaleIndex):
        places(view, [1])
    assert places(view, [2]) == {}
