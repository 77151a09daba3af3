"""The query process's end of rows_link.py: a thread for each connection, which answers one question after the other.

From __main__.py; to lookup.py. Neither an event loop nor a queue is in between, because each hand-over costs as much as
the look-up where the machine is busy. Promise: whatever happens to a question, it has an answer.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from pathlib import Path

import msgspec

from dolake.errors import DoLakeError, InvalidInput
from dolake.query.lookup import Lookup, Slow
from dolake.query.rest import status_of
from dolake.query.rows import error_body
from dolake.query.rows_link import ANSWER, CONNECTIONS_MAX, LENGTH, SLOW
from dolake.query.rows_question import read_question

logger = logging.getLogger(__name__)


def serve_rows(lookup: Lookup, path: Path) -> None:
    """Answer on this socket for as long as the process lives."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(CONNECTIONS_MAX)
    threading.Thread(target=_accept, args=(lookup, listener), name="rows", daemon=True).start()


def _accept(lookup: Lookup, listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer_all, args=(lookup, connection), name="rows", daemon=True).start()


def _answer_all(lookup: Lookup, connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError), connection.makefile("rb") as questions:
        while head := questions.read(LENGTH.size):
            status, body = answer(lookup, questions.read(LENGTH.unpack(head)[0]))
            connection.sendall(ANSWER.pack(status, len(body)) + body)


def answer(lookup: Lookup, raw: bytes) -> tuple[int, bytes]:
    """Whatever happens, there is one."""
    try:
        return 200, lookup.find(read_question(raw)).body()
    except Slow:
        return SLOW, b""
    except msgspec.DecodeError as error:
        return _refused(InvalidInput(f"the question cannot be read: {error}"))
    except DoLakeError as error:
        return _refused(error)
    except Exception:
        logger.exception("look-up failed by a mistake of ours")
        return SLOW, b""


def _refused(error: DoLakeError) -> tuple[int, bytes]:
    status = status_of(error)
    return status, error_body(error, status)
