"""The class archive: where it is, and what Java is told of it. That Java uses it is in test_publishing.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from dolake.pipeline import classes
from dolake.pipeline.classes import archive_of, archive_options
from dolake.pipeline.java import find_java


def _java() -> Path:
    java = find_java()
    assert java is not None
    return java


def test_java_is_told_of_an_archive_only_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "_FOLDER", tmp_path / "with space")
    assert archive_options(_java()) == ""
    archive_of(_java()).parent.mkdir()
    archive_of(_java()).write_bytes(b"")
    assert f'-XX:SharedArchiveFile="{archive_of(_java())}"' in archive_options(_java())


def test_another_java_has_an_archive_of_its_own(tmp_path: Path) -> None:
    javas = []
    for version in ("17.0.1", "21.0.1"):
        home = tmp_path / version
        (home / "bin").mkdir(parents=True)
        (home / "release").write_text(f'JAVA_VERSION="{version}"')
        javas.append(home / "bin" / "java")
    assert len({archive_of(java) for java in (*javas, _java())}) == 3
