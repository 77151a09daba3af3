"""Where a running server is reached: the file `server.json` in its home.

From server/home.py, which writes it once the server is ready; to the command line, which finds the server of a home
by it. The certificate is named where the server has one of its own making.
"""

from __future__ import annotations

import msgspec

ADDRESS_FILE = "server.json"


class ServerAddress(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """What the file says; a reader needs no more than the URL."""

    pid: int = 0
    url: str
    version: str = ""
    certificate_sha256: str | None = None
