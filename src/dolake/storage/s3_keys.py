"""Keys of a store for somebody else: of a role, for one reach and some minutes; or a key that can only read.

From delegation.py. Promise: keys of a role can do no more than their reach says, because the store holds them to the
policy that is sent with the request for them; the lake's own keys are handed to nobody. Everything here blocks.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from dolake.errors import InvalidInput, Unavailable
from dolake.settings import StorageSettings
from dolake.storage.reach import CATALOGS_OWN, Reach
from dolake.storage.s3 import Keys, S3Storage

_READING = ["s3:GetObject"]
_WRITING = ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
_PATTERN = re.compile(r"[*?$]")
"""What a policy takes for a pattern or a variable: a folder with such a name would open others, too."""
_ANY_ROLE = "arn:aws:iam::000000000000:role/any"
"""Stores of one's own, such as MinIO, want a name of a role and make no use of it."""
_LIFETIME_MIN_S = 900
_KEPT_MAX = 1_000
_WAIT_S, _TRIES_MAX = 5.0, 2
_FAILED_FOR_MS = 5_000
"""So long nobody else waits for who did not answer."""


@dataclass(frozen=True, slots=True)
class Vended:
    """Keys, and until when they are good; those without an end have no session either."""

    keys: Keys
    expires_ms: int | None = None


class ReadKeys:
    """The same key for everybody, which the settings name; that it can only read is the store's promise."""

    def __init__(self, settings: StorageSettings) -> None:
        if not settings.vending_access_key_id or not settings.vending_secret_access_key:
            raise InvalidInput(
                "storage.vending is keys, but there is none",
                hint="set storage.vending_access_key_id and storage.vending_secret_access_key: a key that only reads",
            )
        if settings.vending_access_key_id == settings.access_key_id:
            raise InvalidInput(
                "storage.vending_access_key_id is the lake's own key, with which clients could write to any table",
                hint="make a key in the store that can only read",
            )
        self._vended = Vended(Keys(settings.vending_access_key_id, settings.vending_secret_access_key))

    is_scoped = False

    def keys_for(self, who: str, reach: Reach, until_ms: int | None) -> Vended:
        return self._vended

    def close(self) -> None:
        """There is nothing to close."""


class RoleKeys:
    """Keys of a role, from the store's STS. They are handed out again until half of their time is over."""

    is_scoped = True

    def __init__(self, storage: S3Storage, settings: StorageSettings, clock_ms: Callable[[], int]) -> None:
        if not settings.vending_role_arn and not (settings.vending_endpoint or settings.endpoint):
            raise InvalidInput("storage.vending is sts, but there is no role", hint="set storage.vending_role_arn")
        self._role = settings.vending_role_arn or _ANY_ROLE
        self._lifetime_s = settings.vending_lifetime_ms // 1000
        self._partition = partition_of(storage.region)
        self._clock_ms = clock_ms
        self._sts = storage.create_client(
            "sts",
            settings.vending_endpoint or settings.endpoint,
            Config(connect_timeout=_WAIT_S, read_timeout=_WAIT_S, retries={"total_max_attempts": _TRIES_MAX}),
        )
        self._kept: OrderedDict[tuple[str, str, int], Vended] = OrderedDict()
        self._failed_until_ms = 0
        self._lock = threading.Lock()

    def keys_for(self, who: str, reach: Reach, until_ms: int | None) -> Vended:
        """For this token and reach; not for much longer than the token lives."""
        policy = policy_for(reach, self._partition)
        now_ms = self._clock_ms()
        left_s = self._lifetime_s if until_ms is None else (until_ms - now_ms) // 1000
        lifetime_s = max(_LIFETIME_MIN_S, min(self._lifetime_s, left_s))
        wanted = who, policy, lifetime_s if until_ms is None else until_ms
        with self._lock:
            found = self._kept.get(wanted)
            if found and found.expires_ms and found.expires_ms - now_ms > lifetime_s * 500:
                self._kept.move_to_end(wanted)
                return found
            if now_ms < self._failed_until_ms:
                raise Unavailable("the store gives no keys at the moment", hint="try again in a few seconds")
        vended = self._ask(who, policy, lifetime_s)
        with self._lock:
            self._kept[wanted] = vended
            while len(self._kept) > _KEPT_MAX:
                self._kept.popitem(last=False)
        return vended

    def _ask(self, who: str, policy: str, lifetime_s: int) -> Vended:
        try:
            answer: dict[str, Any] = self._sts.assume_role(
                RoleArn=self._role, RoleSessionName=f"dolake-{who}", Policy=policy, DurationSeconds=lifetime_s
            )
        except (BotoCoreError, ClientError) as error:
            with self._lock:
                self._failed_until_ms = self._clock_ms() + _FAILED_FOR_MS
            hint = "look at storage.vending_role_arn and at who may assume that role"
            raise Unavailable(f"the store gives no keys of a role: {error}", hint=hint) from error
        found = answer["Credentials"]
        keys = Keys(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])
        return Vended(keys, round(found["Expiration"].timestamp() * 1000))

    def close(self) -> None:
        self._sts.close()


def partition_of(region: str) -> str:
    """Which of Amazon's worlds a region is in: names of resources begin with it."""
    return "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"


def policy_for(reach: Reach, partition: str) -> str:
    """What keys with this reach may do, in the words of the store; InvalidInput for places that it has no words for."""
    for place in (*reach.reads, *reach.writes):
        if _PATTERN.search(place):
            raise InvalidInput(f"no policy can name {place[:200]} alone", hint="choose a location without * ? $")
    statements = [_allow(_READING, _files(reach.reads, partition))]
    for bucket, folders in _by_bucket(reach.reads).items():
        listing = _allow(["s3:ListBucket"], [f"arn:{partition}:s3:::{bucket}"])
        listing["Condition"] = {"StringLike": {"s3:prefix": [f"{folder}/*" for folder in folders]}}
        statements.append(listing)
    if reach.writes:
        statements.append(_allow(_WRITING, _files(reach.writes, partition)))
        owned = [f"{files}{end}" for files in _files(reach.writes, partition) for end in CATALOGS_OWN]
        statements.append(_allow(_WRITING, owned) | {"Effect": "Deny"})
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))


def _allow(actions: list[str], resources: list[str]) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": actions, "Resource": resources}


def _files(places: Iterable[str], partition: str) -> list[str]:
    return [f"arn:{partition}:s3:::{place.removeprefix('s3://')}/*" for place in places]


def _by_bucket(places: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for place in places:
        bucket, _, folder = place.removeprefix("s3://").partition("/")
        found.setdefault(bucket, []).append(folder)
    return found
