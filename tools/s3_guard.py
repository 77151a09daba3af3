"""What a store does with signatures and rights, and moto does not: in front of it, for tests of what clients are given.

Promise: a request is let through only with a right signature of a key that is known, for what that key may do. Keys of
roles are known from the answers in which moto gives them, and may do what the policy in the request for them says.
Written from Amazon's description of version 4, and not with botocore, which signs what is looked at here.
"""

from __future__ import annotations

import fnmatch
import hashlib
import hmac
import io
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, quote, unquote
from xml.etree import ElementTree

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/(\w+)/aws4_request, ?"
    r"SignedHeaders=([^,]+), ?Signature=(\w{64})"
)
EVERYTHING = {"Statement": [{"Action": ["s3:*", "sts:*"], "Resource": ["*"]}]}
READING = {"Statement": [{"Action": ["s3:GetObject", "s3:ListBucket"], "Resource": ["*"]}]}


@dataclass(frozen=True)
class _User:
    secret: str
    policy: dict[str, Any]
    token: str = ""


@dataclass
class Guard:
    """Set as `S3Server.guard`."""

    users: dict[str, _User] = field(default_factory=dict)
    refused: list[tuple[str, str, str, str]] = field(default_factory=list)
    """Key, method, path and why."""
    used: dict[str, set[str]] = field(default_factory=dict)
    """By key, what was done with it: `GET /bucket/key`."""
    roles_asked: list[dict[str, str]] = field(default_factory=list)
    is_giving: bool = True
    """Whether keys of roles are given."""
    lifetime_s: int | None = None
    """How long they are good, whatever was asked for."""

    def add(self, key: str, secret: str, policy: dict[str, Any]) -> None:
        self.users[key] = _User(secret, policy)

    def answer(self, environ: dict[str, Any], respond: Any, moto: Application) -> Iterable[bytes]:
        is_chunked = environ.get("HTTP_TRANSFER_ENCODING") == "chunked"
        body = environ["wsgi.input"].read(-1 if is_chunked else int(environ.get("CONTENT_LENGTH") or 0))
        key, problem = self._look(environ, body)
        environ["wsgi.input"], environ["CONTENT_LENGTH"] = io.BytesIO(body), str(len(body))
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if problem:
            self.refused.append((key, method, path, problem))
            respond("403 Forbidden", [("Content-Type", "application/xml")])
            return [f"<Error><Code>AccessDenied</Code><Message>{problem}</Message></Error>".encode()]
        self.used.setdefault(key, set()).add(f"{method} {path}")
        if path == "/" and b"Action=AssumeRole" in body:
            return self._give(environ, respond, moto, body)
        return moto(environ, respond)

    def _give(self, environ: dict[str, Any], respond: Any, moto: Application, body: bytes) -> Iterable[bytes]:
        asked = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        self.roles_asked.append(asked)
        if not self.is_giving:
            respond("403 Forbidden", [("Content-Type", "text/xml")])
            return [
                b"<ErrorResponse><Error><Code>AccessDenied</Code><Message>no role</Message></Error></ErrorResponse>"
            ]
        given = b"".join(moto(environ, respond))
        if self.lifetime_s is not None:  # the answer stays as long as it was
            ends = (datetime.now(UTC) + timedelta(seconds=self.lifetime_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
            given = re.sub(rb"(?<=<Expiration>)[^<]*", lambda found: ends.encode().ljust(len(found[0]), b" "), given)
        nodes = ElementTree.fromstring(given).iter()  # noqa: S314 - moto's own
        found = {str(node.tag).rpartition("}")[2]: node.text or "" for node in nodes}
        policy = json.loads(asked["Policy"])
        self.users[found["AccessKeyId"]] = _User(found["SecretAccessKey"], policy, found["SessionToken"])
        return [given]

    def _look(self, environ: dict[str, Any], body: bytes) -> tuple[str, str]:
        """Whose request it is, and what is wrong with it."""
        signed = _AUTHORIZATION.fullmatch(environ.get("HTTP_AUTHORIZATION", ""))
        if signed is None:
            return "", "not signed"
        key, day, region, service, names, signature = signed.groups()
        user = self.users.get(key)
        if user is None:
            return key, "no such key"
        headers = _headers_of(environ)
        payload = headers.get("x-amz-content-sha256", hashlib.sha256(body).hexdigest())
        if re.fullmatch("[0-9a-f]{64}", payload) and payload != hashlib.sha256(body).hexdigest():
            return key, "another body than was signed"
        if user.token != headers.get("x-amz-security-token", ""):
            return key, "not the token of this key"
        if left_out := {name for name in headers if name.startswith("x-amz-")} - set(names.split(";")):
            return key, f"headers that are not signed: {sorted(left_out)}"
        path, _, query = environ["REQUEST_URI"].partition("?")
        canonical = "\n".join(
            (
                environ["REQUEST_METHOD"],
                quote(unquote(path), safe="/~"),
                _canonical_query(query),
                *(f"{name}:{' '.join(headers.get(name, '').split())}" for name in names.split(";")),
                "",
                names,
                payload,
            )
        )
        scope = f"{day}/{region}/{service}/aws4_request"
        text = "\n".join(("AWS4-HMAC-SHA256", headers["x-amz-date"], scope, _digest(canonical)))
        wanted = f"AWS4{user.secret}".encode()
        for part in (day, region, service, "aws4_request", text):
            wanted = hmac.new(wanted, part.encode(), hashlib.sha256).digest()
        if wanted.hex() != signature:
            return key, "the signature is wrong"
        return key, _problem_with_rights(user.policy, environ, body)


def _headers_of(environ: dict[str, Any]) -> dict[str, str]:
    found = {name[5:].lower().replace("_", "-"): str(value) for name, value in environ.items() if name[:5] == "HTTP_"}
    return found | {
        name.lower().replace("_", "-"): str(environ[name])
        for name in ("CONTENT_TYPE", "CONTENT_LENGTH")
        if name in environ
    }


def _canonical_query(query: str) -> str:
    pairs = [part.partition("=")[::2] for part in query.split("&") if part]
    return "&".join(
        sorted(f"{quote(unquote(name), safe='')}={quote(unquote(value), safe='')}" for name, value in pairs)
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


_ACTIONS = {"GET": "s3:GetObject", "HEAD": "s3:GetObject", "PUT": "s3:PutObject", "DELETE": "s3:DeleteObject"}


def _problem_with_rights(policy: dict[str, Any], environ: dict[str, Any], body: bytes) -> str:
    """Each file that is named must be allowed by one of the statements."""
    bucket, _, key = environ["PATH_INFO"].removeprefix("/").partition("/")
    query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    if not bucket:
        wanted = [("sts:AssumeRole", "*", "")]
    elif "delete" in query:
        nodes = ElementTree.fromstring(body).iter()  # noqa: S314 - a test's own
        keys = [node.text or "" for node in nodes if str(node.tag).endswith("Key")]
        wanted = [("s3:DeleteObject", f"arn:aws:s3:::{bucket}/{each}", "") for each in keys]
    elif not key:
        wanted = [("s3:ListBucket", f"arn:aws:s3:::{bucket}", query.get("prefix", [""])[0])]
    else:
        wanted = [(_ACTIONS.get(environ["REQUEST_METHOD"], "s3:PutObject"), f"arn:aws:s3:::{bucket}/{key}", "")]
    refused = [each for each in wanted if not _allows(policy, *each)]
    return f"not allowed: {refused}" if refused else ""


def _allows(policy: dict[str, Any], *wanted: str) -> bool:
    """One statement that denies counts more than all that allow."""
    effects = [each.get("Effect", "Allow") for each in policy["Statement"] if _concerns(each, *wanted)]
    return "Allow" in effects and "Deny" not in effects


def _concerns(statement: dict[str, Any], action: str, resource: str, prefix: str) -> bool:
    if not any(_is_like(action, each) for each in statement["Action"]):
        return False
    prefixes = statement.get("Condition", {}).get("StringLike", {}).get("s3:prefix", ["*"])
    return any(_is_like(resource, each) for each in statement["Resource"]) and any(
        _is_like(prefix, each) for each in prefixes
    )


def _is_like(text: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(text, pattern.replace("[", "[[]"))
