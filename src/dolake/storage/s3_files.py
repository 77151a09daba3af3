"""Large files in a store: read in ranges, written in parts.

From s3.py. Promise: a small file costs one request, to read and to write; a file that was not closed is not there.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from botocore.exceptions import ClientError

from dolake.errors import NotFound

_TAIL_BYTES = 128 * 1024
"""Asked for first: it has a Parquet file's footer, and mostly all of a file that a publish has written."""
_AHEAD_BYTES = 1024 * 1024
_PART_BYTES = 16 * 1024 * 1024
"""A store takes 10,000 parts: files of up to 160 GB."""
_NO_CLASS: Mapping[str, str] = {}

Fetch = Callable[[str], tuple[bytes, str]]
"""The bytes of a range such as `bytes=0-99`, and what the store says of it: `bytes 0-99/1234`."""


class S3Download(io.RawIOBase):
    """A file to read. One thread at a time, which is how Arrow reads it."""

    def __init__(self, fetch: Fetch, size: Callable[[], int]) -> None:
        self._fetch = fetch
        self._at = 0
        self._tail, said = _last_bytes(fetch, size)
        self.size_bytes = int(said.rpartition("/")[2]) if said else len(self._tail)
        self._ahead, self._ahead_at = b"", 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size_bytes}[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self.size_bytes

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self.size_bytes - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        data = self.read_at(self._at, wanted)
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read_at(self, start: int, count: int) -> bytes:
        """From memory where it was fetched before; else with as much behind it as makes the request worth it."""
        end = min(start + count, self.size_bytes)
        if start >= end:
            return b""
        tail_at = self.size_bytes - len(self._tail)
        if start >= tail_at:
            return self._tail[start - tail_at : end - tail_at]
        if not self._ahead_at <= start < end <= self._ahead_at + len(self._ahead):
            last = min(max(end, start + _AHEAD_BYTES), self.size_bytes)
            if last > tail_at and end <= tail_at:
                last = tail_at
            self._ahead, self._ahead_at = self._fetch(f"bytes={start}-{last - 1}")[0], start
        return self._ahead[start - self._ahead_at : end - self._ahead_at]


def _last_bytes(fetch: Fetch, size: Callable[[], int]) -> tuple[bytes, str]:
    try:
        return fetch(f"bytes=-{_TAIL_BYTES}")
    except NotFound:
        raise
    except Exception:
        if size() == 0:  # of which no range can be had
            return b"", ""
        raise


class S3Upload:
    """A file under way: one request where it is small, parts where it is not. Not closed, it never was."""

    def __init__(
        self,
        client: Any,
        place: dict[str, str],
        as_ours: Callable[[], AbstractContextManager[None]],
        class_: Mapping[str, str] = _NO_CLASS,
    ) -> None:
        self._s3, self._place, self._as_ours, self._class = client, place, as_ours, class_
        self._buffer = bytearray()
        self._written = 0
        self._upload_id = ""
        self._parts: list[dict[str, Any]] = []
        self.closed = False

    def write(self, data: Any) -> int:
        count = memoryview(data).nbytes
        self._buffer += data
        self._written += count
        while len(self._buffer) >= _PART_BYTES:
            self._send_part(_PART_BYTES)
        return count

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        """What was written so far cannot be had before the end."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if not self._upload_id:
            with self._as_ours():
                self._s3.put_object(**self._place, **self._class, Body=bytes(self._buffer))
            return
        if self._buffer:
            self._send_part(len(self._buffer))
        with self._aborting(), self._as_ours():
            self._complete()

    def abandon(self) -> None:
        """It never was."""
        self.closed = True
        if self._upload_id:
            with contextlib.suppress(Exception):
                self._s3.abort_multipart_upload(**self._place, UploadId=self._upload_id)

    def _complete(self) -> None:
        """A try whose answer was lost may have done it: then there is no such upload any more, but the file."""
        try:
            self._s3.complete_multipart_upload(
                **self._place, UploadId=self._upload_id, MultipartUpload={"Parts": self._parts}
            )
        except ClientError as error:
            tries: Any = error.response.get("ResponseMetadata", {})
            is_gone = error.response["Error"].get("Code") == "NoSuchUpload" and tries.get("RetryAttempts", 0) > 0
            if not is_gone or self._s3.head_object(**self._place)["ContentLength"] != self._written:
                raise

    def _send_part(self, count: int) -> None:
        part = bytes(memoryview(self._buffer)[:count])
        del self._buffer[:count]
        number = len(self._parts) + 1
        with self._aborting(), self._as_ours():
            if not self._upload_id:
                self._upload_id = self._s3.create_multipart_upload(**self._place, **self._class)["UploadId"]
            sent = self._s3.upload_part(**self._place, UploadId=self._upload_id, PartNumber=number, Body=part)
        sums = {key: value for key, value in sent.items() if key.startswith("Checksum") and key != "ChecksumType"}
        self._parts.append({"PartNumber": number, "ETag": sent["ETag"], **sums})

    @contextlib.contextmanager
    def _aborting(self) -> Any:
        """What was sent of a file that will never be there costs money until it is removed."""
        try:
            yield
        except BaseException:
            self.abandon()
            raise
