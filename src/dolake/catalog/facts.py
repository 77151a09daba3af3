"""What upkeep wants to know of a table, from its manifests: files, deleted rows, snapshots. No data file is opened.

From server/upkeep.py, in the catalog's threads; to tables/maintenance.py, which says what is due. The pipeline has the
same figures in memory; this way they are there too while it sleeps.
"""

from __future__ import annotations

from typing import Any

from dolake.catalog.documents import Document
from dolake.catalog.partitions import readable_table
from dolake.storage.base import Storage
from dolake.tables.maintenance import FileFacts, TableFacts
from dolake.tables.thinning import History
from dolake.tables.tiers import Tiers, partition_end_ms
from dolake.tables.transforms import PartitionNames


def table_facts(name: str, document: Document, storage: Storage) -> TableFacts:
    with readable_table(document, storage) as table:
        snapshot = table.current_snapshot()
        history = History.of(document.metadata)
        if snapshot is None:
            return TableFacts(name, (), 0, history)
        names = PartitionNames(document.metadata)
        files = [_facts(task, names, storage.tiers) for task in table.scan().plan_files()]
        return TableFacts(name, files, len(snapshot.manifests(table.io)), history)


def _facts(task: Any, names: PartitionNames, tiers: Tiers) -> FileFacts:
    file, values = task.file, tuple(task.file.partition)
    deleted = sum(each.record_count for each in task.delete_files)
    return FileFacts(
        file.file_path,
        file.file_size_in_bytes,
        file.record_count,
        min(deleted, file.record_count),
        names.of(file.spec_id, values) if values else "",
        tiers.of(file.file_path),
        partition_end_ms(names.parts(file.spec_id, values)),
    )
