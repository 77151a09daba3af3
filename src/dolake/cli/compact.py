"""`dolake compact`, `dolake expire`, `dolake maintain`: maintenance of a running server's tables, now."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dolake.cli.address import HomeOption, UrlOption, lake_at
from dolake.client.sync import http_of

_COMPACT, _EXPIRE = ["deletes", "files", "manifests"], ["snapshots", "garbage"]
_LOOK_EVERY_S = 0.2
_ASK_TIME_MAX_S = 60.0
TableArgument = Annotated[str | None, typer.Argument(help="A table, `orders` or `shop.orders`; all of them otherwise.")]


def compact(
    table: TableArgument = None,
    home: HomeOption = Path("dolake-home"),
    url: UrlOption = None,
) -> None:
    """Make small files few and let deleted rows go."""
    _run(Server(home, url), table, _COMPACT)


def expire(
    table: TableArgument = None,
    home: HomeOption = Path("dolake-home"),
    url: UrlOption = None,
) -> None:
    """Let old snapshots go, and files that nothing has named for `gc_grace_ms`."""
    _run(Server(home, url), table, _EXPIRE)


def maintain(
    table: TableArgument = None,
    home: HomeOption = Path("dolake-home"),
    url: UrlOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what is due, and why.")] = False,
) -> None:
    """Do all maintenance that is due, or say what that is."""
    server = Server(home, url)
    if dry_run:
        _show_due(server, table)
    else:
        _run(server, table, ["tiers", *_COMPACT, *_EXPIRE])


class Server:
    """A running server, asked over HTTP."""

    def __init__(self, home: Path, url: str | None) -> None:
        self._http = http_of(lake_at(home, url))

    def ask(self, path: str, body: dict[str, Any] | None = None, *, method: str | None = None) -> dict[str, Any]:
        method = method or ("GET" if body is None else "POST")
        asking = self._http.ask(method, path, dict[str, Any], body, silence_max_s=_ASK_TIME_MAX_S)
        return asyncio.run(asking)

    def delete(self, path: str) -> None:
        """For routes whose answer has no content."""
        asyncio.run(self._http.ask_bytes("DELETE", path, silence_max_s=_ASK_TIME_MAX_S))


def _where(table: str | None) -> dict[str, str]:
    if table is None:
        return {}
    namespace, _, name = table.rpartition(".")
    return {"namespace": namespace or "default", "table": name}


def _show_due(server: Server, table: str | None) -> None:
    query = "&".join(f"{key}={value}" for key, value in _where(table).items())
    due = server.ask(f"/v1/compaction/candidates?{query}")["candidates"]
    shown = Table("table", "what", "files", "MB", "score", "why")
    for each in due:
        name, size = f"{each['namespace']}.{each['table']}", f"{each['sizeBytes'] / 1e6:.1f}"
        shown.add_row(name, each["kind"], str(each["fileCount"]), size, f"{each['score']:.1f}", each["reason"])
    console = Console(highlight=False)
    console.print(shown if due else "nothing is due")


def _run(server: Server, table: str | None, kinds: list[str]) -> None:
    body: dict[str, Any] = dict(_where(table))
    follow(server, server.ask("/v1/compaction/run", body | {"kinds": kinds}))


def follow(server: Server, job: dict[str, Any]) -> None:
    """Show how far a job is until its end; Ctrl-C cancels it."""
    path = f"/v1/compaction/jobs/{job['jobId']}"
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task(job["table"], total=None)
        try:
            while job["state"] in ("queued", "running"):
                time.sleep(_LOOK_EVERY_S)
                job = server.ask(path)
                total = job["piecesTotal"] or None
                progress.update(
                    bar, completed=job["piecesDone"], total=total, description=f"{job['table']}: {job['state']}"
                )
        except KeyboardInterrupt:
            job = server.ask(path, method="DELETE")
    Console(highlight=False).print(summary(job))
    if job["state"] == "failed":
        raise typer.Exit(1)


def summary(job: dict[str, Any]) -> str:
    """What a job did, in one line."""
    parts = [f"{job['state']} in {job['tookMs'] / 1000:.1f} s"]
    if job["filesBefore"]:
        parts.append(f"{job['filesBefore']} files became {job['filesAfter']}")
    if job["filesMoved"]:
        parts.append(f"{job['filesMoved']} files of {job['bytesMoved'] / 1e6:.1f} MB were written in their new place")
    if job["rowsDropped"]:
        parts.append(f"{job['rowsDropped']} deleted rows went")
    if job["snapshotsExpired"]:
        parts.append(f"{job['snapshotsExpired']} snapshots expired")
    if job["filesRemoved"]:
        parts.append(f"{job['filesRemoved']} files were removed")
    if job["state"] == "failed":
        parts.append(job["reason"])
    return "; ".join(parts)
