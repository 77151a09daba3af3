"""Spark's own upkeep on a table of its own: `rewrite_data_files` beside MERGE statements, as people run them by hand.

From compact.py. The table is in the same REST catalog as ours, merge-on-read, with as many files and deletes as ours
had. Promise: a try that fails is counted with what Iceberg said, and leaves the table as it was.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from benchmarks.meter import Meter
from benchmarks.stream import KEY_FIRST, Json
from benchmarks.upsert import changes_of, rows_of

NAME = "lake.peer.orders"
_TARGET_BYTES = 128 * 1024 * 1024
_MERGE_EVERY_S = 1.0
_ERROR_CHARACTERS = 300


class Rewriter:
    """The copy, and what is done to it."""

    def __init__(self, spark: SparkSession, meter: Meter, folder: Path, rows: int, rate_events_s: int) -> None:
        self._spark, self._meter, self._folder = spark, meter, folder
        self._rows, self._rate_events_s = rows, rate_events_s
        self._chance = np.random.default_rng(2)

    def copy(self, rows: Path, files: int, deleted_every: int) -> None:
        """Begin anew: the rows of this file in so many data files, each with a delete file for each nth row."""
        self._spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.peer")
        modes = ", ".join(f"'write.{verb}.mode' = 'merge-on-read'" for verb in ("merge", "update", "delete"))
        more = f"'format-version' = '2', 'write.distribution-mode' = 'none', {modes}"
        self._spark.read.parquet(str(rows)).createOrReplaceTempView("all_rows")
        ordered = f"SELECT /*+ REPARTITION_BY_RANGE({files}, id) */ * FROM all_rows"  # noqa: S608 - our own names
        self._spark.sql(f"CREATE OR REPLACE TABLE {NAME} USING iceberg TBLPROPERTIES ({more}) AS {ordered}")
        self._spark.sql(f"DELETE FROM {NAME} WHERE (id - {KEY_FIRST}) % {deleted_every} = 0")  # noqa: S608
        self._living = KEY_FIRST + np.flatnonzero(np.arange(self._rows) % deleted_every)

    def row_count(self) -> int:
        (count,) = self._spark.sql(f"SELECT count(*) FROM {NAME}").first() or (0,)  # noqa: S608 - our own name
        return int(count)

    def rewrite(self) -> Json:
        """Once, with nothing else going on in this Spark."""
        before, size = self._files()
        self._meter.restart()
        with self._meter.watching():
            answer, error = self._call()
            seconds, cpu_s = self._meter.seconds, self._meter.cpu_s()["java"]
        return {
            "error": error,
            "answer": answer,
            "wall_s": round(seconds, 2),
            "input_mb": round(size / 1e6, 1),
            "cpu_s": round(cpu_s, 2),
            "cpu_s_per_mb": round(cpu_s / size * 1e6, 4),
            "files_before": before,
            "files_after": self._files()[0],
        }

    def rewrite_beside_updates(self) -> Json:
        """Once, while another thread of this Spark updates the table without pause, at most at the pace."""
        is_over, merges = threading.Event(), list[Json]()
        thread = threading.Thread(target=self._merge_until, args=(is_over, merges), name="merges", daemon=True)
        thread.start()
        try:
            while thread.is_alive() and not merges:
                time.sleep(0.05)  # the first one makes Spark warm
            found = self.rewrite()
        finally:
            is_over.set()
            thread.join()
        done = [merge for merge in merges if not merge["error"]]
        return {
            **found,
            "merges": len(done),
            "merges_failed": len(merges) - len(done),
            "updates_per_s": round(sum(merge["updates"] for merge in done) / max(1e-9, sum(m["s"] for m in merges))),
        }

    def _call(self) -> tuple[Json, str | None]:
        options = f"map('target-file-size-bytes', '{_TARGET_BYTES}', 'delete-file-threshold', '1')"
        try:
            answer: Any = self._spark.sql(
                f"CALL lake.system.rewrite_data_files(table => '{NAME.removeprefix('lake.')}', options => {options})"
            ).first()
        except (PySparkException, Py4JJavaError) as error:
            return {}, _said(error)
        return answer.asDict(), None

    def _files(self) -> tuple[int, int]:
        """How many data files it has, and the bytes of those and of their deletes."""
        query = f"SELECT count_if(content = 0), sum(file_size_in_bytes) FROM {NAME}.files"  # noqa: S608 - our own name
        count, size = self._spark.sql(query).first() or (0, 0)
        return int(count), int(size)

    def _merge_until(self, is_over: threading.Event, merges: list[Json]) -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            began = time.monotonic()
            error = self._merge(number)
            took_s = time.monotonic() - began
            merges.append({"updates": self._rate_events_s, "s": max(took_s, _MERGE_EVERY_S), "error": error})
            is_over.wait(max(0.0, _MERGE_EVERY_S - took_s))

    def _merge(self, number: int) -> str | None:
        count = min(self._rate_events_s, len(self._living))
        keys = self._chance.choice(self._living, count, replace=False)
        file = self._folder / "updates.parquet"
        pq.write_table(rows_of(changes_of("UPDATE", "orders", count, number), keys), file)
        source = f"(SELECT * FROM parquet.`{file}`) AS new ON old.id = new.id"  # noqa: S608 - our own names
        try:
            self._spark.sql(f"MERGE INTO {NAME} AS old USING {source} WHEN MATCHED THEN UPDATE SET *")
        except (PySparkException, Py4JJavaError) as error:
            return _said(error)
        return None


def _said(error: PySparkException | Py4JJavaError) -> str:
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    return str(text).strip()[:_ERROR_CHARACTERS]
