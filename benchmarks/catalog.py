"""How long does a commit take as tables grow and get many, beside PyIceberg's SqlCatalog; and what do reads cost?

Driven by `dolake bench catalog`. Starts real servers in child processes on temporary homes and talks HTTP to them; the
SqlCatalog (SQLite and a local folder) runs in this process, in turns with ours, so that a busy machine slows both.
Every figure stands beside its floor. Promise: servers and homes are gone afterwards, also after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import numpy as np
import psutil
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, AssertTableUUID, SetSnapshotRefUpdate
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.machine import (
    commit_of_repository,
    machine_cpu_s,
    machine_of,
    temporary_home,
    terminate_as_exit,
    versions_of,
)
from dolake.catalog.base import Create, Name
from dolake.catalog.sqlite import SqliteStore
from dolake.cli.child import COMMAND, ChildServer

NAMESPACE = "bench"
COLUMNS = 50
OURS_PER_ROUND = 5
COMMITTERS = 16
LOADED_SNAPSHOTS = 1_000
PUBLISHED_SNAPSHOTS = 100
PACKAGES = ("pyiceberg", "pyarrow", "sqlalchemy")
START_MS = 1_760_000_000_000

FLOOR_FASTER_AT_1000 = 15.0
FLOOR_NOT_MODIFIED_CPU_MS = 1.0
FLOOR_LIST_MS = 200.0
FLOOR_CROWD_RATIO = 1.25
FLOOR_PUBLISH_MS = 15.0


@dataclass(frozen=True, slots=True)
class Load:
    """How much of everything. The smoke test makes all of it small."""

    snapshots: Sequence[int] = (10, 100, 1_000, 5_000)
    rounds: int = 40
    loads: int = 2_000
    listed: int = 10_000
    lists: int = 20
    commits_each: int = 20
    crowd: Sequence[int] = (5, 5_000)
    publishes: int = 200


def run_catalog_bench(
    load: Load | None = None, *, out: Path | None = None, home: Path | None = None, command: Sequence[str] = COMMAND
) -> dict[str, Any]:
    """Measure, and return the report; `out` also gets it as JSON. `home` is a folder on the disk to measure."""
    load = load or Load()
    with temporary_home(home) as folder, terminate_as_exit(), _progress() as progress:
        began_s, began_cpu_s = time.monotonic(), machine_cpu_s()
        figures = _Bench(load, folder, command, progress).run()
        report = {
            "benchmark": "catalog",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit_of_repository(),
            "machine": machine_of(folder),
            "versions": versions_of(*PACKAGES),
            "load": {
                "columns": COLUMNS,
                "commits_of_ours": load.rounds * OURS_PER_ROUND,
                "commits_theirs": load.rounds,
            },
            "busy_cores": round((machine_cpu_s() - began_cpu_s) / (time.monotonic() - began_s), 2),
            **figures,
            "floors": list(_floors(figures)),
        }
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=2) + "\n")
    return report


def _floors(figures: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each promise with what was measured, and whether it was kept."""

    def at_most(name: str, measured: float, floor: float) -> dict[str, Any]:
        return {"name": name, "measured": measured, "at_most": floor, "met": measured <= floor}

    for row in figures["commits"]:
        if row["snapshots"] == LOADED_SNAPSHOTS:
            faster = row["times_faster"]
            name = "commit at 1,000 snapshots: times faster than SqlCatalog"
            floor = FLOOR_FASTER_AT_1000
            yield {"name": name, "measured": faster, "at_least": floor, "met": faster >= floor}
    yield at_most("load answered 304: server CPU ms", figures["load_304"]["server_cpu_ms"], FLOOR_NOT_MODIFIED_CPU_MS)
    listing, crowd, committers = figures["list"], figures["crowd"], figures["committers"]
    yield at_most(f"list of {listing['tables']:,} tables: p50 ms", listing["p50_ms"], FLOOR_LIST_MS)
    yield at_most(f"{committers['committers']} committers to one table: lost updates", committers["lost_updates"], 0)
    yield at_most(f"commit with {crowd['many']:,} tables / with {crowd['few']}: p50", crowd["ratio"], FLOOR_CROWD_RATIO)
    yield at_most("publish of three tables: p50 ms", figures["publish"]["p50_ms"], FLOOR_PUBLISH_MS)


# --- one table's life ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Line:
    """A table and the head of its main branch, from which the next commit follows."""

    name: str
    uuid: str
    location: str
    head: int
    sequence: int
    free: int
    """Commits it can still take before it counts as a table of another size."""

    @property
    def path(self) -> str:
        return f"/v1/namespaces/{NAMESPACE}/tables/{self.name}"

    def next_commit(self) -> dict[str, Any]:
        """One new snapshot, and main set to it. The caller has it committed before asking for another."""
        snapshot = _snapshot(self.location, self.sequence + 1, self.head)
        body = _body(self.uuid, self.head, snapshot)
        self.head, self.sequence, self.free = snapshot["snapshot-id"], self.sequence + 1, self.free - 1
        return body


def _body(table_uuid: str, head: int, snapshot: dict[str, Any]) -> dict[str, Any]:
    main = {"ref-name": "main", "type": "branch", "snapshot-id": snapshot["snapshot-id"]}
    return {
        "requirements": [
            {"type": "assert-table-uuid", "uuid": table_uuid},
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": head},
        ],
        "updates": [{"action": "add-snapshot", "snapshot": snapshot}, {"action": "set-snapshot-ref", **main}],
    }


def _snapshot(location: str, sequence: int, parent: int | None) -> dict[str, Any]:
    id_ = random.getrandbits(62)
    counts = ("added-data-files", "added-records", "added-files-size", "changed-partition-count")
    totals = ("total-records", "total-files-size", "total-data-files", "total-delete-files")
    return {
        "snapshot-id": id_,
        **({} if parent is None else {"parent-snapshot-id": parent}),
        "sequence-number": sequence,
        "timestamp-ms": START_MS + sequence * 1_000,
        "manifest-list": f"{location}/metadata/snap-{id_}-0-{uuid.uuid4()}.avro",
        "summary": {"operation": "append"} | {key: str(sequence * 1_000) for key in (*counts, *totals)},
        "schema-id": 0,
    }


def _write_table(folder: Path, name: str, snapshots: int) -> tuple[Line, str]:
    """A metadata file with this many snapshots, as years of commits would have left it: the table and the file."""
    location = f"file://{folder}/{NAMESPACE}/{name}"
    line: list[dict[str, Any]] = []
    for sequence in range(1, snapshots + 1):
        line.append(_snapshot(location, sequence, line[-1]["snapshot-id"] if line else None))
    head = line[-1]
    fields = [
        {"id": id_, "name": f"column_{id_}", "required": False, "type": "string"} for id_ in range(1, COLUMNS + 1)
    ]
    metadata = {
        "format-version": 2,
        "table-uuid": str(uuid.uuid4()),
        "location": location,
        "last-sequence-number": snapshots,
        "last-updated-ms": head["timestamp-ms"],
        "last-column-id": COLUMNS,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": fields}],
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": {},
        "current-snapshot-id": head["snapshot-id"],
        "refs": {"main": {"snapshot-id": head["snapshot-id"], "type": "branch"}},
        "snapshots": line,
        "snapshot-log": [{key: each[key] for key in ("snapshot-id", "timestamp-ms")} for each in line],
        "metadata-log": [],
    }
    path = folder / NAMESPACE / name / "metadata" / f"00000-{uuid.uuid4()}.metadata.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(metadata, separators=(",", ":")))
    free = max(2, snapshots // 10)
    return Line(name, str(metadata["table-uuid"]), location, head["snapshot-id"], snapshots, free), f"file://{path}"


# --- the two catalogs ------------------------------------------------------------------------------------------------


class Ours:
    """A real server, asked over one plain connection."""

    def __init__(self, server: ChildServer) -> None:
        address = urlsplit(server.url)
        self.url = server.url
        self._warehouse = server.home / "warehouse"
        self._process = psutil.Process(server.pid)
        self._connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=120)
        if self.ask("HEAD", f"/v1/namespaces/{NAMESPACE}", expect=(204, 404))[0] == 404:
            self.ask("POST", "/v1/namespaces", {"namespace": [NAMESPACE]})

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
        expect: Sequence[int] = (200, 204),
    ) -> tuple[int, bytes, str]:
        """Status, body and ETag."""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        self._connection.request(method, path, data, headers or {})
        answer = self._connection.getresponse()
        raw = answer.read()
        if answer.status not in expect:
            raise RuntimeError(f"{method} {path} was answered with {answer.status}: {raw[:500].decode()}")
        return answer.status, raw, answer.headers.get("ETag", "")

    def new_table(self, snapshots: int) -> Line:
        line, file = _write_table(self._warehouse, f"t{uuid.uuid4().hex[:12]}", snapshots)
        self.ask("POST", f"/v1/namespaces/{NAMESPACE}/register", {"name": line.name, "metadata-location": file})
        return line

    def prepare(self, line: Line) -> Callable[[], object]:
        """A commit to be timed: from the first byte sent to the last received, which ends the new metadata."""
        data = json.dumps(line.next_commit()).encode()
        return lambda: self.ask("POST", line.path, data)

    def close(self) -> None:
        self._connection.close()

    @property
    def cpu_s(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system


class Theirs:
    """PyIceberg's SqlCatalog on SQLite and a local folder, in this process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._catalog = SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
        self._catalog.create_namespace(NAMESPACE)

    def new_table(self, snapshots: int) -> Line:
        line, file = _write_table(self._folder, f"t{uuid.uuid4().hex[:12]}", snapshots)
        self._catalog.register_table((NAMESPACE, line.name), file)
        return line

    def prepare(self, line: Line) -> Callable[[], object]:
        table = self._catalog.load_table((NAMESPACE, line.name))
        body = line.next_commit()
        asserted_uuid, asserted_ref = body["requirements"]
        add, set_ref = body["updates"]
        requirements = (
            AssertTableUUID.model_validate(asserted_uuid),
            AssertRefSnapshotId.model_validate(asserted_ref),
        )
        updates = (AddSnapshotUpdate.model_validate(add), SetSnapshotRefUpdate.model_validate(set_ref))
        return lambda: self._catalog.commit_table(table, requirements, updates)

    def close(self) -> None:
        self._catalog.close()

    @property
    def cpu_s(self) -> float:
        return time.process_time()


@dataclass(slots=True)
class Tables:
    """Tables of one size; a fresh one is made when the last has grown too far from it."""

    catalog: Ours | Theirs
    snapshots: int
    line: Line | None = None
    times_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0

    def commit(self, times: int) -> None:
        for _ in range(times):
            if self.line is None or self.line.free == 0:
                self.line = self.catalog.new_table(self.snapshots)
            commit, before = self.catalog.prepare(self.line), self.catalog.cpu_s
            self.times_s.append(_timed(commit))
            self.cpu_s += self.catalog.cpu_s - before

    @property
    def cpu_ms(self) -> float:
        return self.cpu_s * 1000 / len(self.times_s)


# --- the questions ---------------------------------------------------------------------------------------------------


class _Bench:
    def __init__(self, load: Load, folder: Path, command: Sequence[str], progress: Progress) -> None:
        self._load, self._folder, self._command, self._progress = load, folder, command, progress

    def run(self) -> dict[str, Any]:
        few, many = self._load.crowd
        with ExitStack() as stack:
            server = self._server("main", stack)
            ours = stack.enter_context(closing(Ours(server)))
            theirs = stack.enter_context(closing(Theirs(self._folder / "theirs")))
            found: dict[str, Any] = {"commits": [self._commits(ours, theirs, size) for size in self._load.snapshots]}
            found |= self._loads(ours)
            found["committers"] = asyncio.run(self._committers(ours))
            found["publish"] = self._publishes(ours)
            server.stop()
        with ExitStack() as stack:
            for name, tables in (("five", few), ("crowded", many)):
                _enter_names(self._folder / name, "crowd", tables - 1)
            small, large = self._server("five", stack), self._server("crowded", stack)
            with closing(Ours(small)) as ours, closing(Ours(large)) as crowded:
                found["crowd"] = self._crowd(ours, crowded)
            small.stop()
            large.stop()
            _enter_names(self._folder / "crowded", "listed", self._load.listed)
            large.start()
            with closing(Ours(large)) as ours:
                found["list"] = self._lists(ours)
            large.stop()
        return found

    def _commits(self, ours: Ours, theirs: Theirs, size: int) -> dict[str, Any]:
        our_tables, their_tables = Tables(ours, size), Tables(theirs, size)
        for _ in self._each(f"commits at {size:,} snapshots", self._load.rounds):
            our_tables.commit(OURS_PER_ROUND)
            their_tables.commit(1)
        assert our_tables.line is not None
        _, raw, _ = ours.ask("GET", our_tables.line.path)
        p50, their_p50 = _percentile(our_tables.times_s, 50), _percentile(their_tables.times_s, 50)
        return {
            "snapshots": size,
            "metadata_bytes": len(raw),
            "p50_ms": p50,
            "p99_ms": _percentile(our_tables.times_s, 99),
            "server_cpu_ms": round(our_tables.cpu_ms, 3),
            "sqlcatalog_p50_ms": their_p50,
            "sqlcatalog_p99_ms": _percentile(their_tables.times_s, 99),
            "sqlcatalog_cpu_ms": round(their_tables.cpu_ms, 3),
            "times_faster": round(their_p50 / p50, 1),
        }

    def _loads(self, ours: Ours) -> dict[str, Any]:
        line = ours.new_table(LOADED_SNAPSHOTS)
        _, _, etag = ours.ask("GET", line.path)

        def ask(status: int, headers: dict[str, str]) -> dict[str, Any]:
            def load() -> None:
                ours.ask("GET", line.path, headers=headers, expect=(status,))

            before = ours.cpu_s
            times_s = [_timed(load) for _ in self._each(f"loads answered {status}", self._load.loads)]
            return {
                "snapshots": LOADED_SNAPSHOTS,
                "p50_ms": _percentile(times_s, 50),
                "p99_ms": _percentile(times_s, 99),
                "server_cpu_ms": round((ours.cpu_s - before) * 1000 / len(times_s), 3),
            }

        return {"load_200": ask(200, {}), "load_304": ask(304, {"If-None-Match": etag})}

    async def _committers(self, ours: Ours) -> dict[str, Any]:
        """Everybody commits to one table, loads it again when another was first, and stops after so many successes."""
        line = ours.new_table(PUBLISHED_SNAPSHOTS)
        url, first = ours.url + line.path, line.head
        done: list[int] = []
        conflicts = 0
        bar = self._progress.add_task(f"{COMMITTERS} committers", total=COMMITTERS * self._load.commits_each)

        async def commit_some(session: aiohttp.ClientSession) -> None:
            nonlocal conflicts
            left = self._load.commits_each
            while left:
                async with session.get(url, params={"snapshots": "refs"}) as answer:
                    metadata = (await answer.json())["metadata"]
                head = metadata["current-snapshot-id"]
                snapshot = _snapshot(line.location, metadata["last-sequence-number"] + 1, head)
                async with session.post(url, json=_body(line.uuid, head, snapshot)) as answer:
                    await answer.read()
                    if answer.status == 409:
                        conflicts += 1
                        continue
                    answer.raise_for_status()
                done.append(snapshot["snapshot-id"])
                left -= 1
                self._progress.advance(bar)

        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
            began = time.perf_counter()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(COMMITTERS):
                    tasks.create_task(commit_some(session))
            seconds = time.perf_counter() - began
            async with session.get(url) as answer:
                metadata = (await answer.json())["metadata"]
        lineage = _lineage(metadata, first)
        return {
            "committers": COMMITTERS,
            "commits": len(done),
            "conflicts": conflicts,
            "commits_per_s": round(len(done) / seconds, 1),
            "lost_updates": len(set(done) - set(lineage)),
            "strangers": len(set(lineage) - set(done)) + len(lineage) - len(set(lineage)),
        }

    def _publishes(self, ours: Ours) -> dict[str, Any]:
        lines = [ours.new_table(PUBLISHED_SNAPSHOTS) for _ in range(3)]

        def publish() -> float:
            names = [{"identifier": {"namespace": [NAMESPACE], "name": line.name}} for line in lines]
            changes = [name | line.next_commit() for name, line in zip(names, lines, strict=True)]
            data = json.dumps({"table-changes": changes}).encode()
            return _timed(lambda: ours.ask("POST", "/v1/transactions/commit", data))

        before = ours.cpu_s
        times_s = [publish() for _ in self._each("publishes of three tables", self._load.publishes)]
        return {
            "tables": len(lines),
            "snapshots": PUBLISHED_SNAPSHOTS,
            "p50_ms": _percentile(times_s, 50),
            "p99_ms": _percentile(times_s, 99),
            "server_cpu_ms": round((ours.cpu_s - before) * 1000 / len(times_s), 3),
        }

    def _crowd(self, small: Ours, large: Ours) -> dict[str, Any]:
        few, many = self._load.crowd
        sides = [Tables(small, PUBLISHED_SNAPSHOTS), Tables(large, PUBLISHED_SNAPSHOTS)]
        for side in sides:
            side.line = side.catalog.new_table(PUBLISHED_SNAPSHOTS)
            side.line.free = self._load.publishes  # both grow alike, and no third table joins the few
        for _ in self._each(f"commits among {many:,} tables", self._load.publishes):
            for side in sides:
                side.commit(1)
        p50s = [_percentile(side.times_s, 50) for side in sides]
        return {
            "few": few,
            "many": many,
            "few_p50_ms": p50s[0],
            "many_p50_ms": p50s[1],
            "few_server_cpu_ms": round(sides[0].cpu_ms, 3),
            "many_server_cpu_ms": round(sides[1].cpu_ms, 3),
            "ratio": round(p50s[1] / p50s[0], 2),
        }

    def _lists(self, ours: Ours) -> dict[str, Any]:
        times_s = [
            _timed(lambda: ours.ask("GET", "/v1/namespaces/listed/tables"))
            for _ in self._each(f"lists of {self._load.listed:,} tables", self._load.lists)
        ]
        _, raw, _ = ours.ask("GET", "/v1/namespaces/listed/tables")
        return {
            "tables": len(json.loads(raw)["identifiers"]),
            "bytes": len(raw),
            "first_ms": round(times_s[0] * 1000, 3),
            "p50_ms": _percentile(times_s, 50),
        }

    def _server(self, name: str, stack: ExitStack) -> ChildServer:
        return stack.enter_context(ChildServer(self._folder / name, command=self._command))

    def _each(self, what: str, times: int) -> Iterator[int]:
        bar = self._progress.add_task(what, total=times)
        for number in range(times):
            yield number
            self._progress.advance(bar)


def _enter_names(home: Path, namespace: str, tables: int) -> None:
    """Entries alone, straight into the store while no server runs: nobody opens these tables."""
    store = SqliteStore(home / "catalog.db")
    store.create_namespace((namespace,), {})
    names = [Name((namespace,), f"table_{number:06d}") for number in range(tables)]
    store.commit([Create(name, "table", str(uuid.uuid4()), f"file:///{namespace}/{name.name}") for name in names])
    store.close()


def _lineage(metadata: dict[str, Any], until: int) -> list[int]:
    """The snapshots of main, newest first, down to one that was there before."""
    parents = {each["snapshot-id"]: each.get("parent-snapshot-id") for each in metadata["snapshots"]}
    line, at = [], metadata["current-snapshot-id"]
    while at != until:
        line.append(at)
        at = parents[at]
    return line


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _percentile(times_s: Sequence[float], percent: float) -> float:
    return round(float(np.percentile(np.array(times_s) * 1000, percent)), 3)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description:<32}"), BarColumn(), TimeElapsedColumn(), disable=not sys.stdout.isatty()
    )
