"""A plan's tasks as the pages that clients get one by one, packed.

From scan_planner.py, task by task; to scan_rest.py, which puts a page into its envelope. Promise: a page has a bounded
number of tasks and, but for a single one that is larger, bytes; each page has all delete files that its tasks name;
a plan that would grow past its bound is refused while it is made.
"""

from __future__ import annotations

import zlib

import msgspec

from dolake.catalog.errors import ScanTooLarge

PAGE_MAX_BYTES = 4 * 1024 * 1024


class Pages:
    """Takes tasks as JSON, gives pages."""

    def __init__(self, tasks_max: int, packed_max_bytes: int, page_max_bytes: int = PAGE_MAX_BYTES) -> None:
        self._tasks_max, self._packed_max_bytes, self._page_max_bytes = tasks_max, packed_max_bytes, page_max_bytes
        self._done: list[bytes] = []
        self._done_bytes = 0
        self._begin()

    def add(self, file: bytes, deletes: list[tuple[str, bytes]], residual: bytes) -> None:
        size = len(file) + len(residual) + sum(len(raw) for name, raw in deletes if name not in self._deletes)
        if self._tasks and (len(self._tasks) >= self._tasks_max or self._bytes + size > self._page_max_bytes):
            self._end()
        references = []
        for name, raw in deletes:
            at, _ = self._deletes.setdefault(name, (len(self._deletes), raw))
            references.append(at)
        named = b',"delete-file-references":' + msgspec.json.encode(references) if references else b""
        self._tasks.append(b"".join((b'{"data-file":', file, named, b',"residual-filter":', residual, b"}")))
        self._bytes += size

    def close(self) -> list[bytes]:
        """All pages; of a scan without any file one that is empty."""
        if self._tasks or not self._done:
            self._end()
        return self._done

    def _begin(self) -> None:
        self._tasks: list[bytes] = []
        self._deletes: dict[str, tuple[int, bytes]] = {}
        self._bytes = 0

    def _end(self) -> None:
        deletes = b",".join(raw for _, raw in self._deletes.values())
        shown = b'"delete-files":[' + deletes + b"]," if deletes else b""
        page = zlib.compress(b"".join((shown, b'"file-scan-tasks":[', b",".join(self._tasks), b"]")), 1)
        self._done.append(page)
        self._done_bytes += len(page)
        if self._done_bytes > self._packed_max_bytes:
            raise ScanTooLarge(
                f"the plan of this scan has more than {self._packed_max_bytes} bytes",
                hint="add a filter, or plan it in the client: scan-planning-mode=client",
            )
        self._begin()


def unpacked(page: bytes) -> bytes:
    return zlib.decompress(page)
