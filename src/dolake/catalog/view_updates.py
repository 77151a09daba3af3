"""Updates of a commit applied to a view's metadata, by the rules of Iceberg's Java library (ViewMetadata.Builder).

From commit.py, which sends views here, and create.py, which builds a new view with the same steps.
A view is a list of versions, each with a schema and its SQL in one or more dialects; one version is current.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dolake.catalog.draft import LAST_ADDED
from dolake.catalog.readers import current_view_version
from dolake.catalog.schemas import checked_schema, same_schema
from dolake.catalog.values import (
    Json,
    is_int,
    property_bool,
    property_int,
    read_int,
    read_long,
    read_object,
    read_objects,
    read_text,
    read_text_map,
    read_text_or_none,
    read_texts,
    refuse,
)

FORMAT_MAX = 1
HISTORY_MAX = "version.history.num-entries"
HISTORY_MAX_DEFAULT = 10
DROP_DIALECT = "replace.drop-dialect.allowed"

_SAME_IN_VERSIONS = ("summary", "representations", "default-catalog", "default-namespace", "schema-id")


class ViewDraft:
    """A view's metadata while a commit is applied to it. Views are small: every list is copied, one level deep."""

    def __init__(self, base: Json, now_ms: int) -> None:
        self.metadata = dict(base)
        for key in ("schemas", "versions", "version-log"):
            self.metadata[key] = list(base.get(key) or ())
        self.metadata["properties"] = dict(base.get("properties") or {})
        self.now_ms = now_ms
        self.is_changed = False
        self.added_versions: set[int] = set()
        self.last_added_schema: int | None = None
        self.last_added_version: int | None = None
        self.log_entry: Json | None = None


def apply_view_updates(metadata: Json, updates: Sequence[Json], *, now_ms: int) -> Json:
    """The view's metadata after these updates; the very object that came in, if they change nothing."""
    draft = ViewDraft(metadata, now_ms)
    for update in updates:
        action = read_text(update, "action").lower()
        if action not in _UPDATES:
            refuse(f"Cannot apply update {action} to a view", hint=f"known are {', '.join(sorted(_UPDATES))}")
        _UPDATES[action](draft, update)
    if not draft.is_changed:
        return metadata
    _check_dialects_kept(current_view_version(metadata), draft)
    return settled(draft)


def settled(draft: ViewDraft) -> Json:
    """What only the whole commit can tell: the log, and which old versions it is time to forget."""
    metadata = draft.metadata
    if metadata.get("location") is None:
        refuse("Invalid location: null")
    if current_view_version(metadata) is None:
        refuse("Invalid view: no versions were added")
    if draft.log_entry:
        metadata["version-log"].append(draft.log_entry)
    most = property_int(metadata["properties"], HISTORY_MAX, HISTORY_MAX_DEFAULT)
    if most <= 0:
        refuse(f"{HISTORY_MAX} must be positive but was {most}")
    _forget_versions(draft, max(most, len(draft.added_versions | {metadata["current-version-id"]})))
    return metadata


# --- updates ---------------------------------------------------------------------------------------------------------


def _assign_uuid(draft: ViewDraft, update: Json) -> None:
    uuid = read_text(update, "uuid")
    if uuid != draft.metadata["view-uuid"]:
        refuse(f"Cannot reassign uuid: {draft.metadata['view-uuid']} to {uuid}")


def _upgrade_format_version(draft: ViewDraft, update: Json) -> None:
    version, current = read_int(update, "format-version"), draft.metadata["format-version"]
    if version < current:
        refuse(f"Cannot downgrade v{current} view to v{version}")
    if version > FORMAT_MAX:
        refuse(f"Unsupported format version: {version}")


def _set_location(draft: ViewDraft, update: Json) -> None:
    location = read_text(update, "location")
    if not location:
        refuse(f"Invalid location: {location!r}")
    if location != draft.metadata.get("location"):
        draft.metadata["location"] = location
        draft.is_changed = True


def _set_properties(draft: ViewDraft, update: Json) -> None:
    if updates := read_text_map(update, "updates"):
        draft.metadata["properties"].update(updates)
        draft.is_changed = True


def _remove_properties(draft: ViewDraft, update: Json) -> None:
    for name in read_texts(update, "removals"):
        draft.metadata["properties"].pop(name, None)
        draft.is_changed = True


def _add_schema(draft: ViewDraft, update: Json) -> None:
    add_schema(draft, update.get("schema"))


def add_schema(draft: ViewDraft, sent: object) -> int:
    """The id that this schema has in the view from now on."""
    schema, _ = checked_schema(sent)
    schemas = draft.metadata["schemas"]
    for known in schemas:
        if same_schema(known, schema):
            return int(known.get("schema-id", 0))
    id_: int = max([0, *(known.get("schema-id", 0) + 1 for known in schemas)])
    schemas.append({**schema, "schema-id": id_})
    draft.last_added_schema = id_
    draft.is_changed = True
    return id_


def _add_view_version(draft: ViewDraft, update: Json) -> None:
    add_version(draft, read_object(update, "view-version"))


def add_version(draft: ViewDraft, sent: Json) -> int:
    """The id that this version has in the view from now on; an equal one that is there already keeps its own."""
    version, versions = checked_version(sent), draft.metadata["versions"]
    for known in versions:
        if _same_version(known, version):
            old = int(known["version-id"])
            draft.last_added_version = old if old in draft.added_versions else None
            return old
    id_: int = max([version["version-id"], *(known["version-id"] + 1 for known in versions)])
    if not is_int(id_):
        refuse(f"Cannot add version, its id would be beyond 32 bits: {id_}")
    versions.append({**version, "version-id": id_, "schema-id": _schema_id(draft, version["schema-id"])})
    draft.added_versions.add(id_)
    draft.last_added_version = id_
    draft.is_changed = True
    return id_


def _set_current_view_version(draft: ViewDraft, update: Json) -> None:
    id_ = read_int(update, "view-version-id")
    if id_ == LAST_ADDED:
        if draft.last_added_version is None:
            refuse("Cannot set last version id: no current version id has been set")
        id_ = draft.last_added_version
    set_current_version(draft, id_)


def set_current_version(draft: ViewDraft, id_: int) -> None:
    metadata = draft.metadata
    if metadata.get("current-version-id") == id_:
        return
    version = next((known for known in metadata["versions"] if known["version-id"] == id_), None)
    if version is None:
        refuse(f"Cannot set current version to unknown version: {id_}")
    metadata["current-version-id"] = id_
    # A version that is made current again became so now, not when it was written.
    moment = version["timestamp-ms"] if id_ in draft.added_versions else draft.now_ms
    draft.log_entry = {"timestamp-ms": moment, "version-id": id_}
    draft.is_changed = True


def _schema_id(draft: ViewDraft, id_: int) -> int:
    if id_ == LAST_ADDED:
        if draft.last_added_schema is None:
            refuse("Cannot set last added schema: no schema has been added")
        return draft.last_added_schema
    if all(schema.get("schema-id", 0) != id_ for schema in draft.metadata["schemas"]):
        refuse(f"Cannot add version with unknown schema: {id_}")
    return id_


# --- versions --------------------------------------------------------------------------------------------------------


def checked_version(version: Json) -> Json:
    """A view version as Iceberg's parser accepts it, with SQL at most once per dialect."""
    read_int(version, "version-id")
    read_int(version, "schema-id")
    read_long(version, "timestamp-ms")
    read_text_map(version, "summary")
    read_texts(version, "default-namespace")
    read_text_or_none(version, "default-catalog")
    representations = read_objects(version, "representations")
    if unknown := sorted({kind for each in representations if (kind := read_text(each, "type").lower()) != "sql"}):
        refuse(f"Found unsupported view representations: {', '.join(unknown)}")
    dialects: set[str] = set()
    for representation in representations:
        read_text(representation, "sql")
        dialect = read_text(representation, "dialect").lower()
        if dialect in dialects:
            refuse(f"Invalid view version: Cannot add multiple queries for dialect {dialect}")
        dialects.add(dialect)
    return {key: value for key, value in version.items() if key != "default-catalog" or value is not None}


def _same_version(one: Json, other: Json) -> bool:
    """They would answer the same; id and time do not matter."""
    return all(one.get(key) == other.get(key) for key in _SAME_IN_VERSIONS)


def _check_dialects_kept(previous: Json | None, draft: ViewDraft) -> None:
    current = current_view_version(draft.metadata)
    if previous is None or current is None or property_bool(draft.metadata["properties"], DROP_DIALECT, False):
        return
    before, after = _dialects(previous["representations"]), _dialects(current["representations"])
    if not before <= after:
        refuse(
            f"Cannot replace view due to loss of view dialects ({DROP_DIALECT}=false):\n"
            f"Previous dialects: {sorted(before)}\nNew dialects: {sorted(after)}",
            hint=f"send SQL for every dialect again, or set {DROP_DIALECT}=true on the view",
        )


def _dialects(representations: Iterable[Json]) -> set[str]:
    return {each["dialect"].lower() for each in representations if "dialect" in each}


def _forget_versions(draft: ViewDraft, most: int) -> None:
    """Keep the current version and the newest others. Log entries before one that is gone would tell a wrong story."""
    metadata = draft.metadata
    if len(metadata["versions"]) <= most:
        return
    current = metadata["current-version-id"]
    others = sorted((v["version-id"] for v in metadata["versions"] if v["version-id"] != current), reverse=True)
    kept = {current, *others[: most - 1]}
    metadata["versions"] = [version for version in metadata["versions"] if version["version-id"] in kept]
    log: list[Json] = []
    for entry in metadata["version-log"]:
        if entry["version-id"] in kept:
            log.append(entry)
        else:
            log.clear()
    metadata["version-log"] = log


_UPDATES: dict[str, Callable[[ViewDraft, Json], None]] = {
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": _upgrade_format_version,
    "add-schema": _add_schema,
    "add-view-version": _add_view_version,
    "set-current-view-version": _set_current_view_version,
    "set-location": _set_location,
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
}
