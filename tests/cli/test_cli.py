"""The `dolake` command: what it says, what it exits with, and how a journal is looked into and mended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dolake
from dolake.cli.app import COMMANDS, LazyCommand
from dolake.server.home import Home
from tests.support.aio import run
from tests.support.command import dolake as dolake_process
from tests.support.command import invoke
from tests.support.journals import batch_of, keep, opened, segments_of, sequences_in, state_of
from tests.support.kept import records_of
from tests.support.server import ServerProcess
from tests.support.speaker import Speaker, batch, events


async def fill(home: Path, batches: int, size: int) -> None:
    async with opened(home / "journal") as journal:
        await keep(journal, *(batch_of((n - 1) * size + 1, n * size, number=n) for n in range(1, batches + 1)))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose journal has three batches with ten changes each."""
    run(fill(tmp_path, 3, 10))
    return tmp_path


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def damage(home: Path, part: float = 0.5) -> Path:
    """Turn one byte over, this far into the only segment."""
    (segment,) = segments_of(home / "journal")
    data = bytearray(segment.read_bytes())
    end = len(bytes(data).rstrip(b"\0"))
    data[int(end * part)] ^= 0xFF
    segment.write_bytes(data)
    return segment


# --- the command itself ----------------------------------------------------------------------------------------------


def test_the_module_is_the_command() -> None:
    answer = dolake_process("--version")
    assert answer.returncode == 0
    assert answer.stdout == f"dolake {dolake.__version__}\n"


def test_version_says_the_version() -> None:
    answer = invoke("--version")
    assert (answer.exit_code, answer.stdout) == (0, f"dolake {dolake.__version__}\n")


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_lists_every_command(arguments: list[str]) -> None:
    answer = invoke(*arguments)
    for name in ("serve", "demo", "journal", "bench"):
        assert name in answer.output


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_a_command_in_the_help_is_its_own(name: str) -> None:
    loaded = LazyCommand(name, *COMMANDS[name]).loaded
    assert COMMANDS[name][1] == " ".join(loaded.help.partition("\n\n")[0].split())
    assert loaded.name == name


@pytest.mark.parametrize(("typed", "meant"), [(["tabels"], "tables"), (["token", "creat"], "create")])
def test_a_mistyped_command_is_answered_with_the_one_that_was_meant(typed: list[str], meant: str) -> None:
    answer = invoke(*typed)
    assert answer.exit_code == 2
    assert f"Did you mean '{meant}'" in answer.output


def test_serve_says_what_it_takes() -> None:
    answer = invoke("serve", "--help")
    assert answer.exit_code == 0
    for option in ("--home", "--host", "--port", "--config", "--log-level", "--log-format"):
        assert option in answer.output


@pytest.mark.parametrize("arguments", [["nothing"], ["serve", "--nothing"], ["serve", "--port", "many"]])
def test_a_mistake_in_the_arguments_is_exit_code_2(arguments: list[str]) -> None:
    assert invoke(*arguments).exit_code == 2


def test_without_the_server_extra_the_command_says_how_to_get_it() -> None:
    script = "import sys; sys.modules['typer'] = None; from dolake.cli import main; main()"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 1
    assert "the extra [server]" in answer.stderr
    assert "Traceback" not in answer.stderr


# --- serve refuses what cannot be ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("max_bufer_size = 1", ["max_bufer_size", "not a setting", "max_buffer_size"]),
        ("[journal]\nsize_max_bytes = 5", ["journal.size_max_bytes", "5", "whole number from"]),
        ("[server]\nport = 99999", ["server.port", "99999", "65_535"]),
        ("this is no toml", ["line 1", "TOML"]),
    ],
)
def test_an_impossible_setting_stops_the_start_in_one_clear_message(
    tmp_path: Path, content: str, words: list[str]
) -> None:
    (tmp_path / "dolake.toml").write_text(content)
    answer = invoke("serve", "--home", tmp_path)
    assert answer.exit_code == 1
    assert answer.stderr.startswith("dolake: ")
    for word in [*words, str(tmp_path / "dolake.toml")]:
        assert word in answer.stderr
    assert not (tmp_path / "journal").exists()


def test_a_settings_file_that_is_named_must_exist(tmp_path: Path) -> None:
    answer = invoke("serve", "--home", tmp_path, "--config", tmp_path / "missing.toml")
    assert answer.exit_code == 1
    assert "missing.toml does not exist" in answer.stderr


def test_a_misspelt_variable_is_refused(tmp_path: Path) -> None:
    answer = invoke("serve", "--home", tmp_path, DOLAKE_PORT="1")
    assert answer.exit_code == 1
    assert "DOLAKE_PORT is not a setting" in answer.stderr
    assert "DOLAKE_SERVER_PORT" in answer.stderr


# --- journal dump ----------------------------------------------------------------------------------------------------


def test_dump_prints_one_line_per_batch(home: Path) -> None:
    answer = invoke("journal", "dump", "--home", home)
    assert answer.exit_code == 0
    lines = lines_of(answer.stdout)
    assert [(line["position"], line["end"], line["batch"]) for line in lines] == [(0, 10, 1), (10, 20, 2), (20, 30, 3)]
    first = lines[0]
    assert (first["stream"], first["epoch"], first["tables"]) == ("source-1", 0, ["users"])
    assert (first["firstSequence"], first["lastSequence"]) == (1, 10)
    assert first["commitTimestamp"] > 0
    assert first["bytes"] > 0


def test_dump_prints_one_line_per_change_when_asked(home: Path) -> None:
    lines = lines_of(invoke("journal", "dump", "--home", home, "--events").stdout)
    assert [line["position"] for line in lines] == list(range(30))
    assert [line["sequence"] for line in lines] == list(range(1, 31))
    assert lines[4]["after"]["id"] == 5
    assert (lines[4]["operation"], lines[4]["table"], lines[4]["stream"]) == ("INSERT", "users", "source-1")
    assert "rowId" in lines[4]


def test_dump_shows_the_states_of_sources(tmp_path: Path) -> None:
    async def write() -> None:
        async with opened(tmp_path / "journal") as journal:
            with_state = replace(batch_of(1, 2), source_state=b'{"at":2}')
            await keep(journal, with_state, state_of(2, {"at": 3, "gone": None}), batch_of(3, 3, number=3))

    run(write())
    lines = lines_of(invoke("journal", "dump", "--home", tmp_path).stdout)
    assert [(line["position"], line["end"], line.get("sourceState")) for line in lines] == [
        (0, 2, {"at": 2}),
        (2, 3, {"at": 3, "gone": None}),
        (3, 4, None),
    ]
    lines = lines_of(invoke("journal", "dump", "--home", tmp_path, "--events").stdout)
    assert [(line["position"], line.get("sequence"), line.get("sourceState")) for line in lines] == [
        (0, 1, None),
        (1, 2, None),
        (2, None, {"at": 3, "gone": None}),
        (3, 3, None),
    ]


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        (["--from", 10], [2, 3]),
        (["--from", 15], [2, 3]),
        (["--to", 20], [1, 2]),
        (["--to", 21], [1, 2, 3]),
        (["--from", 10, "--to", 20], [2]),
        (["--from", 30], []),
        (["--to", 0], []),
    ],
)
def test_dump_takes_a_range_of_positions(home: Path, options: list[object], batches: list[int]) -> None:
    lines = lines_of(invoke("journal", "dump", "--home", home, *options).stdout)
    assert [line["batch"] for line in lines] == batches


@pytest.mark.slow
@pytest.mark.own_lake
def test_dump_works_beside_a_running_server_and_follows_it(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home") as server:

        async def send(number: int) -> None:
            async with Speaker(server.url) as speaker:
                assert (await speaker.ask(batch(number, events(number, number))))["status"] == "buffered"

        run(send(1))
        following = [sys.executable, "-m", "dolake.cli", "journal", "dump", "--home", str(server.home), "--follow"]
        with subprocess.Popen(following, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert json.loads(process.stdout.readline())["batch"] == 1
            run(send(2))
            assert json.loads(process.stdout.readline())["batch"] == 2
            process.send_signal(signal.SIGINT)
            rest, problems = process.communicate(timeout=30)
            assert (rest, problems) == ("", "")
            assert process.returncode == 0


def test_dump_ends_quietly_when_nobody_reads_on(tmp_path: Path) -> None:
    run(fill(tmp_path, 5, 500))
    dumping = [sys.executable, "-m", "dolake.cli", "journal", "dump", "--home", str(tmp_path), "--events"]
    with subprocess.Popen(dumping, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["sequence"] == 1
        process.stdout.close()
        assert process.stderr.read() == ""
        process.wait(timeout=30)


@pytest.mark.parametrize("action", ["dump", "check", "repair"])
def test_a_home_without_a_journal_is_said_and_not_made(tmp_path: Path, action: str) -> None:
    answer = invoke("journal", action, "--home", tmp_path / "mistyped")
    assert answer.exit_code == 1
    assert "no journal in" in answer.stderr
    assert "mistyped" in answer.stderr
    assert not (tmp_path / "mistyped").exists()


def test_dump_of_a_damaged_journal_says_so_after_what_it_can_show(home: Path) -> None:
    damage(home, 0.9)
    answer = invoke("journal", "dump", "--home", home)
    assert answer.exit_code == 1
    assert [line["batch"] for line in lines_of(answer.stdout)] == [1, 2]
    assert "damaged" in answer.stderr


# --- journal check and repair ----------------------------------------------------------------------------------------


def test_check_of_an_intact_journal_finds_nothing(home: Path) -> None:
    answer = invoke("journal", "check", "--home", home)
    assert answer.exit_code == 0
    assert "3 batches, 30 changes" in answer.stdout
    assert "0 problems" in answer.stdout


def test_check_names_what_is_damaged_and_changes_nothing(home: Path) -> None:
    segment = damage(home)
    before = segment.read_bytes()
    answer = invoke("journal", "check", "--home", home)
    assert answer.exit_code == 1
    assert f"damaged: {segment.name}" in answer.stdout
    assert "2 batches, 20 changes" in answer.stdout
    assert segment.read_bytes() == before


def test_repair_only_says_what_it_would_do_until_it_is_told_to(home: Path) -> None:
    segment = damage(home)
    before = {path: path.read_bytes() for path in (home / "journal").iterdir()}
    answer = invoke("journal", "repair", "--home", home)
    assert answer.exit_code == 0
    assert segment.name in answer.stdout
    assert "changes 10 to 20" in answer.stdout
    assert "--yes" in answer.stdout
    assert {path: path.read_bytes() for path in (home / "journal").iterdir()} == before


@pytest.mark.own_lake
async def test_repair_keeps_everything_that_is_intact_and_the_server_starts_again(home: Path) -> None:
    segment = damage(home)
    damaged = segment.read_bytes()
    answer = invoke("journal", "repair", "--home", home, "--yes")
    assert answer.exit_code == 0
    assert "changes 10 to 20" in answer.stdout
    assert damaged in [path.read_bytes() for path in (home / "journal" / "damaged").iterdir()], "nothing is thrown away"
    with ServerProcess(home) as server:
        async with Speaker(server.url) as speaker:
            assert (await speaker.connect())["lastDurableSequence"] == 30
            assert (await speaker.ask(batch(4, events(31, 31))))["details"]["position"] == 31
        positions = [record.position for record in records_of(home)]
    assert positions == [0, 20, 30], "what is kept did not move"
    assert invoke("journal", "check", "--home", home).exit_code == 0


async def test_repair_of_an_intact_journal_changes_no_batch(home: Path) -> None:
    answer = invoke("journal", "repair", "--home", home, "--yes")
    assert answer.exit_code == 0
    assert "no damaged record was found" in answer.stdout
    async with opened(home / "journal") as journal:
        assert sequences_in(journal.read()) == list(range(1, 31))


def test_repair_is_refused_while_a_server_runs(home: Path) -> None:
    with Home(home):
        answer = invoke("journal", "repair", "--home", home, "--yes")
    assert answer.exit_code == 1
    assert f"another server (process {os.getpid()}) is using {home}" in answer.stderr
