"""Forget a key, from a client: the job is asked for and followed to its end.

Part of reading.py's Reading, and so of every client. Promise: when `forget` returns, what it says is true; when it
raises, the same call does what is left.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

import msgspec

from dolake import errors
from dolake.client.answers import Forgotten
from dolake.client.asking import table_path
from dolake.client.http import Http
from dolake.client.lookups import TIMEOUT_S
from dolake.positions import Position

_LOOK_EVERY_S = 0.2
_UNDER_WAY = ("queued", "running")
_AGAIN = "ask for it again: it does what is left"

ForgetProgress = Callable[[int], None]
"""Called with how many pieces are done; how many there will be nobody knows before."""


class _Job(msgspec.Struct, frozen=True, rename="camel"):
    job_id: str
    state: str
    reason: str = ""
    pieces_done: int = 0
    forgotten: Forgotten | None = None


class Forgetting(ABC):
    """Needs what Reading has: a connection."""

    _http: Http

    @abstractmethod
    def _check_usable(self) -> None: ...

    @abstractmethod
    async def _own_position(self, timeout_s: float) -> Position | None: ...

    async def forget(
        self,
        table: str,
        key: str | int,
        *,
        source: str | None = None,
        patient: bool = False,
        on_progress: ForgetProgress | None = None,
    ) -> Forgotten:
        """Let a key go from its table, history, quarantine, the journal and every snapshot; there is no way back.

        done = await lake.forget("customers", 4711)
        print(done.rows_removed, done.changes_blanked, done.waits)

        source: the row's source, where that is a part of the key (`lake.key_scope = "source"`).
        patient: files wait for the server's `gc_grace_ms`, for those who are reading them.
        """
        self._check_usable()
        await self._own_position(TIMEOUT_S)  # what this client has sent is to be forgotten, too
        body = {"key": str(key), "source": source, "patient": patient}
        sent = {name: value for name, value in body.items() if value is not None}
        # To ask twice does no harm: the second job finds nothing left to do.
        job = await self._http.ask("POST", f"{table_path(table)}/forget", _Job, sent)
        while job.state in _UNDER_WAY:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                job = await self._http.ask("GET", f"/v1/compaction/jobs/{job.job_id}", _Job)
            except errors.NotFound:
                raise errors.OutcomeUnknown("the server was started anew meanwhile", hint=_AGAIN) from None
            if on_progress is not None:
                on_progress(job.pieces_done)
        if job.state != "done" or job.forgotten is None:
            raise errors.Unavailable(f"the key is not forgotten: {job.reason or job.state}", hint=_AGAIN)
        return job.forgotten
