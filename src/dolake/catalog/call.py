"""One request to the catalog, taken apart: where it goes, what it says, and who says it.

From rest.py, which makes one for each request; to its handlers. Everything that a client sends is checked where it is
read here, so handlers deal in names and objects and not in strings.
"""

from __future__ import annotations

import functools
import re
import uuid
from urllib.parse import parse_qs

import msgspec
from aiohttp import web

from dolake.catalog import locations
from dolake.catalog.base import PIPELINE_HEADER, SEPARATOR, Name, Namespace, Remember
from dolake.catalog.catalog import Catalog
from dolake.catalog.errors import NoSuchNamespace, NoSuchTable, NoSuchView
from dolake.catalog.pins import Pin
from dolake.catalog.tenants import check_places
from dolake.catalog.values import Json, as_object
from dolake.errors import InvalidInput
from dolake.identity.request import grant_of

ANSWERS_KEPT, ANSWERS_KEPT_MS = "PT30M", 30 * 60 * 1000
_PAGE_MAX = 10_000
_WHOLE = re.compile("[0-9]{1,9}")


def sent_text(sent: str) -> str:
    """Bytes that are no UTF-8 come as surrogates, which neither SQLite nor a file's name can hold."""
    return sent.encode(errors="surrogateescape").decode(errors="replace")


class Call:
    """One request, taken apart: its catalog, the named parts of its path, its query and its body."""

    def __init__(
        self, catalog: Catalog, request: web.Request, parts: dict[str, str], body: bytes, pin: Pin | None
    ) -> None:
        self.catalog, self.request, self.parts, self.pin = catalog, request, parts, pin
        self._body = body
        self.is_private = False
        """Whether the answer has what nobody else may ever get: it is not kept."""
        self.grant = grant_of(request)
        query = sent_text(request.raw_path.partition("?")[2])
        self.query = {key: values[-1] for key, values in parse_qs(query, keep_blank_values=True).items()}

    @property
    def namespace(self) -> Namespace:
        return self.seen(locations.check_namespace(tuple(self.parts["namespace"].split(SEPARATOR))))

    def seen(self, namespace: Namespace) -> Namespace:
        """A namespace that this request's token sees; any other is as one that is not there."""
        if not self.grant.sees(namespace):
            raise NoSuchNamespace(f"Namespace does not exist: {'.'.join(namespace)}")
        return namespace

    def seen_table(self, name: Name) -> Name:
        if not self.grant.sees(name.namespace):
            raise NoSuchTable(f"Table does not exist: {name}")
        return name

    @property
    def table(self) -> Name:
        if not self.parts["namespace"]:  # Spark asks so about `users.files`, and on 404 tells its user what is missing
            raise NoSuchTable(f"Table does not exist: {self.parts['table']}", hint="name its namespace too")
        namespace = tuple(self.parts["namespace"].split(SEPARATOR))
        return self.seen_table(locations.check_name(Name(namespace, self.parts["table"])))

    @property
    def view(self) -> Name:
        if not self.parts["namespace"]:
            raise NoSuchView(f"View does not exist: {self.parts['view']}", hint="name its namespace too")
        name = locations.check_name(Name(tuple(self.parts["namespace"].split(SEPARATOR)), self.parts["view"]))
        if not self.grant.sees(name.namespace):
            raise NoSuchView(f"View does not exist: {name}")
        return name

    @property
    def is_pipeline(self) -> bool:
        return self.catalog.is_pipeline(self.request.headers.get(PIPELINE_HEADER))

    @property
    def idempotency_key(self) -> str | None:
        """The client's name for this very request, so that asking again does not do it again."""
        sent = self.request.headers.get("Idempotency-Key")
        if sent is None:
            return None
        try:
            mine = "" if self.grant.is_lake_wide else f" {self.grant.id}"
            return f"{uuid.UUID(sent)} {self.request.method} {sent_text(self.request.raw_path)}{mine}"
        except ValueError:
            raise InvalidInput(f"Idempotency-Key {sent[:60]!r} is not a UUID") from None

    def remember(self, status: int, body: bytes = b"") -> Remember | None:
        key = self.idempotency_key
        now_ms = self.catalog.clock_ms()
        return Remember(key, now_ms + ANSWERS_KEPT_MS, status, body, now_ms) if key else None

    @functools.cached_property
    def body(self) -> Json:
        try:
            body = as_object(msgspec.json.decode(self._body), "the body")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInput(f"the body is not JSON: {error}", hint="send a JSON object") from None
        self.check_places(body)
        return body

    def check_places(self, document: Json) -> None:
        """Refuse places of files that are not this token's."""
        check_places(self.catalog.storage, self.grant, document)

    @property
    def page(self) -> tuple[str | None, int | None]:
        """Where the page begins and how long it is; without a pageToken everything is asked for."""
        token = self.query.get("pageToken")
        if token is None:
            return None, None
        size = self.query.get("pageSize", str(_PAGE_MAX))
        if not _WHOLE.fullmatch(size) or not 1 <= int(size) <= _PAGE_MAX:
            raise InvalidInput(f"pageSize {size[:20]!r} is not a number from 1 to {_PAGE_MAX}")
        return token or None, int(size)

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() == "true"
