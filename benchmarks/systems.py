"""Those that peers.py compares, as it drives them: DoLake with its server, and each peer in a process of its own.

From peers.py, which says when to do what; to contenders.py, where the work is done. A system reports the CPU seconds of
all its processes; its table is read by this process, with DuckDB, which costs the system nothing but the catalog's
answers. Promise: leaving the `with` block leaves no process behind.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, Protocol, Self, TextIO

import duckdb
import psutil

from benchmarks.checks import condition
from benchmarks.contenders import NAMESPACE, TABLE, attach_ducklake, load_extensions
from benchmarks.jobs import run_job
from benchmarks.meter import Meter
from benchmarks.stream import ask, running_server
from benchmarks.workload import Totals
from dolake.cli.child import ChildServer
from dolake.errors import Unavailable

_ROOT = Path(__file__).parents[1]
_END_WAIT_S = 30.0
_WATCH_EVERY_S = 0.2
_LAST_WORDS = 2_000
_KINDS = ("deletes", "files", "manifests", "snapshots", "garbage")
_COUNTS = 9


# --- a process that works for us --------------------------------------------------------------------------------------


class Worker:
    """A contender's process: orders go in, and each is answered when it is done."""

    def __init__(self, name: str, data: Path, home: Path, *more: str) -> None:
        home.parent.mkdir(parents=True, exist_ok=True)
        self._log = home.with_name(f"{home.name}.log")
        command = [sys.executable, "-m", "benchmarks.contenders", name, str(data), str(home), *more]
        with self._log.open("ab") as log:
            # A session of its own: Ctrl-C reaches only us, and we end it.
            self._process = subprocess.Popen(
                command,
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_read(self) -> None:
        """Until it has the workload in memory."""
        self._answer("read")

    def order(self, name: str, *arguments: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # it is gone, and the missing answer says so
            _opened(self._process.stdin).write(json.dumps([name, *arguments]) + "\n")
            _opened(self._process.stdin).flush()
        self._answer(name)

    def _answer(self, expected: str) -> None:
        if _opened(self._process.stdout).readline().strip() != expected:
            last_words = self._log.read_text(errors="replace")[-_LAST_WORDS:]
            raise Unavailable(f"no answer to {expected!r}: the process ended", hint=f"the last it said:\n{last_words}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Let it go in order, unless something went wrong; whatever is still there after that is killed, Java too."""
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]
            with contextlib.suppress(BrokenPipeError):
                _opened(self._process.stdin).close()
            _, still_there = psutil.wait_procs(family, _END_WAIT_S if kind is None else 0)
            for process in still_there:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(still_there)
        self._process.wait()
        _opened(self._process.stdout).close()


def _opened(stream: Any) -> TextIO:
    assert stream is not None
    return stream  # type: ignore[no-any-return]


# --- the systems ------------------------------------------------------------------------------------------------------


class System(Protocol):
    """One of those that are compared, started and idle."""

    start: dict[str, float]
    is_checked_each: bool
    is_stopped_early: bool

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: Any) -> None: ...

    def insert(self) -> None: ...

    def apply(self, number: int) -> None: ...

    def totals(self) -> Totals:
        """What its table adds up to now, for DuckDB in this process."""

    def cpu_s(self) -> dict[str, float]:
        """Since the start, by kind of process."""

    def memory_peak_mb(self) -> float: ...

    def left(self) -> dict[str, Any]:
        """What is on the disk."""

    def after_upkeep(self) -> dict[str, Any] | None:
        """The table after everything that its own upkeep can do; None where there is none of its own."""


class Peer:
    """One of the others: a single process and what it starts."""

    is_checked_each = False

    def __init__(self, name: str, data: Path, home: Path, _server_command: Sequence[str]) -> None:
        self._name, self._data, self._home = name, data, home
        self.is_stopped_early = name == "pyiceberg"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            worker = self._worker = stack.enter_context(Worker(self._name, self._data, self._home))
            worker.wait_read()
            self._meter = Meter(worker.pid, root="python")
            stack.enter_context(self._meter.watching(_WATCH_EVERY_S))
            began_s, used_s = time.perf_counter(), _used_s(worker.pid)
            worker.order("start")
            self.start = _start(time.perf_counter() - began_s, _used_s(worker.pid) - used_s)
            self._meter.restart()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def insert(self) -> None:
        self._worker.order("insert")

    def apply(self, number: int) -> None:
        self._worker.order("apply", number)

    def totals(self) -> Totals:
        with duckdb.connect() as duck:
            if self._name == "ducklake":
                attach_ducklake(duck, self._home, "READ_ONLY")
                return _totals(duck, TABLE)
            load_extensions(duck, "avro", "iceberg")
            return _totals(duck, f"iceberg_scan('{self._newest_metadata()}')")

    def _newest_metadata(self) -> Path:
        found = self._folder().glob("metadata/*.metadata.json")
        return max(found, key=lambda file: int(file.name.lstrip("v").split("-")[0].split(".")[0]))

    def _folder(self) -> Path:
        match self._name:
            case "spark":
                return self._home / "warehouse" / NAMESPACE / TABLE
            case "pyiceberg":
                return self._home / NAMESPACE / TABLE
            case _:
                return self._home / "data"

    def cpu_s(self) -> dict[str, float]:
        found = _without_us(self._meter.cpu_s())
        found["python"] += found.pop("pipeline", 0.0)  # which is none here, but a shell that started Java
        return found

    def memory_peak_mb(self) -> float:
        return _peak_mb(self._meter)

    def left(self) -> dict[str, Any]:
        return _left(self._folder())

    def after_upkeep(self) -> None:
        """Nobody does it unasked."""


class DoLake:
    """Ours: a real server with its pipeline, and our client in a process of its own."""

    is_checked_each = True
    is_stopped_early = False

    def __init__(self, name: str, data: Path, home: Path, server_command: Sequence[str]) -> None:
        self._name, self._data, self._home, self._command = name, data, home, server_command

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            began_s = time.perf_counter()
            self._server: ChildServer = stack.enter_context(running_server(self._home, command=self._command))
            self.start = _start(time.perf_counter() - began_s, _used_s(self._server.pid))
            client = Worker("dolake", self._data, self._home.with_name("client"), self._server.url)
            worker = self._worker = stack.enter_context(client)
            worker.wait_read()
            worker.order("start")
            self._meters = Meter(self._server.pid), Meter(worker.pid, root="sender")
            for meter in self._meters:
                stack.enter_context(meter.watching(_WATCH_EVERY_S))
                meter.restart()
            self._duck = stack.enter_context(duckdb.connect())
            load_extensions(self._duck, "avro", "httpfs", "iceberg")
            self._duck.execute(
                f"ATTACH 'lake' AS lake (TYPE iceberg, ENDPOINT '{self._server.url}', AUTHORIZATION_TYPE 'none')"
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def insert(self) -> None:
        self._worker.order("insert")
        self._publish()

    def apply(self, number: int) -> None:
        self._worker.order("apply", number)
        self._publish()

    def _publish(self) -> None:
        """Ask for it until it is done; one answer waits a minute at most."""
        while True:
            try:
                answer = ask(self._server, "/flush", "POST")
            except urllib.error.HTTPError as error:
                with error:
                    if error.code != 504:
                        raise Unavailable(f"not published: {error.read().decode()}", hint=self._log_tail()) from None
                    continue
            if not answer["success"]:
                raise Unavailable(f"not published: {answer.get('message')}", hint=self._log_tail())
            return

    def _log_tail(self) -> str:
        return f"the last the server said:\n{self._server.log[-_LAST_WORDS:]}"

    def totals(self) -> Totals:
        return _totals(self._duck, f'lake."default".{TABLE}')

    def cpu_s(self) -> dict[str, float]:
        server, client = (_without_us(meter.cpu_s()) for meter in self._meters)
        return {"client": client["sender"], **server}

    def memory_peak_mb(self) -> float:
        return round(sum(_peak_mb(meter) for meter in self._meters), 1)

    def left(self) -> dict[str, Any]:
        tables = self._home / "warehouse" / "default"
        rest = {"history": _left(tables / f"{TABLE}__changes"), "home": _left(self._home)}
        return _left(tables / TABLE) | rest

    def after_upkeep(self) -> dict[str, Any]:
        """What an hour and a day do by themselves, at once: the look at all tables, and the end of what waits."""
        ask(self._server, "/v1/config", "PATCH", {"maintenance.snapshots_max": 1, "maintenance.gc_grace_ms": 0})
        before, began_s = self.cpu_s(), time.perf_counter()
        job = run_job(self._server, table=TABLE, kinds=list(_KINDS))
        wall_s, cpu_s = time.perf_counter() - began_s, sum(self.cpu_s().values()) - sum(before.values())
        return {
            "wall_s": round(wall_s, 2),
            "cpu_s": round(cpu_s, 2),
            "job": job,
            "live": [condition(self._server, table) for table in (TABLE, f"{TABLE}__changes")],
            "count_s": round(median(self._count_s() for _ in range(_COUNTS)), 4),
            "totals": asdict(self.totals()),
            **self.left(),
        }

    def _count_s(self) -> float:
        began_s = time.perf_counter()
        self._duck.execute(f'SELECT count(*) FROM lake."default".{TABLE}').fetchone()  # noqa: S608 - our own name
        return time.perf_counter() - began_s


SYSTEMS: dict[str, Any] = {"dolake": DoLake, "spark": Peer, "pyiceberg": Peer, "ducklake": Peer}


def _start(wall_s: float, cpu_s: float) -> dict[str, float]:
    return {"wall_s": round(wall_s, 2), "cpu_s": round(cpu_s, 2)}


def _used_s(pid: int) -> float:
    """CPU seconds of a process and all below it, with those of children that have ended."""
    root = psutil.Process(pid)
    found = 0.0
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            found += sum(process.cpu_times()[:4])
    return found


def _without_us(by_kind: dict[str, float]) -> dict[str, float]:
    """Without this process, which only measures."""
    return {kind: used for kind, used in by_kind.items() if kind != "client"}


def _peak_mb(meter: Meter) -> float:
    sums = (sum(size for kind, size in found.items() if kind != "client") for _, found in list(meter.memory))
    return round(max(sums, default=0) / 1e6, 1)


def _totals(duck: duckdb.DuckDBPyConnection, table: str) -> Totals:
    found = duck.execute(f"SELECT count(*), sum(amount), sum(qty) FROM {table}").fetchone()  # noqa: S608 - our own name
    assert found is not None
    return Totals(int(found[0]), float(found[1] or 0), int(found[2] or 0))


def _left(folder: Path) -> dict[str, Any]:
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return {"files": len(sizes), "mb": round(sum(sizes) / 1e6, 1)}
