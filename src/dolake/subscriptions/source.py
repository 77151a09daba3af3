"""Where changes come from: the query process, which reads the tail and the tables.

From feeds.py and endpoint.py; the words are query/announcing.py's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol

import aiohttp
import msgspec

from dolake import errors
from dolake.errors import DoLakeError, QueryUnavailable
from dolake.query.announcing import (
    Checked,
    CheckWanted,
    PagesHead,
    PagesWanted,
    Wish,
    decode_checked,
    encode,
    from_bytes,
)

_WAIT_S = 60.0


class Process(Protocol):
    """The query process, as it is used here."""

    def asking(self) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientSession]:
        """Connections to it."""


class Source:
    """Asks the query process; raises QueryUnavailable while there is none."""

    def __init__(self, process: Callable[[], Process]) -> None:
        self._process = process

    async def check(self, wish: Wish, time_ms: int | None) -> Checked:
        """Whether this can be read, and where it begins."""
        return decode_checked(await self._ask("/changes/check", encode(CheckWanted(wish, time_ms))))

    async def pages(self, wanted: PagesWanted) -> tuple[PagesHead, list[memoryview]]:
        return from_bytes(await self._ask("/changes", encode(wanted)))

    async def _ask(self, path: str, body: bytes) -> bytes:
        try:
            async with (
                self._process().asking() as session,
                session.post(path, data=body, timeout=aiohttp.ClientTimeout(total=_WAIT_S)) as answer,
            ):
                data = await answer.read()
                if answer.status >= 400:
                    raise _error_in(data)
                return data
        except (aiohttp.ClientError, TimeoutError) as error:
            raise QueryUnavailable("the query process ended while it worked on this", hint="it starts anew") from error


class _Said(msgspec.Struct):
    message: str
    type: str
    hint: str = ""


class _Refusal(msgspec.Struct):
    error: _Said


_KINDS = {kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DoLakeError)}


def error_of(code: str, message: str, hint: str) -> DoLakeError:
    """An error that the other process has named."""
    return _KINDS.get(code, DoLakeError)(message, hint=hint)


def _error_in(data: bytes) -> DoLakeError:
    said = msgspec.json.decode(data, type=_Refusal).error
    return error_of(said.type, said.message, said.hint)
