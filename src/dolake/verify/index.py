"""The key index against the rows of the state: each live row is where the index says, and the index has nothing else.

From run.py, once a table's rows are in the workshop. Promise: every byte of the index is checked; an entry that is
missing, wrong or too much is counted, and so is a data file of which the index counts other rows than it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dolake.keyindex import NOT_FOUND, KeyIndexView, Places, StaleIndex, hash_keys
from dolake.keyindex.merging import ROWS_IN_MEMORY, merged_pieces
from dolake.keyindex.runs import Entries
from dolake.verify.base import NAMED_MAX, Advance, Check, short
from dolake.verify.files import DataFile

if TYPE_CHECKING:
    import duckdb

_ROWS_AT_ONCE = 200_000
_UNLISTED = -1
_LIVE = "SELECT scope, key, file, row FROM state WHERE number = $number"
_ROWS_OF_FILES = "SELECT file, count(*) FROM state WHERE number = $number GROUP BY file"
_EXTRA = """
SELECT count(*) OVER (), file, row FROM entries
WHERE NOT EXISTS (FROM state WHERE number = $number AND state.file = entries.file AND state.row = entries.row)
ORDER BY file, row LIMIT $limit
"""


def check_index(
    connection: duckdb.DuckDBPyConnection,
    number: int,
    view: KeyIndexView,
    files: Sequence[DataFile],
    check: Check,
    advance: Advance,
) -> None:
    """Compare an index that is open with the table's live rows."""
    try:
        view.verify()
        _check_rows(connection, number, view, files, check, advance)
        _check_counts(connection, number, view, files, check)
    except StaleIndex as error:
        check.differ(error.message)


def _check_rows(
    connection: duckdb.DuckDBPyConnection,
    number: int,
    view: KeyIndexView,
    files: Sequence[DataFile],
    check: Check,
    advance: Advance,
) -> None:
    """Each live row is found by its key, where it is."""
    numbers = _file_numbers(view, files)
    for batch in filter(len, connection.execute(_LIVE, {"number": number}).to_arrow_reader(_ROWS_AT_ONCE)):
        places = view.look_up(hash_keys(_keys(batch)))
        found = np.where(places.file == NOT_FOUND, NOT_FOUND, numbers[np.minimum(places.file, len(numbers) - 1)])
        wrong = np.flatnonzero((found != batch.column(2).to_numpy()) | (places.position != batch.column(3).to_numpy()))
        sentences = [_sentence(batch, at, places, view, files) for at in wrong[:NAMED_MAX].tolist()]
        check.differ_all(sentences, len(wrong))
        check.compared += batch.num_rows
        advance(batch.num_rows)


def _keys(batch: pa.RecordBatch) -> list[bytes]:
    keys = batch.column(1).to_pylist()
    scopes = batch.column(0)
    if not scopes[0].as_py():
        return [key.encode() for key in keys]
    return [f"{scope}\0{key}".encode() for scope, key in zip(scopes.to_pylist(), keys, strict=True)]


def _file_numbers(view: KeyIndexView, files: Sequence[DataFile]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """By the index's number of a file, ours; a file that the table does not have is of no number."""
    ours = {file.data.location: at for at, file in enumerate(files)}
    numbers = np.full(max(view.paths, default=0) + 2, _UNLISTED, np.int64)
    for id_, path in view.paths.items():
        numbers[id_] = ours.get(path, _UNLISTED)
    return numbers


def _sentence(batch: pa.RecordBatch, at: int, places: Places, view: KeyIndexView, files: Sequence[DataFile]) -> str:
    scope, key, file, row = (column[at].as_py() for column in batch.columns)
    what = f"key {short(key)}{f' of {scope}' if scope else ''}"
    if places.file[at] == NOT_FOUND:
        return f"{what} has a row, and the index does not have it"
    indexed = f"row {places.position[at]} of {view.paths[int(places.file[at])]}"
    return f"{what} is row {row} of {files[file].data.location}; the index says {indexed}"


def _check_counts(
    connection: duckdb.DuckDBPyConnection, number: int, view: KeyIndexView, files: Sequence[DataFile], check: Check
) -> None:
    """As many entries as rows: so, if each row has its own, there is no other."""
    rows = dict(connection.execute(_ROWS_OF_FILES, {"number": number}).fetchall())
    total = sum(rows.values())
    entries = sum(len(piece) for piece in _pieces(view))
    if view.manifest.row_count != total:
        check.differ(f"the index counts {view.manifest.row_count} rows, the table has {total}")
    numbers = _file_numbers(view, files)
    counted = {int(numbers[file.id]): file.rows for file in view.manifest.files}
    for file in view.manifest.files:
        has = rows.get(int(numbers[file.id]), 0)
        if file.rows != has:
            check.differ(f"the index counts {file.rows} rows in {file.path}, which has {has}")
    for at in sorted(rows.keys() - counted.keys()):
        check.differ(f"the index does not list {files[at].data.location}, which has {rows[at]} rows")
    if entries > total:
        _name_extra(connection, number, view, files, check)


def _pieces(view: KeyIndexView) -> Iterable[Entries]:
    """All entries that count, without those of deleted keys."""
    return merged_pieces(view.runs, drop_tombstones=True, rows_max=ROWS_IN_MEMORY) if view.runs else []


def _name_extra(
    connection: duckdb.DuckDBPyConnection, number: int, view: KeyIndexView, files: Sequence[DataFile], check: Check
) -> None:
    numbers = _file_numbers(view, files)
    connection.execute("DELETE FROM entries")
    for piece in _pieces(view):
        file = numbers[np.minimum(piece.file, len(numbers) - 1)]
        connection.register("piece", pa.table({"file": file, "row": piece.position.astype(np.int64)}))
        connection.execute("INSERT INTO entries FROM piece")
        connection.unregister("piece")
    found = connection.execute(_EXTRA, {"number": number, "limit": NAMED_MAX}).fetchall()
    sentences = [
        f"the index has an entry for row {row} of {files[file].data.location if file >= 0 else 'a file that is gone'}, "
        "and no such row is live"
        for _, file, row in found
    ]
    check.differ_all(sentences, found[0][0] if found else 0)
