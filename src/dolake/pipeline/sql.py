"""Spark for large questions: `python -m dolake.pipeline.sql`, started by the query process and never by hand.

From query/spark_engine.py (sql_link.py has the words), with statements that were written there and files that lie in
the lake or in its scratch. A Spark of its own: whatever a question takes, the pipeline's Java does not feel it.
Promise: it ends when stdin does; it reads what it is given and writes the answer's file and its scratch, nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import pyarrow.ipc
from py4j.protocol import Py4JError
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast

from dolake.errors import DoLakeError
from dolake.pipeline.spark import start_spark
from dolake.pipeline.sql_link import (
    Answered,
    Ask,
    Cancel,
    Failed,
    Progress,
    Ready,
    Report,
    Scan,
    Start,
    decode_word,
    to_line,
)
from dolake.telemetry import start_logging

logger = logging.getLogger("dolake.pipeline.sql")

_LOOK_S = 0.25
_REASON_LENGTH_MAX = 300
_SETTINGS = {
    "spark.app.name": "dolake questions",
    "spark.sql.variable.substitute": "false",  # or ${...} in a name would be looked up
    "spark.sql.parser.escapedStringLiterals": "true",  # a backslash is a backslash
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.catalogImplementation": "in-memory",
}


class Questions:
    """Those at work, each in a thread and a session of its own."""

    def __init__(self, spark: SparkSession, reports: BinaryIO) -> None:
        self._spark, self._reports = spark, reports
        self._reporting = threading.Lock()
        self._at_work: set[str] = set()
        self._cancelled: set[str] = set()

    def report(self, word: Report) -> None:
        with self._reporting:
            self._reports.write(to_line(word))
            self._reports.flush()

    def begin(self, ask: Ask) -> None:
        self._at_work.add(ask.id)
        InheritableThread(target=self._answer, args=(ask,), name=f"question-{ask.id}", daemon=True).start()

    def cancel(self, id_: str) -> None:
        """Said again at every look until it has ended: a job may begin only after the first wish."""
        if id_ in self._at_work:
            self._cancelled.add(id_)
            self._spark.sparkContext.cancelJobGroup(id_)

    def tell_progress(self) -> None:
        """Until the end of the process."""
        tracker, told = self._spark.sparkContext.statusTracker(), dict[str, tuple[int, int]]()
        while not threading.Event().wait(_LOOK_S):
            for id_ in list(self._cancelled):
                self._spark.sparkContext.cancelJobGroup(id_)
            for id_ in list(self._at_work):
                jobs = filter(None, map(tracker.getJobInfo, tracker.getJobIdsForGroup(id_)))
                stages = [stage for job in jobs for id in job.stageIds if (stage := tracker.getStageInfo(id))]
                found = sum(each.numCompletedTasks for each in stages), sum(each.numTasks for each in stages)
                if told.get(id_) != found:
                    told[id_] = found
                    self.report(Progress(id_, *found))

    def _answer(self, ask: Ask) -> None:
        try:
            self._run(ask)
            self.report(Answered(ask.id))
        except (PySparkException, Py4JError, OSError) as error:
            self.report(Failed(ask.id, "it was cancelled" if ask.id in self._cancelled else _reason(error)))
        except Exception as error:
            logger.exception("question failed by a mistake of ours", extra={"query_id": ask.id})
            self.report(Failed(ask.id, type(error).__name__))
        finally:
            self._at_work.discard(ask.id)
            self._cancelled.discard(ask.id)

    def _run(self, ask: Ask) -> None:
        session = self._spark.newSession()  # views of its own
        session.sparkContext.setJobGroup(ask.id, "question", interruptOnCancel=True)
        for name, scan in ask.scans.items():
            _table(session, scan).createOrReplaceTempView(name)
        for name, path in ask.tables.items():
            session.read.parquet(path).createOrReplaceTempView(name)
        frame = session.sql(ask.sql).limit(ask.rows_max)
        frame = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
        table = frame.toArrow()
        partial = Path(ask.out + ".partial")
        try:
            with pyarrow.ipc.new_stream(partial, table.schema) as writer:
                writer.write_table(table)
            if ask.id not in self._cancelled:  # else nobody is there to remove it
                partial.rename(ask.out)
        finally:
            partial.unlink(missing_ok=True)


def _table(session: SparkSession, scan: Scan) -> DataFrame:
    """Its rows; those that are left out are known by their file and place in it."""
    rows = session.read.format("iceberg").load(scan.metadata)
    if not scan.deletes:
        return rows
    gone = broadcast(session.read.parquet(scan.deletes))
    is_gone = (rows["_file"] == gone["file_path"]) & (rows["_pos"] == gone["pos"])
    return rows.join(gone, is_gone, "left_anti").select(rows.columns)


def main() -> int:
    # Whatever prints, in Python or in Java, must not get between the reports.
    reports = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the server
    start = decode_word(sys.stdin.buffer.readline())
    assert isinstance(start, Start), "the first word says how to start"
    start_logging(start.log_level, start.log_format)
    scratch = Path(start.scratch)
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        spark = start_spark(start.settings, scratch, _SETTINGS)
    except DoLakeError as error:
        reports.write(to_line(Failed("", f"{error.message}; {error.hint}")))
        reports.flush()
        return 1
    questions = Questions(spark, reports)
    questions.report(Ready(spark.version))
    threading.Thread(target=questions.tell_progress, name="progress", daemon=True).start()
    try:
        for line in sys.stdin.buffer:
            match decode_word(line):
                case Ask() as ask:
                    questions.begin(ask)
                case Cancel(id_):
                    with contextlib.suppress(Py4JError):
                        questions.cancel(id_)
    finally:
        os._exit(0)  # the query process is gone, and whoever waits for an answer with it


def _reason(error: Exception) -> str:
    """What was wrong first, in one line, without places in our folders."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    text = causes[-1].removeprefix("Caused by: ") if causes else next(iter(lines), type(error).__name__)
    return re.sub(r"(?:file:)?/\S+", "…", text)[:_REASON_LENGTH_MAX]


if __name__ == "__main__":
    sys.exit(main())
