"""`dolake journal`: look into a journal, with or without its server running; mend one that is damaged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from dolake.cli.address import HomeOption
from dolake.errors import NotFound
from dolake.journal.reader import JournalReader
from dolake.journal.record import Record
from dolake.journal.repair import check_journal, repair_journal
from dolake.positions import Position
from dolake.server.home import Home
from dolake.wire.binary import decode_raw_batch

app = typer.Typer(help="Look into the journal, or mend one that is damaged.", no_args_is_help=True)


@app.command("dump")
def dump(
    home: HomeOption = Path("dolake-home"),
    start: Annotated[Position | None, typer.Option("--from", help="First position; the oldest kept otherwise.")] = None,
    end: Annotated[
        Position | None, typer.Option("--to", help="Position to stop before; the durable end otherwise.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    events: Annotated[bool, typer.Option("--events", help="One line per change, with its images.")] = False,
) -> None:
    """Print durable batches as JSON lines. Safe beside a running server."""
    with JournalReader(home / "journal") as reader:
        begin = reader.oldest() if start is None else start
        records = reader.follow(begin, with_states=True) if follow else reader.read(begin, end, with_states=True)
        try:
            for record in records:
                if end is not None and record.position >= end:
                    break
                for line in _lines(record, with_events=events):
                    sys.stdout.write(line + "\n")
                if follow:
                    sys.stdout.flush()
        except (KeyboardInterrupt, BrokenPipeError):
            sys.stderr.close()  # the reader of our pipe has left, or the person at the keyboard has


@app.command("check")
def check(home: HomeOption = Path("dolake-home")) -> None:
    """Verify every checksum and say what is damaged. Changes nothing; stop the server first for a full check."""
    report = check_journal(_journal_of(home))
    console = Console(highlight=False)
    for problem in report.problems:
        console.print(f"damaged: {problem}", style="red", markup=False)
    console.print(
        f"{report.segment_count} segments, {report.record_count} batches, {report.change_count} changes, "
        f"{report.byte_count} bytes; {len(report.problems)} problems"
    )
    if report.problems:
        raise typer.Exit(1)


@app.command("repair")
def repair(
    home: HomeOption = Path("dolake-home"),
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this it only says what it would do.")] = False,
) -> None:
    """Set damaged bytes aside and keep everything else. The lost changes become a gap that is written down."""
    _journal_of(home)
    with Home(home) as locked:
        for line in repair_journal(locked.journal_path, is_dry_run=not yes):
            typer.echo(line)
    if not yes:
        typer.echo("nothing was changed; add --yes to do this")


def _journal_of(home: Path) -> Path:
    """Where the journal is. A folder that was mistyped is an error: it is not made, and no check of it succeeds."""
    directory = home / "journal"
    if not directory.is_dir():
        raise NotFound(f"no journal in {home}", hint="--home names the server's folder, which has `journal` in it")
    return directory


def _lines(record: Record, *, with_events: bool) -> list[str]:
    if with_events and not record.change_count:
        state = {"position": record.position, "stream": str(record.stream)}
        return [msgspec.json.encode(state | {"sourceState": msgspec.Raw(record.source_state)}).decode()]
    if with_events:
        events = decode_raw_batch(record.payload).events
        heads = [{"position": record.position + index, "stream": str(record.stream)} for index in range(len(events))]
        return [
            msgspec.json.encode(head | msgspec.to_builtins(event, builtin_types=(msgspec.Raw,))).decode()
            for head, event in zip(heads, events, strict=True)
        ]
    line: dict[str, object] = {
        "position": record.position,
        "end": record.end,
        "stream": str(record.stream),
        "epoch": record.epoch,
        "batch": record.number,
        "firstSequence": record.sequence_first,
        "lastSequence": record.sequence_last,
        "tables": record.tables,
        "commitTimestamp": record.commit_timestamp_ms,
        "bytes": len(record.payload),
    }
    if record.source_state:
        line["sourceState"] = msgspec.Raw(record.source_state)
    return [msgspec.json.encode(line).decode()]
