"""What the catalog can hand to clients, so that they reach a table's files in a store: keys, or signed requests.

From server/lake.py, which opens it where `storage.vending` says so; to catalog/access.py. Everything that may wait for
somebody else runs in threads of its own: a store that gives no keys holds up nobody but who asked for some.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, ParamSpec, TypeVar

from dolake.settings import StorageSettings
from dolake.storage.reach import Reach, Unsigned
from dolake.storage.s3 import S3Storage
from dolake.storage.s3_keys import ReadKeys, RoleKeys, Vended
from dolake.storage.s3_signing import Signer

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Kind = Literal["vended-credentials", "remote-signing"]
"""In the words of the header with which clients ask: X-Iceberg-Access-Delegation."""
_THREADS = 4


class Delegation:
    """See the module."""

    def __init__(self, storage: S3Storage, settings: StorageSettings, clock_ms: Callable[[], int]) -> None:
        self._vendor: ReadKeys | RoleKeys | None = None
        if settings.vending == "sts":
            self._vendor = RoleKeys(storage, settings, clock_ms)
        elif settings.vending == "keys":
            self._vendor = ReadKeys(settings)
        self._signer = Signer(storage)
        self.client_options = storage.client_options
        self.usual: Kind = "vended-credentials" if self._vendor else "remote-signing"
        self.counts: Counter[str] = Counter(dict.fromkeys(("keys", "renewed", "failed", "signed", "refused"), 0))
        """What was given and what was not, for the metrics; on the event loop."""
        self._is_unasked = settings.vending_unasked
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="delegation")

    def kinds(self, asked: str | None) -> list[Kind]:
        """What a client with this header gets, the better one first."""
        if asked is None:
            return [self.usual] if self._is_unasked else []
        wanted = {each.strip().lower() for each in asked.split(",")}
        served: list[Kind] = ["vended-credentials", "remote-signing"] if self._vendor else ["remote-signing"]
        return [kind for kind in served if kind in wanted]

    def has_keys(self, *, is_lake_wide: bool) -> bool:
        """A key that reads everything is for tokens that may do so."""
        return self._vendor is not None and (is_lake_wide or self._vendor.is_scoped)

    def keys_for(self, who: str, reach: Reach, until_ms: int | None) -> Vended:
        """Keys for a token, which lives until then. Raises Unavailable or InvalidInput where there are none. Blocks."""
        assert self._vendor, "has_keys() was asked"
        return self._vendor.keys_for(who, reach, until_ms)

    def sign(self, request: Unsigned, reach: Reach) -> tuple[str, dict[str, list[str]]]:
        """The address of this request, and the headers that it lacks; Forbidden beyond the reach. Blocks."""
        return self._signer.sign(request, reach)

    async def run(self, call: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Make this call in one of the threads."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, functools.partial(call, *args, **kwargs))

    def close(self) -> None:
        self._threads.shutdown()
        if self._vendor:
            self._vendor.close()
