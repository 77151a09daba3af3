"""Which requests are signed, and that what is signed is what was checked. That a store takes them: test_access.py."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dolake.errors import Forbidden, Unavailable
from dolake.settings import StorageSettings
from dolake.storage.reach import Reach, Unsigned
from dolake.storage.s3 import S3Storage
from dolake.storage.s3_signing import Signer
from tools.s3_guard import EVERYTHING, Guard
from tools.s3_server import KEY, SECRET, S3Server

STORE = "http://store:9000"
TABLE = "s3://lake/wh/ns/orders"
FILE = f"{STORE}/lake/wh/ns/orders/data/a.parquet"
READER, WRITER = Reach((TABLE,)), Reach((TABLE,), (TABLE,))


def signer_of(location: str = "s3://lake/wh", **settings: str) -> tuple[S3Storage, Signer]:
    given = {"access_key_id": "key", "secret_access_key": "secret", "region": "eu-central-1"} | settings
    storage = S3Storage(location, StorageSettings(location=location, **given))  # type: ignore[arg-type]
    return storage, Signer(storage, lambda: True)


@pytest.fixture(scope="module")
def signer() -> Iterator[Signer]:
    storage, found = signer_of(endpoint=STORE)
    yield found
    storage.close()


def delete_list(*keys: str) -> str:
    return f"<Delete>{''.join(f'<Object><Key>{key}</Key></Object>' for key in keys)}</Delete>"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_reader_reads_the_tables_files(signer: Signer, method: str) -> None:
    uri, headers = signer.sign(Unsigned(method, FILE, {"Range": ["bytes=0-9"], "Host": ["store:9000"]}), READER)
    assert uri == FILE
    assert set(headers) == {"Authorization", "X-Amz-Date", "X-Amz-Content-SHA256"}
    assert "SignedHeaders=host;x-amz-content-sha256;x-amz-date," in headers["Authorization"][0]
    assert "secret" not in str(headers)


@pytest.mark.parametrize(
    ("method", "query"),
    [
        ("PUT", ""),
        ("DELETE", ""),
        ("POST", "?uploads"),
        ("POST", "?uploads="),
        ("PUT", "?partNumber=1&uploadId=x"),
        ("PUT", "?uploadId=x&partNumber=1&x-id=UploadPart"),
        ("POST", "?uploadId=x"),
        ("DELETE", "?uploadId=x"),
    ],
)
def test_only_who_may_write_writes(signer: Signer, method: str, query: str) -> None:
    assert signer.sign(Unsigned(method, FILE + query, {}), WRITER)
    with pytest.raises(Forbidden, match="may not write"):
        signer.sign(Unsigned(method, FILE + query, {}), READER)


@pytest.mark.parametrize("name", ["00001-x.metadata.json", "version-hint.text"])
def test_files_that_the_catalog_alone_writes_are_only_read(signer: Signer, name: str) -> None:
    uri = f"{STORE}/lake/wh/ns/orders/metadata/{name}"
    assert signer.sign(Unsigned("GET", uri, {}), WRITER)
    for method, query in (("PUT", ""), ("DELETE", ""), ("POST", "?uploads")):
        with pytest.raises(Forbidden, match="may not write"):
            signer.sign(Unsigned(method, uri + query, {}), WRITER)
    body = delete_list(f"wh/ns/orders/metadata/{name}")
    with pytest.raises(Forbidden):
        signer.sign(Unsigned("POST", f"{STORE}/lake/?delete", {}, body), WRITER)


@pytest.mark.parametrize(
    "uri",
    [
        f"{STORE}/lake/wh/ns/orders2/data/a.parquet",
        f"{STORE}/lake/wh/ns/orders",
        f"{STORE}/lake/wh/ns/Orders/data/a",
        f"{STORE}/lake/wh/ns/orders/../secret/a",
        f"{STORE}/lake/wh/ns/orders/%2e%2e/secret/a",
        f"{STORE}/lake/wh/ns/orders/%2E./secret/a",
        f"{STORE}/lake/wh/ns/orders/..%2fsecret/a",
        f"{STORE}/lake/wh/ns/orders/..%5csecret/a",
        f"{STORE}/lake/wh/ns/orders/./a",
        f"{STORE}/lake/wh/ns/orders/data/..",
        f"{STORE}/lake/wh/ns/orders/data\\..\\..\\secret",
        f"{STORE}/lake/wh/ns/orders/a%00b",
        f"{STORE}/lake/wh/ns/orders/a%0d%0ab",
        f"{STORE}/lake/wh/ns/orders/a%ff",
        f"{STORE}/lake/wh/ns/orders/ä",
        f"{STORE}/lake//wh/ns/orders/data/a",
        f"{STORE}//lake/wh/ns/orders/data/a",
        f"{STORE}/other/wh/ns/orders/data/a",
        f"{STORE}/lake%2fwh/ns/orders",
        f"{STORE}/lake/",
        f"{STORE}/lake",
        f"{STORE}/",
        STORE,
        "http://lake.store:9000/wh/ns/secret/a",
        "http://other.store:9000/wh/ns/orders/data/a",
        "http://store:9001/lake/wh/ns/orders/data/a",
        "https://store:9000/lake/wh/ns/orders/data/a",
        "http://evil/lake/wh/ns/orders/data/a",
        "http://store:9000@evil/lake/wh/ns/orders/data/a",
        "http://x@store:9000/lake/wh/ns/orders/data/a",
        "http://[store:9000/lake/wh/ns/orders/data/a",
        "file:///lake/wh/ns/orders/data/a",
        f"{STORE}/lake/wh/ns/secret/a#/../orders/data/a",
        f"{STORE}/lake/wh/ns/orders/data/a ",
        f"{STORE}/lake/wh/ns/orders/data/\ta",
        "",
    ],
)
def test_nothing_else_is_signed_however_it_is_spelled(signer: Signer, uri: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        with pytest.raises(Forbidden):
            signer.sign(Unsigned(method, uri, {}), WRITER)


@pytest.mark.parametrize(
    ("method", "query"),
    [
        ("GET", "?acl"),
        ("GET", "?versionId=x"),
        ("GET", "?tagging"),
        ("GET", "?uploads"),
        ("GET", "?response-content-type=text/html"),
        ("GET", "?x=1"),
        ("GET", "?uploadId=a+b"),
        ("DELETE", "?versionId=x"),
        ("DELETE", "?uploadId=x&versionId=y"),
        ("DELETE", "?uploadId=x&uploadId=y"),
        ("PUT", "?acl"),
        ("PUT", "?retention"),
        ("PUT", "?partNumber=1"),
        ("POST", ""),
        ("POST", "?restore"),
        ("POST", "?select&select-type=2"),
        ("POST", "?delete"),
        ("PATCH", ""),
        ("OPTIONS", ""),
        ("get", ""),
        ("GET\nPUT", ""),
    ],
)
def test_a_file_is_read_written_and_removed_and_nothing_else(signer: Signer, method: str, query: str) -> None:
    with pytest.raises(Forbidden):
        signer.sign(Unsigned(method, FILE + query, {}, delete_list("wh/ns/orders/data/a")), WRITER)


@pytest.mark.parametrize(
    "header",
    [
        "x-amz-copy-source",
        "X-Amz-Copy-Source",
        "x-amz-copy-source-range",
        "x-amz-acl",
        "x-amz-grant-read",
        "x-amz-security-token",
        "x-amz-tagging",
        "x-amz-website-redirect-location",
        "x-amz-object-lock-mode",
        "x-amz-bypass-governance-retention",
        "x-amz-server-side-encryption-customer-key",
        "x-amz-meta-note",
        "x-amz-whatever",
    ],
)
def test_headers_that_open_something_else_are_refused(signer: Signer, header: str) -> None:
    with pytest.raises(Forbidden, match=header.lower()):
        signer.sign(Unsigned("PUT", FILE, {header: ["/lake/wh/ns/secret/a"]}), WRITER)


def test_one_header_in_two_spellings_is_refused(signer: Signer) -> None:
    headers = {"x-amz-checksum-crc32": ["a"], "X-Amz-Checksum-Crc32": ["b"]}
    with pytest.raises(Forbidden):
        signer.sign(Unsigned("PUT", FILE, headers), WRITER)
    with pytest.raises(Forbidden):
        signer.sign(Unsigned("PUT", FILE, {"x-amz-checksum-crc32": ["a\r\nx-amz-acl: public-read"]}), WRITER)
    for kind in ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "x", "A" * 64):
        with pytest.raises(Forbidden, match="payload"):
            signer.sign(Unsigned("PUT", FILE, {"x-amz-content-sha256": [kind]}), WRITER)


def test_checksums_and_what_is_said_of_the_body_are_signed_as_they_are(signer: Signer) -> None:
    sent = {"x-amz-checksum-crc32": ["abc="], "x-amz-content-sha256": ["UNSIGNED-PAYLOAD"], "amz-sdk-retry": ["1"]}
    _, headers = signer.sign(Unsigned("PUT", FILE, sent), WRITER)
    assert "host;x-amz-checksum-crc32;x-amz-content-sha256;x-amz-date" in headers["Authorization"][0]
    assert set(headers) == {"Authorization", "X-Amz-Date"}  # who gets one of his own again may send it twice


def test_only_the_tables_own_files_are_listed(signer: Signer) -> None:
    uri, _ = signer.sign(Unsigned("GET", f"{STORE}/lake?list-type=2&prefix=wh%2Fns%2Forders%2F", {}), READER)
    assert uri == f"{STORE}/lake/?list-type=2&prefix=wh%2Fns%2Forders%2F"
    for query in (
        "list-type=2",
        "list-type=2&prefix=",
        "list-type=2&prefix=wh/ns/orders",
        "list-type=2&prefix=wh/ns/",
        "list-type=2&prefix=wh/ns/orders/../",
        "list-type=2&prefix=wh/ns/orders/&prefix=wh/",
        "prefix=wh/ns/orders/",
        "versions&prefix=wh/ns/orders/",
        "policy",
        "location",
        "list-type=2&prefix=wh/ns/orders/&policy",
    ):
        with pytest.raises(Forbidden):
            signer.sign(Unsigned("GET", f"{STORE}/lake?{query}", {}), WRITER)
    for method in ("PUT", "DELETE", "HEAD", "POST"):
        with pytest.raises(Forbidden):
            signer.sign(Unsigned(method, f"{STORE}/lake", {}), WRITER)


def test_many_files_are_removed_if_all_are_the_tables_and_the_list_is_the_one_that_was_read(signer: Signer) -> None:
    uri, body = f"{STORE}/lake/?delete", delete_list("wh/ns/orders/data/a", "wh/ns/orders/data/b &amp; c")
    signed, headers = signer.sign(Unsigned("POST", uri, {}, body), WRITER)
    assert signed == uri
    assert headers["X-Amz-Content-SHA256"] == [hashlib.sha256(body.encode()).hexdigest()]
    for reach, refused in (
        (READER, body),
        (WRITER, delete_list("wh/ns/orders/data/a", "wh/ns/secret/a")),
        (WRITER, delete_list("wh/ns/orders/../secret/a")),
        (WRITER, delete_list()),
        (WRITER, delete_list(*["wh/ns/orders/data/a"] * 1001)),
        (WRITER, body.replace("</Key>", "</Key><VersionId>1</VersionId>", 1)),
        (WRITER, body.replace("<Key>", "<Key><Key>x</Key>", 1)),
        (WRITER, f'<!DOCTYPE d [<!ENTITY e "wh/ns/secret">]>{body}'),
        (WRITER, body.replace("</Key>", "<!-- --></Key>", 1)),
        (WRITER, body.replace("</Key>", "<?x y?></Key>", 1)),
        (WRITER, body.replace("Delete", "Remove")),
        (WRITER, "<Delete>"),
        (WRITER, ""),
        (WRITER, None),
    ):
        with pytest.raises(Forbidden):
            signer.sign(Unsigned("POST", uri, {}, refused), reach)
    with pytest.raises(Forbidden, match="digest"):
        signer.sign(Unsigned("POST", uri, {"x-amz-content-sha256": ["UNSIGNED-PAYLOAD"]}, body), WRITER)


def test_names_of_partitions_stay_what_they_are(signer: Signer) -> None:
    key = "wh/ns/orders/data/day=2026-11-18/name=a%2Fb c+d~é/x.parquet"
    uri, _ = signer.sign(Unsigned("GET", f"{STORE}/lake/{quote(key, safe='/=')}", {}), READER)
    assert uri == f"{STORE}/lake/{quote(key, safe='/~')}"


def test_the_bucket_may_be_in_the_hosts_name() -> None:
    storage, signer = signer_of()
    path = "wh/ns/orders/data/a"
    for host in ("lake.s3.eu-central-1.amazonaws.com", "lake.s3.amazonaws.com", "s3.eu-central-1.amazonaws.com/lake"):
        assert signer.sign(Unsigned("GET", f"https://{host}/{path}", {}), READER)[0] == f"https://{host}/{path}"
    assert signer.sign(Unsigned("GET", f"https://lake.s3.amazonaws.com:443/{path}", {}), READER)
    for host in (
        "other.s3.eu-central-1.amazonaws.com",
        "lake.s3.us-east-1.amazonaws.com",
        "lake.evil.com",
        "lake.s3.eu-central-1.amazonaws.com.evil.com",
        "s3.eu-central-1.amazonaws.com/other",
    ):
        with pytest.raises(Forbidden):
            signer.sign(Unsigned("GET", f"https://{host}/{path}", {}), READER)
    with pytest.raises(Forbidden):
        signer.sign(Unsigned("GET", f"http://lake.s3.amazonaws.com/{path}", {}), READER)
    storage.close()


def test_nothing_is_signed_for_writing_where_a_header_can_be_added_later(s3: S3Server) -> None:
    """Moto alone does not look at signatures; with its guard it is as strict as Amazon's store."""
    bucket = s3.new_bucket()
    location = f"s3://{bucket}/wh"
    storage = S3Storage(location, s3.settings(location))
    uri, reach = f"{s3.endpoint}/{bucket}/wh/ns/t/a", Reach((f"{location}/ns/t",), (f"{location}/ns/t",))
    lenient = Signer(storage)
    assert lenient.sign(Unsigned("GET", uri, {}), reach)
    with pytest.raises(Forbidden, match="headers be added"):
        lenient.sign(Unsigned("PUT", uri, {}), reach)
    s3.guard = Guard()
    s3.guard.add(KEY, SECRET, EVERYTHING)
    try:
        with pytest.raises(Forbidden, match="headers be added"):
            lenient.sign(Unsigned("DELETE", uri, {}), reach)  # it was asked once
        strict = Signer(storage)
        asked = len(s3.log)
        for _ in range(3):
            assert strict.sign(Unsigned("PUT", uri, {}), reach)
        assert len(s3.log) == asked + 2
        s3.guard.users.clear()
        with pytest.raises(Unavailable, match="403"):
            Signer(storage).sign(Unsigned("PUT", uri, {}), reach)
    finally:
        s3.guard = None
        storage.close()


@given(tail=st.text(alphabet="a./%25eEfF\\+?#&=\0 é", max_size=30), method=st.sampled_from(["GET", "PUT", "DELETE"]))
def test_whatever_is_signed_lies_below_the_table(tail: str, method: str) -> None:
    try:
        uri, _ = _SIGNER.sign(Unsigned(method, f"{STORE}/lake/wh/ns/orders{tail}", {}), WRITER)
    except Forbidden:
        return
    path = unquote(uri.removeprefix(STORE).partition("?")[0])
    assert path.startswith("/lake/wh/ns/orders/")
    assert not {".", ".."} & set(path.split("/"))


_SIGNER = signer_of(endpoint=STORE)[1]
