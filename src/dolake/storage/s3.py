"""A bucket of an S3-compatible store as storage. Locations are `s3://bucket/key`; `r2://` and `s3a://` mean the same.

From opening.py, for the catalog, the pipeline, the query process and `dolake verify`. Promise: storage/base.py's.
Written once is the store's own promise where it has one (`If-None-Match: *`). A request that the store did not answer
well is repeated with growing, random waits; nothing is asked of a listing that a write just before should show; one
name is written at most once a second, because some stores take no more.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from dolake.errors import Conflict, InvalidInput, NotFound, Unavailable
from dolake.settings import StorageSettings
from dolake.storage.base import StoredFile
from dolake.storage.s3_files import S3Download, S3Upload

_LOCATION = re.compile(r"(?:s3|s3a|s3n|r2)://([^/]+)(?:/(.*))?", re.DOTALL)
_REGION = "us-east-1"
"""Where nobody names one. Stores that have no regions take it."""
_CONNECTIONS_MAX = 32
_AT_ONCE_MAX = 1000
"""Files that one request lists or removes."""
_SECOND_MS = 999
"""A store says in which second a file was written: it may have been the end of it."""
_MISSING = ("NoSuchKey", "404", "NotFound")
_TAKEN = ("PreconditionFailed", "412", "ConditionalRequestConflict")
_NO_CONDITIONS = ("NotImplemented", "501")
_HINTS = {
    "NoSuchBucket": "make the bucket, or look at storage.location",
    "InvalidAccessKeyId": "look at the keys of the store: storage.access_key_id, the environment or the profile",
    "SignatureDoesNotMatch": "look at the keys of the store: storage.secret_access_key, the environment or the profile",
    "AccessDenied": "the keys of the store may not do this: look at their rights",
    "RequestTimeTooSkewed": "set this machine's clock",
}


@dataclass(frozen=True, slots=True)
class Keys:
    """What a request to the store is signed with."""

    access_key_id: str
    secret_access_key: str
    session_token: str = ""

    def __repr__(self) -> str:
        return "Keys(***)"


class S3Storage:
    """See the module."""

    is_quick = False

    def __init__(self, location: str, settings: StorageSettings, roots: Sequence[str] = ()) -> None:
        self.root = canonical(location)
        self.roots = (self.root, *(canonical(root) for root in roots))
        self._insides = tuple(f"{root}/" for root in self.roots)
        self._session = botocore.session.Session(profile=settings.profile or None)
        self.region = settings.region or self._session.get_config_variable("region") or _REGION
        self.endpoint = settings.endpoint
        self.is_path_style = settings.path_style == "on" or (settings.path_style == "auto" and bool(settings.endpoint))
        self.client_options = {
            "client.region": self.region,
            "s3.region": self.region,
            "s3.path-style-access": str(self.is_path_style).lower(),
            **({"s3.endpoint": self.endpoint} if self.endpoint else {}),
        }
        self.given_keys: Keys | None = None
        """Those of the settings; without any they are those of the environment or the profile."""
        if settings.access_key_id:
            self.given_keys = Keys(settings.access_key_id, settings.secret_access_key, settings.session_token)
            token = settings.session_token or None
            self._session.set_credentials(settings.access_key_id, settings.secret_access_key, token)
        self._s3 = self.create_client(
            "s3",
            settings.endpoint,
            Config(
                connect_timeout=min(settings.timeout_ms, 10_000) / 1000,
                read_timeout=settings.timeout_ms / 1000,
                # Of botocore's ways this one waits for a random part of a time that doubles.
                retries={"mode": "standard", "total_max_attempts": settings.tries_max},
                max_pool_connections=_CONNECTIONS_MAX,
                s3={"addressing_style": "path" if self.is_path_style else "virtual"},
            ),
        )
        self._has_conditions = True
        self._replacing = _Replacing(self._put)

    def create_client(self, service: str, endpoint: str, config: Config) -> Any:
        """A client with the lake's keys; an empty endpoint is AWS's."""
        return self._session.create_client(
            service, region_name=self.region, endpoint_url=endpoint or None, config=config
        )

    def keys(self) -> Keys:
        """Of now: those of a role change by and by."""
        found = self._session.get_credentials()
        if found is None:
            raise Unavailable("there are no keys for the store", hint=_HINTS["InvalidAccessKeyId"])
        frozen = found.get_frozen_credentials()
        return Keys(frozen.access_key, frozen.secret_key, frozen.token or "")

    # --- places ------------------------------------------------------------------------------------------------------

    def is_inside(self, location: str) -> bool:
        try:
            return canonical(location).startswith(self._insides)
        except InvalidInput:
            return False

    def resolve(self, location: str) -> str:
        return self._checked(location)

    def make_folder(self, location: str) -> None:
        """A store has none."""
        self._checked(location)

    # --- whole files -------------------------------------------------------------------------------------------------

    def read(self, location: str) -> bytes:
        location = self._checked(location)
        if (waiting := self._replacing.find(location)) is not None:
            return waiting
        with _as_ours(location):
            answer = self._s3.get_object(**self._place(location))
            with contextlib.closing(answer["Body"]) as body:
                data: bytes = body.read()
                return data

    def write(self, location: str, data: bytes) -> None:
        location = self._checked(location)
        try:
            if self._has_conditions:
                self._put(location, data, IfNoneMatch="*")
                return
        except _Taken as taken:
            # A try whose answer was lost may have done it: then the file that is there is ours.
            if taken.is_retried and self.read(location) == data:
                return
            raise Conflict(f"a file is already at {location}", hint="files are written once") from None
        except _NoConditions:
            self._has_conditions = False
        if self.exists(location):
            raise Conflict(f"a file is already at {location}", hint="files are written once")
        self._put(location, data)

    def replace(self, location: str, data: bytes) -> None:
        self._replacing.write(self._checked(location), data)

    def exists(self, location: str) -> bool:
        try:
            self.size(location)
        except NotFound:
            return False
        return True

    def size(self, location: str) -> int:
        location = self._checked(location)
        with _as_ours(location):
            return int(self._s3.head_object(**self._place(location))["ContentLength"])

    # --- files in pieces ---------------------------------------------------------------------------------------------

    def open_read(self, location: str) -> Any:
        import pyarrow as pa  # here and below: who keeps metadata alone does without it

        return pa.PythonFile(self.open_download(location), mode="r")

    def open_download(self, location: str) -> S3Download:
        """The same for who is not Arrow."""
        location = self._checked(location)

        def fetch(range_: str) -> tuple[bytes, str]:
            with _as_ours(location):
                answer = self._s3.get_object(**self._place(location), Range=range_)
                with contextlib.closing(answer["Body"]) as body:
                    return body.read(), answer.get("ContentRange", "")

        return S3Download(fetch, lambda: self.size(location))

    def open_write(self, location: str) -> Any:
        import pyarrow as pa

        location = self._checked(location)
        return pa.PythonFile(S3Upload(self._s3, self._place(location), lambda: _as_ours(location)), mode="w")

    def sync(self, locations: Iterable[str]) -> None:
        """What the store has said yes to is durable."""

    # --- removing, listing -------------------------------------------------------------------------------------------

    def delete(self, location: str) -> None:
        location = self._checked(location)
        with _as_ours(location):
            self._s3.delete_object(**self._place(location))

    def delete_all(self, locations: Iterable[str]) -> None:
        by_bucket: dict[str, list[str]] = {}
        for location in locations:
            bucket, key = _parts(self._checked(location))
            by_bucket.setdefault(bucket, []).append(key)
        for bucket, keys in by_bucket.items():
            for first in range(0, len(keys), _AT_ONCE_MAX):
                self._delete_some(bucket, keys[first : first + _AT_ONCE_MAX])

    def _delete_some(self, bucket: str, keys: list[str]) -> None:
        wanted = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        with _as_ours(f"s3://{bucket}"):
            failed = self._s3.delete_objects(Bucket=bucket, Delete=wanted).get("Errors", ())
        if failed:
            raise Unavailable(f"{len(failed)} files were not removed: {failed[0].get('Message')}", hint="try again")

    def set_aside(self, location: str) -> str:
        """A store cannot rename: what is there goes at once, and nothing is left to remove later."""
        self.delete_folder(location)
        return f"{self._checked(location)}/.removed"

    def delete_folder(self, location: str) -> None:
        if self._checked(location) in self.roots:
            raise InvalidInput("the warehouse itself is not removed", hint="name a folder below it")
        self.delete_all(file.location for file in self.list(location))

    def list(self, location: str) -> Iterator[StoredFile]:
        bucket, key = _parts(self._checked(location))
        asked: dict[str, Any] = {"Bucket": bucket, "Prefix": f"{key}/" if key else "", "MaxKeys": _AT_ONCE_MAX}
        while True:
            with _as_ours(location):
                page = self._s3.list_objects_v2(**asked)
            for found in page.get("Contents", ()):
                at_ms = round(found["LastModified"].timestamp() * 1000) + _SECOND_MS
                yield StoredFile(f"s3://{bucket}/{found['Key']}", found["Size"], at_ms)
            if not page.get("IsTruncated"):
                return
            asked["ContinuationToken"] = page["NextContinuationToken"]

    def close(self) -> None:
        self._replacing.close()
        self._s3.close()

    def _put(self, location: str, data: bytes, **conditions: str) -> None:
        with _as_ours(location, is_conditional=bool(conditions)):
            self._s3.put_object(**self._place(location), Body=data, **conditions)

    def _place(self, location: str) -> dict[str, str]:
        bucket, key = _parts(location)
        return {"Bucket": bucket, "Key": key}

    def _checked(self, location: str) -> str:
        found = canonical(location)
        if not found.startswith(self._insides) and found not in self.roots:
            raise InvalidInput(f"{location} is outside the warehouse {self.root}", hint="locations lie below it")
        return found


def canonical(location: str) -> str:
    """The one spelling of a place in a store. A key has no dots that lead elsewhere, to a reader who follows them."""
    found = _LOCATION.fullmatch(location)
    if found is None:
        raise InvalidInput(f"{location[:200]} is no place in a store", hint="this warehouse is a bucket: s3://...")
    bucket, key = found[1], (found[2] or "").rstrip("/")
    if {".", ".."} & set(key.split("/")):
        raise InvalidInput(f"{location[:200]} is outside the warehouse: it has dots for a name")
    return f"s3://{bucket}/{key}" if key else f"s3://{bucket}"


def _parts(location: str) -> tuple[str, str]:
    bucket, _, key = location.removeprefix("s3://").partition("/")
    return bucket, key


class _Taken(Exception):
    def __init__(self, *, is_retried: bool) -> None:
        super().__init__()
        self.is_retried = is_retried


class _NoConditions(Exception):
    pass


@contextlib.contextmanager
def _as_ours(location: str, *, is_conditional: bool = False) -> Iterator[None]:
    """What the store says, by what the caller can do about it."""
    try:
        yield
    except ClientError as error:
        code, message = error.response["Error"].get("Code", ""), error.response["Error"].get("Message", "")
        if is_conditional and code in _TAKEN:
            tries: Any = error.response.get("ResponseMetadata", {})
            raise _Taken(is_retried=tries.get("RetryAttempts", 0) > 0) from error
        if is_conditional and code in _NO_CONDITIONS:
            raise _NoConditions from error
        if code in _MISSING:
            raise NotFound(f"no file at {location}", hint="it may have been removed by hand") from None
        hint = _HINTS.get(code, "look at the store, then try again")
        raise Unavailable(f"the store refused {location}: {code} {message}".rstrip(), hint=hint) from error
    except BotoCoreError as error:
        raise Unavailable(f"the store cannot be asked for {location}: {error}", hint="is it there?") from error


class _Replacing:
    """Files that are written again and again: each at most once a second, and the last bytes win."""

    _EVERY_S = 1.0

    def __init__(self, put: Callable[[str, bytes], None]) -> None:
        self._put = put
        self._lock = threading.Lock()
        self._written_s: dict[str, float] = {}
        self._waiting: dict[str, bytes] = {}
        self._timers: dict[str, threading.Timer] = {}

    def find(self, location: str) -> bytes | None:
        """What is written soon."""
        with self._lock:
            return self._waiting.get(location)

    def write(self, location: str, data: bytes) -> None:
        with self._lock:
            wait_s = self._written_s.get(location, -self._EVERY_S) + self._EVERY_S - time.monotonic()
            if wait_s > 0 or location in self._waiting:
                self._waiting[location] = data
                if location not in self._timers:
                    timer = threading.Timer(max(wait_s, 0.0), functools.partial(self._write_waiting, location))
                    timer.daemon = True
                    self._timers[location] = timer
                    timer.start()
                return
            self._note(location)
        self._put(location, data)

    def _write_waiting(self, location: str) -> None:
        with self._lock:
            self._timers.pop(location, None)
            data = self._waiting.get(location)
            self._note(location)
        if data is None:
            return
        with contextlib.suppress(Unavailable):  # the next one comes
            self._put(location, data)
        with self._lock:
            if self._waiting.get(location) is data:
                del self._waiting[location]
            elif location in self._waiting and location not in self._timers:
                timer = threading.Timer(self._EVERY_S, functools.partial(self._write_waiting, location))
                timer.daemon = True
                self._timers[location] = timer
                timer.start()

    def _note(self, location: str) -> None:
        now_s = time.monotonic()
        if len(self._written_s) > 10_000:  # those of long ago may be written at once anyway
            self._written_s = {each: at_s for each, at_s in self._written_s.items() if now_s - at_s < self._EVERY_S}
        self._written_s[location] = now_s

    def close(self) -> None:
        with self._lock:
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()
            waiting, self._waiting = self._waiting, {}
        for location, data in waiting.items():
            with contextlib.suppress(Unavailable):
                self._put(location, data)
