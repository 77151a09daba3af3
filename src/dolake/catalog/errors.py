"""What can go wrong in the catalog. `type` is the word that Iceberg's clients look for in an error answer."""

from __future__ import annotations

from dolake.errors import Conflict, Forbidden, NotFound


class NoSuchNamespace(NotFound):
    code = "NoSuchNamespaceException"


class NoSuchTable(NotFound):
    code = "NoSuchTableException"


class NoSuchView(NotFound):
    code = "NoSuchViewException"


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


class ReadOnly(Forbidden):
    """A pinned warehouse shows one moment and cannot be changed."""

    code = "ReadOnlyException"
