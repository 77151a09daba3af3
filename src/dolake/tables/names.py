"""Which names a table may have. Names come from strangers and end up in file paths, SQL and other engines.

From wire/messages.py, which asks once per new name; to every room that trusts a name afterwards.
Promise: a name that passes can be a folder, an Iceberg identifier and a key in any of our files without escaping.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

NAMESPACE_DEFAULT = "default"
PART_LENGTH_MAX_BYTES = 128
PARTS_MAX = 4
RESERVED_SUFFIXES = ("__changes", "__quarantine")
_FORBIDDEN = frozenset('/\\:*?"<>|%#`')


def split_table_name(name: str) -> tuple[tuple[str, ...], str]:
    """`orders` is (("default",), "orders"), `shop.orders` is (("shop",), "orders")."""
    *namespace, table = name.split(".")
    return tuple(namespace) or (NAMESPACE_DEFAULT,), table


@lru_cache(maxsize=16_384)
def plain_table_name(name: str) -> str:
    """The one spelling of a name that has two: `default.orders` is `orders`."""
    first, dot, rest = name.partition(".")
    return rest if dot and first == NAMESPACE_DEFAULT and "." not in rest else name


def problem_with_table_name(name: str) -> str | None:
    """Say in words why this cannot be a table's name, or None when it can."""
    parts = name.split(".")
    if len(parts) > PARTS_MAX:
        return f"has {len(parts)} parts; at most {PARTS_MAX} are allowed (namespaces and the table, joined by dots)"
    for part in parts:
        if problem := _problem_with_part(part):
            return problem
    if parts[-1].casefold().endswith(RESERVED_SUFFIXES):
        return f"ends in {' or '.join(RESERVED_SUFFIXES)}, which DoLake uses for the tables it makes beside yours"
    return None


def _problem_with_part(part: str) -> str | None:
    if not part:
        return "has an empty part: neither the name nor a part between dots may be empty"
    if len(part.encode(errors="surrogatepass")) > PART_LENGTH_MAX_BYTES:
        return f"has a part longer than {PART_LENGTH_MAX_BYTES} bytes"
    if part != part.strip():
        return "begins or ends with a space"
    for character in part:
        if character in _FORBIDDEN or unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
            return f"contains {character!r}, which cannot be part of a name"
    if unicodedata.normalize("NFC", part) != part:
        return "is not in Unicode's NFC form, so that two equal-looking names could differ"
    return None
