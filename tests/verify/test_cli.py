"""`dolake verify` as it is typed: what it prints, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import dolake
from tests.verify.lake import HandLake

pytestmark = pytest.mark.slow  # each of them starts the command anew
STATE = "default.items"


def test_a_sound_lake_is_shown_check_by_check_and_ends_with_0(lake: HandLake) -> None:
    answer = dolake("verify", "--home", lake.home)
    assert answer.returncode == 0, answer.stderr
    assert "position 29: 2 tables, 50 rows and changes in" in answer.stdout
    assert answer.stdout.rstrip().endswith("0 differences")
    assert "default.items" in answer.stdout


def test_a_difference_is_printed_in_a_line_and_the_exit_code_is_1(lake: HandLake) -> None:
    lake.rewrite(STATE, lambda rows: [row | {"n": 67} if row["_key"] == "66" else row for row in rows], at=1)
    answer = dolake("verify", "items", "--home", lake.home)
    assert answer.returncode == 1
    wanted = "different: default.items, state: key '66', changed at position 25: n is 67, and 66 in its last change"
    assert wanted in answer.stdout.splitlines()


def test_programs_get_json(lake: HandLake) -> None:
    lake.rewrite(f"{STATE}__changes", lambda rows: rows[1:])
    answer = dolake("verify", "--home", lake.home, "--json")
    assert answer.returncode == 1
    report = json.loads(answer.stdout)
    assert (report["position"], report["isClean"]) == (29, False)
    assert report["differenceCount"] == sum(check["differenceCount"] for check in report["checks"])
    (positions,) = [check for check in report["checks"] if check["name"] == "positions"]
    assert positions["differences"] == ["position 0 is in no table of changes"]


def test_a_folder_that_is_no_home_is_an_error_and_stays_as_it_was(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "mistyped"):
        answer = dolake("verify", "--home", folder)
        assert answer.returncode == 1
        assert answer.stderr.startswith("dolake: no ")
    assert not list(tmp_path.iterdir())


def test_verifying_changes_nothing_in_the_home(lake: HandLake) -> None:
    def files() -> dict[str, bytes]:
        # SQLite moves what is committed from one of its files to the other when it likes.
        found = (path for path in lake.home.rglob("*") if path.is_file() and not path.name.startswith("catalog.db"))
        return {str(path): path.read_bytes() for path in found}

    before = files()
    assert dolake("verify", "--home", lake.home, "--scratch", lake.home.parent).returncode == 0
    assert files() == before
    assert not list(lake.home.parent.glob("dolake-verify-*"))
