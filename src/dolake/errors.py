"""Every error DoLake raises on purpose, split by what the caller can do about it.

    DoLakeError
    ├── InvalidInput            change the request
    │   ├── MessageValidationError      a message on the socket; lists each problem
    │   ├── SettingsError               a setting with its key, value and what is allowed
    │   ├── InvalidSql                  a statement that cannot be read, or does not fit the tables
    │   └── InvalidResumeToken          a token of another lake, or of a later time than this one's
    ├── Unauthorized            say who you are: the token is missing, wrong, revoked or expired
    ├── Forbidden               not for this caller to do
    │   └── ForbiddenSql                a statement that is not only a question about the lake's tables
    ├── NotFound                there is no such thing
    │   ├── UnknownTable                a statement names a table that is not there
    │   ├── NoSuchRow                   a table has no row of this key
    │   ├── NoSuchMoment                before the first change
    │   └── NoSuchSnapshot              never made, or expired
    ├── Conflict                reload, then try again
    │   ├── InvalidSequence             the stream is elsewhere; `expected` says where
    │   ├── IcebergError                table metadata refused the change
    │   └── SubscriptionTaken           another connection uses this name now
    ├── Unavailable             the same request, later
    │   ├── ConnectionError             the server cannot be reached
    │   ├── BufferOverflowError         the journal has no room
    │   ├── RateLimited                 more than this client may ask; `retry_after_ms` says when to come again
    │   ├── FlushError                  a publish failed; `used_fallback` says whether the journal keeps the changes
    │   │   └── ParquetWriteError
    │   ├── QueryUnavailable            the process that answers queries is starting, or died on the way
    │   ├── TooManyQueries              the queue of queries is full, or the wait in it was too long
    │   ├── StoreUnavailable            the store of the tables gave no answer
    │   ├── TooSlow                     a subscriber took nothing for too long
    │   └── TooStale                    what is there is older than was asked for
    ├── QueryStopped            a query was ended before its answer was whole
    │   ├── QueryTimeout                it took longer than it may
    │   ├── QueryOutOfMemory            it needed more memory than it may have
    │   └── QueryCancelled              somebody asked for its end
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

    def __str__(self) -> str:
        place = self.path.removeprefix("$").removeprefix(".")
        text = super().__str__()
        return f"{place}: {text}" if place and place not in text else text

    def error_details(self) -> list[dict[str, str]]:
        """One entry per problem: `path` into the message, `message` in words, `hint` when there is one."""
        return [{"path": self.path, "message": self.message, "hint": self.hint}]


class SettingsError(InvalidInput):
    """A setting that does not exist or cannot have this value."""

    code = "invalid_setting"


class InvalidSql(InvalidInput):
    """A statement that cannot be read, or that does not fit the tables and parameters."""

    code = "invalid_sql"


class InvalidResumeToken(InvalidInput):
    """A resume token that cannot be followed: it is of another lake, or of a position that this one has not reached."""

    code = "invalid_resume_token"


class Unauthorized(DoLakeError):
    """The server does not know who asks: the token is missing, wrong, revoked or expired."""

    code = "unauthorized"


class Forbidden(DoLakeError):
    """This is not for this caller to do; the hint says who may."""

    code = "forbidden"


class ForbiddenSql(Forbidden):
    """A statement that does more than ask the lake's tables."""

    code = "forbidden_sql"


class NotFound(DoLakeError):
    """What was asked for does not exist, or no longer."""

    code = "not_found"


class UnknownTable(NotFound):
    """A statement or a call names a table that the lake does not have, or that the caller does not see.

    `table` is the name as it was looked up, so that an edge can suggest the closest one that the caller sees.
    """

    code = "unknown_table"

    def __init__(self, message: str, *, table: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.table = table


class NoSuchRow(NotFound):
    """The table has no row of this key, at the moment that was asked about."""

    code = "no_such_row"


class NoSuchMoment(NotFound):
    """A time before the first change; the hint says how far back one can look."""

    code = "no_such_moment"


class NoSuchSnapshot(NotFound):
    """A snapshot that was never made, or has expired."""

    code = "no_such_snapshot"


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


class SubscriptionTaken(Conflict):
    """A named subscription has one reader: another connection has taken it over, or it was dropped."""

    code = "subscription_taken"


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


class RateLimited(Unavailable):
    """More than one client may ask, or than the server can do; `retry_after_ms` says when to come again."""

    code = "rate_limited"

    def __init__(self, message: str, *, retry_after_ms: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after_ms = retry_after_ms


class FlushError(Unavailable):
    """A publish failed. With `used_fallback` the changes are safe in the journal and go out later."""

    code = "flush_error"

    def __init__(self, message: str, *, used_fallback: bool = False, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.used_fallback = used_fallback


class ParquetWriteError(FlushError):
    """Data files could not be written."""

    code = "parquet_write_error"


class QueryUnavailable(Unavailable):
    """The process that answers queries is starting, or died while it worked on this one."""

    code = "query_unavailable"


class TooManyQueries(Unavailable):
    """The queue of queries is full, or this one waited in it too long."""

    code = "too_many_queries"


class StoreUnavailable(Unavailable):
    """The store that the tables are in gave no answer at all, after all tries."""

    code = "store_unavailable"


class TooSlow(Unavailable):
    """A subscriber that took nothing for too long; its token says where to go on."""

    code = "too_slow"


class TooStale(Unavailable):
    """What is there is older than was asked for, and did not become fresher in time."""

    code = "too_stale"


class QueryStopped(DoLakeError):
    """A query was ended before its answer was whole."""

    code = "query_stopped"


class QueryTimeout(QueryStopped):
    """It took longer than it may: ask for less, or allow more with a timeout of its own."""

    code = "query_timeout"


class QueryOutOfMemory(QueryStopped):
    """It needed more memory than queries may have: ask for less."""

    code = "query_out_of_memory"


class QueryCancelled(QueryStopped):
    """Somebody asked for its end, or the client left."""

    code = "query_cancelled"


class OutcomeUnknown(DoLakeError):
    """The answer was lost: the request may or may not have happened. Look before you repeat it."""

    code = "outcome_unknown"


class Damaged(DoLakeError):
    """Stored bytes are not what was written. Nothing continues until a person has looked."""

    code = "damaged"
