"""The class archive: what Java makes of Spark's classes at a start, kept in a file, so that the next start takes half.

Made once for each Python environment by `make` or `dolake prepare`, which run this module; used by spark.py wherever it
is there. Java itself sees whether the file fits, and starts as without one where it does not. Promise: an archive is
whole or not there; a new one takes the place of those before. Light, but for `main`, which starts Spark.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from dolake.pipeline.java import ADVICE, cache_folder, fetch_java, find_java

_END_WAIT_S = 300.0
_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_FOLDER = Path(sys.prefix) / "share" / "dolake"
"""With the environment whose jars it is made of, and gone with it: each archive has 170 MB."""


def archive_of(java: Path) -> Path:
    """Where the archive for this Java and the Spark of this environment is, or would be."""
    home = java.resolve().parents[1]
    marks = [str(home), _text(home / "release"), *(f"{jar} {jar.stat().st_mtime_ns}" for jar in _core_jars())]
    return _FOLDER / f"spark-{hashlib.sha256(chr(10).join(marks).encode()).hexdigest()[:16]}.jsa"


def archive_options(java: Path) -> str:
    """What Java is told so that it uses the archive; nothing where there is none."""
    archive = archive_of(java)
    return f'-XX:SharedArchiveFile="{archive}" {_SILENT}' if archive.is_file() else ""


def _core_jars() -> list[Path]:
    """Of Spark's jars the one whose time tells whether it was installed anew."""
    spec = find_spec("pyspark")
    folders = spec.submodule_search_locations if spec else None
    return sorted(jar for folder in folders or () for jar in Path(folder, "jars").glob("spark-core_*.jar"))


def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


# --- making one ------------------------------------------------------------------------------------------------------


def main() -> int:
    """Make the archive where there is none. Exit code 1 and why, where it cannot be; everything works without it."""
    java = find_java() or fetch_java(cache_folder(os.environ))
    if java is None:
        print(ADVICE, file=sys.stderr)
        return 1
    archive = archive_of(java)
    if archive.is_file():
        return 0
    print("spark: making its class archive, once: each start takes half as long with it", flush=True)
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="making-", dir=archive.parent) as folder:
            made = Path(folder, "spark.jsa")
            _run_spark(Path(folder), f'-XX:ArchiveClassesAtExit="{made}" {_SILENT}')
            for older in archive.parent.glob("spark-*.jsa"):
                older.unlink()
            made.replace(archive)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"spark: no class archive, starts take longer: {error}", file=sys.stderr)
        return 1
    return 0


def _run_spark(scratch: Path, options: str) -> None:
    """Start it, let it do a little of what a pipeline and a question do, and wait until Java has written the file."""
    from pyspark import SparkContext

    from dolake.pipeline.spark import start_spark
    from dolake.settings import PipelineSettings

    lake = {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(scratch / "lake"),
    }
    session = start_spark(PipelineSettings(), scratch / "spark", lake, java_options=options)
    session.sql("CREATE TABLE lake.shop.orders (id BIGINT, city STRING) USING iceberg")
    session.sql("INSERT INTO lake.shop.orders VALUES (1, 'Oslo'), (2, 'Bergen')")
    session.sql("SELECT city, COUNT(*) FROM lake.shop.orders GROUP BY city").collect()
    gateway = SparkContext._gateway
    assert gateway is not None, "Spark was started"
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_END_WAIT_S)


if __name__ == "__main__":
    sys.exit(main())
