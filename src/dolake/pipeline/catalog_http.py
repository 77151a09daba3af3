"""The catalog over plain HTTP, for what needs no Java: the published row, a table's metadata, old snapshots let go.

From publish.py, maintenance.py and garbage.py.
"""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from dolake.catalog.base import PIPELINE_HEADER
from dolake.errors import Conflict, OutcomeUnknown, Unavailable
from dolake.positions import Position

Json = dict[str, Any]
_LOOKS_MAX = 20
_LOOK_WAIT_S = 0.5
_ASK_TIME_MAX_S = 10.0


class CatalogHttp:
    """Our own server, asked as the pipeline."""

    def __init__(self, uri: str, secret: str) -> None:
        self._uri, self._secret = uri, secret

    def published(self) -> Json:
        """The lake's published row, asked for until somebody answers."""
        for _ in range(_LOOKS_MAX):
            with contextlib.suppress(OSError):
                return self._ask("/v1/published")
            time.sleep(_LOOK_WAIT_S)
        raise Unavailable("the catalog does not answer", hint="is the server running?")

    def publish_nothing(self, start: Position, end: Position, generation: int) -> None:
        """Move the published position over a stretch that is in no table."""
        try:
            self._ask("/v1/published", {"from": start, "to": end, "generation": generation})
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")[:500]
            raise Conflict(f"the catalog refused to move on: {text}", hint="read the published row") from None
        except OSError as error:
            raise OutcomeUnknown(f"the catalog did not answer: {error}", hint="read the published row") from None

    def metadata(self, name: Sequence[str]) -> Json | None:
        """All that the table says of itself, and under `metadata-location` where that is written; None without one."""
        try:
            answer = self._ask(_path(name))
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return None
            raise
        metadata: Json = answer["metadata"] | {"metadata-location": answer["metadata-location"]}
        return metadata

    def remove_snapshots(self, name: Sequence[str], uuid: str, snapshot_ids: Sequence[int]) -> None:
        self._update(name, uuid, {"action": "remove-snapshots", "snapshot-ids": list(snapshot_ids)})

    def rename_partition_field(self, name: Sequence[str], uuid: str, field: str, new_name: str) -> None:
        """In all of the table's specs: a column wants the name."""
        self._update(name, uuid, {"action": "rename-partition-field", "name": field, "new-name": new_name})

    def _update(self, name: Sequence[str], uuid: str, update: Json) -> None:
        body = {"requirements": [{"type": "assert-table-uuid", "uuid": uuid}], "updates": [update]}
        try:
            self._ask(_path(name), body)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")[:500]
            raise Conflict(
                f"the catalog refused {update['action']}: {text}", hint="the next look tries again"
            ) from None

    def _ask(self, path: str, body: Json | None = None) -> Json:
        request = urllib.request.Request(  # noqa: S310 - our own server
            self._uri + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={PIPELINE_HEADER: self._secret, "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=_ASK_TIME_MAX_S) as answer:  # noqa: S310
            found: Json = {} if answer.status == HTTPStatus.NO_CONTENT else json.load(answer)
            return found


def _path(name: Sequence[str]) -> str:
    namespace = quote("\x1f".join(name[:-1]), safe="")
    return f"/v1/namespaces/{namespace}/tables/{quote(name[-1], safe='')}"
