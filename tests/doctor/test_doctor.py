"""`dolake doctor`: what is missing is named with what to type, and what is there is not accused."""

from __future__ import annotations

import json
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dolake.backup.base import UNFINISHED_FILE
from dolake.cli.app import app
from dolake.doctor import machine
from dolake.doctor.base import Finding
from dolake.doctor.home import check_home, newest_ms
from dolake.doctor.machine import check_machine
from dolake.doctor.software import check_software
from dolake.pipeline import classes
from dolake.pipeline.java import find_java
from dolake.settings import JournalSettings, PipelineSettings, ServerSettings, Settings
from tests.support.journals import batch_of, keep, opened

NOWHERE = {"PATH": "", "DOLAKE_CACHE": "/nowhere"}


def one(findings: Iterator[Finding], check: str) -> Finding:
    (found,) = [finding for finding in findings if finding.check == check]
    return found


def looked_at(
    settings: Settings | None = None, *, newest: int = 0, now: int = 1, url: str | None = "x"
) -> list[Finding]:
    return list(check_machine(settings or Settings(), newest, now, url))


def test_a_missing_java_is_a_problem_with_the_words_to_type() -> None:
    found = one(check_software(PipelineSettings(), NOWHERE), "java")
    assert found.level == "problem"
    assert "sudo apt-get install openjdk" in found.remedy


def test_java_is_not_asked_for_where_the_pipeline_is_off() -> None:
    assert {finding.level for finding in check_software(PipelineSettings(enabled=False), NOWHERE)} == {"ok"}


def test_a_jar_that_is_not_there_yet_is_a_warning_that_names_its_place(tmp_path: Path) -> None:
    found = one(check_software(PipelineSettings(jar_cache=str(tmp_path)), os.environ), "jar")
    assert found.level == "warning"
    assert str(tmp_path) in found.remedy


def test_a_class_archive_that_is_missing_is_a_warning_with_the_command_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classes, "_FOLDER", tmp_path)
    found = one(check_software(PipelineSettings(), os.environ), "class archive")
    assert (found.level, found.remedy) == ("warning", "`dolake prepare`, once")
    java = find_java()
    assert java is not None
    classes.archive_of(java).write_bytes(b"")
    assert one(check_software(PipelineSettings(), os.environ), "class archive").level == "ok"


def test_a_home_that_may_not_be_written_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)  # root may write everywhere
    (found,) = check_home(tmp_path / "home", JournalSettings())
    assert (found.check, found.level) == ("home", "problem")
    assert "chown" in found.remedy


def test_a_restore_that_did_not_finish_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / UNFINISHED_FILE).write_text("{}")
    (found,) = check_home(tmp_path, JournalSettings())
    assert found.level == "problem"
    assert "run `dolake restore` again" in found.remedy


def test_a_disk_that_is_full_before_the_journal_is_a_warning(tmp_path: Path) -> None:
    found = one(check_home(tmp_path, JournalSettings(size_max_bytes=2**50)), "disk")
    assert found.level == "warning"
    assert "journal.size_max_bytes" in found.remedy
    found = one(check_home(tmp_path, JournalSettings(size_max_bytes=2**50, segment_size_bytes=2**49)), "disk")
    assert found.level == "problem"


@pytest.mark.parametrize(("kind", "level"), [("nfs4", "problem"), ("tmpfs", "warning"), ("ext4", "ok")])
def test_a_network_is_no_place_for_a_home(
    kind: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Part:
        mountpoint, fstype = "/", kind

    monkeypatch.setattr("psutil.disk_partitions", lambda **_: [Part])
    assert one(check_home(tmp_path, JournalSettings()), "file system").level == level


def test_looking_leaves_nothing_behind(tmp_path: Path) -> None:
    list(check_home(tmp_path, JournalSettings()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("soft", "level"), [(256, "problem"), (4_096, "warning"), (65_536, "ok")])
def test_few_open_files_are_said_before_connections_fail(
    soft: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, 1_048_576))
    found = one(iter(looked_at()), "open files")
    assert found.level == level
    assert ("ulimit -n 65536" in found.remedy) == (level != "ok")


def test_little_memory_is_said_with_the_settings_that_take_it() -> None:
    found = one(iter(looked_at(Settings(pipeline=PipelineSettings(driver_memory_bytes=2**50)))), "memory")
    assert found.level == "problem"
    assert "pipeline.driver_memory_bytes" in found.remedy


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("268435456\n")
    monkeypatch.setattr(machine, "_CGROUP_LIMITS", (limit,))
    found = one(iter(looked_at()), "memory")
    assert (found.level, found.found.startswith("256.0 MiB")) == ("problem", True)
    limit.write_text("max\n")
    assert not one(iter(looked_at()), "memory").found.startswith("256.0 MiB")


async def test_a_clock_behind_the_journal_is_said(tmp_path: Path) -> None:

    assert newest_ms(tmp_path) == 0
    async with opened(tmp_path / "journal", clock=lambda: 5_000) as journal:
        await keep(journal, batch_of(1, 3))
    found = one(iter(looked_at(newest=newest_ms(tmp_path), now=2_000)), "clock")
    assert found.level == "warning"
    assert "3.0 s behind" in found.found


def test_a_port_that_is_taken_is_a_problem_unless_the_home_s_own_server_has_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = Settings(server=ServerSettings(port=port))
        assert one(iter(looked_at(settings, url=None)), "port").level == "problem"
        assert one(iter(looked_at(settings, url=f"http://127.0.0.1:{port}")), "port").level == "ok"
    assert one(iter(looked_at(settings, url=None)), "port").level == "ok"
    assert one(iter(looked_at(Settings(server=ServerSettings(port=0)), url=None)), "port").level == "ok"


def test_the_command_ends_with_1_for_a_problem_and_with_0_for_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOLAKE_SERVER_PORT", "0")
    answer = CliRunner().invoke(app, ["doctor", "--home", str(tmp_path), "--json"])
    assert answer.exit_code == 0, answer.output
    found = {finding["check"] for finding in json.loads(answer.stdout)}
    assert {"python", "packages", "java", "disk", "memory", "open files", "clock", "port"} <= found
    (tmp_path / "dolake.toml").write_text("[server]\nprot = 1\n")
    answer = CliRunner().invoke(app, ["doctor", "--home", str(tmp_path)])
    assert answer.exit_code == 1
    assert "problem  settings" in answer.stdout
    assert answer.stdout.endswith("1 problems, 0 warnings\n")
