"""The catalog's pointers in one SQLite file, in WAL mode: base.py's promise on a local disk.

From catalog/tables.py, in threads of the catalog. One connection per thread; writers take turns, readers never wait.
Promise: a commit is durable when it returns (synchronous=FULL), and a file of an older release is migrated when opened.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from dolake.catalog.base import (
    Create,
    Kind,
    Move,
    Name,
    Namespace,
    Page,
    Pointer,
    Publish,
    Published,
    Remember,
)
from dolake.catalog.errors import (
    AlreadyExists,
    CommitConflict,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    NoSuchView,
    StaleGeneration,
)
from dolake.errors import Damaged, DoLakeError, Unavailable
from dolake.positions import Position

_SEPARATOR = "\x1f"
_NO_LIMIT = -1
_BUSY_WAIT_S = 30.0


def _statements() -> dict[str, str]:
    text = resources.files("dolake.catalog").joinpath("sql/statements.sql").read_text()
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _migrations() -> list[str]:
    folder = resources.files("dolake.catalog").joinpath("sql")
    names = sorted(entry.name for entry in folder.iterdir() if re.fullmatch(r"\d{4}_\w+\.sql", entry.name))
    return [folder.joinpath(name).read_text() for name in names]


_SQL = _statements()
_decode_folders = msgspec.json.Decoder(tuple[str, ...]).decode


class SqliteStore:
    """See the module."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._migrate()

    # --- namespaces --------------------------------------------------------------------------------------------------

    def create_namespace(
        self, namespace: Namespace, properties: dict[str, str], remember: Remember | None = None
    ) -> None:
        with self._writing() as run:
            if len(namespace) > 1:
                _require_namespace(run, namespace[:-1])
            row = {"key": _key(namespace), "parent": _key(namespace[:-1]), "properties": _json(properties)}
            if run("create_namespace", row).rowcount != 1:
                raise AlreadyExists(f"Namespace already exists: {_dotted(namespace)}")
            _keep(run, remember)

    def namespace_properties(self, namespace: Namespace) -> dict[str, str]:
        return _require_namespace(self._run, namespace)

    def update_namespace(
        self, namespace: Namespace, updates: dict[str, str], removals: Sequence[str]
    ) -> tuple[list[str], list[str], list[str]]:
        with self._writing() as run:
            before = _require_namespace(run, namespace)
            removed = [key for key in removals if key in before]
            missing = [key for key in removals if key not in before]
            after = {key: value for key, value in before.items() if key not in removed} | updates
            run("set_namespace_properties", {"key": _key(namespace), "properties": _json(after)})
        return list(updates), removed, missing

    def drop_namespace(self, namespace: Namespace, remember: Remember | None = None) -> None:
        key = {"key": _key(namespace)}
        with self._writing() as run:
            _require_namespace(run, namespace)
            if run("has_pointer", key).fetchone() or run("has_child_namespace", key).fetchone():
                raise NamespaceNotEmpty(f"Namespace {_dotted(namespace)} is not empty", hint="drop what is in it first")
            run("drop_namespace", key)
            _keep(run, remember)

    def list_namespaces(self, parent: Namespace, after: str | None, limit: int | None) -> Page:
        if parent:
            _require_namespace(self._run, parent)
        row = {"parent": _key(parent), "after": after or "", "limit": _more(limit)}
        return _page([key for (key,) in self._run("list_namespaces", row)], limit)

    # --- tables and views --------------------------------------------------------------------------------------------

    def list_names(self, namespace: Namespace, kind: Kind, after: str | None, limit: int | None) -> Page:
        _require_namespace(self._run, namespace)
        row = {"namespace": _key(namespace), "kind": kind, "after": after or "", "limit": _more(limit)}
        return _page([name for (name,) in self._run("list_names", row)], limit)

    def find(self, name: Name, kind: Kind) -> Pointer:
        return _require(self._run, name, kind)

    def commit(
        self, changes: Sequence[Create | Move], publish: Publish | None = None, remember: Remember | None = None
    ) -> None:
        with self._writing() as run:
            for change in changes:
                _create(run, change) if isinstance(change, Create) else _move(run, change)
            if publish:
                _publish(run, publish)
            _keep(run, remember, changes[0].metadata_location if changes else None)

    def drop(self, name: Name, kind: Kind, remember: Remember | None = None) -> Pointer:
        with self._writing() as run:
            pointer = _require(run, name, kind)
            run("drop", _row(name) | {"kind": kind})
            _keep(run, remember, pointer.metadata_location)
        return pointer

    def rename(self, source: Name, target: Name, kind: Kind, remember: Remember | None = None) -> None:
        with self._writing() as run:
            _require(run, source, kind)
            _require_namespace(run, target.namespace)
            if found := _find(run, target):
                what = f"Cannot rename {source} to {target}. {found.kind.capitalize()} already exists"
                raise AlreadyExists(what)
            row = _row(source) | {"kind": kind, "to_namespace": _key(target.namespace), "to_name": target.name}
            run("rename", row)
            _keep(run, remember)

    def snapshot(self, names: Sequence[Name] | None, *, skips_missing: bool = False) -> tuple[list[Pointer], Published]:
        connection = self._connection()
        connection.execute("BEGIN")  # a reader's transaction sees one moment
        try:
            if names is None:
                found = [_pointer(row) for row in self._run("all_tables")]
            elif skips_missing:
                pointers = (_find(self._run, name) for name in names)
                found = [pointer for pointer in pointers if pointer and pointer.kind == "table"]
            else:
                found = [_require(self._run, name, "table") for name in names]
            return found, self.published()
        finally:
            connection.execute("ROLLBACK")

    def is_pointed_at(self, metadata_location: str) -> bool:
        return self._run("is_pointed_at", {"metadata_location": metadata_location}).fetchone() is not None

    def pointers(self, *, is_managed: bool = False) -> list[Pointer]:
        return [_pointer(row) for row in self._run("managed_pointers" if is_managed else "all_pointers")]

    # --- the published row, and remembered answers -------------------------------------------------------------------

    def published(self) -> Published:
        return Published(*self._run("published").fetchone())

    def time_of(self, position: Position) -> int | None:
        row = self._run("time_of", {"position": position}).fetchone()
        return None if row is None else int(row[0])

    def position_at(self, time_ms: int) -> Position | None:
        row = self._run("position_at", {"at_ms": time_ms}).fetchone()
        return None if row is None else int(row[0])

    def begin_generation(self) -> Published:
        with self._writing() as run:
            run("begin_generation")
            return Published(*run("published").fetchone())

    def recall_answer(self, key: str, now_ms: int) -> bytes | None:
        row = self._run("recall_answer", {"key": key, "now_ms": now_ms}).fetchone()
        return None if row is None else bytes(row[0])

    def keep_answer(self, key: str, answer: bytes, until_ms: int) -> None:
        with self._writing() as run:
            run("keep_answer", {"key": key, "answer": answer, "until_ms": until_ms})

    def forget_answers(self, now_ms: int) -> None:
        with self._writing() as run:
            run("forget_answers", {"now_ms": now_ms})

    def close(self) -> None:
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._connections.clear()

    # --- connections -------------------------------------------------------------------------------------------------

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            # Opened by the thread that uses it, closed by whoever closes the store, when nobody uses it any more.
            connection = sqlite3.connect(
                self._path, timeout=_BUSY_WAIT_S, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            self._local.connection = connection
            with self._lock:
                self._connections.append(connection)
        return connection

    def _run(self, name: str, row: dict[str, Any] | None = None) -> sqlite3.Cursor:
        return self._connection().execute(_SQL[name], row or {})

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Any]:
        """One transaction: all of it, or none."""
        connection = self._connection()
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise Unavailable(f"the catalog is busy: {error}", hint="try again") from error
        try:
            yield self._run
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _migrate(self) -> None:
        """Bring the file to this release's shape, one numbered step after the other."""
        steps = _migrations()
        connection = self._connection()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(steps):
            raise Damaged(
                f"{self._path.name} has catalog version {version}; this release knows {len(steps)}",
                hint="use the DoLake release that wrote it, or a newer one",
            )
        for number, step in enumerate(steps[version:], start=version + 1):
            connection.executescript(f"BEGIN IMMEDIATE;\n{step}\nPRAGMA user_version = {number};\nCOMMIT;")


def _key(namespace: Namespace) -> str:
    return _SEPARATOR.join(namespace)


def _dotted(namespace: Namespace) -> str:
    return ".".join(namespace)


def _json(value: dict[str, str] | tuple[str, ...]) -> str:
    return msgspec.json.encode(value).decode()


def _row(name: Name) -> dict[str, Any]:
    return {"namespace": _key(name.namespace), "name": name.name}


def _more(limit: int | None) -> int:
    """One more than asked for tells whether there is a next page."""
    return _NO_LIMIT if limit is None else limit + 1


def _page(items: list[str], limit: int | None) -> Page:
    if limit is None or len(items) <= limit:
        return Page(items, None)
    return Page(items[:limit], items[limit - 1])


def _pointer(row: Sequence[Any]) -> Pointer:
    namespace, name, kind, uuid, location, version, is_managed, folders = row
    full_name = Name(tuple(namespace.split(_SEPARATOR)), name)
    return Pointer(full_name, kind, uuid, location, version, bool(is_managed), _decode_folders(folders))


def _find(run: Any, name: Name) -> Pointer | None:
    row = run("find", _row(name)).fetchone()
    return _pointer(row) if row else None


def _require(run: Any, name: Name, kind: Kind) -> Pointer:
    found = _find(run, name)
    if found is None or found.kind != kind:
        raise _missing(name, kind)
    return found


def _missing(name: Name, kind: Kind) -> DoLakeError:
    if kind == "view":
        return NoSuchView(f"View does not exist: {name}")
    return NoSuchTable(f"Table does not exist: {name}")


def _require_namespace(run: Any, namespace: Namespace) -> dict[str, str]:
    row = run("namespace_properties", {"key": _key(namespace)}).fetchone()
    if row is None:
        raise NoSuchNamespace(f"Namespace does not exist: {_dotted(namespace)}")
    properties: dict[str, str] = msgspec.json.decode(row[0])
    return properties


def _create(run: Any, change: Create) -> None:
    _require_namespace(run, change.name.namespace)
    if found := _find(run, change.name):
        if found.kind == change.kind:
            raise AlreadyExists(f"{found.kind.capitalize()} already exists: {change.name}")
        raise AlreadyExists(f"{found.kind.capitalize()} with same name already exists: {change.name}")
    row = {
        "kind": change.kind,
        "uuid": change.uuid,
        "metadata_location": change.metadata_location,
        "is_managed": change.is_managed,
        "folders": _json(change.folders),
    }
    run("create", _row(change.name) | row)


def _move(run: Any, change: Move) -> None:
    row = {
        "kind": change.kind,
        "version": change.version,
        "metadata_location": change.metadata_location,
        "is_managed": change.is_managed,
        "folders": None if change.folders is None else _json(change.folders),
        "uuid": change.uuid,
    }
    if run("move", _row(change.name) | row).rowcount != 1:
        _require(run, change.name, change.kind)
        raise CommitConflict(f"Cannot commit {change.name}: it has changed since", hint="load it again, then retry")


def _keep(run: Any, remember: Remember | None, metadata_location: str | None = None) -> None:
    """A change of one table or view is answered with its metadata, found again by its location."""
    if remember is None:
        return
    location = metadata_location if remember.status == 200 else None
    answer = msgspec.json.encode({"status": remember.status, "location": location, "body": remember.body})
    run("keep_answer", {"key": remember.key, "answer": answer, "until_ms": remember.until_ms})


def _publish(run: Any, publish: Publish) -> None:
    row = {
        "from_position": publish.from_position,
        "to_position": publish.to_position,
        "generation": publish.generation,
        "at_ms": publish.at_ms,
    }
    if run("publish", row).rowcount == 1:
        run("note_publish", {"position": publish.to_position, "at_ms": publish.at_ms})
        return
    found = Published(*run("published").fetchone())
    if found.generation != publish.generation:
        raise StaleGeneration(
            f"pipeline generation {publish.generation} was replaced by {found.generation}", hint="stop this pipeline"
        )
    raise CommitConflict(
        f"Cannot publish from position {publish.from_position}: the lake is at {found.position}",
        hint="read the published row, then continue there",
    )
