"""What a client gets beside a table in a store, so that it reaches the table's files: keys, or who signs its requests.

From rest.py, scan_rest.py and replies.py, for answers that show a table, and the two routes at the end; from
storage/delegation.py. Promise: nobody reaches more than the folders of a table that his token sees, and nobody but
the pipeline can change a managed table with what is given here; nothing is given where there are no tokens, because
then nobody knows who asks; no answer has an entry without keys; nothing of it is logged or kept on disk.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from aiohttp import hdrs, web

from dolake.catalog.base import SEPARATOR, Name
from dolake.catalog.call import Call
from dolake.catalog.documents import METADATA_PATH
from dolake.catalog.locations import is_own
from dolake.catalog.places import folders_of
from dolake.catalog.tenants import check_paths
from dolake.catalog.values import Json, read_text
from dolake.errors import Conflict, DoLakeError, Forbidden, InvalidInput, Unavailable
from dolake.identity.grants import NOBODY_YET, PIPELINE
from dolake.storage.reach import Reach, Unsigned, is_below
from dolake.tables.tiers import COLD

if TYPE_CHECKING:
    from dolake.storage.delegation import Delegation
    from dolake.storage.s3_keys import Vended

logger = logging.getLogger(__name__)
ASKED = "X-Iceberg-Access-Delegation"
_TABLE = "/namespaces/{namespace}/tables/{table}"
_READING = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Given:
    """What an answer carries beside the table; `mark` changes with it, for the ETag."""

    config: dict[str, str] = field(default_factory=dict, repr=False)
    credentials: list[Json] = field(default_factory=list, repr=False)
    mark: str = ""

    @property
    def fields(self) -> Json:
        """As they stand in the answer."""
        return {"config": self.config} | self.listed

    @property
    def listed(self) -> Json:
        return {"storage-credentials": self.credentials} if self.credentials else {}


NOTHING = Given()


async def give(call: Call, read_metadata: Callable[[], Json]) -> Given:
    """What this request gets with the table of this metadata: nothing, unless it asks and the settings say so."""
    delegation = call.catalog.delegation
    kinds = delegation.kinds(call.request.headers.get(ASKED)) if delegation else []
    if delegation is None or not kinds:
        return NOTHING
    reach = await call.catalog.run(_reach, call, read_metadata)
    if reach is None:
        return NOTHING
    call.is_private = True
    name = call.table if "table" in call.parts else Name(call.namespace, read_text(call.body, "name"))
    for kind in kinds:
        if kind == "remote-signing":
            return Given(_signing_config(delegation, name), mark="signed")
        try:
            if vended := await _keys(call, delegation, reach):
                return _with_keys(delegation, name, reach, vended)
        except (Unavailable, InvalidInput) as error:
            # Who has keys of his own can go on with them: most clients ask whether they need any or not.
            logger.warning("no keys for a client", extra={"table": str(name), "reason": error.message})
    return NOTHING


async def _keys(call: Call, delegation: Delegation, reach: Reach, *, is_renewing: bool = False) -> Vended | None:
    grant = call.grant
    if not delegation.has_keys(is_lake_wide=grant.is_lake_wide):
        return None
    try:
        vended = await delegation.run(delegation.keys_for, grant.id, reach, grant.expires_ms)
    except (Unavailable, InvalidInput):
        delegation.counts["failed"] += 1
        raise
    delegation.counts["renewed" if is_renewing else "keys"] += 1
    return vended


def _reach(call: Call, read_metadata: Callable[[], Json], *, is_writing: bool = True) -> Reach | None:
    """How far the request's token reaches with this table; a view has no files of its own. Blocks."""
    grant, storage = call.grant, call.catalog.storage
    if grant.id in (NOBODY_YET.id, PIPELINE.id) or "table-uuid" not in (metadata := read_metadata()):
        return None
    metadata_path = (metadata.get("properties") or {}).get(METADATA_PATH)
    wanted = [*folders_of(storage, metadata), *([metadata_path] if metadata_path else ())]
    places: dict[str, None] = {}
    for place in wanted:
        try:
            if storage.is_inside(place):
                found = storage.resolve(place)
                check_paths(storage, grant, [found])
                if not is_own(storage, found):
                    places[found] = None
        except DoLakeError:
            continue
    if not places:
        return None
    may_write = is_writing and grant.may(("write",)) and call.pin is None
    # Outside the warehouse there may be what nobody but its owner should write to, and the catalog knows nothing of it.
    writes = tuple(
        place for place in places if may_write and is_below(place, [storage.root]) and storage.tiers.of(place) != COLD
    )
    return Reach(tuple(places), () if writes and call.catalog.places.are_managed(writes) else writes)


def _with_keys(delegation: Delegation, name: Name, reach: Reach, vended: Vended) -> Given:
    keys = {
        "s3.access-key-id": vended.keys.access_key_id,
        "s3.secret-access-key": vended.keys.secret_access_key,
        **({"s3.session-token": vended.keys.session_token} if vended.keys.session_token else {}),
    }
    if vended.expires_ms is not None:
        keys["s3.session-token-expires-at-ms"] = str(vended.expires_ms)
        keys["client.refresh-credentials-endpoint"] = f"{_path(name)}/credentials"
    config = delegation.client_options | keys
    mark = hashlib.sha256(f"{vended.keys.access_key_id} {reach}".encode()).hexdigest()[:12]
    return Given(config, [{"prefix": place, "config": config} for place in reach.reads], mark)


def _signing_config(delegation: Delegation, name: Name) -> dict[str, str]:
    """Where it lies is said as seen from the catalog's address, which the client knows better than the server."""
    endpoint = f"{_path(name)}/sign"
    return delegation.client_options | {
        "s3.remote-signing-enabled": "true",
        "s3.signer": "S3V4RestSigner",
        "s3.signer.endpoint": endpoint,
        "signer.endpoint": endpoint,
    }


def _path(name: Name) -> str:
    return f"v1/namespaces/{quote(SEPARATOR.join(name.namespace), safe='')}/tables/{quote(name.name, safe='')}"


# --- routes ----------------------------------------------------------------------------------------------------------


async def load_credentials(call: Call) -> web.StreamResponse:
    """Keys for a table's files, again: those of a load are good for some time only."""
    document = await call.catalog.run(call.catalog.tables.load, call.table)
    delegation, credentials = call.catalog.delegation, []
    if delegation:
        reach = await call.catalog.run(_reach, call, lambda: document.metadata)
        vended = await _keys(call, delegation, reach, is_renewing=True) if reach else None
        if reach and vended:
            # One entry, also where there are more places: Iceberg's own library takes no second one here.
            config = _with_keys(delegation, call.table, reach, vended).config
            credentials = [{"prefix": _common(reach.reads), "config": config}]
    return web.Response(body=msgspec.json.encode({"storage-credentials": credentials}), content_type="application/json")


async def sign_request(call: Call) -> web.StreamResponse:
    """Sign a client's request for a file of this table, if it is one that the token may make."""
    table, request = call.table, _read_request(call.body)
    document = await call.catalog.run(call.catalog.tables.load, table)
    delegation = call.catalog.delegation
    if delegation is None:
        raise Conflict("the catalog signs no requests", hint="storage.vending decides it; bring keys of your own")
    is_writing = request.method not in _READING
    reach = await call.catalog.run(_reach, call, lambda: document.metadata, is_writing=is_writing)
    if reach is None:
        raise Forbidden("requests for this table's files are not signed for you", hint="it takes a token")
    try:
        uri, headers = await delegation.run(delegation.sign, request, reach)
    except Forbidden:
        delegation.counts["refused"] += 1
        raise
    delegation.counts["signed"] += 1
    # To Iceberg's own library this says that it may use the signature again for half a minute.
    kept = {} if is_writing else {hdrs.CACHE_CONTROL: "private"}
    answer = msgspec.json.encode({"uri": uri, "headers": headers})
    return web.Response(body=answer, headers=kept, content_type="application/json")


ROUTES: list[tuple[str, str, Any]] = [
    ("GET", f"{_TABLE}/credentials", load_credentials),
    ("POST", f"{_TABLE}/sign", sign_request),
]


class _SignRequest(msgspec.Struct):
    """As the specification has it; `region` is the store's own, whatever a client takes it for."""

    method: str
    uri: str
    headers: dict[str, list[str]] = {}
    body: str | None = None
    provider: str | None = None


def _read_request(body: Json) -> Unsigned:
    try:
        read = msgspec.convert(body, _SignRequest)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"Cannot parse the request to sign: {error}") from None
    if read.provider is not None and read.provider.lower() != "s3":
        raise InvalidInput(f"requests to {read.provider[:60]!r} are not signed here", hint="the store speaks s3")
    return Unsigned(read.method, read.uri, read.headers, read.body)


def _common(places: tuple[str, ...]) -> str:
    """The one place, or what several have in common."""
    first, last = min(places).split("/"), max(places).split("/")
    count = next((n for n, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return "/".join(first[: max(count, 2)]) + ("/" if count <= 2 else "")
