"""DuckDB on a store: it reads the lake's places with the lake's keys, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dolake.errors import DoLakeError
from dolake.query.engine import Engine
from dolake.settings import QuerySettings
from dolake.storage.duck import DuckStore, duck_store
from dolake.storage.local import LocalStorage
from dolake.storage.s3 import Keys, S3Storage
from tools.s3_server import S3Server


@pytest.fixture(scope="module")
def storage(s3: S3Server) -> Iterator[S3Storage]:
    location = f"s3://{s3.new_bucket()}/lake"
    store = S3Storage(location, s3.settings(location))
    with store.open_write(f"{location}/a.parquet") as file:
        pq.write_table(pa.table({"x": [1, 2, 3]}), file)
    client = s3.client()
    for key in ("lake-beside/a.parquet", "other/a.parquet"):
        client.put_object(Bucket=location.split("/")[2], Key=key, Body=store.read(f"{location}/a.parquet"))
    client.close()
    yield store
    store.close()


@pytest.fixture(scope="module")
def engine(storage: S3Storage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = Engine(QuerySettings(threads=1), [], tmp_path_factory.mktemp("scratch"), store=duck_store(storage))
    yield engine
    engine.close()


def answer(engine: Engine, sql: str) -> list[tuple[object, ...]]:
    with engine.start(sql) as running:
        return [tuple(row.values()) for batch in running.batches() for row in batch.to_pylist()]


def test_files_of_the_lake_are_read(engine: Engine, storage: S3Storage) -> None:
    assert answer(engine, f"SELECT sum(x)::INT FROM read_parquet('{storage.root}/a.parquet')") == [(6,)]  # noqa: S608


def test_files_beside_the_lake_are_closed(engine: Engine, storage: S3Storage) -> None:
    # With /../ in it a request is signed for a key with these dots: a store that looks at signatures refuses it.
    bucket = storage.root.rpartition("/")[0]
    for place in (f"{storage.root}-beside/a.parquet", f"{bucket}/other/a.parquet", f"{bucket}/*/a.parquet"):
        with pytest.raises(DoLakeError):
            answer(engine, f"SELECT * FROM read_parquet('{place}')")  # noqa: S608


def test_other_addresses_are_closed(engine: Engine, s3: S3Server, storage: S3Storage) -> None:
    path = storage.root.removeprefix("s3://") + "/a.parquet"
    for address in (f"{s3.endpoint}/{path}", "/etc/passwd", "s3://elsewhere/a.parquet"):
        with pytest.raises(DoLakeError):
            answer(engine, f"SELECT * FROM read_parquet('{address}')")  # noqa: S608


def test_the_keys_are_in_no_answer(engine: Engine, s3: S3Server) -> None:
    shown = str(answer(engine, "SELECT * FROM duckdb_secrets()"))
    assert "dolake-test-secret" not in shown


def test_keys_that_have_changed_are_used_from_the_next_question_on(
    engine: Engine, storage: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "keys", lambda: Keys("new-key", "new-secret"))
    shown = str(answer(engine, "SELECT secret_string FROM duckdb_secrets()"))
    assert "new-key" in shown


def test_a_lake_in_a_folder_needs_no_way_to_a_network(tmp_path: Path, storage: S3Storage) -> None:
    assert duck_store(LocalStorage(tmp_path)) is None
    assert isinstance(duck_store(storage), DuckStore)
