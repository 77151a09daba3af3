"""Which Java is taken, which is refused, and what a person without one reads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dolake.pipeline import java as ensure_java

VERSION_LINES = {
    8: 'openjdk version "1.8.0_392"',
    11: 'openjdk version "11.0.22" 2024-01-16',
    17: 'openjdk version "17.0.15" 2025-04-15',
    21: 'openjdk version "21" 2023-09-19 LTS',
}


def write_java(path: Path, version: int, *, exit_code: int = 0) -> Path:
    """An executable that answers `-version` as Java does: on standard error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{VERSION_LINES[version]}' >&2\nexit {exit_code}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def empty(tmp_path: Path) -> dict[str, str]:
    """A machine without Java."""
    (tmp_path / "bin").mkdir()
    return {"PATH": str(tmp_path / "bin"), "DOLAKE_CACHE": str(tmp_path / "cache")}


def test_a_machine_without_java_has_none(empty: dict[str, str]) -> None:
    assert ensure_java.find_java(empty) is None


@pytest.mark.parametrize("version", [17, 21])
def test_java_on_the_path_is_found(empty: dict[str, str], tmp_path: Path, version: int) -> None:
    java = write_java(tmp_path / "bin" / "java", version)
    assert ensure_java.find_java(empty) == java


@pytest.mark.parametrize("version", [8, 11])
def test_an_old_java_is_refused(empty: dict[str, str], tmp_path: Path, version: int) -> None:
    write_java(tmp_path / "bin" / "java", version)
    assert ensure_java.find_java(empty) is None


def test_a_java_that_does_not_start_is_refused(empty: dict[str, str], tmp_path: Path) -> None:
    write_java(tmp_path / "bin" / "java", 17, exit_code=1)
    assert ensure_java.find_java(empty) is None


def test_java_home_is_preferred_to_the_path(empty: dict[str, str], tmp_path: Path) -> None:
    write_java(tmp_path / "bin" / "java", 21)
    java = write_java(tmp_path / "home" / "bin" / "java", 17)
    assert ensure_java.find_java({**empty, "JAVA_HOME": str(tmp_path / "home")}) == java


def test_an_old_java_home_does_not_hide_a_good_java_on_the_path(empty: dict[str, str], tmp_path: Path) -> None:
    write_java(tmp_path / "home" / "bin" / "java", 11)
    java = write_java(tmp_path / "bin" / "java", 17)
    assert ensure_java.find_java({**empty, "JAVA_HOME": str(tmp_path / "home")}) == java


@pytest.mark.parametrize("inside", ["jdk-21+35-jre/bin/java", "jdk-21+35-jre/Contents/Home/bin/java"])
def test_java_in_our_cache_is_found(empty: dict[str, str], tmp_path: Path, inside: str) -> None:
    java = write_java(tmp_path / "cache" / "jdk" / inside, 21)
    assert ensure_java.find_java(empty) == java


def test_a_fetched_java_is_found_from_then_on(empty: dict[str, str], tmp_path: Path) -> None:
    ready = write_java(tmp_path / "ready" / "java", 21)
    installer = ("/bin/sh", "-c", f'mkdir -p "$0/jdk-21/bin" && cp {ready} "$0/jdk-21/bin/java"')
    java = ensure_java.fetch_java(tmp_path / "cache", installer=installer)
    assert java is not None
    assert ensure_java.find_java(empty) == java


def test_a_download_that_hangs_is_stopped_and_leaves_nothing(empty: dict[str, str], tmp_path: Path) -> None:
    ready = write_java(tmp_path / "ready" / "java", 21)
    installer = ("/bin/sh", "-c", f'mkdir -p "$0/jdk-21/bin" && cp {ready} "$0/jdk-21/bin/java"; exec sleep 60')
    assert ensure_java.fetch_java(tmp_path / "cache", installer=installer, time_max_s=0.5) is None
    assert list((tmp_path / "cache").iterdir()) == []
    assert ensure_java.find_java(empty) is None


def test_a_download_that_fails_is_no_java(tmp_path: Path) -> None:
    installer = (sys.executable, "-c", "raise SystemExit(1)")
    assert ensure_java.fetch_java(tmp_path / "cache", installer=installer) is None


def test_who_has_no_java_reads_what_to_type(
    empty: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    for name, value in empty.items():
        monkeypatch.setenv(name, value)
    assert ensure_java.main(["--no-fetch"]) == 1
    advice = capsys.readouterr().err
    for command in ("sudo apt-get install openjdk-21", "sudo dnf install java-", "brew install openjdk", "JAVA_HOME="):
        assert command in advice


def test_with_java_there_is_one_line_or_none(
    empty: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    java = write_java(tmp_path / "bin" / "java", 17)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    for name, value in empty.items():
        monkeypatch.setenv(name, value)
    assert ensure_java.main([]) == 0
    assert capsys.readouterr().out == f"java: version 17 in {java}\n"
    assert ensure_java.main(["--quiet"]) == 0
    assert capsys.readouterr().out == ""
