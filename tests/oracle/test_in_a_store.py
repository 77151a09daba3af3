"""The oracle again on a lake whose files are in S3 and whose catalog is in Postgres: nothing is lost or doubled there.

Two of its three tables are of format 3, which PyIceberg and Spark read. With fewer changes than test_oracle.py, and
only the crashes that are different in a store; the others, and kills in the middle of an upload, are for `make chaos`,
which with CHAOS_ARGS="--warehouse s3 --catalog postgres" does all of it at length.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.oracle.backends import Machines, is_other_store
from tests.oracle.conftest import SEED
from tests.oracle.driver import PIPELINE_POINTS, SERVER_POINTS, Lake
from tests.oracle.troubles import CrashAt, CutDatabase, KillInUpload, KillPipeline, LoseAnswers
from tests.support.postgres import PostgresServer
from tools.s3_server import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.own_lake]

_HERE = ("staged", "published", "collected")
"""What differs in a store: files are uploaded, the key index is moved, files are listed. The others: `make chaos`."""
_OTHERS = [point for point in (*SERVER_POINTS, *PIPELINE_POINTS) if point not in _HERE]
_GROUPS = 20
_at_length = pytest.mark.chaos
"""In `make chaos` alone."""
_with_faults = pytest.mark.skipif(is_other_store(), reason="only moto's store has a proxy before it that can fail")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, s3: S3Server, postgres: PostgresServer) -> Iterator[Lake]:
    with (
        Machines(s3, postgres) as machines,
        machines.backend("s3", "postgres") as backend,
        Lake(
            tmp_path_factory.mktemp("oracle"),
            seed=SEED,
            backend=backend,
            of_format_3=("users", "shop.items"),
        ) as lake,
    ):
        yield lake


@pytest.mark.parametrize("point", [*_HERE, *(pytest.param(point, marks=_at_length) for point in _OTHERS)])
def test_a_crash_loses_nothing_and_doubles_nothing(lake: Lake, point: str) -> None:
    lake.run(_GROUPS, CrashAt(lake, point))
    lake.assert_right()


@_with_faults
@_at_length
def test_a_pipeline_killed_while_it_uploads_leaves_nothing_behind_that_counts(lake: Lake) -> None:
    lake.run(_GROUPS, KillInUpload(lake, r"/data/.*\.parquet"))
    lake.assert_right()


@_with_faults
@_at_length
def test_a_server_killed_while_it_uploads_metadata_loses_nothing_and_doubles_nothing(lake: Lake) -> None:
    lake.run(_GROUPS, KillInUpload(lake, r"/metadata/.*\.metadata\.json", is_servers=True))
    lake.assert_right()


@_with_faults
def test_answers_of_the_store_that_are_lost_and_files_that_come_half_cost_nothing(lake: Lake) -> None:
    lake.run(_GROUPS, LoseAnswers(lake))
    lake.assert_right()


def test_connections_to_the_database_that_are_cut_cost_nothing(lake: Lake) -> None:
    lake.run(_GROUPS, CutDatabase(lake))
    lake.assert_right()


@_at_length
def test_a_pipeline_killed_at_any_moment_loses_nothing_and_doubles_nothing(lake: Lake) -> None:
    lake.run(_GROUPS, KillPipeline(lake))
    lake.assert_right()


def test_spark_sees_what_duckdb_and_pyiceberg_see(lake: Lake, spark: SparkSession) -> None:
    lake.publish()
    lake.assert_right(spark)
