"""DoLake: a real-time Iceberg lakehouse. Follow one row through the rooms:

changes.py       Change, Batch, StreamId: the nouns every room shares
positions.py     Position, and the milestones: sent, received, durable, committed, announced
tables/          what a DoLake table is, as pure rules
errors.py  settings.py  telemetry.py     the error tree; every option; log format and metric names

wire/            spoken      messages.py: the words on the socket; session.py: who may say what, and when
receiver/        received    endpoint.py: sockets, limits, back-pressure; admission.py: who may write what
journal/         durable     record.py: bytes of one record; segment.py: one file; embedded.py: a directory of files;
                             dedup.py: seen before?; retention.py: what may go; reader.py: follow from any process

server/          one process: app.py joins the rooms' routes, lifecycle.py starts and stops them
client/          the SDK: aio.py (the one implementation), sync.py (wraps it)
cli/             one file per command
"""

import logging

__version__ = "0.1.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())  # a library is silent until its user says otherwise
