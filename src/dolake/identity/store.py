"""Where tokens are kept: one file in the home, changed by `dolake token`, followed by a running server.

From cli/token.py, which changes it with or without a server, and server/auth.py, which looks whether it has changed.
Promise: the file is replaced as a whole and is durable before anybody is told; two who change it take turns; only its
owner can read it. Its hashes open no door, and neither it nor the key beside it is ever sent anywhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from dolake.errors import Conflict, Damaged, InvalidInput, NotFound, Unauthorized
from dolake.identity import tokens
from dolake.identity.grants import NOBODY_YET, Grant, Scope
from dolake.identity.tokens import Access, Token
from dolake.journal.disk import Disk, write_file_atomically

TOKENS_FILE, KEY_FILE, _LOCK_FILE = "tokens.json", "tokens.key", "tokens.lock"
_TOKENS_MAX = 10_000
_KEY_BYTES = 32
_INVALID = "the token is not valid"
_HINT = "ask whoever runs this lake for a token: `dolake token create`"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: int = 1
    tokens: list[Token] = []


class TokenFile:
    """The file of one home."""

    def __init__(self, home: Path) -> None:
        self._home, self.path = home, home / TOKENS_FILE

    def read(self) -> list[Token]:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=_File).tokens
        except FileNotFoundError:
            return []
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Damaged(f"{self.path} cannot be read: {error}", hint="restore it; without it anybody may") from None

    def add(self, token: Token) -> None:
        with self._changing() as found:
            if len(found) >= _TOKENS_MAX:
                raise Conflict(f"there are {len(found)} tokens", hint="remove old ones: `dolake token revoke --forget`")
            found.append(token)

    def revoke(self, wanted: str, now_ms: int, *, forgets: bool = False) -> Token:
        """By its id, or by its name where one that is not revoked has it."""
        with self._changing() as found:
            index = _index_of(found, wanted)
            token = found[index]
            if token.revoked_ms is None:
                token = found[index] = msgspec.structs.replace(token, revoked_ms=now_ms)
            if forgets:
                if len(found) == 1:
                    raise InvalidInput("this is the last one, and without any everybody may", hint="revoke it only")
                del found[index]
        return token

    def key(self) -> bytes:
        """What access tokens are signed with; made when it is first needed."""
        path = self._home / KEY_FILE
        with self._locked():
            with contextlib.suppress(FileNotFoundError):
                path.chmod(0o600)  # whoever copied it here may not have
                return path.read_bytes()
            key = secrets.token_bytes(_KEY_BYTES)
            write_file_atomically(Disk(), path, key)
            return key

    def version(self) -> tuple[int, int, int] | None:
        """Changes with the file."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    @contextlib.contextmanager
    def _changing(self) -> Iterator[list[Token]]:
        with self._locked():
            found = self.read()
            yield found
            write_file_atomically(Disk(), self.path, msgspec.json.encode(_File(tokens=found)))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._home.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._home / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _index_of(found: list[Token], wanted: str) -> int:
    by_id = [index for index, each in enumerate(found) if each.id == wanted]
    by_name = [index for index, each in enumerate(found) if each.name == wanted and each.revoked_ms is None]
    if len(by_name) > 1 and not by_id:
        raise InvalidInput(f"{len(by_name)} tokens have the name {wanted!r}", hint="give the id instead")
    if not by_id and not by_name:
        raise NotFound(f"there is no token {wanted[:100]!r}", hint="`dolake token list` shows them")
    return (by_id or by_name)[0]


class TokenBook:
    """All tokens in memory, and who shows which. On the event loop; `refresh` reads the file, in a thread."""

    def __init__(self, home: Path, clock_ms: Callable[[], int]) -> None:
        self._file, self._clock_ms = TokenFile(home), clock_ms
        self._tokens: dict[str, Token] = {}
        self._own: dict[str, tuple[Token, str]] = {}
        """Those of the server's own processes, by their id: in no file, and gone with the server."""
        self._version: tuple[int, int, int] | None = None
        self._key = b""
        self._is_required = False
        self.refresh()

    @property
    def is_required(self) -> bool:
        """Whether everybody needs one: as soon as there was one, also when it is revoked, or when its file is gone."""
        return self._is_required

    def refresh(self) -> bool:
        """Read the file if it has changed; whether it has."""
        version = self._file.version()
        if version == self._version:
            return False
        self._tokens = {each.id: each for each in self._file.read()}
        self._is_required |= bool(self._tokens)
        if self._tokens and not self._key:
            self._key = self._file.key()
        self._version = version
        return True

    def own_token(self, name: str) -> str:
        """The token of a process that this server starts: it may send anything and read what it has sent."""
        for token, text in self._own.values():
            if token.name == name:
                return text
        token, text = tokens.mint(name, ("ingest", "read"), (), (), now_ms=self._clock_ms(), expires_ms=None)
        self._own[token.id] = token, text
        return text

    def recognise_own(self, text: str) -> Grant | None:
        """The grant of one of our processes; None for any other token."""
        token, _ = self._own.get(tokens.id_in(text) or "", (None, ""))
        return token.grant() if token and tokens.is_same(token, text) else None

    def recognise(self, text: str) -> Grant:
        """Whose token this is; raises Unauthorized with the same words for all that are not valid."""
        if own := self.recognise_own(text):
            return own
        now_ms, access = self._clock_ms(), None
        if tokens.is_access(text):
            access = tokens.read_access(text, self._key) if self._key else None
            token = self._tokens.get(access.id) if access else None
        else:
            token = self._tokens.get(tokens.id_in(text) or "")
            if token and not tokens.is_same(token, text):
                token = None
        if token is None or token.state(now_ms) == "revoked":
            raise Unauthorized(_INVALID, hint=_HINT)
        if token.state(now_ms) == "expired" or (access and access.until_ms <= now_ms):
            raise Unauthorized("the token has expired", hint=_HINT)
        return token.grant(access.scopes, access.until_ms) if access else token.grant()

    def is_live(self, grant: Grant) -> bool:
        """Whether what was granted once still is."""
        if grant.id == NOBODY_YET.id:
            return not self.is_required
        if grant.id in self._own:
            return True
        token, now_ms = self._tokens.get(grant.id), self._clock_ms()
        is_over = grant.expires_ms is not None and grant.expires_ms <= now_ms
        return token is not None and token.state(now_ms) == "active" and not is_over

    def access(self, grant: Grant, lifetime_ms: int, scopes: tuple[Scope, ...]) -> tuple[str, int]:
        """A short-lived token in place of this one, and how long it lives; never longer than the token itself."""
        now_ms = self._clock_ms()
        token = self._tokens[grant.id]
        until_ms = min(now_ms + lifetime_ms, token.expires_ms or now_ms + lifetime_ms)
        return tokens.sign(Access(grant.id, until_ms, scopes), self._key), until_ms - now_ms
