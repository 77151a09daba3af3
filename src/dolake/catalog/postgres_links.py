"""Connections to PostgreSQL: opened when they are needed, lent to one thread at a time, kept for the next.

From postgres.py. Promise: never more than LINKS_MAX of them; whoever borrows gets one that is set up and outside of any
transaction; one that is broken, or comes back in the middle of something, is not lent again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from dolake.errors import InvalidInput, Unavailable

Link = psycopg.Connection[tuple[Any, ...]]
LINKS_MAX = 8
_BORROW_WAIT_S = 30.0

# What the address itself says wins. A peer that vanished without a word is noticed within a minute.
_DEFAULTS = {
    "application_name": "dolake",
    "connect_timeout": "5",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "target_session_attrs": "read-write",
}
# A server that stops in the middle of a transaction must not hold the others up for long. A commit is durable when it
# is answered, also where the database is set up to forget the last ones.
_SET_UP = """
SET search_path TO "{schema}";
SET lock_timeout TO '30s';
SET statement_timeout TO '60s';
SET idle_in_transaction_session_timeout TO '30s';
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'
"""


class Lost(Exception):
    """The connection went away, or none was made; what was asked did not happen."""


class Links:
    """See the module."""

    def __init__(self, url: str, schema: str) -> None:
        try:
            parts = conninfo_to_dict(url)
        except psycopg.Error:  # whose words could be a part of the password
            raise InvalidInput(
                "catalog.store is no address of a Postgres database",
                hint="as in postgresql://user:password@host:5432/database; write %40 for an @ in the password",
            ) from None
        self.schema = schema
        self.is_down = False
        """Whether the last attempt found nobody."""
        self._address = make_conninfo("", **(_DEFAULTS | {key: value for key, value in parts.items() if value}))
        self._name = f"Postgres at {parts.get('host', 'localhost')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"
        self._idle: list[Link] = []
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(LINKS_MAX)
        self._is_closed = False

    def __str__(self) -> str:
        return f"{self._name} (schema {self.schema})"

    @contextlib.contextmanager
    def borrow(self) -> Iterator[Link]:
        if not self._room.acquire(timeout=_BORROW_WAIT_S):
            raise Unavailable(f"all {LINKS_MAX} connections to Postgres are busy", hint="try again")
        try:
            link = self._take()
            try:
                yield link
            finally:
                self._give_back(link)
        finally:
            self._room.release()

    def drop_idle(self) -> None:
        """Where one is broken, those that nobody looks at are likely to be."""
        with self._lock:
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    def close(self) -> None:
        self._is_closed = True
        self.drop_idle()

    def _take(self) -> Link:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        try:
            link = psycopg.connect(self._address, autocommit=True, client_encoding="UTF8")
        except psycopg.Error as error:
            raise Lost(str(error)) from error
        try:
            link.execute(_SET_UP.format(schema=self.schema), prepare=False)
        except psycopg.Error as error:
            link.close()
            raise Lost(str(error)) from error
        return link

    def _give_back(self, link: Link) -> None:
        if self._is_closed or link.closed or link.info.transaction_status is not TransactionStatus.IDLE:
            link.close()
            return
        with self._lock:
            self._idle.append(link)
