"""One thing that was looked at: how it is, in words, and the remedy where it should be otherwise."""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["ok", "warning", "problem"]


class Finding(msgspec.Struct, frozen=True):
    """`problem`: a server will not work like this. `warning`: it will, until it is busy or something goes wrong."""

    check: str
    level: Level
    found: str
    remedy: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, "ok", found)


def warning(check: str, found: str, remedy: str) -> Finding:
    return Finding(check, "warning", found, remedy)


def problem(check: str, found: str, remedy: str) -> Finding:
    return Finding(check, "problem", found, remedy)


def in_words(size_bytes: float) -> str:
    """A size as people say it."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size_bytes < 1024 or unit == "GiB":
            break
        size_bytes /= 1024
    return f"{size_bytes:,.0f} {unit}" if unit == "bytes" else f"{size_bytes:,.1f} {unit}"
