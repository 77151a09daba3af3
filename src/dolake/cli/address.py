"""Which server a command asks: the one whose address stands in --home, or the one of --url."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from dolake.client.sync import LakeClient, connect
from dolake.errors import Unavailable
from dolake.server.home import ADDRESS_FILE

CA_FILE = "DOLAKE_CA_FILE"
"""The variable with the file of the authorities that are trusted for --url."""
UrlOption = Annotated[str | None, typer.Option("--url", help="The server; the one of --home otherwise.")]
TableName = Annotated[str, typer.Argument(help="A table, `orders` or `shop.orders`.")]


def lake_at(home: Path, url: str | None) -> LakeClient:
    """A client for questions. It is not opened: that would begin a stream of changes, which nobody needs here."""
    if url:
        return connect(url, ca_file=os.environ.get(CA_FILE))
    address = address_in(home)
    return connect(address.url, certificate_sha256=address.certificate_sha256)


class Address(msgspec.Struct, rename="camel"):
    """What server.json says."""

    url: str
    certificate_sha256: str | None = None


def address_in(home: Path) -> Address:
    """Where the server of this home listens."""
    try:
        return msgspec.json.decode((home / ADDRESS_FILE).read_bytes(), type=Address)
    except FileNotFoundError:
        raise Unavailable(f"no server runs on {home}", hint="start it with `dolake serve`, or give its --url") from None
