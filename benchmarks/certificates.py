"""A certificate for a server on loopback, for as long as a benchmark takes.

From ingest.py. Nobody trusts it, and nobody has to: what is measured is the work of encrypting.
"""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

from dolake.errors import Unavailable


def make_certificate(home: Path) -> str:
    """Write `server.pem` and `server.key` into the home; returns the settings that name them."""
    home.mkdir(parents=True, exist_ok=True)
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    try:
        subprocess.run(
            [*command, "-keyout", str(home / "server.key"), "-out", str(home / "server.pem")],
            check=True,
            capture_output=True,
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"no certificate could be made: {error}", hint="--tls needs the command openssl") from None
    return 'server_tls_certificate = "server.pem"\nserver_tls_key = "server.key"\n'


def trusting_nobody() -> ssl.SSLContext:
    """For a client that encrypts and asks no questions."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
