"""What a writer relied on when it prepared a commit: does it still hold?

From rest.py, before any update is applied, and again each time a commit is tried on newer metadata. A requirement
that does not hold is a CommitConflict: the writer loads again and retries. The texts begin as those of Iceberg's
reference server, because its own test kit looks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from dolake.catalog.errors import CommitConflict
from dolake.catalog.readers import is_view, refs_of, uuid_of
from dolake.catalog.values import Json, as_objects, read_int, read_long_or_none, read_text, refuse

Check = Callable[[Json], None]

_CREATE = "assert-create"
_VIEW_UUID = "assert-view-uuid"


def check_requirements(metadata: Json | None, requirements: Sequence[Json]) -> None:
    """Raise CommitConflict for the first requirement that does not hold; `metadata` is None where nothing exists.

    All of them are read before any is checked: whether a request is well formed must not depend on the table.
    """
    checks = [_read(requirement) for requirement in as_objects(requirements, "requirements")]
    types = {type_ for type_, _ in checks}
    if _CREATE in types:
        if others := sorted(types - {_CREATE}):
            refuse(f"Invalid create requirements: {', '.join(others)}", hint=f"{_CREATE} stands alone")
        if metadata is not None:
            _conflict(f"{_kind(metadata)} already exists")
        return
    for type_, check in checks:
        if metadata is None:
            _conflict(f"{'view' if type_ == _VIEW_UUID else 'table'} does not exist")
        if is_view(metadata) != (type_ == _VIEW_UUID):
            refuse(f"Cannot validate {type_} against a {_kind(metadata)}")
        check(metadata)


def _read(requirement: Json) -> tuple[str, Check]:
    type_ = read_text(requirement, "type").lower()
    if type_ not in _READERS:
        refuse(f"Unrecognized update requirement: {type_}", hint=f"known are {', '.join(sorted(_READERS))}")
    return type_, _READERS[type_](requirement)


def _kind(metadata: Json) -> str:
    return "view" if is_view(metadata) else "table"


def _conflict(reason: str) -> NoReturn:
    raise CommitConflict(f"Requirement failed: {reason}", hint="load it again, then decide again")


def _nothing_exists(requirement: Json) -> Check:
    """check_requirements() decides this one: it alone knows whether there is anything."""
    return lambda metadata: None


def _same_uuid(requirement: Json) -> Check:
    wanted = read_text(requirement, "uuid")

    def check(metadata: Json) -> None:
        uuid = uuid_of(metadata)
        if wanted.lower() != (uuid or "").lower():
            _conflict(f"{'view ' if is_view(metadata) else ''}UUID does not match: expected {uuid} != {wanted}")

    return check


def _same_ref(requirement: Json) -> Check:
    """A branch or tag is where it was; without a snapshot id, it does not exist yet."""
    name, wanted = read_text(requirement, "ref"), read_long_or_none(requirement, "snapshot-id")

    def check(metadata: Json) -> None:
        ref = refs_of(metadata).get(name)
        if ref is None:
            if wanted is not None:
                _conflict(f"branch or tag {name} is missing, expected {wanted}")
        elif wanted is None:
            _conflict(f"{ref['type']} {name} was created concurrently")
        elif wanted != ref["snapshot-id"]:
            _conflict(f"{ref['type']} {name} has changed: expected id {wanted} != {ref['snapshot-id']}")

    return check


def _same_id(key: str, place: str, what: str) -> Callable[[Json], Check]:
    """For one requirement: under which key it states the id, under which the table has it, and its name in words."""

    def reader(requirement: Json) -> Check:
        wanted = read_int(requirement, key)

        def check(metadata: Json) -> None:
            if metadata[place] != wanted:
                _conflict(f"{what} changed: expected id {wanted} != {metadata[place]}")

        return check

    return reader


_READERS: dict[str, Callable[[Json], Check]] = {
    _CREATE: _nothing_exists,
    _VIEW_UUID: _same_uuid,
    "assert-table-uuid": _same_uuid,
    "assert-ref-snapshot-id": _same_ref,
    "assert-last-assigned-field-id": _same_id("last-assigned-field-id", "last-column-id", "last assigned field id"),
    "assert-current-schema-id": _same_id("current-schema-id", "current-schema-id", "current schema"),
    "assert-last-assigned-partition-id": _same_id(
        "last-assigned-partition-id", "last-partition-id", "last assigned partition id"
    ),
    "assert-default-spec-id": _same_id("default-spec-id", "default-spec-id", "default partition spec"),
    "assert-default-sort-order-id": _same_id("default-sort-order-id", "default-sort-order-id", "default sort order"),
}
