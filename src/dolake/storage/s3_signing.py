"""Requests of clients to the store, signed with the lake's keys: those that stay below the places they may reach.

From delegation.py. A request is taken apart, held to a short list of what may be asked, and put together again from its
parts; what is signed is what was checked, and no other spelling of it. Promise: whatever is not on the list is refused,
and so are places with dots for names, other hosts, and headers that make the store read or open something else.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit
from xml.etree import ElementTree

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError
from botocore.httpsession import URLLib3Session

from dolake.errors import Forbidden, Unavailable
from dolake.storage.reach import Reach, Unsigned
from dolake.storage.s3 import S3Storage

Right = Literal["read", "write"]
_OF_FILES: dict[tuple[str, frozenset[str]], Right] = {
    ("GET", frozenset()): "read",
    ("HEAD", frozenset()): "read",
    ("PUT", frozenset()): "write",
    ("DELETE", frozenset()): "write",
    ("POST", frozenset({"uploads"})): "write",
    ("PUT", frozenset({"partNumber", "uploadId"})): "write",
    ("POST", frozenset({"uploadId"})): "write",
    ("DELETE", frozenset({"uploadId"})): "write",
}
"""Methods and the names of their parameters: everything else, such as `acl` or `versionId`, is not for clients."""
_LISTING = frozenset(
    [
        "list-type",
        "prefix",
        "delimiter",
        "max-keys",
        "continuation-token",
        "start-after",
        "encoding-type",
        "fetch-owner",
    ]
)
_IGNORED = "x-id"
"""Some clients repeat the operation's name here; to the store it means nothing."""
_HEADERS = frozenset(
    {
        "x-amz-checksum-algorithm",
        "x-amz-checksum-crc32",
        "x-amz-checksum-crc32c",
        "x-amz-checksum-crc64nvme",
        "x-amz-checksum-mode",
        "x-amz-checksum-sha1",
        "x-amz-checksum-sha256",
        "x-amz-checksum-type",
        "x-amz-content-sha256",
        "x-amz-decoded-content-length",
        "x-amz-sdk-checksum-algorithm",
        "x-amz-storage-class",
        "x-amz-te",
        "x-amz-trailer",
    }
)
"""Not among them: copies from elsewhere, access for others, redirects, tags, locks. Such a header must not be added
behind the signature either: a store that lets that pass gets nothing signed but reading."""
_DATE = "x-amz-date"
_PAYLOAD, _PAYLOAD_UNSIGNED = "x-amz-content-sha256", "UNSIGNED-PAYLOAD"
_PAYLOADS = re.compile(r"UNSIGNED-PAYLOAD|STREAMING-UNSIGNED-PAYLOAD-TRAILER|[0-9a-f]{64}")
_UNCLEAN = re.compile(r"[\x00-\x20\x7f\\#]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_DELETES_MAX = 1_000
_DELETE_WORDS = ("Delete", "Object", "Key", "Quiet")
_URI_LENGTH_MAX = 8_000
_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class _Target:
    """A request taken apart; `host` is where it goes, and `path` what its path begins with."""

    host: str
    path: str
    bucket: str
    key: str
    parameters: dict[str, str]

    @property
    def uri(self) -> str:
        """The one spelling of it."""
        query = "&".join(
            quote(name, safe="") + (f"={quote(value, safe='')}" if value else "")
            for name, value in sorted(self.parameters.items())
        )
        return f"{self.host}{self.path}/{quote(self.key, safe='/~')}{'?' if query else ''}{query}"


class Signer:
    """See the module. Blocks where keys of a role must be renewed."""

    def __init__(self, storage: S3Storage, refuses_unsigned: Callable[[], bool] | None = None) -> None:
        """`refuses_unsigned` is for tests without a store: it is asked otherwise."""
        self._storage = storage
        self._refuses_unsigned = functools.cache(refuses_unsigned or self._ask_about_unsigned)
        buckets = {root.removeprefix("s3://").partition("/")[0] for root in storage.roots}
        self._hosts: dict[str, str] = {}
        """Addresses, and the bucket that each stands for; none where the path names it."""
        for base in _bases(storage):
            scheme, _, host = base.partition("://")
            self._hosts |= {base: ""} | {f"{scheme}://{bucket}.{host}": bucket for bucket in buckets}

    def sign(self, request: Unsigned, reach: Reach) -> tuple[str, dict[str, list[str]]]:
        """The address to ask, and the headers to add; Forbidden where the reach ends."""
        target = self._target(request.uri)
        headers = _checked_headers(request.headers)
        payload = headers.pop(_PAYLOAD, None)
        if payload is not None and not _PAYLOADS.fullmatch(payload):
            raise _refusal(f"a payload of the kind {payload[:60]}")
        right = _right(request.method, target, reach, request.body)
        if right != "read" and not self._refuses_unsigned():
            raise Forbidden(
                "nothing is signed for writing: this store lets headers be added to a signed request",
                hint="so a file could be made a copy of any other; write with storage.vending = sts, or with own keys",
            )
        if right == "delete":
            digest = hashlib.sha256((request.body or "").encode()).hexdigest()
            if payload not in (None, digest):  # else another list than the one that was read could be sent
                raise _refusal("a list of files to remove whose digest is another one")
            payload = digest
        signed = self._signed(request.method, target.uri, headers, payload or _PAYLOAD_UNSIGNED)
        sent = {name.lower() for name in request.headers}
        return target.uri, {name: [value] for name, value in signed.items() if name.lower() not in sent - {_DATE}}

    def _signed(self, method: str, uri: str, headers: dict[str, str], payload: str) -> dict[str, str]:
        keys = self._storage.keys()
        request = AWSRequest(method=method, url=uri, headers=headers)
        credentials = Credentials(keys.access_key_id, keys.secret_access_key, keys.session_token or None)
        auth: Any = S3SigV4Auth(credentials, "s3", self._storage.region)
        auth.payload = lambda _request: payload  # what is known of a body that somebody else sends
        auth.add_auth(request)
        return dict(request.headers.items())

    def _ask_about_unsigned(self) -> bool:
        """Whether the store refuses a header that was added behind the signature, as Amazon's does and MinIO's not.

        Asked with a listing, to which the header means nothing: once as it was signed, once with one more.
        """
        bucket = self._storage.root.removeprefix("s3://").partition("/")[0]
        base, parameters = _bases(self._storage)[0], {"list-type": "2", "max-keys": "1"}
        host, path = base, f"/{bucket}"
        if not self._storage.is_path_style:
            host, path = base.replace("://", f"://{bucket}."), ""
        uri = _Target(host, path, bucket, "", parameters).uri
        signed = self._signed("GET", uri, {}, hashlib.sha256(b"").hexdigest())
        try:
            status = _status(uri, signed)
            if status == 200:
                return _status(uri, signed | {"x-amz-copy-source": f"/{bucket}/none"}) in (400, 403)
        except BotoCoreError as error:
            raise Unavailable(f"the store cannot be asked: {error}", hint="is it there?") from error
        raise Unavailable(f"the store refused a listing: {status}", hint="the lake's keys need s3:ListBucket")

    def _target(self, uri: str) -> _Target:
        if len(uri) > _URI_LENGTH_MAX or not uri.isascii() or _UNCLEAN.search(uri):
            raise _refusal("an address that is not spelled plainly")
        try:
            parts = urlsplit(uri)
            host = f"{parts.scheme}://{parts.netloc.lower().removesuffix(_DEFAULT_PORTS.get(parts.scheme, ':'))}"
            path = unquote(parts.path, errors="strict").removeprefix("/")
            parameters = dict(_parameters(parts.query))
        except ValueError:
            raise _refusal("an address that cannot be read") from None
        bucket = self._hosts.get(host)
        if bucket is None:
            raise _refusal("an address that is not the store's")
        if bucket:
            return _Target(host, "", bucket, _checked_key(path), parameters)
        bucket, _, key = path.partition("/")
        return _Target(host, f"/{quote(bucket, safe='')}", bucket, _checked_key(key), parameters)


def _status(uri: str, headers: dict[str, str]) -> int:
    session = URLLib3Session(timeout=_WAIT_S)
    try:
        return int(session.send(AWSRequest(method="GET", url=uri, headers=headers).prepare()).status_code)
    finally:
        session.close()


_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def _bases(storage: S3Storage) -> list[str]:
    if storage.endpoint:
        scheme, _, host = storage.endpoint.partition("://")
        return [f"{scheme}://{host.lower().removesuffix(_DEFAULT_PORTS[scheme])}"]
    end = "amazonaws.com.cn" if storage.region.startswith("cn-") else "amazonaws.com"
    names = (f"s3.{storage.region}", f"s3.dualstack.{storage.region}", "s3")
    return [f"https://{name}.{end}" for name in names]


def _parameters(query: str) -> Iterator[tuple[str, str]]:
    seen = set()
    for part in query.split("&") if query else ():
        if "+" in part:  # a plus to some, a space to others
            raise ValueError("ambiguous")
        name, _, value = part.partition("=")
        name, value = unquote(name, errors="strict"), unquote(value, errors="strict")
        if name in seen or _CONTROL.search(name + value):
            raise ValueError("ambiguous")
        seen.add(name)
        if name != _IGNORED:
            yield name, value


def _checked_key(key: str) -> str:
    """Dots are names like any other to a store, but not to all that may stand before it."""
    if {".", ".."} & set(re.split(r"[/\\]", key)) or _CONTROL.search(key):
        raise _refusal("a place with dots for a name")
    return key


def _right(method: str, target: _Target, reach: Reach, body: str | None) -> str:
    """Which kind of request this is; Forbidden where the reach ends or where it is none that is signed."""
    names = frozenset(target.parameters)
    if target.key:
        right = _OF_FILES.get((method, names))
        if right is None:
            raise _refusal(f"{method} with {', '.join(sorted(names)) or 'nothing'}")
        _check(reach, right, f"s3://{target.bucket}/{target.key}")
        return right
    if method == "GET" and names <= _LISTING and target.parameters.get("list-type") == "2":
        _check(reach, "read", f"s3://{target.bucket}/{_checked_key(target.parameters.get('prefix', ''))}")
        return "read"
    if method == "POST" and names == {"delete"}:
        for key in _keys_in(body or ""):
            _check(reach, "write", f"s3://{target.bucket}/{_checked_key(key)}")
        return "delete"
    raise _refusal("what concerns the bucket")


def _check(reach: Reach, right: Right, location: str) -> None:
    if not (reach.may_read(location) if right == "read" else reach.may_write(location)):
        raise Forbidden(
            f"this token may not {right} that file as a part of this table",
            hint="files lie below the table's location; only who may change a table writes there,"
            " and into those that DoLake manages only its pipeline",
        )


def _keys_in(body: str) -> list[str]:
    """The files that a request for removal names, if it says nothing else."""
    if "<!" in body or "<?" in body.removeprefix("<?xml"):
        raise _refusal("a list of files with more than files in it")
    try:
        root = ElementTree.fromstring(body)  # noqa: S314 - without declarations it has no entities
    except (ElementTree.ParseError, ValueError):
        raise _refusal("a list of files that cannot be read") from None
    nodes: list[Any] = list(root.iter())
    keys = [node for node in nodes if _word(node) == "Key"]
    is_plain = _word(root) == "Delete" and all(_word(node) in _DELETE_WORDS for node in nodes)
    if not is_plain or not 0 < len(keys) <= _DELETES_MAX or any(len(key) for key in keys):
        raise _refusal("a list of files with more than files in it")
    return [key.text or "" for key in keys]


def _word(node: Any) -> str:
    return str(node.tag).rpartition("}")[2]


def _checked_headers(headers: Mapping[str, list[str]]) -> dict[str, str]:
    """Those that must be signed; the others are the client's own affair."""
    found: dict[str, str] = {}
    for name, values in headers.items():
        name, value = name.lower(), ",".join(values)
        if not name.startswith("x-amz-") or name == _DATE:  # the time is told by the server's clock
            continue
        if name not in _HEADERS or name in found:
            raise _refusal(f"the header {name[:60]}")
        if _CONTROL.search(value) or not value.isascii():
            raise _refusal(f"such a value of the header {name}")
        found[name] = value
    return found


def _refusal(what: str) -> Forbidden:
    return Forbidden(f"not signed: {what}", hint="files of a table are read, written and removed, and nothing else")
