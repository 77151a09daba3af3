"""A proxy in front of an S3 server that does to requests what networks and stores do: slow, refused, cut, unanswered.

From tests about a store that fails, and from `dolake bench cloud`, which wants a store that is far away. Promise: a
fault holds for the requests that it names and for as long as its `with` block; without one everything passes as it
came. `log` has each request with the status that its sender saw, 0 where it saw none.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Literal

Kind = Literal["refuse", "reset", "truncate", "lose_answer", "hang"]
_LOOK_S = 0.02
_LINGER_NOT = struct.pack("ii", 1, 0)
"""A socket that is closed with this says so with a reset."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, whole."""

    method: str
    path: str
    head: bytes
    body: bytes

    @property
    def is_write(self) -> bool:
        return self.method in ("PUT", "POST", "DELETE")


@dataclass(slots=True)
class Fault:
    """What happens to some of the requests; to `left` of them, where that is a number."""

    kind: Kind
    is_for: Callable[[Request], bool] = lambda _request: True
    status: str = "503 Slow Down"
    code: str = "SlowDown"
    left: float = float("inf")
    hits: int = field(default=0)


class FaultyProxy:
    """See the module. Clients are given `endpoint`; `port_of_store` is where the real one listens."""

    def __init__(self, port_of_store: int) -> None:
        self._port_of_store = port_of_store
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._open: set[socket.socket] = set()
        self._is_closed = False
        self.delay_ms = 0
        self.log: list[tuple[str, str, int]] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._numbers = itertools.count(1)
        self._accepting = self._start_accepting()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def fault(self, kind: Kind, is_for: Callable[[Request], bool] = lambda _: True, **more: object) -> Iterator[Fault]:
        """Until the block ends."""
        fault = Fault(kind, is_for, **more)  # type: ignore[arg-type]
        with self._lock:
            self._faults.append(fault)
        try:
            yield fault
        finally:
            with self._lock:
                self._faults.remove(fault)

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Nobody listens: connections are refused, those that are open are reset."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        self._reset_all()
        try:
            yield
        finally:
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
            self._accepting = self._start_accepting()

    def close(self) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        self._reset_all()

    # --- one connection ----------------------------------------------------------------------------------------------

    def _start_accepting(self) -> threading.Thread:
        thread = threading.Thread(target=self._accept, args=[self._listener], name="faulty-proxy", daemon=True)
        thread.start()
        return thread

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(client)
            threading.Thread(target=self._serve, args=[client], name="faulty-connection", daemon=True).start()

    def _reset_all(self) -> None:
        with self._lock:
            found, self._open = self._open, set()
        for client in found:
            _reset(client)

    def _serve(self, client: socket.socket) -> None:
        store: socket.socket | None = None
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with client.makefile("rb") as incoming:
                while request := _read_request(incoming, client):
                    time.sleep(self.delay_ms / 1000)
                    fault = self._fault_for(request)
                    if fault and fault.kind in ("refuse", "reset", "hang"):
                        self._stop(client, request, fault)
                    else:
                        store = store or self._connect()
                        if not self._pass(client, store, request, fault):
                            store.close()
                            store = None
        except (OSError, ValueError):
            pass  # one of the two has gone, which the other one notices
        finally:
            with self._lock:
                self._open.discard(client)
            for each in (client, store):
                if each is not None:
                    each.close()

    def _connect(self) -> socket.socket:
        store = socket.create_connection(("127.0.0.1", self._port_of_store))
        store.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return store

    def _fault_for(self, request: Request) -> Fault | None:
        with self._lock:
            for fault in self._faults:
                if fault.left > 0 and fault.is_for(request):
                    fault.left -= 1
                    fault.hits += 1
                    return fault
        return None

    def _stop(self, client: socket.socket, request: Request, fault: Fault) -> None:
        """The store never sees it."""
        if fault.kind == "refuse":
            client.sendall(_refusal(request, fault))
            self._note(request, int(fault.status[:3]))
            return
        while fault.kind == "hang" and fault in self._faults and not self._is_closed:
            time.sleep(_LOOK_S)
        self._note(request, 0)
        _reset(client)
        raise OSError("reset")

    def _pass(self, client: socket.socket, store: socket.socket, request: Request, fault: Fault | None) -> bool:
        """The store does it; returns whether its connection can be used again."""
        store.sendall(request.head + request.body)
        with store.makefile("rb") as outgoing:
            head, body, can_go_on = _read_answer(outgoing, request.method)
        if fault is not None:  # lose_answer, truncate
            self._note(request, 0)
            if fault.kind == "truncate" and body:
                client.sendall(head + body[: len(body) // 2])
                client.shutdown(socket.SHUT_WR)
            else:
                _reset(client)
            raise OSError("cut")
        client.sendall(head + body)
        self._note(request, int(head.split(b" ", 2)[1]))
        return can_go_on

    def _note(self, request: Request, status: int) -> None:
        self.log.append((request.method, request.path, status))


def _read_head(stream: BinaryIO) -> list[bytes]:
    """Its lines; none where the other side has closed."""
    lines: list[bytes] = []
    while (line := stream.readline()) not in (b"", b"\r\n"):
        lines.append(line)
    return lines


def _value_of(lines: list[bytes], name: bytes) -> bytes:
    for line in lines[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return b""


def _read_request(stream: BinaryIO, client: socket.socket) -> Request | None:
    lines = _read_head(stream)
    if not lines:
        return None
    method, path, _ = lines[0].decode().split(" ", 2)
    if _value_of(lines, b"expect"):
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        lines = [line for line in lines if not line.lower().startswith(b"expect:")]
    body = _read_body(stream, lines)
    return Request(method, path, b"".join(lines) + b"\r\n", body)


def _read_answer(stream: BinaryIO, method: str) -> tuple[bytes, bytes, bool]:
    lines = _read_head(stream)
    if not lines:
        raise OSError("the store has closed")
    has_body = method != "HEAD" and lines[0].split(b" ", 2)[1] not in (b"204", b"304")
    is_endless = not _value_of(lines, b"content-length") and not _value_of(lines, b"transfer-encoding")
    body = b""
    if has_body:
        body = stream.read() if is_endless else _read_body(stream, lines)
    can_go_on = _value_of(lines, b"connection").lower() != b"close" and not (has_body and is_endless)
    return b"".join(lines) + b"\r\n", body, can_go_on


def _read_body(stream: BinaryIO, lines: list[bytes]) -> bytes:
    """As it came, chunks with their lengths."""
    if _value_of(lines, b"transfer-encoding").lower() != b"chunked":
        return stream.read(int(_value_of(lines, b"content-length") or 0))
    parts: list[bytes] = []
    while True:
        line = stream.readline()
        size = int(line.split(b";")[0], 16)
        parts += [line, stream.read(size + 2)] if size else [line]
        if not size:
            while (trailer := stream.readline()) not in (b"", b"\r\n"):
                parts.append(trailer)
            return b"".join((*parts, b"\r\n"))


def _refusal(request: Request, fault: Fault) -> bytes:
    text = f"<Error><Code>{fault.code}</Code><Message>as the test wants it</Message></Error>".encode()
    body = b"" if request.method == "HEAD" else text
    head = f"HTTP/1.1 {fault.status}\r\nContent-Type: application/xml\r\nContent-Length: {len(text)}\r\n\r\n"
    return head.encode() + body


def _reset(client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        client.shutdown(socket.SHUT_RD)
    client.close()


@contextlib.contextmanager
def faulty_proxy(port_of_store: int) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(port_of_store)
    try:
        yield proxy
    finally:
        proxy.close()
