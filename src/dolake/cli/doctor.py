"""`dolake doctor`: what this machine lacks for a lake, each with its remedy."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from dolake.cli.address import HomeOption, address_in, lake_at
from dolake.errors import DoLakeError, SettingsError
from dolake.settings import load_settings

if TYPE_CHECKING:
    from dolake.doctor.base import Finding

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def doctor(
    home: HomeOption = Path("dolake-home"),
    config: Annotated[
        Path | None, typer.Option("--config", envvar="DOLAKE_CONFIG", help="Settings file; HOME/dolake.toml otherwise.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look at Java, Spark, disk, port, clock and limits, and say what to do about what is not as it should be."""
    findings = list(_look(home, config))
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(findings)).decode() + "\n")
    else:
        _show(findings)
    if any(finding.level == "problem" for finding in findings):
        raise typer.Exit(1)


def _look(home: Path, config: Path | None) -> Iterator[Finding]:
    from dolake.doctor.base import ok, problem
    from dolake.doctor.home import check_home, newest_ms
    from dolake.doctor.machine import check_machine
    from dolake.doctor.software import check_software
    from dolake.doctor.store import check_store

    try:
        settings = load_settings(home=home, config_file=config, environ=os.environ, flags={}).current
    except SettingsError as error:
        yield problem("settings", error.message, error.hint or "docs/reference/settings.md has every setting")
        return
    yield ok("settings", "every key is known and every value allowed")
    yield from check_software(settings.pipeline, os.environ)
    yield from check_store(settings, os.environ)
    yield from check_home(home, settings.journal)
    yield from check_machine(settings, newest_ms(home), time.time_ns() // 1_000_000, _running_url(home))


def _running_url(home: Path) -> str | None:
    """The address of this home's server, if it answers."""
    try:
        address = address_in(home)
        lake_at(home, None).health()
        return address.url
    except (DoLakeError, OSError):
        return None


def _show(findings: list[Finding]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        console.print(f"{finding.level:8} ", style=_STYLES[finding.level], end="")
        console.print(f"{finding.check}: {finding.found}", markup=False)
        for line in finding.remedy.splitlines():
            console.print(f"         {line}", markup=False)
    counts = {level: sum(finding.level == level for finding in findings) for level in _STYLES}
    console.print(f"{counts['problem']} problems, {counts['warning']} warnings")
