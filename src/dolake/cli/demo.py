"""`dolake demo`: the product's main job in one minute."""

from __future__ import annotations


def demo() -> None:
    """Show what DoLake does."""
