"""A lake with a bit of everything, as verify's tests have it."""

from __future__ import annotations

from tests.verify.conftest import lake, original

__all__ = ["lake", "original"]
