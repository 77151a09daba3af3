"""Which jars Spark needs, and where DoLake keeps them. Light: who only wants to know need not load Spark."""

from __future__ import annotations

from pathlib import Path

ICEBERG_JAR = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
STORE_JAR = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
"""For tables in a store alone: 69 MB."""


def jar_in(folder: Path, name: str = ICEBERG_JAR) -> Path:
    """Where the jar lies once Spark has fetched it into this folder."""
    group, artifact, version = name.split(":")
    return folder / "jars" / f"{group}_{artifact}-{version}.jar"
