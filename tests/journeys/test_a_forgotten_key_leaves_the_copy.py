"""A forgotten key leaves the copy of the home that is in the store, too, and a lake comes back from that copy."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dolake.client.sync import connect
from tests.support.changes import insert
from tests.support.command import dolake
from tests.support.server import ServerProcess, wait_for
from tests.support.tables import verified
from tools.s3_server import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.own_lake]

_KEY = "QzMarker"
_OTHER_KEY = "QzSecondMarker"
_SETTINGS = """\
freshness_target_ms = 60_000
[journal]
copy = true
copy_interval_ms = 1_000
"""


@pytest.fixture(scope="module")
def environ(s3: S3Server) -> dict[str, str]:
    return s3.environment(f"s3://{s3.new_bucket()}/lake")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, environ: dict[str, str]) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("lost")
    with ServerProcess(home, settings=_SETTINGS, environ=environ, has_pipeline=True, has_queries=False) as running:
        yield running


def test_a_key_in_the_last_segment_of_the_copy_goes_with_the_next_changes(
    server: ServerProcess, s3: S3Server, environ: dict[str, str]
) -> None:
    with connect(server.url, source="shop") as lake:
        lake.send([insert("friends", _OTHER_KEY, name=_OTHER_KEY)])
        server.flush()
        (why,) = lake.forget("friends", _OTHER_KEY).waits
        assert "until more changes are copied" in why
        assert _traces(s3, environ, _OTHER_KEY)
        lake.send([insert("friends", "1", name="Ann")])
        wait_for(lambda: not _traces(s3, environ, _OTHER_KEY), "the key leaves the copy")
        server.flush()
        assert lake.forget("friends", _OTHER_KEY).rows_removed == 0


def test_a_forgotten_key_is_in_no_copy_and_the_lake_comes_back_without_it(
    server: ServerProcess, tmp_path: Path, s3: S3Server, environ: dict[str, str]
) -> None:
    before = int(server.get("/status")[1]["durablePosition"])
    with connect(server.url, source="shop") as lake:
        lake.send([insert("people", "1", name="Ann"), insert("people", _KEY, name=_KEY)])
        wait_for(lambda: _copied(server) == before + 2, "all is copied")
        assert _traces(s3, environ, _KEY)
        lake.send([insert("people", "2", name="Bo")])
        server.flush()
        done = lake.forget("people", _KEY)
        assert (done.rows_removed, done.changes_blanked) == (1, 1)
        # The copy keeps its last segment, for the streams that it knows: Bo's, of which the report speaks.
        assert all("the journal's copy in the store has positions from" in each for each in done.waits), done.waits
        assert _traces(s3, environ, _KEY) == []
        lake.send([insert("people", "3", name="Cy")])  # published or not when the machine is lost
        wait_for(lambda: _copied(server) == before + 4, "all is copied")
    server.kill()

    found = tmp_path / "found"
    found.mkdir()
    (found / "dolake.toml").write_text(_SETTINGS)
    said = dolake("recover", "--home", found, environ=environ)
    assert said.returncode == 0, said.stdout + said.stderr
    assert re.search(f"{before + 4} changes, ({before + 3}|{before + 4}) of them in tables", said.stdout), said.stdout
    with ServerProcess(found, environ=environ, has_pipeline=True, has_queries=False) as again:
        again.flush()
        assert again.stop() == 0
    verified(found, environ=environ)
    assert _traces(s3, environ, _KEY) == []


def _copied(server: ServerProcess) -> int:
    return int(server.get("/status")[1]["journal"]["copy"]["position"] or 0)


def _traces(s3: S3Server, environ: dict[str, str], key: str) -> list[str]:
    """The objects of the copy that have the key in them, also inside the archive of the home."""
    bucket = environ["DOLAKE_STORAGE_LOCATION"].split("/")[2]
    client = s3.client()
    try:
        keys = [each["Key"] for each in client.list_objects_v2(Bucket=bucket, Prefix="lake/.dolake-copy/")["Contents"]]
        bodies = {key: _read(client, bucket, key) for key in keys}
    finally:
        client.close()
    assert bodies
    return [name for name, body in bodies.items() if any(key.encode() in part for part in _parts(body))]


def _read(client: object, bucket: str, key: str) -> bytes:
    """Nothing where the server has removed it since it was listed."""
    try:
        data: bytes = client.get_object(Bucket=bucket, Key=key)["Body"].read()  # type: ignore[attr-defined]
    except client.exceptions.NoSuchKey:  # type: ignore[attr-defined]
        return b""
    return data


def _parts(body: bytes) -> Iterator[bytes]:
    yield body
    if zipfile.is_zipfile(io.BytesIO(body)):
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            yield from map(archive.read, archive.namelist())
