"""The server's end of one WebSocket: how frames are read, compressed ones too, and how a silent peer is found out.

From endpoint.py, which opens one for each connection. Promise: compression is settled in the upgrade, and costs the
server one window to read with (about 40 KB) on connections that use it, and nothing on others: each message is
compressed for itself, answers are not compressed, and a message that unfolds beyond the hard limit ends its connection.
"""

from __future__ import annotations

from aiohttp import hdrs, web
from aiohttp.http_websocket import WebSocketWriter
from aiohttp.web_request import BaseRequest

from dolake.settings import ServerSettings

_GOODBYE_WAIT_S = 2.0
_AGREED = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"


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
