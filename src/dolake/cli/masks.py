"""The option `--mask TABLE.COLUMN=MASK` of commands that follow a database. From source.py and sources.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from dolake.errors import InvalidInput

MaskOption = Annotated[
    list[str] | None,
    typer.Option(
        "--mask",
        help="Keep a hash, *** or the beginning of a column's values; give it again.",
        metavar="TABLE.COLUMN=MASK",
    ),
]


def masks_of(named: Sequence[str] | None) -> dict[str, str] | None:
    """By table.column; None where the option was left out."""
    if named is None:
        return None
    found = {}
    for each in named:
        name, sign, mask = each.partition("=")
        if not sign or "." not in name:
            raise InvalidInput(f"--mask {each!r} is no mask", hint="write TABLE.COLUMN=hash, =redact or =truncate(3)")
        found[name.strip()] = mask.strip()
    return found
