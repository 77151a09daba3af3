"""How settings are described: bounds, units and marks that all sections share. From schema.py and its sections."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Meta

KIB, MIB, GIB = 1024, 1024**2, 1024**3
BYTES_MAX = 2**50
COUNT_MAX = 10**9
MS_MAX = 365 * 24 * 3600 * 1000
DAYS_MAX = 36_500

LATER: Final = {"later": True}
"""Checked and kept already, but the part that reads it comes in a later release."""
RESTART: Final = {"restart": True}
"""A change waits for the next start; a setting without this takes effect at once."""


def whole(description: str, low: int, high: int, extra: dict[str, Any] | None = None) -> Meta:
    return Meta(ge=low, le=high, description=description, extra=extra)


def says(description: str, extra: dict[str, Any] | None = None) -> Meta:
    return Meta(description=description, extra=extra)
