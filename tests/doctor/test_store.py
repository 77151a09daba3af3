"""What the doctor says of a store."""

from __future__ import annotations

import os

from dolake.doctor.store import check_store
from dolake.settings import PipelineSettings, Settings
from tools.s3_server import S3Server


def test_a_store_that_answers_is_well_and_one_without_the_bucket_is_not(s3: S3Server) -> None:
    pipeline = PipelineSettings(enabled=False)
    assert not list(check_store(Settings(), os.environ))
    well = Settings(storage=s3.settings(f"s3://{s3.new_bucket()}/lake"), pipeline=pipeline)
    assert [finding.level for finding in check_store(well, os.environ)] == ["ok"]
    (found,) = check_store(Settings(storage=s3.settings("s3://nobody/lake"), pipeline=pipeline), os.environ)
    assert found.level == "problem"
    assert "NoSuchBucket" in found.found
    assert "make the bucket" in found.remedy


def test_the_jar_that_spark_needs_for_a_store_is_looked_for(s3: S3Server, tmp_path: os.PathLike[str]) -> None:
    pipeline = PipelineSettings(jar_cache=str(tmp_path))
    settings = Settings(storage=s3.settings(f"s3://{s3.new_bucket()}/lake"), pipeline=pipeline)
    _, found = check_store(settings, os.environ)
    assert found.level == "warning"
    assert "iceberg-aws-bundle" in found.found
