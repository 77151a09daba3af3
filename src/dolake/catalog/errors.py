"""What can go wrong in the catalog. `type` is the word that Iceberg's clients look for in an error answer."""

from __future__ import annotations

from dolake.errors import Conflict, Forbidden, InvalidInput, NotFound


class NoSuchNamespace(NotFound):
    code = "NoSuchNamespaceException"


class NoSuchTable(NotFound):
    code = "NoSuchTableException"


class NoSuchView(NotFound):
    code = "NoSuchViewException"


class MissingFile(NotFound):
    """A table's metadata file is not where the catalog says."""

    code = "NotFoundException"


class NoSuchPlan(NotFound):
    """A plan that was cancelled, or is not kept any more."""

    code = "NoSuchPlanIdException"


class NoSuchPlanTask(NotFound):
    """Not a plan task of this table, or one of a snapshot that has expired."""

    code = "NoSuchPlanTaskException"


class AlreadyExists(Conflict):
    code = "AlreadyExistsException"


class NamespaceNotEmpty(Conflict):
    code = "NamespaceNotEmptyException"


class CommitConflict(Conflict):
    """A requirement does not hold, or somebody else was first: load again and retry."""

    code = "CommitFailedException"


class StaleGeneration(Conflict):
    """A pipeline that was replaced tried to publish."""

    code = "StaleGenerationException"


class ManagedTable(Forbidden):
    """Only the pipeline may do this to a table that DoLake manages."""

    code = "ManagedTableException"

    def __init__(self, message: str, *, hint: str = "", is_others: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_others = is_others
        """The table is another one than was asked for: not everybody may know its name."""


class ReadOnly(Forbidden):
    """A pinned warehouse shows one moment and cannot be changed."""

    code = "ReadOnlyException"


class IllegalArgument(InvalidInput):
    """A request that table or view metadata does not allow, by the name that Iceberg's clients know."""

    code = "IllegalArgumentException"


class ScanTooLarge(InvalidInput):
    """Planning a scan takes more time or room than the server gives it."""

    code = "ScanTooLargeException"
