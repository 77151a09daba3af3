"""The wheel that `make wheel` builds: it installs without anything else, and runs away from the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import dolake
from tests.support.answering_lake import AnsweringLake, answering_lake_in_a_thread, plain_answer
from tests.support.server import wait_for

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
LOCK = ROOT / "requirements" / "server.lock"
TABLES = {"tables": [{"namespace": "default", "name": "orders", "managed": True}], "nextPageToken": None}
CLIENT = """
import sys
import dolake
from dolake.client.sync import connect
print(dolake.__file__)
print([table.full_name for table in connect(sys.argv[1]).list_tables()])
"""
SEND_AND_QUERY = """
import sys
from dolake.client.sync import connect
with connect(sys.argv[1], source="shop") as lake:
    lake.send([{"table": "orders", "operation": "INSERT", "rowId": 7, "after": {"id": 7, "amount": 12.5}}])
    print(lake.query("SELECT sum(amount) AS total FROM orders").rows[0].total)
"""


def run(*command: object, timeout_s: float = 120, **environ: str) -> str:
    """Away from the checkout, with nothing of this process's environment that Python reads."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DOLAKE_", "VIRTUAL"))}
    answer = subprocess.run(
        [str(part) for part in command],
        cwd=Path(sys.prefix).anchor,
        env=kept | environ,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert answer.returncode == 0, f"{command}\n{answer.stdout}\n{answer.stderr}"
    return answer.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make wheel` does, in a folder of its own."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=120)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture
def lake() -> Iterator[AnsweringLake]:
    with answering_lake_in_a_thread({"GET /v1/tables": plain_answer(TABLES)}) as found:
        yield found


def test_the_wheel_has_the_package_and_nothing_of_the_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"dolake"}
    assert "dolake/py.typed" in names
    assert "dolake/catalog/sql/statements.sql" in names


def test_the_wheel_alone_tells_its_version_and_runs_the_client(
    wheel: Path, lake: AnsweringLake, tmp_path: Path
) -> None:
    target = tmp_path / "site"
    uv = ("-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--target", target)
    run(sys.executable, *uv, "--python", sys.executable, wheel)
    assert run(target / "bin" / "dolake", "--version", PYTHONPATH=str(target)) == f"dolake {dolake.__version__}\n"
    where, tables = run(sys.executable, "-c", CLIENT, lake.url, PYTHONPATH=str(target)).splitlines()
    assert Path(where).is_relative_to(target), "not the checkout"
    assert tables == "['default.orders']"


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_the_server_installs_into_an_empty_environment_by_the_howto(wheel: Path, tmp_path: Path) -> None:
    """With every dependency from the registry, so it needs a network; then the way of the quickstart."""
    environment = tmp_path / "dolake"
    run(sys.executable, "-m", "venv", environment)
    python = environment / "bin" / "python"
    install = (BIN / "uv", "pip", "install", "--quiet", "--python", python)
    run(*install, "--require-hashes", "-r", LOCK, timeout_s=1200)
    run(*install, "--no-deps", wheel)
    home = tmp_path / "lake"
    with subprocess.Popen(
        [environment / "bin" / "dolake", "serve", "--home", home, "--port", "0"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DOLAKE_"))},
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            url = await_url(home, server)
            assert run(python, "-c", SEND_AND_QUERY, url, timeout_s=300) == "12.5\n"
            dolake_command = environment / "bin" / "dolake"
            assert "1 change published" in run(dolake_command, "flush", "--home", home, timeout_s=300)
            assert "default.orders" in run(dolake_command, "tables", "--home", home)
        finally:
            server.terminate()
            server.wait(120)


def await_url(home: Path, server: subprocess.Popen[bytes]) -> str:
    """Where the server listens, once it does."""
    address = home / "server.json"
    wait_for(lambda: address.exists() or server.poll() is not None, "the server listens")
    return str(json.loads(address.read_text())["url"])
