"""The pointers in SQL: what base.py promises, as the statements of sql/, whichever database runs them.

From sqlite.py and postgres.py, which own the connections and say how a transaction is begun, ended and repeated.
Promise: whatever changes the store is one transaction, and can be run again from its start.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, TypeVar

import msgspec

from dolake.catalog.base import (
    SEPARATOR,
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
from dolake.errors import DoLakeError, Unavailable
from dolake.positions import Position

Run = Callable[..., Any]
"""Run a statement by its name, with its values by name; the answer is a cursor."""
Result = TypeVar("Result")

_NO_LIMIT = 2**62
_decode_folders = msgspec.json.Decoder(tuple[str, ...]).decode


def statements(file: str = "sql/statements.sql") -> dict[str, str]:
    """All of a file, by name."""
    text = resources.files("dolake.catalog").joinpath(file).read_text()
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def migrations(folder: str = "sql") -> list[str]:
    """The numbered steps that make a database what this release needs, in their order."""
    found = resources.files("dolake.catalog").joinpath(folder)
    names = sorted(entry.name for entry in found.iterdir() if re.fullmatch(r"\d{4}_\w+\.sql", entry.name))
    return [found.joinpath(name).read_text() for name in names]


class SqlStore(ABC):
    """See the module."""

    @abstractmethod
    def read(self, do: Callable[[Run], Result]) -> Result:
        """Statements that need not be of one moment."""

    @abstractmethod
    def read_moment(self, do: Callable[[Run], Result]) -> Result:
        """Statements that see one moment."""

    @abstractmethod
    def write(self, do: Callable[[Run], Result]) -> Result:
        """One transaction, all of it or none; writers take turns. `do` may be run again from its start."""

    @abstractmethod
    def claim(self, journal: str, durable: Position, *, has_pipeline: bool) -> str:
        """As base.py says."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _check_owner(self, run: Run) -> None:
        """Raise if another server has taken the lake over."""

    # --- namespaces --------------------------------------------------------------------------------------------------

    def create_namespace(
        self, namespace: Namespace, properties: dict[str, str], remember: Remember | None = None
    ) -> None:
        def create(run: Run) -> None:
            if len(namespace) > 1:
                _require_namespace(run, namespace[:-1])
            row = {"key": _key(namespace), "parent": _key(namespace[:-1]), "properties": _json(properties)}
            if run("create_namespace", row).rowcount != 1:
                raise AlreadyExists(f"Namespace already exists: {_dotted(namespace)}")
            _keep(run, remember)

        self.write(create)

    def namespace_properties(self, namespace: Namespace) -> dict[str, str]:
        return self.read(lambda run: _require_namespace(run, namespace))

    def update_namespace(
        self, namespace: Namespace, updates: dict[str, str], removals: Sequence[str]
    ) -> tuple[list[str], list[str], list[str]]:
        def update(run: Run) -> tuple[list[str], list[str], list[str]]:
            before = _require_namespace(run, namespace)
            removed = [key for key in removals if key in before]
            missing = [key for key in removals if key not in before]
            after = {key: value for key, value in before.items() if key not in removed} | updates
            run("set_namespace_properties", {"key": _key(namespace), "properties": _json(after)})
            return list(updates), removed, missing

        return self.write(update)

    def drop_namespace(self, namespace: Namespace, remember: Remember | None = None) -> None:
        key = {"key": _key(namespace)}

        def drop(run: Run) -> None:
            _require_namespace(run, namespace)
            if run("has_pointer", key).fetchone() or run("has_child_namespace", key).fetchone():
                raise NamespaceNotEmpty(f"Namespace {_dotted(namespace)} is not empty", hint="drop what is in it first")
            run("drop_namespace", key)
            _keep(run, remember)

        self.write(drop)

    def list_namespaces(self, parent: Namespace, after: str | None, limit: int | None) -> Page:
        row = {"parent": _key(parent), "after": after or "", "limit": _more(limit)}

        def look(run: Run) -> Page:
            if parent:
                _require_namespace(run, parent)
            return _page([key for (key,) in run("list_namespaces", row)], limit)

        return self.read(look)

    # --- tables and views --------------------------------------------------------------------------------------------

    def list_names(self, namespace: Namespace, kind: Kind, after: str | None, limit: int | None) -> Page:
        row = {"namespace": _key(namespace), "kind": kind, "after": after or "", "limit": _more(limit)}

        def look(run: Run) -> Page:
            _require_namespace(run, namespace)
            return _page([name for (name,) in run("list_names", row)], limit)

        return self.read(look)

    def find(self, name: Name, kind: Kind) -> Pointer:
        return self.read(lambda run: _require(run, name, kind))

    def commit(
        self, changes: Sequence[Create | Move], publish: Publish | None = None, remember: Remember | None = None
    ) -> None:
        def move(run: Run) -> None:
            for change in changes:
                _create(run, change) if isinstance(change, Create) else _move(run, change)
            if publish:
                _publish(run, publish)
            _keep(run, remember, changes[0].metadata_location if changes else None)

        self.write(move)

    def drop(self, name: Name, kind: Kind, remember: Remember | None = None) -> Pointer:
        def drop(run: Run) -> Pointer:
            pointer = _require(run, name, kind)
            run("drop", _row(name) | {"kind": kind})
            _keep(run, remember, pointer.metadata_location)
            return pointer

        return self.write(drop)

    def rename(self, source: Name, target: Name, kind: Kind, remember: Remember | None = None) -> None:
        def rename(run: Run) -> None:
            _require(run, source, kind)
            _require_namespace(run, target.namespace)
            if found := _find(run, target):
                what = f"Cannot rename {source} to {target}. {found.kind.capitalize()} already exists"
                raise AlreadyExists(what)
            row = _row(source) | {"kind": kind, "to_namespace": _key(target.namespace), "to_name": target.name}
            run("rename", row)
            _keep(run, remember)

        self.write(rename)

    def snapshot(self, names: Sequence[Name] | None, *, skips_missing: bool = False) -> tuple[list[Pointer], Published]:
        def look(run: Run) -> tuple[list[Pointer], Published]:
            if names is None:
                found = [_pointer(row) for row in run("all_tables")]
            elif skips_missing:
                pointers = [_find(run, name) for name in names]
                found = [pointer for pointer in pointers if pointer and pointer.kind == "table"]
            else:
                found = [_require(run, name, "table") for name in names]
            return found, Published(*run("published").fetchone())

        return self.read_moment(look)

    def is_pointed_at(self, metadata_location: str) -> bool:
        row = {"metadata_location": metadata_location}
        return self.read(lambda run: run("is_pointed_at", row).fetchone()) is not None

    def pointers(self, *, is_managed: bool = False) -> list[Pointer]:
        name = "managed_pointers" if is_managed else "all_pointers"
        return self.read(lambda run: [_pointer(row) for row in run(name)])

    # --- the published row, and remembered answers -------------------------------------------------------------------

    def published(self) -> Published:
        return self.read(lambda run: Published(*run("published").fetchone()))

    def time_of(self, position: Position) -> int | None:
        row = self.read(lambda run: run("time_of", {"position": position}).fetchone())
        return None if row is None else int(row[0])

    def position_at(self, time_ms: int) -> Position | None:
        row = self.read(lambda run: run("position_at", {"at_ms": time_ms}).fetchone())
        return None if row is None else int(row[0])

    def begin_generation(self) -> Published:
        def begin(run: Run) -> Published:
            self._check_owner(run)
            run("begin_generation")
            return Published(*run("published").fetchone())

        return self.write(begin)

    def recall_answer(self, key: str, now_ms: int) -> bytes | None:
        row = self.read(lambda run: run("recall_answer", {"key": key, "now_ms": now_ms}).fetchone())
        return None if row is None else bytes(row[0])

    def keep_answer(self, key: str, answer: bytes, until_ms: int) -> None:
        self.write(lambda run: run("keep_answer", {"key": key, "answer": answer, "until_ms": until_ms}))

    def forget_answers(self, now_ms: int) -> None:
        self.write(lambda run: run("forget_answers", {"now_ms": now_ms}))


def _key(namespace: Namespace) -> str:
    return SEPARATOR.join(namespace)


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
    full_name = Name(tuple(namespace.split(SEPARATOR)), name)
    return Pointer(full_name, kind, uuid, location, version, bool(is_managed), _decode_folders(folders))


def _find(run: Run, name: Name) -> Pointer | None:
    row = run("find", _row(name)).fetchone()
    return _pointer(row) if row else None


def _require(run: Run, name: Name, kind: Kind) -> Pointer:
    found = _find(run, name)
    if found is None or found.kind != kind:
        raise _missing(name, kind)
    return found


def _missing(name: Name, kind: Kind) -> DoLakeError:
    if kind == "view":
        return NoSuchView(f"View does not exist: {name}")
    return NoSuchTable(f"Table does not exist: {name}")


def _require_namespace(run: Run, namespace: Namespace) -> dict[str, str]:
    row = run("namespace_properties", {"key": _key(namespace)}).fetchone()
    if row is None:
        raise NoSuchNamespace(f"Namespace does not exist: {_dotted(namespace)}")
    properties: dict[str, str] = msgspec.json.decode(row[0])
    return properties


def _create(run: Run, change: Create) -> None:
    _require_namespace(run, change.name.namespace)
    if found := _find(run, change.name):
        if found.kind == change.kind:
            raise AlreadyExists(f"{found.kind.capitalize()} already exists: {change.name}")
        raise AlreadyExists(f"{found.kind.capitalize()} with same name already exists: {change.name}")
    row = {
        "kind": change.kind,
        "uuid": change.uuid,
        "metadata_location": change.metadata_location,
        "is_managed": int(change.is_managed),
        "folders": _json(change.folders),
    }
    run("create", _row(change.name) | row)


def _move(run: Run, change: Move) -> None:
    row = {
        "kind": change.kind,
        "version": change.version,
        "metadata_location": change.metadata_location,
        "is_managed": None if change.is_managed is None else int(change.is_managed),
        "folders": None if change.folders is None else _json(change.folders),
        "uuid": change.uuid,
    }
    if run("move", _row(change.name) | row).rowcount != 1:
        _require(run, change.name, change.kind)
        raise CommitConflict(f"Cannot commit {change.name}: it has changed since", hint="load it again, then retry")


def _keep(run: Run, remember: Remember | None, metadata_location: str | None = None) -> None:
    """A change of one table or view is answered with its metadata, found again by its location."""
    if remember is None:
        return
    location = metadata_location if remember.status == 200 else None
    answer = msgspec.json.encode({"status": remember.status, "location": location, "body": remember.body})
    row = {"key": remember.key, "answer": answer, "until_ms": remember.until_ms, "now_ms": remember.now_ms}
    if run("remember", row).rowcount != 1:
        # The same request is under way at another server, and was quicker: it must not be done twice.
        raise Unavailable("this request was answered elsewhere meanwhile", hint="ask again with the same key")


def _publish(run: Run, publish: Publish) -> None:
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
