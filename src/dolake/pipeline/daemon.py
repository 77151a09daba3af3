"""The parent of Spark's Python workers, in place of pyspark.daemon: the same, but a task costs 1 ms and not 150.

Started by Spark's Java process (spark.python.daemon.module); forks the workers that run tasks.py. Two things cost that
much for each task: PySpark asks Python to look at its import path again, and zip files and jars on it are then read
anew; and it collects garbage, which walks every object of every module. So archives leave the path (the pyspark package
is installed as files too), and what is imported before the fork is out of the collector's sight.
"""

from __future__ import annotations

import gc
import sys

_ARCHIVES = (".zip", ".jar")


def forget_archives() -> None:
    """Take archives off the import path, and off Python's memory of it."""
    sys.path[:] = [entry for entry in sys.path if not entry.endswith(_ARCHIVES)]
    for entry in [entry for entry in sys.path_importer_cache if entry.endswith(_ARCHIVES)]:
        del sys.path_importer_cache[entry]


if __name__ == "__main__":
    forget_archives()
    import pyspark.worker  # noqa: F401 - imported before the fork, so that workers share it
    from pyspark.daemon import manager

    import dolake.pipeline.tasks  # noqa: F401

    gc.collect()
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]
