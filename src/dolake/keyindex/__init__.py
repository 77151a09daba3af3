"""The key index of a state table: key -> data file and row position, on disk, for one snapshot of the table.

From the pipeline, the one writer; to the pipeline and the query process, which look keys up without a JVM.
docs/explain/key-index.md has the bytes and the recovery steps.
"""

from dolake.keyindex.datafiles import Block
from dolake.keyindex.errors import StaleIndex
from dolake.keyindex.hashes import Hashes, hash_keys
from dolake.keyindex.index import Changes, KeyIndex
from dolake.keyindex.rebuild import rebuild
from dolake.keyindex.replacing import Moved
from dolake.keyindex.runs import NOT_FOUND, Places
from dolake.keyindex.view import KeyIndexView

__all__ = [
    "NOT_FOUND",
    "Block",
    "Changes",
    "Hashes",
    "KeyIndex",
    "KeyIndexView",
    "Moved",
    "Places",
    "StaleIndex",
    "hash_keys",
    "rebuild",
]
