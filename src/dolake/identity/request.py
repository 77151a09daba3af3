"""Where a request carries what its sender may do: put there by server/auth.py, read by every room's routes."""

from __future__ import annotations

from aiohttp import web

from dolake.identity.grants import Grant

GRANT = web.RequestKey("grant", Grant)


def grant_of(request: web.Request) -> Grant:
    """Raises KeyError where nobody has asked who it is: a mistake of ours that must not let anybody in."""
    return request[GRANT]
