"""`dolake token`: who may reach a lake. Works on its home, beside a running server or without one.

Who can write to the home runs the lake: there is no way to make a token over the network. Each act is in audit.log.
"""

from __future__ import annotations

import getpass
import re
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from dolake.cli import showing
from dolake.cli.address import HomeOption
from dolake.cli.tables import JsonOption
from dolake.errors import DoLakeError, InvalidInput
from dolake.identity import tokens
from dolake.identity.audit import write_audit
from dolake.identity.store import TokenFile
from dolake.identity.tokens import Token

app = typer.Typer(help="Who may reach a lake: make tokens, list them, revoke them.", no_args_is_help=True)
_PERIOD = re.compile(r"([1-9][0-9]{0,5})([mhd])")
_PERIOD_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}
_HOME = Path("dolake-home")


@app.command("create")
def create(
    name: Annotated[str, typer.Option("--name", help="Whose it is, for lists and the audit log.")],
    scope: Annotated[list[str], typer.Option("--scope", help="ingest, read, write or admin; may be given repeatedly.")],
    namespace: Annotated[
        list[str] | None, typer.Option("--namespace", help="One that it sees, with all below it; all otherwise.")
    ] = None,
    source: Annotated[
        list[str] | None, typer.Option("--source", help="One that it speaks as, or `shop-*`; any otherwise.")
    ] = None,
    expires: Annotated[str | None, typer.Option("--expires", help="After 90d, 12h or 30m; never otherwise.")] = None,
    home: HomeOption = _HOME,
    as_json: JsonOption = False,
) -> None:
    """Make a token and print it: this once, and never again."""
    now_ms = _now_ms()
    expires_ms = None if expires is None else now_ms + _period_ms(expires)
    token, text = tokens.mint(name, scope, namespace or [], source or [], now_ms=now_ms, expires_ms=expires_ms)
    TokenFile(home).add(token)
    _audit(home, "token.create", token)
    if as_json:
        sys.stdout.write(msgspec.json.encode(_shown(token) | {"token": text}).decode() + "\n")
        return
    sys.stdout.write(text + "\n")
    notes = showing.notes()
    notes.print(f"this is the only time that it is shown; its id is {token.id}", markup=False, soft_wrap=True)


@app.command("list")
def list_tokens(home: HomeOption = _HOME, as_json: JsonOption = False) -> None:
    """List all tokens, also those that are revoked or have expired; secrets are not kept, so not shown."""
    found = TokenFile(home).read()
    if as_json:
        sys.stdout.write(msgspec.json.encode([_shown(each) for each in found]).decode() + "\n")
        return
    if not found:
        showing.notes().print("there are no tokens: whoever reaches the server may do everything", soft_wrap=True)
        return
    shown = showing.new_table("id", "name", "scopes", "namespaces", "sources", "expires", "state")
    for each in found:
        row = _shown(each)
        names = (", ".join(getattr(each, part)) for part in ("scopes", "namespaces", "sources"))
        shown.add_row(*map(showing.cell, (each.id, each.name, *names, row["expires"] or "never", row["state"])))
    showing.output().print(shown)


@app.command("revoke")
def revoke(
    token: Annotated[str, typer.Argument(help="Its id, or its name.")],
    home: HomeOption = _HOME,
    forget: Annotated[bool, typer.Option("--forget", help="Take it off the list, too.")] = False,
) -> None:
    """End a token, for good and at once: open connections with it are closed."""
    try:
        revoked = TokenFile(home).revoke(token, _now_ms(), forgets=forget)
    except DoLakeError as error:
        write_audit(home, who=_who(), what="token.revoke", outcome=error.code, now_ms=_now_ms(), token=token)
        raise
    _audit(home, "token.revoke", revoked)
    showing.notes().print(f"revoked {revoked.id} ({revoked.name})", markup=False, soft_wrap=True)


def _shown(token: Token) -> dict[str, object]:
    return {
        "id": token.id,
        "name": token.name,
        "scopes": token.scopes,
        "namespaces": token.namespaces,
        "sources": token.sources,
        "created": _time(token.created_ms),
        "expires": _time(token.expires_ms),
        "revoked": _time(token.revoked_ms),
        "state": token.state(_now_ms()),
    }


def _time(moment_ms: int | None) -> str | None:
    if moment_ms is None:
        return None
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _period_ms(text: str) -> int:
    found = _PERIOD.fullmatch(text)
    if not found:
        raise InvalidInput(f"--expires {text!r} is no time", hint="write 90d, 12h or 30m")
    return int(found[1]) * _PERIOD_MS[found[2]]


def _audit(home: Path, what: str, token: Token) -> None:
    grants = f"{','.join(token.scopes)} on {','.join(token.namespaces)} as {','.join(token.sources)}"
    write_audit(
        home,
        who=_who(),
        what=what,
        outcome="ok",
        now_ms=_now_ms(),
        token=token.id,
        name=token.name,
        grants=grants,
    )


def _who() -> str:
    """Whoever runs the command on this machine."""
    try:
        return f"local user {getpass.getuser()}"
    except (KeyError, OSError):
        return "local user"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
