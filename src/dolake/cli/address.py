"""Which server a command asks: the one whose address is in --home, or the one of --url.

To every command that asks a running server. No room of the server is loaded here: these commands start fast.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from dolake.errors import Unavailable
from dolake.wire.address import ADDRESS_FILE, ServerAddress

if TYPE_CHECKING:
    from dolake.client.sync import LakeClient

CA_FILE = "DOLAKE_CA_FILE"
"""The variable with the file of the authorities that are trusted for --url."""
HomeOption = Annotated[
    Path,
    typer.Option(
        "--home",
        envvar="DOLAKE_HOME",
        help="The server's folder: journal, settings, tables.",
        callback=Path.absolute,  # child processes, file addresses and table locations need the whole path
    ),
]
UrlOption = Annotated[str | None, typer.Option("--url", help="The server; the one of --home otherwise.")]
TableName = Annotated[str, typer.Argument(help="A table, `orders` or `shop.orders`.")]


def lake_at(home: Path, url: str | None) -> LakeClient:
    """A client for queries. It is not opened: that would begin a stream of changes, which no query needs."""
    from dolake.client.sync import connect  # here: commands that work on a home alone ask no server

    if url:
        return connect(url, ca_file=os.environ.get(CA_FILE))
    address = address_in(home)
    return connect(address.url, certificate_sha256=address.certificate_sha256)


def address_in(home: Path) -> ServerAddress:
    """Where the server of this home listens."""
    try:
        return msgspec.json.decode((home / ADDRESS_FILE).read_bytes(), type=ServerAddress)
    except FileNotFoundError:
        raise Unavailable(f"no server runs on {home}", hint="start it with `dolake serve`, or give its --url") from None
