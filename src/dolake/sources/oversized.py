"""A change that is too large for the lake: what fits of it is sent, and the rest is named with size and digest.

From runner.py, when a batch is refused for its size. Pure. First the row as it was goes, then the largest values of the
row as it is, one after the other: each is left out, and `metadata.rescued` says which value it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from dolake.changes import Change

_SPARE_BYTES = 1_024
"""What a change has beside its images, its keys and its metadata, at most."""
_DESCRIBED_BYTES = 150
"""How a value is described that does not fit, at most, without its column's name."""


def fit(changes: Sequence[Change], size_max: int | None) -> Sequence[Change] | None:
    """The changes, each of a size that the lake takes; None where no limit is known."""
    if size_max is None:
        return None
    return [_fit_one(change, size_max) for change in changes]


def _fit_one(change: Change, size_max: int) -> Change:
    before, after = change.before, change.after
    size_max = max(1, size_max - _SPARE_BYTES - _size(change.row_id) - _size(change.table) - _size(change.metadata))
    if _size(before) + _size(after) <= size_max:
        return change
    if after is None:  # of a deleted row the key is enough
        return replace(change, before=None)
    metadata = dict(change.metadata or {})
    rescued: dict[str, Any] = {}
    kept = dict(after)
    sizes = {name: _size(value) for name, value in kept.items()}
    total = _size(kept)
    for name in sorted(sizes, key=lambda each: -sizes[each]):
        if total <= size_max:
            break
        total += _size(name) + _DESCRIBED_BYTES - sizes[name]
        rescued[name] = _described(kept[name])
        del kept[name]
    if rescued:
        metadata["rescued"] = rescued
    return replace(change, before=None, after=kept, metadata=metadata)


def _described(value: Any) -> dict[str, Any]:
    raw = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
    return {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest(), "reason": "too large"}


def _size(value: Mapping[str, Any] | Any) -> int:
    return len(msgspec.json.encode(value))
