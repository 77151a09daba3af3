"""A table as it was at a time before the tail: the nearest snapshot, and the changes from there up to that time.

From reader.py. The snapshot is the last one that was made up to that time and is still there; without any, the changes
alone are folded from the beginning, so that expired snapshots cost time and lose nothing. Promise: event accuracy by
`_commit_timestamp`, which never decreases along the journal, and whole transactions only.
"""

from __future__ import annotations

from collections.abc import Sequence

from dolake.positions import Position
from dolake.query.lake import Json, LakeTable, position_of
from dolake.query.live import LiveTables, Scan
from dolake.query.overlay import Overlay
from dolake.query.past import Past
from dolake.query.sqltext import literal, moment, names, quoted, selected
from dolake.tables.layout import BEFORE, CLEARED, CLEARING, KEY, RESCUED, SOURCE
from dolake.tables.types import Columns, Field

_PREVIOUS = "_previous_key"
# What a change rescued of the row before it is not in the state. A patch with null removes a name.
_RESCUED_OF_STATE = (
    f"CASE WHEN contains({quoted(RESCUED)}, {literal(quoted(BEFORE))}) AND json_valid({quoted(RESCUED)}) "
    f"THEN nullif(json_merge_patch({quoted(RESCUED)}, {literal(f'{{{quoted(BEFORE)}: null}}')}), '{{}}') "
    f"ELSE {quoted(RESCUED)} END"
)


def scan_past(live: LiveTables, state: LakeTable, changes: LakeTable, past: Past) -> tuple[Scan, Json | None]:
    """The rows of the state at that time, and the snapshot that they are counted from."""
    snapshot = state.snapshot_at(past.time_ms)
    if snapshot and not _has_columns_of_now(state, snapshot):
        snapshot = None
    columns = state.columns
    own = tuple(Field(name, "string") for name in live.hidden)
    wanted = (*columns, *own)
    keys = (KEY, SOURCE) if SOURCE in live.hidden else (KEY,)
    overlays = list[Overlay]()
    parts = list[str]()
    newest = changes.snapshot
    start = position_of(snapshot) if snapshot else 0
    window = ""
    if newest is not None:
        overlays.append(live.plain(changes, newest))
        window = _window(overlays[0], changes, wanted, past, start)
        joined = " AND ".join(f"each.{quoted(key)} = last.{quoted(key)}" for key in keys)
        parts.append(
            f"SELECT {names(field.name for field in wanted)} FROM changed AS each SEMI JOIN last "  # noqa: S608
            f"ON {joined} AND each._position = last._position WHERE each._operation IN ('INSERT', 'UPDATE')"
        )
    if snapshot is not None:
        overlays.append(live.overlays.plain(state.metadata, snapshot))
        joined = " AND ".join(f"state.{quoted(key)} = last.{quoted(key)}" for key in keys)
        anti = f" ANTI JOIN last ON {joined}" if window else ""
        if window and CLEARED in changes.metadata.get("properties", {}):
            anti += " WHERE NOT EXISTS (FROM cleared WHERE last_at >= 0)"
        parts.append(
            f"SELECT {names(field.name for field in wanted)} "  # noqa: S608
            f"FROM iceberg_scan({literal(overlays[-1].path)}) AS state{anti}"
        )
    if not parts:
        parts.append(f"SELECT {selected((), wanted)} WHERE false")
    sql = " UNION ALL ".join(parts)
    if window:
        last = f"last AS MATERIALIZED ({_last(changes, keys)})"
        if CLEARED in changes.metadata.get("properties", {}):
            cleared = _cleared(overlays[0], past, start)
            window += " AND _position > (SELECT last_at FROM cleared)"
            sql = f"WITH cleared AS MATERIALIZED ({cleared}), changed AS NOT MATERIALIZED ({window}), {last} {sql}"
        else:
            sql = f"WITH changed AS NOT MATERIALIZED ({window}), {last} {sql}"
    reads = tuple((table, each) for table, each in ((changes, newest), (state, snapshot)) if each is not None)
    return Scan(sql, columns, {}, tuple(overlays), reads=reads), snapshot


def oldest_sql(changes: Overlay) -> str:
    """Asks when the first change of a table became durable, in ms."""
    return f"SELECT epoch_ms(min(_commit_timestamp)) FROM iceberg_scan({literal(changes.path)})"  # noqa: S608


def position_sql(changes: Overlay, start: Position, time_ms: int) -> str:
    """Asks how far the journal was at this time, as far as this table's changes from `start` on show it."""
    return (
        f"SELECT coalesce(max(_position) + 1, {start}) FROM iceberg_scan({literal(changes.path)}) "  # noqa: S608
        f"WHERE _position >= {start} AND _commit_timestamp <= {moment(time_ms)}"
    )


def begun_sql(changes: Sequence[Overlay], time_ms: int, wait_max_ms: int) -> str:
    """Asks for transactions that have changes after this time, and may have some before it.

    A publish never splits a transaction, unless that took longer than the lake waits for its end.
    """
    until_ms = time_ms + wait_max_ms
    parts = [
        f"SELECT _source, _transaction FROM iceberg_scan({literal(each.path)}) WHERE _transaction IS NOT NULL "  # noqa: S608
        f"AND _commit_timestamp > {moment(time_ms)} AND _commit_timestamp <= {moment(until_ms)}"
        for each in changes
    ]
    return " UNION ".join(parts)


def _window(overlay: Overlay, changes: LakeTable, wanted: Columns, past: Past, start: int) -> str:
    """The changes between the snapshot and that time."""
    extra = [name for name in ("_operation", "_position", _PREVIOUS) if name in changes.names]
    columns = ", ".join((selected((*changes.columns, *_texts(changes)), wanted), names(extra)))
    columns = columns.replace(quoted(RESCUED), f"{_RESCUED_OF_STATE} AS {quoted(RESCUED)}", 1)
    where = f"_position >= {start} AND {past.condition}"
    return f"SELECT {columns} FROM iceberg_scan({literal(overlay.path)}) WHERE {where}"  # noqa: S608


def _cleared(overlay: Overlay, past: Past, start: int) -> str:
    """Where the table was last emptied between the snapshot and that time; -1 where it was not."""
    operations = ", ".join(map(literal, CLEARING))
    where = f"_operation IN ({operations}) AND _position >= {start} AND {past.condition}"
    return f"SELECT coalesce(max(_position), -1) AS last_at FROM iceberg_scan({literal(overlay.path)}) WHERE {where}"  # noqa: S608


def _has_columns_of_now(state: LakeTable, snapshot: Json) -> bool:
    """Not where a column was written anew with another type: to Iceberg that is another column of the same name."""
    schemas = {each["schema-id"]: each for each in state.metadata["schemas"]}
    then = schemas.get(snapshot.get("schema-id"))
    if then is None:
        return True
    ids = {field["name"]: field["id"] for field in state.schema["fields"]}
    return all(ids.get(field["name"], field["id"]) == field["id"] for field in then["fields"])


def _last(changes: LakeTable, keys: tuple[str, ...]) -> str:
    """For each key that the window touches, where its last change is; a row that moved away leaves its old key so."""
    named = names(keys)
    touched = f"SELECT {named}, _position FROM changed"  # noqa: S608
    if _PREVIOUS in changes.names:
        moved = names((_PREVIOUS, *keys[1:]))
        touched += f" UNION ALL SELECT {moved}, _position FROM changed WHERE {_PREVIOUS} IS NOT NULL"  # noqa: S608
    return f"SELECT {named}, max(_position) AS _position FROM ({touched}) GROUP BY {named}"  # noqa: S608


def _texts(changes: LakeTable) -> Columns:
    """The changes table's own columns that a state has, too."""
    return tuple(Field(name, "string") for name in (KEY, "_rescued", SOURCE) if name in changes.names)
