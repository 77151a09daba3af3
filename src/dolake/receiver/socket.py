"""The server's end of one WebSocket: how frames are read, compressed ones too, and how a silent peer is found out.

A message after a silence may be answered as it is read: to wake one task to take it and another to send the answer
costs more than the answer, and from ten thousand idle connections nothing but heartbeats is heard.

From endpoint.py, which opens one for each connection. Promise: compression is settled in the upgrade, and costs the
server one window to read with (about 40 KB) on connections that use it, and nothing on others: each message is
compressed for itself, answers are not compressed, and a message that unfolds beyond the hard limit ends its connection.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from aiohttp import WSMsgType, hdrs, web
from aiohttp._websocket.reader import WebSocketDataQueue
from aiohttp.helpers import DEFAULT_CHUNK_SIZE
from aiohttp.http_websocket import WebSocketReader, WebSocketWriter
from aiohttp.web_request import BaseRequest

from dolake.settings import ServerSettings

_GOODBYE_WAIT_S = 2.0
_UNSENT_MAX_BYTES = 16_384
_BRIEF_BYTES = 512
_AGREED = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"


class Inbox(WebSocketDataQueue):
    """Messages that wait for their connection's turn, but for a brief one that it answers as it comes."""

    __slots__ = ("answers_at_once",)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.answers_at_once: Callable[[Any], bool] | None = None

    def feed_data(self, data: Any, size: int) -> None:
        answers = self.answers_at_once
        if size > _BRIEF_BYTES or answers is None or self._buffer or not answers(data):
            super().feed_data(data, size)


class Socket(web.WebSocketResponse):
    """See the module. Text comes as the bytes that it was sent in."""

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(
            decode_text=False,
            compress=settings.compression,
            autoping=False,  # pings cost a token like any message
            heartbeat=settings.ping_ms / 1000,
            max_msg_size=settings.message_size_max_bytes,
            timeout=_GOODBYE_WAIT_S,
        )

    def _pre_start(self, request: BaseRequest) -> tuple[str | None, WebSocketWriter]:
        """aiohttp would compress answers too and keep a quarter of a megabyte per connection for that, to make 300
        bytes 200; and it would let the client refer to what it sent before."""
        protocol, writer = super()._pre_start(request)
        if writer.compress:
            writer.compress = 0
            self.headers[hdrs.SEC_WEBSOCKET_EXTENSIONS] = _AGREED
        return protocol, writer

    def _post_start(self, request: BaseRequest, protocol: str | None, writer: WebSocketWriter) -> None:
        """As aiohttp does it, with an inbox of ours."""
        self._ws_protocol, self._writer = protocol, writer
        self._reset_heartbeat()
        assert self._loop is not None
        self._reader = Inbox(request._protocol, DEFAULT_CHUNK_SIZE, loop=self._loop)
        self._parser = WebSocketReader(
            self._reader, self._max_msg_size, compress=bool(self._compress), decode_text=self._decode_text
        )
        request.protocol.set_parser(self._parser, data_received_cb=self._on_data_received)
        request.protocol.keep_alive(False)

    def answer_at_once(self, answers: Callable[[Any], bool]) -> None:
        """Ask this of each brief message while none waits: whether it is answered with that."""
        if isinstance(self._reader, Inbox):
            self._reader.answers_at_once = answers

    def send_at_once(self, data: bytes, kind: WSMsgType) -> bool:
        """Send where nobody need wait for that; False where the peer has not taken what was sent before."""
        writer = self._writer
        if writer is None or writer.transport.get_write_buffer_size() > _UNSENT_MAX_BYTES:
            return False
        sending = self.send_frame(data, kind)
        with contextlib.suppress(StopIteration):
            sending.send(None)  # an uncompressed frame is written before anything is waited for
        sending.close()
        return True
