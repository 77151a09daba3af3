"""Questions over HTTP: one request, its answer or the error that the server named.

From reading.py and aio.py; the session is transport.py's. Promise: whatever goes wrong is an error of our tree, with
the server's own words and hint; an answer that ends before its end is never taken for a whole one; a caller who leaves
closes the connection, by which the server knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, TypeVar

import aiohttp
import msgspec

from dolake import errors
from dolake.client.transport import Transport, not_trusted, raise_if_forbidden

HTTP_WAIT_S = 30.0
CONNECT_WAIT_S = 10.0
_TRIES_MAX = 5
_RETRY_AFTER_MAX_S = 30.0
Said = TypeVar("Said")


class Http:
    """Asks one server."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def transport(self) -> Transport:
        return self._transport

    async def get(self, path: str, *, is_any_status_fine: bool = False) -> dict[str, Any]:
        """GET a JSON object below the base path."""
        async with self.answer("GET", path, is_any_status_fine=is_any_status_fine) as response:
            data = await response.read()
        return decoded(data, dict[str, Any], self.url(path))

    async def ask(
        self, method: str, path: str, kind: type[Said], body: Mapping[str, Any] | None = None, **options: Any
    ) -> Said:
        """Ask, and read the whole answer as this kind of thing."""
        return decoded(await self.ask_bytes(method, path, body, **options), kind, self.url(path))

    async def ask_bytes(self, method: str, path: str, body: Mapping[str, Any] | None = None, **options: Any) -> bytes:
        async with self.answer(method, path, body, **options) as response:
            return await response.read()

    @asynccontextmanager
    async def answer(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        silence_max_s: float = HTTP_WAIT_S,
        is_any_status_fine: bool = False,
        is_reading: bool = True,
        cut_off: type[errors.DoLakeError] = errors.ConnectionError,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer, when its status is good. Its body is read inside; `cut_off` is raised when that has no end.

        is_reading: asking twice does no harm, so a connection that was closed while it lay idle is replaced. Where it
            would, an answer that was lost is OutcomeUnknown.
        """
        url = self.url(path)
        data = None if body is None else msgspec.json.encode(body)
        has_asked = False
        try:
            async with self._transport.session() as session:
                response = await self._asked(
                    session,
                    method,
                    url,
                    is_reading=is_reading,
                    data=data,
                    headers={"Content-Type": "application/json", **(headers or {})} if data else headers,
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_WAIT_S, sock_read=silence_max_s),
                )
                has_asked = True
                try:
                    if response.status >= 400 and not is_any_status_fine:
                        raise error_in(response.status, await response.read(), url, response.headers)
                    yield response
                except BaseException:
                    response.close()  # nobody wants the rest: the connection is worth nothing, and the server must know
                    raise
                else:
                    response.release()
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ServerFingerprintMismatch) as error:
            raise not_trusted(url, error) from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise errors.ConnectionError(f"{url} cannot be reached: {error}", hint=_IS_IT_THERE) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _lost(error, url, silence_max_s, cut_off if has_asked else None, is_reading) from None

    async def _asked(
        self, session: aiohttp.ClientSession, method: str, url: str, *, is_reading: bool, **options: Any
    ) -> aiohttp.ClientResponse:
        """Who was refused for asking too often waits as told and asks again: nothing was done yet."""
        for _ in range(_TRIES_MAX - 1):
            response = await self._asked_once(session, method, url, is_reading=is_reading, **options)
            if response.status != HTTPStatus.TOO_MANY_REQUESTS:
                return response
            if not isinstance(error_in(response.status, await response.read(), url), errors.RateLimited):
                return response
            await asyncio.sleep(_wait_s(response.headers.get("Retry-After", "")))
        return await self._asked_once(session, method, url, is_reading=is_reading, **options)

    async def _asked_once(
        self, session: aiohttp.ClientSession, method: str, url: str, *, is_reading: bool, **options: Any
    ) -> aiohttp.ClientResponse:
        try:
            return await session.request(method, url, **options)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if not is_reading or isinstance(error, aiohttp.ClientConnectorError):
                raise
            return await session.request(method, url, **options)

    def url(self, path: str) -> str:
        return self._transport.address.http + path


_IS_IT_THERE = "is `dolake serve` running there, and are host, port and base path right?"


def _wait_s(retry_after: str) -> float:
    return min(_RETRY_AFTER_MAX_S, float(retry_after)) if retry_after.isdecimal() else 1.0


def decoded(data: bytes, kind: type[Said], url: str) -> Said:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise errors.Unavailable(f"{url} answered something that this client does not know: {error}") from None


def error_in(status: int, data: bytes, url: str, headers: Mapping[str, str] | None = None) -> errors.DoLakeError:
    """The error that an answer carries, as the class of our tree that has its code."""
    try:
        said = msgspec.json.decode(data, type=_Refusal).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = None
    if said is None or not said.message:
        return _unsaid(status, url)
    hint = said.hint
    wait = (headers or {}).get("Retry-After")
    if not hint and wait:
        hint = f"try again in {wait} s"
    kind = _BY_CODE.get(said.type) or _kind_of(status)
    return kind(said.message, hint=hint)


def _unsaid(status: int, url: str) -> errors.DoLakeError:
    """An answer that is not DoLake's own: from a proxy, or from something else at this address."""
    try:
        raise_if_forbidden(status, url)
    except errors.DoLakeError as error:
        return error
    if status == 404:
        return errors.NotFound(f"{url} does not exist", hint="check the base path in the url")
    return _kind_of(status)(f"{url} answered HTTP {status}")


def _kind_of(status: int) -> type[errors.DoLakeError]:
    kinds: dict[int, type[errors.DoLakeError]] = {
        401: errors.Unauthorized,
        403: errors.Forbidden,
        404: errors.NotFound,
        409: errors.Conflict,
        429: errors.Unavailable,
    }
    return kinds.get(status) or (errors.InvalidInput if status < 500 else errors.Unavailable)


def _lost(
    error: Exception, url: str, silence_max_s: float, cut_off: type[errors.DoLakeError] | None, is_reading: bool
) -> errors.DoLakeError:
    """The connection broke, or fell silent."""
    is_silent = isinstance(error, TimeoutError)
    problem = f"{url} said nothing for {silence_max_s:g} s" if is_silent else f"the connection to {url} broke: {error}"
    if not is_reading:
        return errors.OutcomeUnknown(problem, hint="it may have happened: look before you ask again")
    if cut_off is None or is_silent:
        return errors.ConnectionError(problem, hint=_IS_IT_THERE)
    return cut_off(f"the answer was cut off: {error}", hint="ask again; the server's log says why")


class _Said(msgspec.Struct):
    message: str = ""
    type: str = ""
    hint: str = ""


class _Refusal(msgspec.Struct):
    error: _Said | None = None


def _tree(kind: type[errors.DoLakeError]) -> dict[str, type[errors.DoLakeError]]:
    """Codes and classes of the tree in errors.py. What other modules add to it is theirs."""
    found = {kind.code: kind}
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            found |= _tree(child)
    return found


_BY_CODE = _tree(errors.DoLakeError)
