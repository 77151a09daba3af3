"""Which server a command asks: the one whose address stands in --home, or the one of --url."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from dolake.client.sync import LakeClient, connect
from dolake.errors import Unavailable
from dolake.server.home import ADDRESS_FILE

UrlOption = Annotated[str | None, typer.Option("--url", help="The server; the one of --home otherwise.")]
TableName = Annotated[str, typer.Argument(help="A table, `orders` or `shop.orders`.")]


def lake_at(home: Path, url: str | None) -> LakeClient:
    """A client for questions. It is not opened: that would begin a stream of changes, which nobody needs here."""
    return connect(url or address_in(home))


def address_in(home: Path) -> str:
    """Where the server of this home listens."""
    try:
        return str(msgspec.json.decode((home / ADDRESS_FILE).read_bytes(), type=dict[str, object])["url"])
    except FileNotFoundError:
        raise Unavailable(f"no server runs on {home}", hint="start it with `dolake serve`, or give its --url") from None
