"""Resume tokens: a position of this lake as a text that nobody needs to understand.

From feeds.py, with every batch; back from subscribers who go on where they were. Promise: a token survives restarts of
both sides; one of another lake, or of a time that a restored lake has not reached, is refused in words. Pure.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib

from dolake.errors import InvalidResumeToken
from dolake.positions import Position

PREFIX = "r1."
_FORM = struct.Struct(">8sQI")
_HINT = "subscribe from a position, a time or `beginning` instead"


def token_of(lake: bytes, position: Position) -> str:
    """Everything before this position has been told."""
    short = lake[:8]
    packed = _FORM.pack(short, position, zlib.crc32(short + position.to_bytes(8)))
    return PREFIX + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def position_in(token: str, lake: bytes, durable: Position) -> Position:
    """Where to go on."""
    text = token.removeprefix(PREFIX)
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        short, position, check = _FORM.unpack(packed)
    except (binascii.Error, struct.error, ValueError):
        raise InvalidResumeToken("this is no resume token", hint=_HINT) from None
    if check != zlib.crc32(short + position.to_bytes(8)):
        raise InvalidResumeToken("the resume token is damaged", hint=_HINT)
    if short != lake[:8]:
        raise InvalidResumeToken("the resume token is of another lake", hint=_HINT)
    if position > durable:
        raise InvalidResumeToken(
            f"the resume token is of position {position}, and this lake ends at {durable}",
            hint="was it restored from a backup? What you have seen since may not be in it; " + _HINT,
        )
    return int(position)
