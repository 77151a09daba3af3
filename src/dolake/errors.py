"""Every error DoLake raises on purpose, split by what the caller can do about it.

    DoLakeError
    ├── InvalidInput            change the request
    │   ├── MessageValidationError      a message on the socket; lists each problem
    │   └── SettingsError               a setting with its key, value and what is allowed
    ├── Forbidden               not for this caller to do
    ├── NotFound                there is no such thing
    ├── Conflict                reload, then try again
    │   ├── InvalidSequence             the stream is elsewhere; `expected` says where
    │   └── IcebergError                table metadata refused the change
    ├── Unavailable             the same request, later
    │   ├── ConnectionError             the server cannot be reached
    │   ├── BufferOverflowError         the journal has no room
    │   └── FlushError                  a publish failed; `used_fallback` says whether the journal keeps the changes
    │       └── ParquetWriteError
    ├── OutcomeUnknown          it may have happened: look before you repeat
    └── Damaged                 stop; a person must look

`code` is stable and meant for programs, `hint` says what to do next and is meant for people. Only the edges
(endpoint.py, rest.py) translate these to HTTP status codes and nack reasons.
"""

from __future__ import annotations

from typing import ClassVar


class DoLakeError(Exception):
    """The root: catch this to catch everything that DoLake raises on purpose."""

    code: ClassVar[str] = "dolake_error"
    retryable: bool = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InvalidInput(DoLakeError):
    """The request is wrong as it stands; sending it again changes nothing."""

    code = "invalid_input"


class MessageValidationError(InvalidInput):
    """A message that does not follow the protocol; `error_details()` lists where and why."""

    code = "invalid_format"

    def __init__(self, message: str, *, path: str = "$", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.path = path

    def error_details(self) -> list[dict[str, str]]:
        """One entry per problem: `path` into the message, `message` in words, `hint` when there is one."""
        return [{"path": self.path, "message": self.message, "hint": self.hint}]


class SettingsError(InvalidInput):
    """A setting that does not exist or cannot have this value."""

    code = "invalid_setting"


class Forbidden(DoLakeError):
    """This is not for this caller to do; the hint says who may."""

    code = "forbidden"


class NotFound(DoLakeError):
    """What was asked for does not exist, or no longer."""

    code = "not_found"


class Conflict(DoLakeError):
    """Somebody else was first: reload, then decide again."""

    code = "conflict"


class InvalidSequence(Conflict):
    """A batch or event number that does not continue its stream."""

    code = "invalid_sequence"

    def __init__(self, message: str, *, expected: int | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.expected = expected


class IcebergError(Conflict):
    """Table metadata does not allow this change."""

    code = "iceberg_error"


class Unavailable(DoLakeError):
    """Nothing is wrong with the request; send the same one later."""

    code = "unavailable"
    retryable = True


class ConnectionError(Unavailable):
    """The server cannot be reached, or went away."""

    code = "connection_error"


class BufferOverflowError(Unavailable):
    """The journal has reached its size limit or the disk is full."""

    code = "buffer_full"


class FlushError(Unavailable):
    """A publish failed. With `used_fallback` the changes are safe in the journal and go out later."""

    code = "flush_error"

    def __init__(self, message: str, *, used_fallback: bool = False, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.used_fallback = used_fallback


class ParquetWriteError(FlushError):
    """Data files could not be written."""

    code = "parquet_write_error"


class OutcomeUnknown(DoLakeError):
    """The answer was lost: the request may or may not have happened. Look before you repeat it."""

    code = "outcome_unknown"


class Damaged(DoLakeError):
    """Stored bytes are not what was written. Nothing continues until a person has looked."""

    code = "damaged"
