"""What clients of a lake in a store are given over HTTP, and what they can do with it; the store looks at it all."""

from __future__ import annotations

import sqlite3
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import botocore.session
import pytest
from botocore.exceptions import ClientError

from tests.support.store_lake import (
    READ_KEY,
    READ_SECRET,
    ROLE,
    SCHEMA,
    SIGNED,
    VENDED,
    StoreLake,
    store_lake,
)
from tools.s3_server import KEY, SECRET, S3Server

pytestmark = [pytest.mark.slow, pytest.mark.own_lake]

_A = "/namespaces/tenant_a/tables"
_SESSION = botocore.session.Session()
"""One for all, because what it knows of the store takes a while to read."""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[StoreLake]:
    """Tables of two tenants; `managed` is the pipeline's."""
    with store_lake(tmp_path_factory.mktemp("access"), s3, vending="sts", vending_role_arn=ROLE) as lake:
        for namespace in ("tenant_a", "tenant_b"):
            for name in ("mine", "managed"):
                lake.put(f"{lake.create(namespace, name)}/data/file")
            lake.adopt(namespace, "managed")
        yield lake
        for secret in (SECRET, *(user.secret for user in lake.guard.users.values())):
            assert secret not in lake.server.log


class Holder:
    """Somebody with keys and nothing else."""

    def __init__(self, config: dict[str, str]) -> None:
        self._client = _SESSION.create_client(
            "s3",
            region_name=config["client.region"],
            endpoint_url=config["s3.endpoint"],
            aws_access_key_id=config["s3.access-key-id"],
            aws_secret_access_key=config["s3.secret-access-key"],
            aws_session_token=config.get("s3.session-token"),
        )

    def may(self, action: str, location: str) -> bool:
        bucket, _, key = location.removeprefix("s3://").partition("/")
        calls = {
            "read": lambda: self._client.get_object(Bucket=bucket, Key=key)["Body"].read(),
            "write": lambda: self._client.put_object(Bucket=bucket, Key=key, Body=b"y"),
            "remove": lambda: self._client.delete_object(Bucket=bucket, Key=key),
            "list": lambda: self._client.list_objects_v2(Bucket=bucket, Prefix=key),
        }
        try:
            calls[action]()
        except ClientError as error:
            return (
                str(error.response["Error"]["Code"]) != "AccessDenied"
            )  # where nothing is, there is nothing to refuse
        return True

    def close(self) -> None:
        self._client.close()


def config_of(answer: dict[str, Any]) -> dict[str, str]:
    """Of an answer: its entries, one for the table's location and one for its old partitions, say the same."""
    location = answer["metadata"]["location"]
    assert warm_prefixes(answer) == [location]
    assert location.replace("/lake/", "/lake-cold/") in [entry["prefix"] for entry in answer["storage-credentials"]]
    assert all(entry["config"] == answer["config"] for entry in answer["storage-credentials"])
    return dict(answer["config"])


def warm_prefixes(answer: dict[str, Any]) -> list[str]:
    prefixes = [entry["prefix"] for entry in answer["storage-credentials"]]
    return [prefix for prefix in prefixes if "/lake-cold/" not in prefix]


def rights(config: dict[str, str], location: str) -> set[str]:
    holder = Holder(config)
    places = {"read": "data/file", "write": "data/new", "remove": "data/new", "list": "data/"}
    found = {action for action, place in places.items() if holder.may(action, f"{location}/{place}")}
    holder.close()
    return found


# --- keys ------------------------------------------------------------------------------------------------------------


def test_a_load_gives_keys_to_who_asks_and_nothing_to_others(lake: StoreLake) -> None:
    status, answer = lake.ask("reader_a", "GET", f"{_A}/mine", asks=VENDED)
    assert status == 200
    config = config_of(answer)
    assert config["s3.endpoint"] == lake.s3.endpoint
    assert config["s3.path-style-access"] == "true"
    assert int(config["s3.session-token-expires-at-ms"]) > 0
    assert config["client.refresh-credentials-endpoint"] == f"v1{_A}/mine/credentials"
    for asks in (None, "", "none", "nonsense"):
        _, answer = lake.ask("reader_a", "GET", f"{_A}/mine", asks=asks)
        assert answer["config"] == {}
        assert "storage-credentials" not in answer


@pytest.mark.parametrize(
    ("who", "table", "allowed"),
    [
        ("reader_a", "mine", {"read", "list"}),
        ("writer_a", "mine", {"read", "list", "write", "remove"}),
        ("writer_a", "managed", {"read", "list"}),
        ("admin", "managed", {"read", "list"}),
    ],
)
def test_keys_are_for_the_table_and_the_tokens_rights(lake: StoreLake, who: str, table: str, allowed: set[str]) -> None:
    _, answer = lake.ask(who, "GET", f"{_A}/{table}", asks=VENDED)
    config, root = config_of(answer), f"s3://{lake.bucket}/lake"
    assert rights(config, f"{root}/tenant_a/{table}") == allowed
    assert rights(config, f"{root}-cold/tenant_a/{table}") == {"read", "list"}
    for elsewhere in ("tenant_a/other", f"tenant_a/{table}2", "tenant_b/mine", "tenant_b/managed"):
        assert rights(config, f"{root}/{elsewhere}") == set(), elsewhere
    holder = Holder(config)
    for name in ("00000-x.metadata.json", "version-hint.text"):  # the catalog's own
        assert holder.may("read", f"{root}/tenant_a/{table}/metadata/{name}")
        assert not holder.may("write", f"{root}/tenant_a/{table}/metadata/{name}")
    assert not holder.may("list", f"{root}/")
    assert not holder.may("list", f"{root}/tenant_a/{table}")  # which would list that of mine2, too
    holder.close()


def test_who_does_not_see_a_table_gets_nothing_for_it(lake: StoreLake) -> None:
    given = len(lake.guard.roles_asked)
    for path in ("/mine", "/mine/credentials"):
        status, answer = lake.ask("writer_b", "GET", f"{_A}{path}", asks=VENDED)
        assert status == 404, answer
    body = {"method": "GET", "uri": f"{lake.s3.endpoint}/{lake.bucket}/lake/tenant_a/mine/data/file"}
    assert lake.ask("writer_b", "POST", f"{_A}/mine/sign", body)[0] == 404
    assert lake.ask("", "GET", f"{_A}/mine", asks=VENDED)[0] == 401
    assert len(lake.guard.roles_asked) == given


def test_keys_are_renewed_at_their_own_address(lake: StoreLake) -> None:
    status, answer = lake.ask("reader_a", "GET", f"{_A}/mine/credentials")
    assert status == 200
    (entry,) = answer["storage-credentials"]
    mine = f"s3://{lake.bucket}/lake/tenant_a/mine"
    assert mine.startswith(entry["prefix"])  # what it has in common with the place of old partitions
    assert rights(entry["config"], mine) == {"read", "list"}
    assert rights(entry["config"], mine.replace("/lake/", "/lake-cold/")) == {"read", "list"}
    _, pinned = lake.ask("writer_a", "GET", f"/lake@0{_A}/mine/credentials")
    (entry,) = pinned["storage-credentials"]
    assert rights(entry["config"], mine) == {"read", "list"}  # nobody changes the past


def test_what_makes_a_table_gives_keys_for_it(lake: StoreLake) -> None:
    body = {"name": "made", "schema": SCHEMA}
    _, answer = lake.ask("writer_a", "POST", _A, body, asks=VENDED)
    assert "write" in rights(config_of(answer), f"s3://{lake.bucket}/lake/tenant_a/made")
    lake.ask("admin", "DELETE", f"{_A}/made")
    body = {"name": "made", "metadata-location": answer["metadata-location"]}
    _, answer = lake.ask("writer_a", "POST", "/namespaces/tenant_a/register", body, asks=VENDED)
    assert "write" in rights(config_of(answer), f"s3://{lake.bucket}/lake/tenant_a/made")
    _, answer = lake.ask("reader_a", "POST", f"{_A}/made/plan", {}, asks=VENDED)
    assert answer["status"] == "completed"
    entry = answer["storage-credentials"][0]
    assert rights(entry["config"], entry["prefix"]) == {"read", "list"}


def test_a_staged_table_gets_keys_that_are_nowhere_on_disk(lake: StoreLake) -> None:
    body = {"name": "staged", "schema": SCHEMA, "stage-create": True}
    key = str(uuid.uuid4())
    status, answer = lake.ask("writer_a", "POST", _A, body, asks=VENDED, Idempotency_Key=key)
    assert status == 200
    config = config_of(answer)
    assert "write" in rights(config, answer["metadata"]["location"])
    assert lake.ask("writer_a", "POST", _A, body, asks=VENDED, Idempotency_Key=key)[0] == 200
    with closing(sqlite3.connect(lake.server.home / "catalog.db")) as database:
        dump = "\n".join(map(repr, database.iterdump()))
    for secret in (config["s3.secret-access-key"], config["s3.session-token"]):
        assert secret not in dump


def test_no_table_is_made_around_others_to_write_into_them(lake: StoreLake) -> None:
    """Its location may hold theirs; then its keys only read."""
    for location in ("tenant_a", "tenant_a/managed/other"):
        body = {
            "name": "wide",
            "schema": SCHEMA,
            "stage-create": True,
            "location": f"s3://{lake.bucket}/lake/{location}",
        }
        status, answer = lake.ask("writer", "POST", _A, body, asks=VENDED)
        assert status == 200, answer
        config = config_of(answer)
        for place in (location, "tenant_a/managed"):
            assert not {"write", "remove"} & rights(config, f"s3://{lake.bucket}/lake/{place}"), place
    body["location"] = f"s3://{lake.bucket}/lake/tenant_a/x*"
    _, answer = lake.ask("writer", "POST", _A, body, asks=VENDED)
    assert "storage-credentials" not in answer
    body["location"] = f"s3://{lake.bucket}/lake/tenant_b/mine"
    assert lake.ask("writer_a", "POST", _A, body, asks=VENDED)[0] == 403


def test_a_tenants_table_that_lies_elsewhere_gives_its_tenant_nothing(lake: StoreLake) -> None:
    lake.create("tenant_a", "astray", location=f"s3://{lake.bucket}/lake/tenant_b/astray")
    _, answer = lake.ask("reader_a", "GET", f"{_A}/astray", asks=VENDED)
    assert "storage-credentials" not in answer
    assert lake.ask("reader_a", "GET", f"{_A}/astray/credentials")[1] == {"storage-credentials": []}
    _, answer = lake.ask("reader", "GET", f"{_A}/astray", asks=VENDED)
    assert config_of(answer)  # who sees the whole lake may


def test_a_data_path_of_its_own_is_reached_and_one_outside_is_not(lake: StoreLake) -> None:
    root = f"s3://{lake.bucket}/lake/tenant_a"
    lake.create("tenant_a", "apart", properties={"write.data.path": f"{root}/elsewhere"})
    _, answer = lake.ask("writer_a", "GET", f"{_A}/apart", asks=VENDED)
    assert warm_prefixes(answer) == [f"{root}/apart", f"{root}/elsewhere"]
    assert "write" in rights(answer["config"], f"{root}/elsewhere")
    (entry,) = lake.ask("writer_a", "GET", f"{_A}/apart/credentials")[1]["storage-credentials"]
    assert root.startswith(entry["prefix"])
    lake.create("tenant_a", "outside", properties={"write.data.path": "s3://other-bucket/x"})
    _, answer = lake.ask("admin", "GET", f"{_A}/outside", asks=VENDED)
    assert warm_prefixes(answer) == [f"{root}/outside"]


def test_nobody_reaches_what_the_lake_keeps_for_itself(lake: StoreLake) -> None:
    """The journal's copy has the changes of all tenants, and a home can be made of it."""
    own = f"s3://{lake.bucket}/lake/.dolake-copy"
    for location in (own, f"{own}/x", f"s3a://{lake.bucket}/lake/.dolake-copy/x"):
        for is_staged in (True, False):
            body = {"name": "spy", "schema": SCHEMA, "stage-create": is_staged, "location": location}
            assert lake.ask("admin", "POST", _A, body, asks=VENDED)[0] == 400, location
    assert lake.create(".dolake-copy", "spy").startswith(f"s3://{lake.bucket}/lake/_.dolake-copy/spy")
    mine = lake.create("tenant_a", "spy", properties={"write.data.path": own, "write.metadata.path": f"{own}/x"})
    _, answer = lake.ask("admin", "GET", f"{_A}/spy", asks=VENDED)
    assert warm_prefixes(answer) == [mine]
    assert rights(answer["config"], own) == set()
    uri = f"{lake.s3.endpoint}/{lake.bucket}/lake/.dolake-copy/copy.json"
    assert send(lake, "admin", "GET", uri, table="spy") == 403


def test_an_etag_holds_as_long_as_the_keys_do(lake: StoreLake) -> None:
    def load(etag: str, asks: str | None) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {lake.tokens['reader_a']}", "If-None-Match": etag}
        if asks:
            headers["X-Iceberg-Access-Delegation"] = asks
        request = urllib.request.Request(f"{lake.url}/v1{_A}/mine", headers=headers)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                return answer.status, answer.headers["ETag"]
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["ETag"]

    plain, with_keys = load("", None)[1], load("", VENDED)[1]
    assert plain != with_keys
    assert load(with_keys, VENDED) == (304, with_keys)
    assert load(plain, None) == (304, plain)
    assert load(plain, VENDED)[0] == 200
    assert load(with_keys, None)[0] == 200


def test_a_load_goes_on_without_keys_when_the_store_gives_none(lake: StoreLake) -> None:
    lake.create("tenant_a", "later")
    lake.guard.is_giving = False
    try:
        status, answer = lake.ask("writer_a", "GET", f"{_A}/later", asks=VENDED)
        assert (status, answer["config"]) == (200, {})
        assert "storage-credentials" not in answer
        status, answer = lake.ask("writer_a", "GET", f"{_A}/later", asks=f"{VENDED},{SIGNED}")
        assert answer["config"]["s3.remote-signing-enabled"] == "true"
        status, answer = lake.ask("writer_a", "GET", f"{_A}/later/credentials")
        assert status == 503, answer
        assert "no keys for a client" in lake.server.log
    finally:
        lake.guard.is_giving = True


def test_the_configuration_tells_clients_to_ask_and_has_no_keys(lake: StoreLake) -> None:
    _, answer = lake.ask("reader_a", "GET", "/config")
    assert answer["defaults"]["header.X-Iceberg-Access-Delegation"] == VENDED
    assert f"GET /v1/{{prefix}}{_A.replace('tenant_a', '{namespace}')}/{{table}}/credentials" in answer["endpoints"]
    assert not [name for name in answer["defaults"] if "key" in name or "token" in name]
    for path in ("/settings", "/config"):
        assert SECRET not in str(lake.ask("admin", "GET", path))


# --- signing ---------------------------------------------------------------------------------------------------------


def send(lake: StoreLake, who: str, method: str, uri: str, *, table: str = "mine", data: bytes | None = None) -> int:
    """Have it signed for this table, then send it: what the store says, or the catalog where it refuses."""
    body: dict[str, Any] = {"method": method, "uri": uri, "region": "us-east-1", "headers": {}, "provider": "s3"}
    if "?delete" in uri:
        body["body"] = (data or b"").decode()
    status, answer = lake.ask(who, "POST", f"{_A}/{table}/sign", body)
    if status != 200:
        return status
    headers = {name: ",".join(values) for name, values in answer["headers"].items()}
    headers["Content-Type"] = "application/octet-stream"
    request = urllib.request.Request(answer["uri"], data=data, method=method, headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=30) as found:  # noqa: S310
            return int(found.status)
    except urllib.error.HTTPError as error:
        with error:
            return 1000 + error.code


def test_signing_is_told_to_who_asks_for_it(lake: StoreLake) -> None:
    _, answer = lake.ask("reader_a", "GET", f"{_A}/mine", asks=SIGNED)
    assert "storage-credentials" not in answer
    config = answer["config"]
    assert config["s3.remote-signing-enabled"] == "true"
    assert config["s3.signer.endpoint"] == f"v1{_A}/mine/sign"
    assert not [name for name in config if "key" in name or "token" in name]


def test_the_store_takes_what_was_signed(lake: StoreLake) -> None:
    base = f"{lake.s3.endpoint}/{lake.bucket}/lake/tenant_a/mine/data"
    assert send(lake, "reader_a", "GET", f"{base}/file") == 200
    assert send(lake, "reader_a", "HEAD", f"{base}/file") == 200
    assert send(lake, "writer_a", "PUT", f"{base}/a%20b%3Dc", data=b"x") == 200
    assert send(lake, "reader_a", "GET", f"{base}/a%20b=c") == 200
    bucket = f"{lake.s3.endpoint}/{lake.bucket}"
    assert send(lake, "reader_a", "GET", f"{bucket}?list-type=2&prefix=lake/tenant_a/mine/data/") == 200
    body = b"<Delete><Object><Key>lake/tenant_a/mine/data/a b=c</Key></Object></Delete>"
    assert send(lake, "writer_a", "POST", f"{bucket}/?delete", data=body) == 200
    assert send(lake, "reader_a", "GET", f"{base}/a%20b=c") == 1404
    assert not [each for each in lake.guard.refused if each[3] == "the signature is wrong"]


def test_nothing_else_is_signed(lake: StoreLake) -> None:
    root = f"{lake.s3.endpoint}/{lake.bucket}/lake"
    mine, managed = f"{root}/tenant_a/mine/data/file", f"{root}/tenant_a/managed/data/file"
    for who, table, method, uri in (
        ("reader_a", "mine", "PUT", mine),
        ("reader_a", "mine", "DELETE", mine),
        ("reader_a", "mine", "GET", managed),
        ("writer_a", "mine", "PUT", managed),
        ("writer_a", "managed", "PUT", managed),
        ("admin", "managed", "DELETE", managed),
        ("admin", "mine", "GET", f"{root}/tenant_b/mine/data/file"),
        ("writer_a", "mine", "GET", f"{root}/tenant_a/mine/%2e%2e/managed/data/file"),
        ("writer_a", "mine", "GET", f"{lake.s3.endpoint}/{lake.bucket}?list-type=2&prefix=lake/"),
        ("writer_a", "mine", "GET", f"http://127.0.0.1:9/{lake.bucket}/lake/tenant_a/mine/data/file"),
        ("writer_a", "mine", "GET", f"{mine}?acl"),
    ):
        assert send(lake, who, method, uri, table=table, data=b"x" if method == "PUT" else None) == 403, (who, uri)
    assert send(lake, "reader_a", "GET", managed, table="managed") == 200
    assert lake.ask("reader_a", "POST", f"{_A}/none/sign", {"method": "GET", "uri": mine})[0] == 404


def test_a_signature_is_good_for_what_was_signed_alone(lake: StoreLake) -> None:
    uri = f"{lake.s3.endpoint}/{lake.bucket}/lake/tenant_a/mine/data/file"
    _, answer = lake.ask("writer_a", "POST", f"{_A}/mine/sign", {"method": "GET", "uri": uri})
    headers = {name: ",".join(values) for name, values in answer["headers"].items()}
    for method, address, more in (
        ("GET", uri.replace("mine", "managed"), {}),
        ("GET", f"{uri}?acl", {}),
        ("DELETE", uri, {}),
        ("GET", uri, {"x-amz-copy-source": "/b/k"}),
    ):
        request = urllib.request.Request(address, method=method, headers=headers | more)  # noqa: S310
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=30)  # noqa: S310
        with refused.value as error:
            assert error.code == 403


def test_what_cannot_be_read_is_refused_in_words(lake: StoreLake) -> None:
    for body in (
        {},
        {"method": "GET"},
        {"method": 1, "uri": "x"},
        {"method": "GET", "uri": "x", "headers": {"a": "b"}},
    ):
        status, answer = lake.ask("reader_a", "POST", f"{_A}/mine/sign", body)
        assert (status, answer["error"]["type"]) == (400, "IllegalArgumentException"), answer
    body = {"method": "GET", "uri": "x", "provider": "gcs"}
    assert lake.ask("reader_a", "POST", f"{_A}/mine/sign", body)[0] == 400


# --- other settings --------------------------------------------------------------------------------------------------


def test_a_key_that_reads_the_whole_lake_is_for_tokens_that_may_and_for_nobody_without_one(
    tmp_path_factory: pytest.TempPathFactory, s3: S3Server
) -> None:
    settings = {"vending_access_key_id": READ_KEY, "vending_secret_access_key": READ_SECRET, "vending_unasked": "true"}
    with store_lake(tmp_path_factory.mktemp("keys"), s3, is_open=True, vending="keys", **settings) as lake:
        lake.put(f"{lake.create('tenant_a', 'mine')}/data/file")
        mine = f"{lake.s3.endpoint}/{lake.bucket}/lake/tenant_a/mine/data/file"
        for asks in (None, VENDED, SIGNED):  # as long as there are no tokens nobody knows who this is
            _, answer = lake.ask("", "GET", f"{_A}/mine", asks=asks)
            assert (answer["config"], "storage-credentials" in answer) == ({}, False)
        assert lake.ask("", "GET", f"{_A}/mine/credentials")[1] == {"storage-credentials": []}
        assert send(lake, "", "GET", mine) == 403
        lake.make_tokens()
        for who in ("reader", "admin"):
            _, answer = lake.ask(who, "GET", f"{_A}/mine")
            config = config_of(answer)
            assert config["s3.access-key-id"] == READ_KEY
            assert not {"s3.session-token", "client.refresh-credentials-endpoint"} & set(config)
            assert rights(config, f"s3://{lake.bucket}/lake/tenant_a/mine") == {"read", "list"}
        for asks in (None, VENDED):
            _, answer = lake.ask("writer_a", "GET", f"{_A}/mine", asks=asks)
            assert (answer["config"], "storage-credentials" in answer) == ({}, False)
        assert lake.ask("writer_a", "GET", f"{_A}/mine", asks=f"{VENDED},{SIGNED}")[1]["config"]
        assert send(lake, "writer_a", "PUT", mine, data=b"y") == 200
        assert READ_SECRET not in lake.server.log + str(lake.ask("admin", "GET", "/settings"))
        assert KEY not in str(lake.ask("admin", "GET", f"{_A}/mine"))
