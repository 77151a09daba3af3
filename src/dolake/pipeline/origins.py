"""Where a row comes from: what a table of format 3 says of each row, taken along when the row moves to another file.

From compaction.py and staging.py, with what the catalog knows of the files; to rewriting.py in one of Spark's workers.
By the specification a row has an id and the number of the commit that last changed it. Both follow from the file that
the row was first written to, and are written down in the file where it is moved to. Promise: a row that is moved and
not changed keeps both.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_COLUMNS = {"_row_id": 2147483540, "_last_updated_sequence_number": 2147483539}
"""With the ids that the specification has for them."""


class Origin(NamedTuple):
    """Of the rows of a data file that do not say it themselves."""

    first_row_id: int | None
    """None where nobody has given the file one: it is from before format 3, and its rows get ids where they move to."""
    sequence: int


@lru_cache(maxsize=64)
def with_origins(schema: str) -> str:
    """A schema for files that say where their rows come from."""
    found = json.loads(schema)
    own = [{"id": id_, "name": name, "required": False, "type": "long"} for name, id_ in _COLUMNS.items()]
    return json.dumps(found | {"fields": [*found["fields"], *own]})


def traced(rows: pa.Table, origin: Origin, first: int) -> pa.Table:
    """Rows as they stand in a file, from row `first` on, with what is known of each."""
    count = rows.num_rows
    if origin.first_row_id is None:
        derived: tuple[pa.Array, ...] = (pa.nulls(count, pa.int64()), pa.nulls(count, pa.int64()))
    else:
        ids = np.arange(origin.first_row_id + first, origin.first_row_id + first + count)
        derived = pa.array(ids), pa.array(np.full(count, origin.sequence))
    for (name, id_), known in zip(_COLUMNS.items(), derived, strict=True):
        field = pa.field(name, pa.int64(), metadata={"PARQUET:field_id": str(id_)})
        at = rows.schema.get_field_index(name)
        if at < 0:
            rows = rows.append_column(field, known)
        else:
            rows = rows.set_column(at, field, pc.coalesce(rows.column(at), known))
    return rows
