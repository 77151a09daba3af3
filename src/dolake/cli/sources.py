"""`dolake sources`: the databases that a running server follows: list, add, pause, resume, remove."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table as Paper

from dolake.cli import showing
from dolake.cli.address import HomeOption, UrlOption
from dolake.cli.compact import Server
from dolake.cli.masks import MaskOption, masks_of
from dolake.cli.tables import JsonOption

app = typer.Typer(help="The databases that a running server follows: list, add, pause, resume, remove.")
_HOME = Path("dolake-home")
_PATH = "/v1/sources"
NameArgument = Annotated[str, typer.Argument(help="A source, as `dolake sources` lists it.", metavar="NAME")]


@app.callback(invoke_without_command=True)
def sources(
    context: typer.Context, home: HomeOption = _HOME, url: UrlOption = None, as_json: JsonOption = False
) -> None:
    """List the sources that the server runs, and how far each is."""
    if context.invoked_subcommand is not None:
        return
    found = Server(home, url).ask(_PATH)
    if as_json:
        typer.echo(showing.json_line(found), nl=False)
    elif not found.get("sources"):
        typer.echo("the server follows no database; `dolake sources add FILE` changes that")
    else:
        showing.output().print(_paper(found["sources"]))
        for each in found["sources"]:
            _show_problems(each)


@app.command("add")
def add(
    file: Annotated[
        Path,
        typer.Argument(
            help="A SQLite file, or a folder of files of one schema, on the server's machine.", metavar="FILE"
        ),
    ],
    name: Annotated[str, typer.Option(help="The source's name; that of the file otherwise.")] = "",
    namespace: Annotated[
        str, typer.Option(help="The lake's namespace for the tables; the default one otherwise.")
    ] = "",
    tables: Annotated[
        list[str] | None, typer.Option("--tables", help="A table's name, or a pattern with *; give it again for more.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", help="A table, or a pattern, to leave out; give it again for more.")
    ] = None,
    mask: MaskOption = None,
    source: Annotated[str, typer.Option(help="The stream's name in the lake; from the file otherwise.")] = "",
    home: HomeOption = _HOME,
    url: UrlOption = None,
) -> None:
    """Follow a database from now on, also after a restart of the server."""
    path = file if url else file.absolute()
    body: dict[str, Any] = {"path": str(path), "name": name, "namespace": namespace, "source": source}
    added = _change(
        home, url, _PATH, body | {"tables": tables or [], "exclude": exclude or [], "mask": masks_of(mask) or {}}
    )
    typer.echo(f"{added['path']} is followed as {added['name']}; `dolake sources` shows how far it is")


@app.command("pause")
def pause(name: NameArgument, home: HomeOption = _HOME, url: UrlOption = None) -> None:
    """Follow a source no longer until it is resumed. Its changes wait in its own file."""
    _change(home, url, f"{_PATH}/{quote(name, safe='')}/pause", {})
    typer.echo(f"{name} is paused")


@app.command("resume")
def resume(name: NameArgument, home: HomeOption = _HOME, url: UrlOption = None) -> None:
    """Follow a paused source again, from where it was."""
    _change(home, url, f"{_PATH}/{quote(name, safe='')}/resume", {})
    typer.echo(f"{name} is followed again")


@app.command("remove")
def remove(name: NameArgument, home: HomeOption = _HOME, url: UrlOption = None) -> None:
    """Follow a source no longer. Its tables in the lake stay, and so do the triggers in its file."""
    Server(home, url).delete(f"{_PATH}/{quote(name, safe='')}")
    typer.echo(f"{name} is removed; `dolake source disable FILE` removes the triggers from its file")


def _change(home: Path, url: str | None, path: str, body: dict[str, Any]) -> dict[str, Any]:
    return Server(home, url).ask(path, body)


def _paper(found: list[dict[str, Any]]) -> Paper:
    """One line for each source."""
    shown = showing.new_table("source", "state", "tables", "behind", "lag", "path", numbers=("tables", "behind"))
    for each in found:
        copying = each["tablesCopying"]
        tables = f"{each['tables'] - copying} of {each['tables']}" if copying else f"{each['tables']}"
        lag = f"{each['lagMs'] / 1000:,.1f} s" if each["pending"] else "none"
        cells = each["name"], each["state"], tables, f"{each['pending']:,}", lag, each["path"]
        shown.add_row(*map(showing.cell, cells))
    return shown


def _show_problems(source: dict[str, Any]) -> None:
    if source["problem"]:
        typer.echo(f"{source['name']}: {source['problem']}")
    for stream in source["streams"]:
        for left_out in stream["leftOut"]:
            typer.echo(f"{source['name']}: left out: {left_out}")
