"""A bucket of an S3-compatible store as storage. Locations are `s3://bucket/key`; `r2://` and `s3a://` mean the same.

From opening.py, for the catalog, the pipeline, the query process and `dolake verify`. Promise: storage/base.py's.
Written once is the store's own promise where it has one (`If-None-Match: *`). A request that the store did not answer
well is repeated with growing, random waits; nothing is asked of a listing that a write just before should show; one
name is written at most once a second, because some stores take no more.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, ResponseStreamingError

from dolake.errors import Conflict, InvalidInput, NotFound, StoreUnavailable, Unavailable
from dolake.settings import StorageSettings
from dolake.storage.base import StoredFile
from dolake.storage.breaker import Breaker
from dolake.storage.s3_files import S3Download, S3Upload
from dolake.tables.tiers import COLD, COLD_SUFFIX, Tiers, checked_tiers

logger = logging.getLogger(__name__)

_LOCATION = re.compile(r"(?:s3|s3a|s3n|r2)://([^/]+)(?:/(.*))?", re.DOTALL)
_REGION = "us-east-1"
"""Where nobody names one. Stores that have no regions take it."""
CONNECT_MAX_MS = 10_000
_CONNECTIONS_MAX = 32
_AT_ONCE_MAX = 1000
"""Files that one request lists or removes."""
_BROKEN_WAIT_S = 0.1
_BROKEN_WAIT_MAX_S = 5.0
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
        self.tiers = checked_tiers(Tiers(self.root, canonical(settings.cold_location or f"{self.root}{COLD_SUFFIX}")))
        self._cold_class = settings.cold_class
        self.roots = tuple(dict.fromkeys((self.root, self.tiers.cold, *(canonical(root) for root in roots))))
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
                connect_timeout=min(settings.timeout_ms, CONNECT_MAX_MS) / 1000,
                read_timeout=settings.timeout_ms / 1000,
                # Of botocore's ways this one waits for a random part of a time that doubles.
                retries={"mode": "standard", "total_max_attempts": settings.tries_max},
                max_pool_connections=_CONNECTIONS_MAX,
                s3={"addressing_style": "path" if self.is_path_style else "virtual"},
            ),
        )
        self.timeout_ms, self.tries_max = settings.timeout_ms, settings.tries_max
        self._has_conditions = True
        self._breaker = Breaker()
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
        return self._get(location)[0]

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

    def overwrite(self, location: str, data: bytes) -> None:
        """Write a file whether it is there or not, durable when this returns; not more than once a second."""
        self._put(self._checked(location), data)

    def exists(self, location: str) -> bool:
        try:
            self.size(location)
        except NotFound:
            return False
        return True

    def size(self, location: str) -> int:
        location = self._checked(location)
        with self._asking(location):
            return int(self._s3.head_object(**self._place(location))["ContentLength"])

    # --- files in pieces ---------------------------------------------------------------------------------------------

    def open_read(self, location: str) -> Any:
        import pyarrow as pa  # here and below: who keeps metadata alone does without it

        return pa.PythonFile(self.open_download(location), mode="r")

    def open_download(self, location: str) -> S3Download:
        """The same for who is not Arrow."""
        location = self._checked(location)

        def fetch(range_: str) -> tuple[bytes, str]:
            return self._get(location, Range=range_)

        return S3Download(fetch, lambda: self.size(location))

    def open_write(self, location: str) -> Any:
        import pyarrow as pa

        return pa.PythonFile(self.open_upload(location), mode="w")

    def open_upload(self, location: str) -> S3Upload:
        """The same as `open_write` for who is not Arrow."""
        location = self._checked(location)
        place, class_ = self._place(location), self._class_of(location)
        return S3Upload(self._s3, place, lambda: self._asking(location), class_)

    def sync(self, locations: Iterable[str]) -> None:
        """What the store has said yes to is durable."""

    # --- removing, listing -------------------------------------------------------------------------------------------

    def delete(self, location: str) -> None:
        location = self._checked(location)
        with self._asking(location):
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
        with self._asking(f"s3://{bucket}"):
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
            with self._asking(location):
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

    def _get(self, location: str, **range_: str) -> tuple[bytes, str]:
        """The bytes, and which they are. What breaks off on the way is asked for again; botocore cares for the rest."""
        tries = 0
        while True:
            with self._asking(location):
                answer = self._s3.get_object(**self._place(location), **range_)
                try:
                    with contextlib.closing(answer["Body"]) as body:
                        return body.read(), answer.get("ContentRange", "")
                except BotoCoreError:
                    tries += 1
                    if tries >= self.tries_max:
                        raise
            time.sleep(random.uniform(0.0, min(_BROKEN_WAIT_S * 2**tries, _BROKEN_WAIT_MAX_S)))  # noqa: S311 - no secret

    def _put(self, location: str, data: bytes, **conditions: str) -> None:
        with self._asking(location, is_conditional=bool(conditions)):
            self._s3.put_object(**self._place(location), Body=data, **conditions, **self._class_of(location))

    def _class_of(self, location: str) -> dict[str, str]:
        """What a new file says of itself, where the cold ones have a class of their own."""
        is_of_class = self._cold_class and self.tiers.of(location) == COLD
        return {"StorageClass": self._cold_class} if is_of_class else {}

    @contextlib.contextmanager
    def _asking(self, location: str, *, is_conditional: bool = False) -> Iterator[None]:
        """One request; none while the store is known not to answer."""
        with self._breaker.passing(location), _as_ours(location, is_conditional=is_conditional):
            yield

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
        is_silent = isinstance(error, HTTPClientError) and not isinstance(error, ResponseStreamingError)
        kind = StoreUnavailable if is_silent else Unavailable
        raise kind(f"the store cannot be asked for {location}: {error}", hint="is it there?") from error


class _Replacing:
    """Files that are written again and again: each at most once a second, and the last bytes win.

    A store that is down gets them when it is back: who reads them has no catalog to tell him that they are old.
    """

    _EVERY_S = 1.0
    _WAIT_MAX_S = 30.0

    def __init__(self, put: Callable[[str, bytes], None]) -> None:
        self._put = put
        self._lock = threading.Lock()
        self._written_s: dict[str, float] = {}
        self._waiting: dict[str, bytes] = {}
        self._failures: dict[str, int] = {}
        """In a row, of those that wait."""
        self._timers: dict[str, threading.Timer] = {}
        self._is_closed = False

    def find(self, location: str) -> bytes | None:
        """What is written soon."""
        with self._lock:
            return self._waiting.get(location)

    def write(self, location: str, data: bytes) -> None:
        with self._lock:
            wait_s = self._written_s.get(location, -self._EVERY_S) + self._EVERY_S - time.monotonic()
            is_free = wait_s <= 0 and location not in self._waiting
            self._waiting[location] = data
            if not is_free:
                self._start_timer(location, wait_s)
        if is_free:
            self._write_waiting(location)

    def _write_waiting(self, location: str) -> None:
        with self._lock:
            self._timers.pop(location, None)
            data = self._waiting.get(location)
            self._note(location)
        if data is None:
            return
        try:
            self._put(location, data)
        except Unavailable as error:
            self._wait_longer(location, error)
            return
        with self._lock:
            self._failures.pop(location, None)
            if self._waiting.get(location) is data:
                del self._waiting[location]
            else:
                self._start_timer(location, self._EVERY_S)

    def _wait_longer(self, location: str, error: Unavailable) -> None:
        with self._lock:
            failures = self._failures[location] = self._failures.get(location, 0) + 1
            wait_s = min(self._EVERY_S * 2**failures, self._WAIT_MAX_S)
            self._start_timer(location, wait_s)
        logger.warning("file not replaced yet", extra={"reason": error.message, "again_s": wait_s})

    def _start_timer(self, location: str, wait_s: float) -> None:
        """Under the lock."""
        if location in self._timers or location not in self._waiting or self._is_closed:
            return
        timer = threading.Timer(max(wait_s, 0.0), functools.partial(self._write_waiting, location))
        timer.daemon = True
        self._timers[location] = timer
        timer.start()

    def _note(self, location: str) -> None:
        now_s = time.monotonic()
        if len(self._written_s) > 10_000:  # those of long ago may be written at once anyway
            self._written_s = {each: at_s for each, at_s in self._written_s.items() if now_s - at_s < self._EVERY_S}
        self._written_s[location] = now_s

    def close(self) -> None:
        """Write what waits, unless the store has just refused it: nobody waits for a store in order to end."""
        with self._lock:
            self._is_closed = True
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()
            waiting = {each: data for each, data in self._waiting.items() if each not in self._failures}
            self._waiting = {}
        for location, data in waiting.items():
            with contextlib.suppress(Unavailable):
                self._put(location, data)
