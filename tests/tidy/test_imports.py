"""Imports point to nouns: what a light client loads, and which room may know which other one."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

from dolake.cli.app import COMMANDS

SOURCE = Path(__file__).resolve().parents[2] / "src" / "dolake"
MODULES = sorted(SOURCE.rglob("*.py"))
NOUNS = ("dolake.changes", "dolake.positions", "dolake.errors", "dolake.backoff", "dolake.tables")


def modules_loaded_by(statement: str) -> set[str]:
    """The names in sys.modules of a fresh Python after this one statement."""
    script = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0, answer.stderr
    return set(json.loads(answer.stdout))


def locked_version(name: str) -> str:
    """What the lock file says; an environment may be older than it."""
    found = re.search(rf"^{name}==(\S+)", (SOURCE.parents[1] / "requirements" / "dev.lock").read_text(), re.MULTILINE)
    assert found
    return found[1]


def is_within(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    """Every module that this file names in an import, wherever it stands, relative ones written out."""
    return tuple(_named_in(path))


def _named_in(path: Path) -> Iterator[str]:
    own = ("dolake", *path.relative_to(SOURCE).with_suffix("").parts)
    package = own[:-1]  # holds for __init__.py too: its own name is the part that goes
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from dolake.wire import messages` names dolake.wire.messages; for a class the longer name does no harm.
            yield from (f"{module}.{alias.name}" for alias in node.names)


def rooms_files(room: str) -> list[Path]:
    return [path for path in MODULES if path.relative_to(SOURCE).parts[0] == room]


def offenders(paths: Iterable[Path], forbidden: Iterable[str]) -> list[str]:
    forbidden = tuple(forbidden)
    return [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in paths
        for name in imports_of(path)
        if is_within(name, forbidden)
    ]


def test_the_client_loads_nothing_that_only_the_server_needs() -> None:
    loaded = modules_loaded_by("from dolake.client import connect")
    heavy = ("typer", "rich", "numpy", "google_crc32c", "prometheus_client", "psutil", "pyspark")
    rooms = ("dolake.server", "dolake.journal", "dolake.receiver", "dolake.cli")
    assert not [name for name in sorted(loaded) if is_within(name, (*heavy, *rooms))]


ON_A_HOME = {
    "backup",
    "bench",
    "catalog",
    "demo",
    "doctor",
    "journal",
    "prepare",
    "recover",
    "serve",
    "source",
    "token",
}
ON_A_HOME |= {"verify"}
"""The modules of commands that run a server, or work on a home or on files without one."""
CLIENT_ROOMS = (*NOUNS, "dolake.cli", "dolake.client", "dolake.wire", "dolake.suggestions")


def test_commands_beside_a_running_server_load_no_room_of_the_server() -> None:
    beside = {name: target for name, target in COMMANDS.items() if target[0].partition(".")[0] not in ON_A_HOME}
    assert {"query", "tables", "tail", "flush"} <= set(beside)
    load = "from dolake.cli.app import COMMANDS, LazyCommand\nfor name in {}: LazyCommand(name, *COMMANDS[name]).loaded"
    loaded = modules_loaded_by(load.format(sorted(beside)))
    ours = [name for name in loaded if name.startswith("dolake.") and not is_within(name, CLIENT_ROOMS)]
    assert not ours
    heavy = ("numpy", "pyarrow", "duckdb", "psutil", "prometheus_client", "uvloop")
    assert not [name for name in sorted(loaded) if is_within(name, heavy)]
    if version("typer") == locked_version("typer"):  # not so where a new lock file is not installed yet: `make setup`
        assert "pydantic" not in loaded, "it takes a quarter of a second"


def test_the_version_is_told_without_loading_anything() -> None:
    script = "import sys; sys.argv = ['dolake', '--version']; from dolake.cli import main; main()"
    answer = subprocess.run(
        [sys.executable, "-c", f"{script}\nimport json; print(json.dumps(sorted(sys.modules)))"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    version, modules = answer.stdout.splitlines()
    assert version.startswith("dolake ")
    assert not [name for name in json.loads(modules) if is_within(name, ["typer", "rich", "asyncio", "msgspec"])]


def test_the_server_loads_no_pyspark() -> None:
    loaded = modules_loaded_by("import dolake.server.app")
    assert not [name for name in sorted(loaded) if is_within(name, ("pyspark", "py4j"))]


def test_the_client_knows_only_nouns_errors_and_wire() -> None:
    allowed = (*NOUNS, "dolake.wire", "dolake.client", "dolake.__version__")
    ours = [(path, name) for path in rooms_files("client") for name in imports_of(path) if is_within(name, ["dolake"])]
    assert not [f"{path.name} imports {name}" for path, name in ours if not is_within(name, allowed)]


def test_nobody_outside_the_pipeline_names_pyspark() -> None:
    elsewhere = [path for path in MODULES if path not in rooms_files("pipeline")]
    assert not offenders(elsewhere, ["pyspark", "py4j"])


def test_nobody_imports_the_server_but_the_command_line() -> None:
    elsewhere = [path for path in MODULES if path not in (*rooms_files("server"), *rooms_files("cli"))]
    assert not offenders(elsewhere, ["dolake.server"])


def test_nobody_imports_the_command_line() -> None:
    assert not offenders([path for path in MODULES if path not in rooms_files("cli")], ["dolake.cli"])


def test_the_words_on_the_socket_know_no_socket() -> None:
    assert not offenders(rooms_files("wire"), ["aiohttp", "asyncio", "socket"])


@pytest.mark.parametrize("name", ["record.py", "segment.py"])
def test_what_spark_workers_read_the_journal_with_stays_synchronous_and_light(name: str) -> None:
    files = [path for path in rooms_files("journal") if path.name == name]
    assert not offenders(files, ["asyncio", "aiohttp", "uvloop", "dolake.receiver", "dolake.settings"])


def test_the_nouns_import_no_room() -> None:
    files = [path for path in MODULES if is_within(_dotted(path), NOUNS)]
    ours = [(path, name) for path in files for name in imports_of(path) if is_within(name, ["dolake"])]
    assert not [f"{path.name} imports {name}" for path, name in ours if not is_within(name, NOUNS)]


def _dotted(path: Path) -> str:
    return ".".join(["dolake", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__")
