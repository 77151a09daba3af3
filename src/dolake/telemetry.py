"""What operators see: the shape of log lines, and every metric by name.

Log lines are constant past-tense sentences with their values beside them (`extra`), never row data. Metrics are read
from the parts when /metrics is asked, so counting costs the hot path nothing but an addition.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import msgspec

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def start_logging(level: str, form: Literal["console", "json"], stream: TextIO | None = None) -> None:
    """Send everything that DoLake logs to one stream, in one shape."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else ConsoleLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("dolake").setLevel(level.upper())


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_values_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class ConsoleLines(logging.Formatter):
    """The same for eyes: time, level, sentence, key=value."""

    def format(self, record: logging.LogRecord) -> str:
        values = " ".join(f"{key}={_one_line(value)}" for key, value in _values_of(record).items())
        line = f"{_time_of(record)} {record.levelname:<7} {record.getMessage()}{'  ' + values if values else ''}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _one_line(value: object) -> str:
    """What strangers sent must not look like a line of ours, nor paint the terminal."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in str(value))


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _values_of(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}
