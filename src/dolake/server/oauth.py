"""OAuth for Iceberg's clients: a token, or its parts as id and secret, for one that lives an hour.

`POST /v1/oauth/tokens`, as the REST catalog specification has it. Client credentials, and the exchange by which Java
clients renew what they have. Promise: what it gives is worth no more than what was shown, and ends with it; it is
answered in OAuth's shape, and no answer is kept on the way.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote_plus

from aiohttp import hdrs, web

from dolake.errors import Unauthorized
from dolake.identity import tokens
from dolake.identity.grants import SCOPES, Grant, Scope, with_included
from dolake.server.auth import DOORKEEPER
from dolake.server.operations import json_response

LIFETIME_MS = 3_600_000
_CREDENTIALS = "client_credentials"
_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - the name of a kind
_FIELDS_MAX = 50
_NEVER_KEPT = {"Cache-Control": "no-store", "Pragma": "no-cache"}


async def give_token(request: web.Request) -> web.Response:
    """A token for an hour, for a client's id and secret."""
    keeper = request.app[DOORKEEPER]
    try:
        fields = dict(parse_qsl((await request.read()).decode(), keep_blank_values=True, max_num_fields=_FIELDS_MAX))
    except ValueError:
        return _refusal(400, "invalid_request", "the body is no form")
    kind = fields.get("grant_type", "")
    if kind not in (_CREDENTIALS, _EXCHANGE):
        return _refusal(400, "unsupported_grant_type", f"grant_type is {_CREDENTIALS}, or a token exchange")
    if not keeper.book.is_required:
        return _refusal(400, "invalid_request", "this lake has no tokens: ask without one")
    try:
        shown = _credential(request, fields) if kind == _CREDENTIALS else _subject(request, fields)
        grant = keeper.book.recognise(shown)
    except Unauthorized as error:
        await keeper.note_failure(request, "invalid")
        return _refusal(401, "invalid_client", error.message)
    scopes = _scopes_in(fields.get("scope", ""), grant)
    text, lifetime_ms = keeper.book.access(grant, LIFETIME_MS, scopes)
    answer = {
        "access_token": text,
        "token_type": "bearer",
        "expires_in": lifetime_ms // 1000,
        "issued_token_type": _ACCESS_TOKEN,
    }
    if "scope" in fields:
        answer["scope"] = fields["scope"]
    response = json_response(answer)
    response.headers.update(_NEVER_KEPT)
    return response


def _credential(request: web.Request, fields: Mapping[str, str]) -> str:
    """From the form, or from Basic authentication."""
    id_, secret = _basic(request) or (fields.get("client_id", ""), fields.get("client_secret", ""))
    return tokens.credential(id_, secret)


def _subject(request: web.Request, fields: Mapping[str, str]) -> str:
    """Who renews shows what he has; where that has ended, Java clients show their credential beside it."""
    basic = _basic(request)
    return tokens.credential(*basic) if basic else fields.get("subject_token", "")


def _basic(request: web.Request) -> tuple[str, str] | None:
    kind, _, text = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        id_, _, secret = base64.b64decode(text, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise Unauthorized("the credential cannot be read") from None
    return unquote_plus(id_), unquote_plus(secret)


def _scopes_in(text: str, grant: Grant) -> tuple[Scope, ...]:
    """What is granted; less, where the client asks for less. Engines' own words (`catalog`) mean all that he has."""
    wanted = text.split()
    named = [each for each in SCOPES if each in wanted] or SCOPES
    return tuple(each for each in SCOPES if each in grant.scopes & with_included(named))


def _refusal(status: int, kind: str, message: str) -> web.Response:
    """In OAuth's shape, with Iceberg's beside it, because clients look for either."""
    error = {"message": message, "type": kind, "code": status, "hint": "`dolake token create` makes one"}
    response = json_response({"error": kind, "error_description": message, "detail": error}, status=status)
    response.headers.update(_NEVER_KEPT)
    if status == 401:
        response.headers["WWW-Authenticate"] = 'Basic realm="dolake"'
    return response


ROUTES = [("POST", "/v1/oauth/tokens", give_token)]
