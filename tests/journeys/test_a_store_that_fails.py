"""The store of a lake fails in every way it can; changes are taken, questions answered, and nothing is lost or doubled.

One server for all tests, which leave their rows behind; the last test reads all of them with other engines and runs
`dolake verify`.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyiceberg.catalog.rest import RestCatalog

from dolake.client.sync import LakeClient, connect
from dolake.storage.duck import extension_file
from tests.journeys.asking_support import wait_for_answers
from tests.support.aio import run
from tests.support.changes import insert, update
from tests.support.command import dolake
from tests.support.server import ServerProcess, children_of, job_ended, post, query, refusal, status_of, wait_for
from tests.support.speaker import Speaker, batch, event
from tests.support.tables import verified
from tools.duckdb_client import duck_on
from tools.faulty_proxy import FaultyProxy, Request, faulty_proxy
from tools.s3_server import KEY, SECRET, S3Server

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.own_lake]

_SETTINGS = """\
freshness_target_ms = 200
[pipeline]
retry_delay_ms = 50
retry_delay_max_ms = 200
[journal]
copy = true
copy_interval_ms = 1_000
[compaction]
min_files_to_compact = 2
auto_compact = false
"""
_REFUSALS = {
    "503": ("503 Slow Down", "SlowDown"),
    "wrong keys": ("403 Forbidden", "InvalidAccessKeyId"),
    "bucket gone": ("404 Not Found", "NoSuchBucket"),
    "clock": ("403 Forbidden", "RequestTimeTooSkewed"),
}


@dataclass
class Lake:
    """The server, the proxy before its store, and the keys of `orders` that were acknowledged."""

    proxy: FaultyProxy
    environ: dict[str, str]
    open: contextlib.ExitStack
    keys: list[str] = field(default_factory=list)
    server: ServerProcess = field(init=False)
    client: LakeClient = field(init=False)
    talk: contextlib.ExitStack = field(init=False)
    """Ends the client's connection."""

    def serve(self, home: Path, *, has_pipeline: bool = True) -> None:
        """From now on this is the server that is asked."""
        settings = "" if (home / "dolake.toml").exists() else _SETTINGS
        process = ServerProcess(
            home, settings=settings, environ=self.environ, has_pipeline=has_pipeline, has_queries=True
        )
        self.server = self.open.enter_context(process)
        wait_for_answers(self.server)
        self.talk = self.open.enter_context(contextlib.ExitStack())
        self.client = self.talk.enter_context(connect(self.server.url, source="shop"))

    def kill(self) -> Path:
        """SIGKILL; returns the home that is left."""
        self.talk.close()
        self.server.kill()
        return self.server.home

    def insert(self, *keys: str, table: str = "orders") -> None:
        self.client.send([insert(table, key, name=key, price=1.5) for key in keys])
        if table == "orders":
            self.keys += keys

    def rows(self, sql: str, **more: Any) -> list[dict[str, Any]]:
        return query(self.server, sql, **more)

    def assert_whole(self) -> None:
        """In SQL; other engines look at the end."""
        (found,) = self.rows("SELECT count(*) AS n, count(DISTINCT name) AS d FROM orders")
        assert found == {"n": len(self.keys), "d": len(self.keys)}

    @property
    def status(self) -> dict[str, Any]:
        return status_of(self.server)

    @property
    def publish(self) -> dict[str, Any]:
        found: dict[str, Any] = self.server.get("/v1/write-stats")[1]["publish"]
        return found

    def wait_for_reason(self, word: str) -> None:
        """Until the last failure has this word in it."""
        wait_for(lambda: word in self.publish["lastFailure"], f"a failure with {word}")

    def wait_for_failure(self, since: int) -> str:
        """Until one more publish has failed; returns why."""
        wait_for(lambda: self.publish["failures"] > since, "one more publish fails")
        return str(self.publish["lastFailure"])


@pytest.fixture(scope="module")
def bucket(s3: S3Server) -> str:
    return s3.new_bucket()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, s3: S3Server, bucket: str) -> Iterator[Lake]:
    with faulty_proxy(s3.port) as proxy, contextlib.ExitStack() as stack:
        environ = s3.environment(f"s3://{bucket}/lake") | {
            "DOLAKE_STORAGE_ENDPOINT": proxy.endpoint,
            "DOLAKE_STORAGE_TIMEOUT_MS": "1000",
        }
        lake = Lake(proxy, environ, stack)
        lake.serve(tmp_path_factory.mktemp("failing"))
        lake.insert("first")
        lake.server.flush()
        yield lake


def test_what_the_store_refuses_is_reported_and_changes_are_taken_meanwhile(lake: Lake) -> None:
    lake.assert_whole()
    for how, (status, code) in _REFUSALS.items():
        with lake.proxy.fault("refuse", status=status, code=code):
            lake.insert(f"during {how}")
            lake.assert_whole()
            lake.wait_for_reason(code)
    lake.server.flush()
    lake.assert_whole()


@pytest.mark.parametrize("how", ["down", "reset", "hang"])
def test_without_a_store_changes_are_taken_and_what_is_known_is_answered(lake: Lake, how: str) -> None:
    lake.assert_whole()
    failures = lake.publish["failures"]
    with _gone(lake.proxy, how):
        lake.insert(f"during {how}")
        lake.assert_whole()
        lake.wait_for_failure(failures)
    lake.server.flush()
    lake.assert_whole()


def _gone(proxy: FaultyProxy, how: str) -> contextlib.AbstractContextManager[Any]:
    return proxy.down() if how == "down" else proxy.fault("reset" if how == "reset" else "hang")


def _is_data(request: Request) -> bool:
    return request.is_write and request.path.endswith(".parquet")


def _is_manifest(request: Request) -> bool:
    return request.is_write and request.path.endswith(".avro")


def _is_metadata(request: Request) -> bool:
    return request.is_write and request.path.endswith(".metadata.json")


@pytest.mark.parametrize("is_for", [_is_data, _is_manifest, _is_metadata])
def test_a_write_that_was_done_and_not_confirmed_is_not_done_twice(
    lake: Lake, is_for: Callable[[Request], bool]
) -> None:
    failures = lake.publish["failures"]
    with lake.proxy.fault("lose_answer", is_for, left=1) as fault:
        lake.insert(f"unconfirmed {is_for.__name__}")
        lake.server.flush()
    assert (fault.hits, lake.publish["failures"]) == (1, failures)
    lake.assert_whole()


@pytest.mark.parametrize("is_for", [_is_manifest, _is_metadata])
def test_a_publish_that_fails_half_way_is_made_again_as_a_whole(lake: Lake, is_for: Callable[[Request], bool]) -> None:
    failures = lake.publish["failures"]
    with lake.proxy.fault("lose_answer", is_for):
        lake.insert(f"half {is_for.__name__}")
        lake.wait_for_failure(failures)
    lake.server.flush()
    lake.assert_whole()


def test_half_of_a_file_is_an_error_and_no_answer_and_asked_for_again_where_that_helps(lake: Lake) -> None:
    lake.insert("1", "2", "3", table="halves")
    lake.server.flush()
    with lake.proxy.fault("truncate", lambda request: request.method == "GET"):
        status, error = refusal(lake.server, "/v1/query", sql="SELECT sum(price) AS p FROM halves")
    assert status == 503, error
    with lake.proxy.fault("truncate", lambda request: request.method == "GET", left=1) as fault:
        assert lake.rows("SELECT count(*) AS n, sum(price) AS p FROM halves") == [{"n": 3, "p": 4.5}]
    assert fault.hits == 1


def test_a_store_that_says_nothing_keeps_nobody_from_what_needs_no_store(lake: Lake) -> None:
    """As many questions wait for it as may run; when their time is over they are told, and others have a turn."""
    lake.insert("1", table="far")
    lake.server.flush()
    before = children_of(lake.server, "dolake.query")
    said: list[Any] = []

    def ask() -> None:
        said.append(refusal(lake.server, "/v1/query", sql="SELECT max(price) AS p FROM far", timeoutMs=100))

    asking = [threading.Thread(target=ask) for _ in range(4)]
    with lake.proxy.fault("hang"):
        lake.insert("1", table="near")
        for each in asking:
            each.start()
        lake.insert("while it says nothing")
        assert lake.rows("SELECT count(*) AS n FROM near") == [{"n": 1}]
        for each in asking:
            each.join()
    assert {status for status, _ in said} <= {503, 504}, said  # the store's time is over first, or the question's
    assert children_of(lake.server, "dolake.query") == before  # nobody's question was cut off for it
    lake.server.flush()
    lake.assert_whole()


def test_columns_that_were_not_sent_are_found_in_the_store(lake: Lake) -> None:
    lake.insert("partly", table="parts")
    lake.server.flush()
    with lake.proxy.fault("refuse", lambda request: request.is_write):
        change = update("parts", "partly", None, {"name": "new"}, unchanged=["price"])
        lake.client.send([change])
        assert lake.rows("SELECT name, price FROM parts") == [{"name": "new", "price": 1.5}]
    lake.server.flush()
    assert lake.rows("SELECT name, price FROM parts") == [{"name": "new", "price": 1.5}]


def test_upkeep_that_the_store_stops_loses_nothing_and_is_done_later(lake: Lake) -> None:
    for number in range(3):
        lake.insert(f"for upkeep {number}")
        lake.server.flush()
    with lake.proxy.fault("refuse", _is_data):
        assert _job(lake, ["files"])["state"] == "failed"
    with lake.proxy.fault("lose_answer", _is_metadata):
        _job(lake, ["files"])
    lake.assert_whole()
    assert _job(lake, ["files"])["state"] == "done"
    assert _job(lake, ["snapshots", "garbage"])["state"] == "done"
    lake.assert_whole()


def _job(lake: Lake, kinds: list[str]) -> dict[str, Any]:
    return job_ended(lake.server, post(lake.server, "/v1/compaction/run", kinds=kinds)["jobId"])


# --- the circuit breaker and the fallback ----------------------------------------------------------------------------


def test_the_fallback_takes_as_much_as_the_settings_allow_and_everything_flows_when_the_store_heals(
    lake: Lake,
) -> None:
    async def say(numbers: list[int]) -> list[dict[str, Any]]:
        async with Speaker(lake.server.url) as speaker:
            await speaker.ask({"type": "connect", "sourceDoId": "falling", "capabilities": {}})
            return [
                await speaker.ask(batch(at, [event(n, table="fallen", row_id=str(n))], source="falling"))
                for at, n in enumerate(numbers, 1)
            ]

    with lake.proxy.fault("refuse"):
        lake.insert("opens the breaker")
        wait_for(lambda: lake.status["circuitBreakerState"] == "open", "the breaker opens")
        kept = run(say([1, 2]), timeout_s=60)
        assert [answer["status"] for answer in kept] == ["fallback", "fallback"]
        assert kept[0]["details"]["circuitBreakerState"] in ("open", "half-open")

        _configure(lake, maxFallbackSize=1)
        (refused,) = run(say([3]), timeout_s=60)
        assert (refused["type"], refused["reason"], refused["shouldRetry"]) == ("nack", "buffer_full", True)
        assert "max_fallback_size" in refused["errorMessage"] or "bytes were taken" in refused["errorMessage"]
        _configure(lake, maxFallbackSize=64 * 1024 * 1024, enableFallback=False)
        (refused,) = run(say([3]), timeout_s=60)
        assert (refused["type"], refused["reason"]) == ("nack", "buffer_full")
        assert lake.rows("SELECT count(*) AS n FROM fallen") == [{"n": 2}]  # and questions are answered
    wait_for(lambda: lake.status["circuitBreakerState"] == "closed", "the breaker closes")
    (taken,) = run(say([3]), timeout_s=60)
    assert taken["status"] == "buffered"
    _configure(lake, enableFallback=True)
    lake.server.flush()
    assert lake.rows("SELECT count(*) AS n FROM fallen") == [{"n": 3}]
    assert lake.rows("SELECT count(*) AS n FROM fallen__changes") == [{"n": 3}]


def _configure(lake: Lake, **settings: Any) -> None:
    status, answer = lake.server.get("/v1/config", method="PATCH", body=settings)
    assert status == 200, answer


# --- a server that is killed, a machine that is lost -----------------------------------------------------------------


def test_a_server_killed_while_the_store_is_down_comes_back_without_it(lake: Lake) -> None:
    with lake.proxy.down():
        lake.insert("before the kill")
        lake.serve(lake.kill(), has_pipeline=False)  # Spark has nothing to do before the store is back
        lake.insert("after the kill")
        lake.insert("1", table="after_the_kill")
        assert lake.rows("SELECT count(*) AS n FROM after_the_kill") == [{"n": 1}]
        status, error = refusal(lake.server, "/v1/query", sql="SELECT count(*) AS n FROM orders")
        assert status == 503, error
    _wait_for_copy(lake)


def test_a_lost_machine_is_recovered_from_the_store(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Published or not, all that was copied is back; what was not copied its source still has, and sends again."""
    with lake.proxy.fault("refuse", lambda request: request.is_write):
        lake.insert("not copied yet")
        lost = lake.kill()
    new = tmp_path_factory.mktemp("new") / "home"
    shutil.rmtree(lost)
    report = dolake("recover", "--home", new, environ=lake.environ)
    assert report.returncode == 0, report.stdout + report.stderr
    assert "shop: durable up to sequence" in report.stdout
    lake.serve(new)
    lake.keys.remove("not copied yet")
    lake.assert_whole()
    lake.insert("not copied yet", "on the new machine")
    lake.server.flush()
    lake.assert_whole()
    _wait_for_copy(lake)


def _wait_for_copy(lake: Lake) -> None:
    def is_copied() -> bool:
        status = lake.status
        return bool(status["journal"]["copy"]["position"] == status["durablePosition"])

    wait_for(is_copied, "all is copied")


def test_at_the_end_other_engines_have_every_row_once(lake: Lake, s3: S3Server, bucket: str) -> None:
    lake.server.flush()
    with duck_on(lake.server.url) as duck:
        duck.execute(_secret(s3))
        found = duck.execute("SELECT name FROM lake.default.orders").fetchall()
        assert Counter(name for (name,) in found) == Counter(lake.keys)
    catalog = RestCatalog("lake", uri=lake.server.url, **{"s3.access-key-id": KEY, "s3.secret-access-key": SECRET})
    with contextlib.closing(catalog):
        changes = catalog.load_table("default.orders__changes").scan().to_arrow()
        assert Counter(changes["_key"].to_pylist()) == Counter(lake.keys)
    _assert_hints_are_of_now(lake, s3, bucket)
    assert lake.server.stop() == 0
    verified(lake.server.home, environ=lake.environ)
    assert SECRET not in lake.server.log


def test_a_backup_has_the_tables_too_and_brings_them_back(
    lake: Lake, s3: S3Server, bucket: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The machine and everything in the bucket are lost."""
    folder, home = tmp_path_factory.mktemp("kept") / "backup", tmp_path_factory.mktemp("restored") / "home"
    _run("backup", folder, "--home", lake.server.home, environ=lake.environ)
    shutil.rmtree(lake.server.home)
    client = s3.client()
    with contextlib.closing(client):
        for found in client.list_objects_v2(Bucket=bucket)["Contents"]:
            client.delete_object(Bucket=bucket, Key=found["Key"])
    _run("restore", folder, "--home", home, environ=lake.environ)
    verified(home, environ=lake.environ)
    with duckdb.connect() as duck:  # without any catalog: the hint leads to the table
        for name in ("avro", "httpfs", "iceberg"):
            duck.execute(f"LOAD '{extension_file(name)}'")
        duck.execute(_secret(s3))
        table = f"iceberg_scan('s3://{bucket}/lake/default/orders', allow_moved_paths = true)"
        assert duck.execute(f"SELECT count(*) FROM {table}").fetchone() == (len(lake.keys),)  # noqa: S608


def _secret(s3: S3Server) -> str:
    host = s3.endpoint.removeprefix("http://")
    return (
        f"CREATE SECRET own (TYPE s3, KEY_ID '{KEY}', SECRET '{SECRET}', ENDPOINT '{host}', URL_STYLE 'path',"
        " USE_SSL false, REGION 'us-east-1')"
    )


def _run(*words: Any, environ: dict[str, str]) -> str:
    report = dolake(*words, environ=environ)
    assert report.returncode == 0, report.stdout + report.stderr
    return str(report.stdout)


def _assert_hints_are_of_now(lake: Lake, s3: S3Server, bucket: str) -> None:
    """Who reads without a catalog sees the last publish, also of tables that were written while the store failed."""
    _, answer = lake.server.get("/v1/namespaces/default/tables/orders")
    folder, _, name = answer["metadata-location"].rpartition("/")
    key = folder.removeprefix(f"s3://{bucket}/") + "/version-hint.text"
    client = s3.client()

    def hint() -> str:
        found: bytes = client.get_object(Bucket=bucket, Key=key)["Body"].read()
        return found.decode()

    with contextlib.closing(client):
        wait_for(lambda: hint() == name.removesuffix(".metadata.json"), f"a hint of {name}")
