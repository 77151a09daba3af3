"""The server's certificate: read at the start, and again when its files change, without a restart.

From server/lifecycle.py, which listens with `context` and runs `watch`. Promise: a connection that is open stays open
through a reload; a new certificate that cannot be used leaves the old one at work and is named in the log.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from dolake.errors import InvalidInput
from dolake.settings import ServerSettings

logger = logging.getLogger(__name__)
LOOK_EVERY_S = 5.0


class Certificate:
    """A certificate with its key, as files in PEM format."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate, self._key = certificate, key
        self._looks = self._look()
        self._current = self._load()
        self.sha256 = self._fingerprint()
        self.wish = asyncio.Event()
        """Set it to have the files read again."""
        self.context = self._load()
        """What to listen with. Each handshake takes the certificate that is the current one then."""
        self.context.sni_callback = self._use_current

    def reload(self) -> bool:
        """Use what the files hold now; False when that is no certificate that works, and the old one goes on."""
        self._looks = self._look()
        try:
            self._current, self.sha256 = self._load(), self._fingerprint()
        except InvalidInput as error:
            logger.error("certificate not reloaded", extra={"reason": error.message, "file": str(self._certificate)})
            return False
        logger.info("certificate reloaded", extra={"file": str(self._certificate), "sha256": self.sha256})
        return True

    async def watch(self, on_reload: Callable[[], None], every_s: float = LOOK_EVERY_S) -> None:
        """Reload when it is wished and when a file has changed, until cancelled."""
        while True:
            is_wished = True
            try:
                async with asyncio.timeout(every_s):
                    await self.wish.wait()
            except TimeoutError:
                is_wished = False
            self.wish.clear()
            if (is_wished or self._look() != self._looks) and await asyncio.to_thread(self.reload):
                on_reload()

    def _use_current(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current

    def _look(self) -> tuple[object, ...]:
        found: list[object] = []
        for path in (self._certificate, self._key):
            try:
                stat = path.stat()
                found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
            except OSError as error:
                found.append(error.errno)
        return tuple(found)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._certificate, self._key, password=_refuse_password)
        except OSError as error:  # SSLError is one
            reason = getattr(error, "reason", None) or error.strerror or str(error)
            raise InvalidInput(
                f"{self._certificate} with the key {self._key} cannot be used: {reason}",
                hint="server.tls_certificate and server.tls_key name files in PEM format that belong together",
            ) from None
        return context

    def _fingerprint(self) -> str:
        try:
            text = self._certificate.read_text()
            end = "-----END CERTIFICATE-----"
            first = text[text.index("-----BEGIN CERTIFICATE-----") : text.index(end) + len(end)]
            return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()
        except (OSError, ValueError) as error:
            raise InvalidInput(f"{self._certificate} has no certificate in PEM format: {error}") from None


def certificate_of(settings: ServerSettings, home: Path) -> Certificate | None:
    """The one that the settings name; paths that are not absolute begin in the home."""
    if not settings.tls_certificate and not settings.tls_key:
        return None
    if not settings.tls_certificate or not settings.tls_key:
        raise InvalidInput(
            "server.tls_certificate and server.tls_key go together", hint="name both files, or neither for plain HTTP"
        )
    return Certificate(home / settings.tls_certificate, home / settings.tls_key)


def _refuse_password() -> bytes:
    """Without this OpenSSL would ask the terminal, and the server would wait for ever."""
    raise InvalidInput("the key of the certificate has a password", hint="the server needs a key without one")
