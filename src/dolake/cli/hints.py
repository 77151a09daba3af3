"""Hints of the server in the words of the command line: `dolake tables` instead of GET /v1/tables. Pure.

From app.py and shell.py, before a hint is shown. The server writes its hints for programs that call it over HTTP.
"""

from __future__ import annotations

import re

_COMMANDS = [
    (
        r"send it as `Authorization: Bearer dolake_\.\.\.`",
        "`export DOLAKE_TOKEN=dolake_...`; `dolake token create` makes one",
    ),
    (r"GET /v1/tables/([^/\s]+)/([^/\s]+)/snapshots", r"`dolake snapshots \1.\2`"),
    (r"GET /v1/tables\b", "`dolake tables`"),
    (r"GET /v1/snapshots\b", "`dolake snapshots`"),
    (r"GET /v1/quarantine\b", "`dolake quarantine list`"),
    (r"GET /v1/subscriptions\b", "`dolake subscriptions list`"),
    (r"POST /v1/query\b", "`dolake query`"),
    (r"POST /flush\b", "`dolake flush`"),
    (r"\basOf\b", "--as-of"),
    (r"\bsnapshotId\b", "--snapshot"),
]


def for_commands(hint: str) -> str:
    """The same hint; what has no command stays as it is."""
    for route, command in _COMMANDS:
        hint = re.sub(route, command, hint)
    return hint
