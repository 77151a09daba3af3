"""DoLake: a real-time Iceberg lakehouse. Follow one row through the rooms:

changes.py       Change, Batch, StreamId: the nouns every room shares
positions.py     Position, and the milestones: sent, received, durable, committed, announced
backoff.py       how long to wait before the next try
tables/          what a DoLake table is, as pure rules
errors.py  settings/  telemetry.py     the error tree; every option; log format and metric names
crashpoints.py   where tests let a process die
suggestions.py   the name that was probably meant: of a table, a column, a setting

sources/         born        sqlite/: triggers and an outbox in a SQLite file; runner.py sends through client/;
                             __main__.py is the child process that the server starts
wire/            spoken      messages.py: the words on the socket; session.py: who may say what, and when
receiver/        received    endpoint.py: sockets, limits, back-pressure; admission.py: who may write what
journal/         durable     record.py: bytes of one record; segment.py: one file; embedded.py: a directory of files;
                             dedup.py: seen before?; retention.py: what may go; reader.py: follow from any process
pipeline/        written     the Spark process, the one importer of pyspark: cut.py, tasks.py (in Spark's workers),
                             fold.py (last change per key), staging.py, publish.py, iceberg.py (what is said in Java)
keyindex/        found       index.py, runs.py: key -> data file and position; any process reads it
storage/         kept        local.py, s3.py: bytes by path
catalog/         visible     rest.py: Iceberg REST; commit.py: requirements + updates -> new metadata (pure);
                             sqlite.py, postgres.py: where the pointers live; sql/: the statements, named

verify/          compares journal, changes, state and key index: folding.py, history.py, journal.py, index.py
server/          one process: app.py joins the rooms' routes, lifecycle.py starts and stops them,
                 spark_process.py watches the pipeline, sources.py the sources
client/          the SDK: aio.py (the one implementation), sync.py (wraps it)
cli/             one file per command
"""

import logging

__version__ = "0.1.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())  # a library is silent until its user says otherwise
