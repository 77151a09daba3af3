"""Tokens: made, kept as hashes, recognised; and the short-lived ones that OAuth clients get for them. Pure.

From store.py and cli/token.py; to server/auth.py. A token is `dolake_<id>_<secret>` with 256 random bits: there is
nothing in it to guess, so one round of SHA-256 keeps it as well as a slow hash would, and costs a microsecond for each
request. Promise: the secret is in what mint() returns and nowhere else; comparing takes the same time however much
of it is right.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from dolake.errors import InvalidInput, Unauthorized
from dolake.identity.grants import SCOPES, Grant, Scope, with_included
from dolake.tables.names import problem_with_table_name

PREFIX = "dolake_"
_ACCESS_PREFIX = "dolake-access."
_TOKEN = re.compile(r"dolake_([a-z0-9]{12})_([A-Za-z0-9_-]{43})")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_ID_LENGTH, _SECRET_BYTES = 12, 32
_NAME_LENGTH_MAX = 100
_GRANT_BYTES_MAX = 4_000
"""All names of namespaces and sources of one token, so that they fit into a header."""
_PLAIN_FOLDER = re.compile(r"[\w\-=@+ ]+")
ALL = "*"


class Token(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A token as it is kept: everything but its secret."""

    id: str
    name: str
    scopes: tuple[Scope, ...]
    namespaces: tuple[str, ...]
    """Dotted; `*` alone is the whole lake."""
    sources: tuple[str, ...]
    """`*` alone is any."""
    created_ms: int
    expires_ms: int | None = None
    revoked_ms: int | None = None
    sha256: str

    def state(self, now_ms: int) -> str:
        if self.revoked_ms is not None:
            return "revoked"
        return "expired" if self.expires_ms is not None and self.expires_ms <= now_ms else "active"

    def grant(self, scopes: Iterable[Scope] | None = None, expires_ms: int | None = None) -> Grant:
        """What it allows; or less, for an access token that asked for less."""
        granted = with_included(self.scopes)
        if scopes is not None:
            granted &= with_included(scopes)
        ends = [each for each in (self.expires_ms, expires_ms) if each is not None]
        return Grant(
            self.id,
            self.name,
            granted,
            None if ALL in self.namespaces else tuple(tuple(each.split(".")) for each in self.namespaces),
            None if ALL in self.sources else self.sources,
            min(ends, default=None),
        )


def mint(
    name: str,
    scopes: Sequence[str],
    namespaces: Sequence[str],
    sources: Sequence[str],
    *,
    now_ms: int,
    expires_ms: int | None,
) -> tuple[Token, str]:
    """A new token and its text, which nobody can tell again."""
    checked = _checked_scopes(scopes)
    id_ = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))
    text = f"{PREFIX}{id_}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    if not name or len(name) > _NAME_LENGTH_MAX or not name.isprintable():
        raise InvalidInput("a token's name has 1 to 100 printable characters", hint="say whose it is: --name shop")
    for each in namespaces:
        _check_namespace(each)
    for each in sources:
        if not each or not each.isprintable():
            raise InvalidInput(f"{each!r} cannot be a source", hint="write its name, or a beginning such as shop-*")
    if sum(len(each.encode()) + 8 for each in (*namespaces, *sources)) > _GRANT_BYTES_MAX:
        raise InvalidInput("a token cannot name so many namespaces and sources", hint="make several tokens")
    token = Token(
        id=id_,
        name=name,
        scopes=checked,
        namespaces=tuple(dict.fromkeys(namespaces)) or (ALL,),
        sources=tuple(dict.fromkeys(sources)) or (ALL,),
        created_ms=now_ms,
        expires_ms=expires_ms,
        sha256=digest(text),
    )
    return token, text


def _checked_scopes(scopes: Sequence[str]) -> tuple[Scope, ...]:
    known = tuple(each for each in SCOPES if each in scopes)
    unknown = [each for each in scopes if each not in SCOPES]
    if unknown or not known:
        what = f"there is no scope {unknown[0]!r}" if unknown else "a token needs a scope"
        raise InvalidInput(what, hint=f"scopes are {', '.join(SCOPES)}")
    return known


def _check_namespace(namespace: str) -> None:
    """One whose folder is its very name: so the folders of two tenants are never one."""
    if namespace == ALL:
        return
    if problem := problem_with_table_name(f"{namespace}.t"):
        raise InvalidInput(f"{namespace!r} cannot be a namespace: it {problem}")
    if not all(_PLAIN_FOLDER.fullmatch(part) for part in namespace.split(".")):
        raise InvalidInput(f"{namespace!r} cannot be a token's namespace", hint="use letters, digits, _ - = @ + alone")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def id_in(text: str) -> str | None:
    """Which token this claims to be, if it is one."""
    found = _TOKEN.fullmatch(text)
    return found[1] if found else None


def is_same(token: Token, text: str) -> bool:
    return hmac.compare_digest(token.sha256, digest(text))


def credential(client_id: str, client_secret: str) -> str:
    """The token of an OAuth client: `id:secret`, or the whole token as the secret, with or without an id."""
    if client_secret.startswith(PREFIX):
        if client_id and id_in(client_secret) != client_id:
            raise Unauthorized("the client id is not the one of this token")
        return client_secret
    return f"{PREFIX}{client_id}_{client_secret}"


# --- access tokens ---------------------------------------------------------------------------------------------------


class Access(Struct, frozen=True):
    """What an access token says: which token it stands for, until when, and with which scopes."""

    id: str
    until_ms: int
    scopes: tuple[Scope, ...] | None = None


def sign(access: Access, key: bytes) -> str:
    payload = base64.urlsafe_b64encode(msgspec.json.encode(access)).rstrip(b"=").decode()
    return f"{_ACCESS_PREFIX}{payload}.{_mac(payload, key)}"


def is_access(text: str) -> bool:
    return text.startswith(_ACCESS_PREFIX)


def read_access(text: str, key: bytes) -> Access | None:
    """What it says, if it was signed with this key."""
    payload, _, mac = text.removeprefix(_ACCESS_PREFIX).partition(".")
    if not hmac.compare_digest(_mac(payload, key).encode(), mac.encode(errors="replace")):
        return None
    return msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), type=Access)


def _mac(payload: str, key: bytes) -> str:
    return hmac.new(key, payload.encode(errors="replace"), hashlib.sha256).hexdigest()
