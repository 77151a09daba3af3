"""A network between a client and its server that fails when a test says so: before a word arrives, or after it did."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Literal, Self

Cut = Literal["before", "after"]


class CuttingProxy:
    """Passes bytes on, until `cut_at` is heard from a client: then both ends of that connection are closed.

    Cut `before`, the word never reaches the server; `after`, it does, and the client never hears what came of it.
    """

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._plan: tuple[bytes, Cut] | None = None
        self._cuts_left = 0
        self._then_refuse = False
        self.cut_count = 0
        self._is_refusing = False
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_refusing = True
        _close(self._listener)
        self.cut_all()
        for thread in self._threads:
            thread.join(5)

    def cut_at(self, word: bytes, when: Cut, times: int = 1, *, then_refuse: bool = False) -> None:
        self._then_refuse = then_refuse
        self._plan, self._cuts_left = (word, when), times

    def refuse(self, is_refusing: bool = True) -> None:
        """Whether nobody gets through any more."""
        self._is_refusing = is_refusing
        if is_refusing:
            self.cut_all()

    def cut_all(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _close(*pair)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._is_refusing:
                _close(client)
                continue
            server = socket.create_connection(self._target)
            with self._lock:
                self._pairs.append((client, server))
            self._start(self._pump, client, server, True)
            self._start(self._pump, server, client, False)

    def _pump(self, source: socket.socket, target: socket.socket, is_clients: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if is_clients and self._is_due(data):
                    self._is_refusing = self._is_refusing or self._then_refuse
                    if self._plan and self._plan[1] == "after":
                        _close(source)
                        target.sendall(data)
                        with contextlib.suppress(OSError):
                            target.settimeout(5)
                            target.recv(1)  # the server has done it, and said so to nobody
                    break
                target.sendall(data)
        _close(source, target)

    def _is_due(self, data: bytes) -> bool:
        with self._lock:
            if not self._plan or not self._cuts_left or self._plan[0] not in data:
                return False
            self._cuts_left -= 1
            self.cut_count += 1
            return True

    def _start(self, do: object, *arguments: object) -> None:
        thread = threading.Thread(target=do, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()


def _close(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
