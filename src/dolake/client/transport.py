"""The way to one server: addresses, headers, one WebSocket at a time, and the session in which http.py asks.

From conversation.py and aio.py. Promise: whatever goes wrong on the way is raised as an error of our tree;
`Interrupted` when it is worth another try.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp import ClientWSTimeout, WSMsgType
from msgspec import UNSET

from dolake import errors
from dolake.changes import StreamId
from dolake.wire.binary import is_binary, unpack_server_message
from dolake.wire.messages import NackMessage, ServerMessage, StatusMessage, decode_server_message

logger = logging.getLogger("dolake.client")

CLOSE_WAIT_S = 1.0
_WINDOW_BITS = 15
_CLOSING_STEPS = 5
_NEEDS_CLEANUP = sys.version_info < (3, 12, 7)
"""Python's own TLS leaves a connection open there that the other side does not close."""
Trust = bool | ssl.SSLContext | aiohttp.Fingerprint
"""Whose certificates are believed: those that the machine trusts (True), those of a context, or one alone."""


class Interrupted(errors.ConnectionError):
    """This connection is over and another try is due, after `wait_ms` when the server asked for that."""

    def __init__(self, message: str, *, wait_ms: float = 0.0) -> None:
        super().__init__(message)
        self.wait_ms = wait_ms


@dataclass(frozen=True, slots=True)
class Address:
    """Where the socket is, and where the HTTP paths begin."""

    socket: str
    http: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """`http(s)://` or `ws(s)://host:port[/base]`; a url that ends in /ws names the socket itself."""
        parts = urlsplit(url)
        secure = {"http": "", "ws": "", "https": "s", "wss": "s"}.get(parts.scheme)
        if secure is None or not parts.netloc:
            raise errors.InvalidInput(
                f"{url!r} is not the address of a lake",
                hint="write it like http://localhost:8787 or wss://host/base/ws",
            )
        base = parts.path.rstrip("/").removesuffix("/ws")
        return cls(f"ws{secure}://{parts.netloc}{base}/ws", f"http{secure}://{parts.netloc}{base}")


class Connection:
    """One open WebSocket: bytes out, messages in."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        self._socket = socket

    async def send(self, data: bytes) -> None:
        """A message in JSON as text, one in MessagePack as bytes."""
        try:
            await self._socket.send_frame(data, WSMsgType.BINARY if is_binary(data) else WSMsgType.TEXT)
        except (aiohttp.ClientError, OSError) as error:
            raise Interrupted(f"the connection broke while sending: {error}") from None

    async def receive(self, timeout_s: float) -> ServerMessage:
        """The next message that this version knows; silence for `timeout_s` counts as a broken connection."""
        while True:
            try:
                frame = await self._socket.receive(timeout=timeout_s)
            except TimeoutError:
                raise Interrupted(f"nothing came from the server for {timeout_s:g} s") from None
            if frame.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                raise Interrupted(f"the server closed the connection (code {self._socket.close_code})")
            if (message := _decoded(frame.data, is_binary=frame.type is WSMsgType.BINARY)) is not None:
                return message

    async def greet(self, greeting: bytes, timeout_s: float) -> StatusMessage:
        """Say connect, and return the status that answers it."""
        await self.send(greeting)
        while True:
            answer = await self.receive(timeout_s)
            if isinstance(answer, StatusMessage):
                return answer
            if isinstance(answer, NackMessage):
                if answer.should_retry:
                    raise interruption(answer)
                raise error_of(answer)

    async def close(self) -> None:
        await self._socket.close()


class Transport:
    """Opens connections for one stream to one server."""

    def __init__(
        self,
        address: Address,
        stream: StreamId,
        token: str | None,
        trust: Trust = True,
        *,
        is_compressed: bool = False,
    ) -> None:
        self.address = address
        self._trust = trust
        self._is_compressed = is_compressed
        self._headers = {"X-Client-ID": stream.source, "X-Shard-Name": stream.shard}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        self._session = self._new_session()

    def _new_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(ssl=self._trust, enable_cleanup_closed=_NEEDS_CLEANUP)
        return aiohttp.ClientSession(headers=self._headers, connector=connector)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            await self._let_go()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[aiohttp.ClientSession]:
        """The session that is open, or one for this use alone, so that a client is good for questions without being
        opened, and leaves nothing behind that somebody would have to close."""
        if self._session is not None:
            yield self._session
        else:
            try:
                async with self._new_session() as session:
                    yield session
            finally:
                await self._let_go()

    async def _let_go(self) -> None:
        """A connection with TLS is closed some steps of the loop later; a loop that ends before would leave it open."""
        if self.address.http.startswith("https"):
            for _ in range(_CLOSING_STEPS):
                await asyncio.sleep(0)

    async def dial(self, timeout_s: float) -> Connection:
        assert self._session is not None
        try:
            async with asyncio.timeout(timeout_s):
                socket = await self._session.ws_connect(
                    self.address.socket,
                    timeout=ClientWSTimeout(ws_close=CLOSE_WAIT_S),
                    decode_text=False,
                    compress=_WINDOW_BITS if self._is_compressed else 0,
                )
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ServerFingerprintMismatch) as error:
            raise not_trusted(self.address.socket, error) from None
        except aiohttp.WSServerHandshakeError as error:
            raise_if_forbidden(error.status, self.address.socket)
            retry_after = error.headers.get("Retry-After", "") if error.headers else ""
            wait_ms = int(retry_after) * 1000 if retry_after.isdecimal() else 0
            raise Interrupted(f"{self.address.socket} answered HTTP {error.status}", wait_ms=wait_ms) from None
        except TimeoutError:
            raise Interrupted(f"{self.address.socket} did not answer within {timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Interrupted(f"{self.address.socket} cannot be reached: {error}") from None
        return Connection(socket)


def trust_of(ca_file: str | Path | None, certificate_sha256: str | None) -> Trust:
    """From what the caller says about the server's certificate."""
    if certificate_sha256 is not None:
        try:
            return aiohttp.Fingerprint(bytes.fromhex(certificate_sha256.replace(":", "")))
        except ValueError:
            raise errors.InvalidInput(
                f"{certificate_sha256[:80]!r} is no SHA-256 of a certificate", hint="write its 64 hexadecimal digits"
            ) from None
    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise errors.InvalidInput(
            f"{ca_file} cannot be read as certificates: {error}", hint="ca_file is a file in PEM format"
        ) from None


def not_trusted(url: str, error: Exception) -> errors.DoLakeError:
    """Not worth another try: a certificate does not become right by waiting for it."""
    return errors.InvalidInput(
        f"the certificate of {url} is not trusted: {error}", hint="ca_file=... names the authority that signed it"
    )


def error_of(nack: NackMessage) -> errors.DoLakeError:
    """A nack as the error that its sender should see."""
    text = f"{nack.error_message} [{nack.reason}]"
    error: errors.DoLakeError
    match nack.reason:
        case "invalid_sequence":
            expected = None if nack.expected_sequence_number is UNSET else nack.expected_sequence_number
            error = errors.InvalidSequence(text, expected=expected)
        case "invalid_format" | "payload_too_large" | "event_too_large":
            problem = nack.details[0] if nack.details else {}
            hint = problem.get("hint", "") if nack.max_size is UNSET else f"the server takes {nack.max_size} bytes"
            error = errors.MessageValidationError(text, path=problem.get("path", "$"), hint=hint)
        case "buffer_full":
            error = errors.BufferOverflowError(text)
        case "rate_limited" | "load_shedding" | "connection_limit" | "ip_limit":
            wait_ms = 0 if nack.retry_delay_ms is UNSET else nack.retry_delay_ms
            error = errors.RateLimited(text, retry_after_ms=wait_ms)
        case _:
            error = errors.Unavailable(text)
    error.retryable = nack.should_retry
    return error


def interruption(nack: NackMessage) -> Interrupted:
    wait_ms = 0 if nack.retry_delay_ms is UNSET else nack.retry_delay_ms
    return Interrupted(f"{nack.error_message} [{nack.reason}]", wait_ms=wait_ms)


class _Kind(msgspec.Struct):
    type: str = ""


_decode_kind = msgspec.json.Decoder(_Kind).decode
_unpack_kind = msgspec.msgpack.Decoder(_Kind).decode


def _decoded(data: bytes, *, is_binary: bool) -> ServerMessage | None:
    """None for a kind of message that a newer server may say. A broken answer is a broken connection: whoever waits
    for it would wait for ever."""
    try:
        return unpack_server_message(data) if is_binary else decode_server_message(data)
    except errors.MessageValidationError as error:
        try:
            kind = (_unpack_kind if is_binary else _decode_kind)(data).type
        except (msgspec.DecodeError, UnicodeDecodeError):
            kind = ""
        if kind in ("", "ack", "nack", "status"):
            raise Interrupted(f"the server said something that is not in the protocol: {error}") from None
        logger.info("message of an unknown kind ignored", extra={"kind": kind[:80]})
        return None


def raise_if_forbidden(status: int, url: str) -> None:
    if status in (401, 403):
        kind = errors.Unauthorized if status == 401 else errors.Forbidden
        hint = "pass a token that is valid and may do this: token=..., or the variable DOLAKE_TOKEN"
        raise kind(f"{url} refused this client (HTTP {status})", hint=hint)
