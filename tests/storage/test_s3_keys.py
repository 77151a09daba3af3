"""Keys for clients: what their policy says, how long they are handed out again, and what is refused at the start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from dolake.errors import InvalidInput, Unavailable
from dolake.settings import StorageSettings
from dolake.storage.reach import Reach
from dolake.storage.s3 import S3Storage
from dolake.storage.s3_keys import ReadKeys, RoleKeys, partition_of, policy_for
from tests.support.clock import Clock
from tests.support.store_lake import ROLE
from tools.s3_guard import EVERYTHING, Guard
from tools.s3_server import KEY, SECRET, S3Server

TABLE = "s3://lake/wh/ns/orders"
READER, WRITER = Reach((TABLE,)), Reach((TABLE,), (TABLE,))
HOUR_S, HOUR_MS = 3_600, 3_600_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def guard(s3: S3Server) -> Iterator[Guard]:
    s3.guard = Guard()
    s3.guard.add(KEY, SECRET, EVERYTHING)
    yield s3.guard
    s3.guard = None


@pytest.fixture
def vendor(s3: S3Server, guard: Guard, clock: Clock) -> Iterator[RoleKeys]:
    settings = s3.settings("s3://lake/wh", vending="sts", vending_role_arn=ROLE)
    storage = S3Storage("s3://lake/wh", settings)
    found = RoleKeys(storage, settings, clock)
    yield found
    found.close()
    storage.close()


def statements(reach: Reach) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(policy_for(reach, "aws"))["Statement"]
    return found


def test_a_policy_names_the_tables_own_folder_and_nothing_else() -> None:
    reading, listing = statements(READER)
    assert reading["Action"] == ["s3:GetObject"]
    assert reading["Resource"] == ["arn:aws:s3:::lake/wh/ns/orders/*"]
    assert listing["Resource"] == ["arn:aws:s3:::lake"]
    assert listing["Condition"] == {"StringLike": {"s3:prefix": ["wh/ns/orders/*"]}}
    *_, writing, forbidding = statements(WRITER)
    assert (writing["Effect"], forbidding["Effect"]) == ("Allow", "Deny")
    assert writing["Action"] == forbidding["Action"]
    assert writing["Action"] == ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
    assert writing["Resource"] == ["arn:aws:s3:::lake/wh/ns/orders/*"]
    assert forbidding["Resource"][0] == "arn:aws:s3:::lake/wh/ns/orders/*.metadata.json"


def test_several_places_and_buckets_are_named_each() -> None:
    reading, *listings = statements(Reach((TABLE, "s3://lake/wh/data", "s3://cold/ns/orders")))
    assert len(reading["Resource"]) == 3
    assert [each["Resource"] for each in listings] == [["arn:aws:s3:::lake"], ["arn:aws:s3:::cold"]]
    assert listings[0]["Condition"]["StringLike"]["s3:prefix"] == ["wh/ns/orders/*", "wh/data/*"]


@pytest.mark.parametrize("name", ["*", "a?", "${aws:username}", "a*b"])
def test_a_folder_that_a_policy_would_take_for_a_pattern_gets_none(name: str) -> None:
    with pytest.raises(InvalidInput, match="alone"):
        policy_for(Reach((f"s3://lake/wh/{name}",)), "aws")


def test_regions_are_in_amazons_worlds() -> None:
    assert [partition_of(region) for region in ("eu-central-1", "cn-north-1", "us-gov-west-1", "auto")] == [
        "aws",
        "aws-cn",
        "aws-us-gov",
        "aws",
    ]


def test_keys_are_of_the_role_for_the_token_and_good_for_a_while(vendor: RoleKeys, guard: Guard) -> None:
    vended = vendor.keys_for("abc", READER, None)
    assert vended.keys.session_token
    assert vended.expires_ms
    assert vended.keys.access_key_id != KEY
    (asked,) = guard.roles_asked
    assert (asked["RoleArn"], asked["RoleSessionName"]) == (ROLE, "dolake-abc")
    assert asked["DurationSeconds"] == str(HOUR_S)
    assert vended.keys.secret_access_key not in repr(vended)


def test_keys_are_handed_out_again_until_half_of_their_time_is_over(
    vendor: RoleKeys, guard: Guard, clock: Clock
) -> None:
    first = vendor.keys_for("abc", READER, None)
    assert first.expires_ms
    clock.now_ms = first.expires_ms - HOUR_MS // 2 - 1_000
    assert vendor.keys_for("abc", READER, None) == first
    assert vendor.keys_for("other", READER, None) != first  # each token has its own, and so has each right
    assert vendor.keys_for("abc", WRITER, None) != first
    clock.now_ms = first.expires_ms - HOUR_MS // 2 + 1_000
    assert vendor.keys_for("abc", READER, None) != first
    assert len(guard.roles_asked) == 4


def test_keys_do_not_outlive_their_token_by_much(vendor: RoleKeys, guard: Guard, clock: Clock) -> None:
    for left_s, lifetime_s in ((1_800, 1_800), (60, 900), (100_000, HOUR_S)):
        vendor.keys_for("abc", READER, clock() + left_s * 1000)
        assert guard.roles_asked[-1]["DurationSeconds"] == str(lifetime_s)


def test_who_gives_no_keys_is_not_asked_again_at_once(vendor: RoleKeys, guard: Guard, clock: Clock) -> None:
    guard.is_giving = False
    for _ in range(3):
        with pytest.raises(Unavailable):
            vendor.keys_for("abc", READER, None)
    assert len(guard.roles_asked) == 1
    guard.is_giving = True
    clock.move(6_000)
    assert vendor.keys_for("abc", READER, None)


def test_settings_that_would_hand_out_nothing_or_too_much_are_refused() -> None:
    for settings in (
        StorageSettings(vending="keys"),
        StorageSettings(vending="keys", vending_access_key_id="a"),
        StorageSettings(vending="keys", vending_access_key_id="a", vending_secret_access_key="b", access_key_id="a"),
    ):
        with pytest.raises(InvalidInput):
            ReadKeys(settings)
    settings = StorageSettings(location="s3://lake/wh", vending="sts")
    storage = S3Storage("s3://lake/wh", settings)
    with pytest.raises(InvalidInput, match="role"):
        RoleKeys(storage, settings, Clock())
    storage.close()
