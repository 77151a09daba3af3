"""A lake made by hand, without Spark and without a server: real journal, catalog, Parquet files and key index.

`publish` does what the pipeline does; the other methods do damage, each of one kind alone.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from dolake.catalog.base import GENERATION, PUBLISHED_FROM, PUBLISHED_TO, Name, Publish
from dolake.catalog.documents import Documents
from dolake.catalog.readers import current_schema, current_snapshot_id
from dolake.catalog.sqlite import SqliteStore
from dolake.catalog.tables import TableCommit, Tables
from dolake.changes import Batch, StreamId
from dolake.journal.reader import JournalReader
from dolake.journal.repair import repair_journal
from dolake.keyindex import Block, Changes, KeyIndex, rebuild
from dolake.pipeline import fold
from dolake.pipeline.cut import Cut, Limits, next_cut
from dolake.pipeline.deletes import DeleteFiles
from dolake.pipeline.files import WriteOptions, new_file, shape_of, write_rows
from dolake.pipeline.reading import Contradicted, Wanting
from dolake.pipeline.tasks import KeysJob, Refused, SliceJob, Staged, TablePlan, read_keys, write_slice
from dolake.settings import DoLakeConfig, JournalSettings
from dolake.storage.local import LocalStorage, path_of
from dolake.tables import layout
from dolake.tables.schema import grow, grown
from dolake.verify.base import Check, Report
from dolake.verify.moment import opened as opened_lake
from dolake.verify.run import verify
from tests.support import speaker
from tests.support.aio import run
from tests.support.journals import keep, opened, segments_of

Json = dict[str, Any]
Rows = list[Json]
JOURNAL = JournalSettings(size_max_bytes=8 << 20, segment_size_bytes=65536, group_size_max_bytes=65536)
_OPTIONS = WriteOptions("snappy", 1_000)
_LIMITS = Limits(10**6, 1 << 30, 0, 1 << 30)


class HandLake:
    """A home with tables; close it when the test ends."""

    def __init__(self, home: Path, *, has_source_in_key: bool = False) -> None:
        self.home = home
        self.journal = home / "journal"
        self.has_source_in_key = has_source_in_key
        self._clock = itertools.count(1_800_000_000_000, 1_000)
        self._ids = itertools.count(1_000)
        self._sequences: dict[tuple[str, int], Iterator[int]] = {}
        self._numbers = itertools.count(1)
        self.files: dict[str, tuple[list[Json], list[Json]]] = {}
        """By a table's full name, its data files and delete files as a commit names them."""
        self.open()

    def open(self) -> None:
        """Also once more, after somebody has put the home's files back."""
        self.store = SqliteStore(self.home / "catalog.db")
        self.tables = Tables(self.store, Documents(LocalStorage(self.home / "warehouse")), lambda: next(self._clock))
        self.generation = self.store.begin_generation().generation

    def close(self) -> None:
        self.tables.close()
        self.store.close()

    # --- what the pipeline does --------------------------------------------------------------------------------------

    def publish(self, *changes: Json, source: str = "shop", epoch: int = 0) -> None:
        """Bring these changes through the journal into the tables."""
        self.append(*changes, source=source, epoch=epoch)
        self.publish_all()

    def append(self, *changes: Json, source: str = "shop", epoch: int = 0) -> None:
        """Only into the journal."""
        sequences = self._sequences.setdefault((source, epoch), itertools.count(1))
        events = [speaker.event(next(sequences), **change) for change in changes]
        for event in events:
            if event["operation"] == "DELETE":
                del event["after"]
        number = next(self._numbers)
        payload = json.dumps(speaker.batch(number, events, source=source)).encode()
        names = tuple(sorted({event["table"] for event in events}))
        first, last = events[0]["sequence"], events[-1]["sequence"]
        self._keep(Batch(StreamId(source), epoch, number, first, last, len(events), names, payload))

    def append_state(self, state: Json, source: str = "shop") -> None:
        """A state of this source without a change."""
        patch = json.dumps(state).encode()
        self._keep(Batch(StreamId(source), 0, next(self._numbers), 0, 0, 0, (), b"", patch))

    def _keep(self, batch: Batch) -> None:
        async def write() -> None:
            async with opened(self.journal, settings=JOURNAL, clock=lambda: next(self._clock)) as journal:
                await keep(journal, batch)

        run(write())

    def publish_all(self) -> None:
        """Publish what the journal has."""
        published = self.store.published().position
        with JournalReader(self.journal) as reader:
            cut = next_cut(reader, published, reader.durable(), _LIMITS)
        if not cut.slices:
            return
        for table, staged in self._staged(cut).items():
            self._publish_table(table, staged, cut, is_last=table == max(cut.tables))

    def _staged(self, cut: Cut) -> dict[str, Staged]:
        def slices(plans: dict[str, TablePlan]) -> dict[str, Staged | Wanting | Contradicted | Refused]:
            (part,) = cut.slices
            return write_slice(
                SliceJob(str(self.journal), part, plans, _OPTIONS, self.has_source_in_key, is_whole=True, token="try")
            )

        plans = {table: self.plan(table) for table in cut.tables if self._exists(table)}
        for table, wanting in slices(plans).items():
            if isinstance(wanting, Wanting):
                self._create(table, wanting)
        plans = {table: self.plan(table) for table in cut.tables}
        return {table: staged for table, staged in slices(plans).items() if isinstance(staged, Staged)}

    def _publish_table(self, table: str, staged: Staged, cut: Cut, *, is_last: bool) -> None:
        state, changes = self.names(table)
        index = self.index(table)
        old = index.positions_by_path(index.look_up(staged.outcomes.hashes))
        data, deletes = self.files[state]
        known = {entry["referenced-data-file"]: [entry] for entry in deletes}
        plan = DeleteFiles(self.location(state), known).plan(old, "try")
        entries = {path: found[0] for path, found in known.items()} | plan.add
        self.files[changes][0].append(staged.changes_file)
        commits = [(changes, self._new_id())]
        if staged.state_file or plan.add:
            self.files[state] = [*data, *([staged.state_file] if staged.state_file else [])], list(entries.values())
            commits.append((state, self._new_id()))
            kept = staged.outcomes.rows != fold.GONE
            hashes = type(staged.outcomes.hashes)(*(half[kept] for half in staged.outcomes.hashes))
            blocks = (
                [Block(staged.state_file["file-path"], hashes, np.arange(int(kept.sum())))] if staged.state_file else []
            )
            index.stage(Changes(blocks, fold.gone(staged.outcomes)), commits[1][1])
        publish = Publish(cut.start, cut.end, self.generation, next(self._clock))
        self._commit(commits, publish, moves_position=is_last)
        if len(commits) > 1:
            index.promote()

    # --- damage ------------------------------------------------------------------------------------------------------

    def rewrite(self, name: str, change: Callable[[Rows], Rows], *, at: int = 0) -> None:
        """Replace a data file of this table by one with other rows; the key index follows, as if nothing was wrong."""
        data, deletes = self.files[name]
        old = data[at]
        shape = shape_of(json.dumps(self.schema(name)))
        rows = change(pq.read_table(path_of(old["file-path"])).to_pylist())
        location = new_file(self.location(name), "other")
        data[at] = write_rows(pa.Table.from_pylist(rows, shape.arrow), location, shape, _OPTIONS)
        self.files[name] = data, [each for each in deletes if each["referenced-data-file"] != old["file-path"]]
        self.commit(name)

    def commit(self, name: str, *, has_index: bool = True) -> None:
        """A snapshot with what `files` says; with the index of it, made anew."""
        snapshot_id = self._new_id()
        self._commit([(name, snapshot_id)], None)
        if has_index and not name.endswith(layout.CHANGES_SUFFIX):
            self.rebuild_index(name, snapshot_id)

    def expire(self, name: str, snapshot_ids: list[int]) -> None:
        """Let these snapshots go; their files stay."""
        update = {"action": "remove-snapshots", "snapshot-ids": snapshot_ids}
        self.tables.commit([TableCommit(_name(name), [], [update])], is_pipeline=True)

    def rebuild_index(self, name: str, snapshot_id: int | None = None) -> None:
        data, deletes = self.files[name]
        positions = DeleteFiles(self.location(name), {each["referenced-data-file"]: [each] for each in deletes})
        jobs = [KeysJob(each["file-path"], positions.of(each["file-path"]), self.has_source_in_key) for each in data]
        known = snapshot_id or current_snapshot_id(self.metadata(name))
        rebuild(self.index_folder(name), known, (read_keys(job) for job in jobs))

    def trim(self) -> None:
        """Let the journal forget all that it may: as after days of other changes."""
        for _ in range(2):
            self.publish(insert("1", "padding", text="x" * 60_000), source="padding")
        for path in segments_of(self.journal)[:-1]:
            path.unlink()

    def lose_in_journal(self, word: str) -> None:
        """Damage the batch in which this word stands, and repair the journal."""
        path = next(path for path in segments_of(self.journal) if word.encode() in path.read_bytes())
        data = bytearray(path.read_bytes())
        data[data.find(word.encode())] ^= 1
        path.write_bytes(data)
        assert list(repair_journal(self.journal, is_dry_run=False))[-1] == "done"

    # --- looking -----------------------------------------------------------------------------------------------------

    def verify(self, only: str | None = None, **options: Any) -> Report:
        with opened_lake(self.home, DoLakeConfig()) as lake:
            return verify(lake, only=only, **options)

    def names(self, table: str) -> tuple[str, str]:
        state, changes = layout.table_names(table)
        return ".".join(state), ".".join(changes)

    def metadata(self, name: str) -> Json:
        return self.tables.load(_name(name)).metadata

    def schema(self, name: str) -> Json:
        schema = current_schema(self.metadata(name))
        assert schema is not None
        return schema

    def location(self, name: str) -> str:
        return str(self.metadata(name)["location"])

    def index_folder(self, name: str) -> Path:
        return self.home / "keyindex" / str(self.metadata(name)["table-uuid"])

    def index(self, table: str) -> KeyIndex:
        state = self.names(table)[0]
        return KeyIndex.open(self.index_folder(state), current_snapshot_id(self.metadata(state)))

    def plan(self, table: str) -> TablePlan:
        state, changes = self.names(table)
        columns = layout.columns_of(self.schema(state))
        return TablePlan(
            columns,
            json.dumps(self.schema(state)),
            self.location(state),
            json.dumps(self.schema(changes)),
            self.location(changes),
        )

    # --- commits -----------------------------------------------------------------------------------------------------

    def _exists(self, table: str) -> bool:
        return self.names(table)[0] in self.files

    def _create(self, table: str, wanting: Wanting) -> None:
        columns = grown((), grow((), wanting.seen, declared=wanting.declared.columns))
        state, changes = self.names(table)
        if _name(state).namespace not in {tuple(key.split("\x1f")) for key in self._namespaces()}:
            self.store.create_namespace(_name(state).namespace, {})
        schemas = {
            state: layout.state_schema(columns, has_source=self.has_source_in_key),
            changes: layout.changes_schema(columns),
        }
        for name, schema in schemas.items():
            request = {"name": _name(name).name, "schema": schema, "properties": layout.properties(table)}
            self.tables.create(_name(name), request, is_pipeline=True)
            self.files[name] = [], []

    def _namespaces(self) -> list[str]:
        return self.store.list_namespaces((), None, None).items

    def _new_id(self) -> int:
        return next(self._ids)

    def _commit(
        self, snapshots: list[tuple[str, int]], publish: Publish | None, *, moves_position: bool = True
    ) -> None:
        summary = {"operation": "overwrite"}
        if publish:
            summary |= {PUBLISHED_FROM: str(publish.from_position), PUBLISHED_TO: str(publish.to_position)}
            summary[GENERATION] = str(publish.generation)
        commits = [TableCommit(_name(name), [], self._updates(name, id_, summary)) for name, id_ in snapshots]
        self.tables.commit(commits, is_pipeline=True, publish=publish if moves_position else None)

    def _updates(self, name: str, id_: int, summary: dict[str, str]) -> list[Json]:
        metadata = self.metadata(name)
        sequence = metadata["last-sequence-number"] + 1
        snapshot: Json = {
            "snapshot-id": id_,
            "sequence-number": sequence,
            "timestamp-ms": next(self._clock),
            "manifest-list": self._write_manifests(name, id_, sequence),
            "summary": summary,
            "schema-id": metadata["current-schema-id"],
        }
        if (parent := current_snapshot_id(metadata)) is not None:
            snapshot["parent-snapshot-id"] = parent
        reference = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": id_}
        return [{"action": "add-snapshot", "snapshot": snapshot}, reference]

    def _write_manifests(self, name: str, id_: int, sequence: int) -> str:
        """Every snapshot names all of its files anew: simple, and any reader takes it."""
        schema, folder = Schema.model_validate(self.schema(name)), f"{self.location(name)}/metadata"
        files = PyArrowFileIO()
        manifests: list[ManifestFile] = []
        for entries, kind in zip(self.files[name], (ManifestWriterV2, _DeletesWriter), strict=True):
            if entries:
                output = files.new_output(f"{folder}/{id_}-{kind.__name__}.avro")
                with kind(UNPARTITIONED_PARTITION_SPEC, schema, output, id_, "null") as writer:
                    for entry in entries:
                        writer.add_entry(_manifest_entry(entry, id_))
                manifests.append(writer.to_manifest_file())
        location = f"{folder}/snap-{id_}.avro"
        with write_manifest_list(2, files.new_output(location), id_, None, sequence, "null") as listing:
            listing.add_manifests(manifests)
        return location


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return super()._meta | {"content": "deletes"}


def _manifest_entry(entry: Json, snapshot_id: int) -> ManifestEntry:
    is_data = entry["content"] == "data"
    bounds: dict[str, Any] = {
        f"{side}_bounds": {
            key: bytes.fromhex(value)
            for key, value in zip(entry[f"{side}-bounds"]["keys"], entry[f"{side}-bounds"]["values"], strict=True)
        }
        for side in ("lower", "upper")
    }
    if "null-value-counts" in entry:
        counts = entry["null-value-counts"]
        bounds["null_value_counts"] = dict(zip(counts["keys"], counts["values"], strict=True))
    file = DataFile.from_args(
        content=DataFileContent.DATA if is_data else DataFileContent.POSITION_DELETES,
        file_path=entry["file-path"],
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=entry["record-count"],
        file_size_in_bytes=entry["file-size-in-bytes"],
        **bounds,
    )
    file.spec_id = 0
    return ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, data_file=file)


def _name(full: str) -> Name:
    *namespace, name = full.split(".")
    return Name(tuple(namespace), name)


# --- words for tests -------------------------------------------------------------------------------------------------


def insert(key: str, table: str = "items", **row: Any) -> Json:
    return {"table": table, "operation": "INSERT", "row_id": key, "after": row}


def update(key: str, before: Json, after: Json, table: str = "items", **more: Any) -> Json:
    return {"table": table, "operation": "UPDATE", "row_id": key, "before": before, "after": after} | more


def delete(key: str, before: Json, table: str = "items") -> Json:
    return {"table": table, "operation": "DELETE", "row_id": key, "before": before}


def check_of(report: Report, name: str) -> Check:
    """The one check of this name that found something, or else the first."""
    found = [check for check in report.checks if check.name == name]
    return next((check for check in found if check.difference_count), found[0])


def differing(report: Report) -> set[str]:
    return {check.name for check in report.checks if check.difference_count}
