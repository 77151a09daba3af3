"""How a table of a SQLite file is called in the lake, which takes fewer names than SQLite.

From tables.py, which leaves out a table whose name there is taken already, and events.py. Pure.
"""

from __future__ import annotations

import re
import unicodedata

from dolake.tables.names import PART_LENGTH_MAX_BYTES, RESERVED_SUFFIXES, problem_with_table_name

_FORBIDDEN = re.compile(r'[./\\:*?"<>|%#`]')


def lake_name(name: str) -> str:
    """The table's name in the lake: its own, with an underscore for what cannot be part of one."""
    made = _FORBIDDEN.sub("_", unicodedata.normalize("NFC", name)).strip()
    made = "".join("_" if problem_with_table_name(character) and character != " " else character for character in made)
    while len(made.encode()) > PART_LENGTH_MAX_BYTES:
        made = made[:-1]
    made = made.strip() or "_"
    return f"{made}_" if made.casefold().endswith(RESERVED_SUFFIXES) else made


def table_name(namespace: str, name: str) -> str:
    """The lake's table for a table of the file; an empty namespace is the default one."""
    return f"{namespace}.{lake_name(name)}" if namespace else lake_name(name)
