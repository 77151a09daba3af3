"""Iceberg's Java library, as the pipeline uses it: tables by name, their columns, and one publish over many tables.

From publish.py. Everything that is said to Java stands in this file. Promise: `commit` returns when all tables of a
publish and the published position have moved; it raises Conflict when none has, OutcomeUnknown when nobody can say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from dolake.errors import Conflict, DoLakeError, OutcomeUnknown, Unavailable
from dolake.pipeline.java_classes import PLAIN_FILES, STORE_FILES, add_class
from dolake.pipeline.origins import Origin
from dolake.tables.layout import GUESSES, MANAGED, OURS, RESCUED_COLUMNS
from dolake.tables.types import source_name

Json = dict[str, Any]
_WARM_ROUNDS = 10
_UNPARTITIONED: Json = {"spec-id": 0, "fields": []}


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """A table as it was loaded."""

    name: tuple[str, ...]
    uuid: str
    location: str
    schema: str
    schema_id: int
    snapshot_id: int | None
    is_managed: bool
    ours: str | None
    """The source's name of the table, where the pipeline has made it or taken it over."""
    java: Any
    specs: tuple[Json, ...] = (_UNPARTITIONED,)
    """All partition specs that it ever had; the current one is the last."""
    sorted_by: frozenset[int] = frozenset()
    """The ids of the columns of all sort orders that it ever had."""
    format_version: int = 2
    guesses: str | None = None
    """A property of a table of changes: which columns have a type that was only guessed."""
    rescued: str | None = None
    """A property of a state: the columns that have values in `_rescued`."""
    pending: Any = None
    """A transaction of Java that has changed the schema already: what is staged goes into the same commit."""

    @property
    def spec(self) -> Json:
        return self.specs[-1]

    @property
    def partition_fields(self) -> list[Json]:
        """Of all specs."""
        return [field for spec in self.specs for field in spec["fields"]]

    @property
    def has_partitions(self) -> bool:
        """Whether there may be data files in partitions."""
        return len(self.specs) > 1 or bool(self.specs[0]["fields"])

    @property
    def pinned_columns(self) -> frozenset[str]:
        """Columns that its files are, or were, divided or sorted by: Iceberg lets nobody drop or replace them."""
        ids = self.sorted_by | {field["source-id"] for field in self.partition_fields}
        if not ids:
            return frozenset()
        return frozenset(field["name"] for field in json.loads(self.schema)["fields"] if field["id"] in ids)


@dataclass(frozen=True, slots=True)
class TableChange:
    """What a publish does to one table: entries of files as Iceberg's JSON."""

    table: IcebergTable
    add_rows: Sequence[Json] = ()
    remove_rows: Sequence[Json] = ()
    add_deletes: Sequence[Json] = ()
    remove_deletes: Sequence[Json] = ()
    touched: Sequence[str] = ()
    """The data files that the deletes name: they must still be there."""
    is_rewrite: bool = False
    """The same rows in other files: for readers of changes nothing has happened."""
    is_regrouping: bool = False
    """The same files in fewer manifests, and nothing else."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """What the table says of itself from now on."""
    place: str = ""
    """Where new files are, if not in the table's own folder."""


@dataclass(frozen=True, slots=True)
class StagedCommit:
    """A table's next snapshot, written but not visible."""

    name: tuple[str, ...]
    location: str
    snapshot_id: int
    manifest_list: str
    java: Any
    folders: frozenset[str] = frozenset()
    """Of partitions that it adds files to."""


def warm_up(spark: SparkSession, schema: Json) -> None:
    """Have Java load and compile what a publish needs, on a table in memory; the first one would take seconds more."""
    iceberg = Iceberg(spark, {"catalog-impl": "org.apache.iceberg.inmemory.InMemoryCatalog"})
    table = iceberg.create(("warm", "up"), schema, {"format-version": "2"})
    data = {"spec-id": 0, "content": "data", "file-path": "memory:/1", "file-format": "parquet", "partition": []}
    data |= {"file-size-in-bytes": 1, "record-count": 1}
    deletes = data | {"content": "position-deletes", "file-path": "memory:/2", "referenced-data-file": "memory:/1"}
    for _ in range(_WARM_ROUNDS):
        table.java.newAppend().appendFile(next(iceberg._content_files([data], table))).commit()
        table = iceberg.refresh(table)
        iceberg.stage(TableChange(table, [data], add_deletes=[deletes], touched=["memory:/1"]), {})


def _with_plain_files(spark: SparkSession, hadoop: Any) -> Any:
    """Local files as they are, with the permissions that the process gives them."""
    hadoop.set("fs.file.impl", add_class(spark, PLAIN_FILES))
    hadoop.set("fs.file.impl.disable.cache", "true")
    return hadoop


class Iceberg:
    """The catalog, seen from Spark's Java process."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        jvm: Any = spark._jvm
        self._jvm, self._gateway = jvm, cast("Any", spark.sparkContext._gateway)
        if "io-impl" in options:
            add_class(spark, STORE_FILES)
        hadoop = _with_plain_files(spark, jvm.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration()))
        self._catalog = jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog("dolake", dict(options), hadoop)
        # Looked up once: each dot of a Java name is a question to the other process, and a publish has many tables.
        iceberg = jvm.org.apache.iceberg
        self._file_json, self._file_of = iceberg.ContentFileParser.toJson, iceberg.ContentFileParser.fromJson
        self._schema_json, self._schema_of = iceberg.SchemaParser.toJson, iceberg.SchemaParser.fromJson
        self._table_commit = iceberg.catalog.TableCommit.create
        # Iceberg waits for its own threads by looking every 10 ms; a publish has few manifests for each table.
        self._at_once = iceberg.relocated.com.google.common.util.concurrent.MoreExecutors.newDirectExecutorService()
        self._mapper, self._format_of = iceberg.util.JsonUtil.mapper(), iceberg.TableUtil.formatVersion
        self._identifiers: dict[tuple[str, ...], Any] = {}

    # --- tables ------------------------------------------------------------------------------------------------------

    def load(self, name: tuple[str, ...]) -> IcebergTable | None:
        try:
            return self._table(name, self._catalog.loadTable(self._identifier(name)))
        except Py4JJavaError as error:
            if _class_of(error) in ("NoSuchTableException", "NoSuchNamespaceException"):
                return None
            raise _translated(error) from error

    def create(
        self, name: tuple[str, ...], schema: Json, properties: Mapping[str, str], partitions: Sequence[Json] = ()
    ) -> IcebergTable:
        """A new table; where it was made meanwhile, what is there. `partitions` are fields of a spec."""
        try:
            self._create_namespace(name[:-1])
            java_schema = self._schema_of(json.dumps(schema))
            builder = self._catalog.buildTable(self._identifier(name), java_schema)
            if partitions:
                fields = [field | {"field-id": 1000 + place} for place, field in enumerate(partitions)]
                spec = json.dumps({"spec-id": 0, "fields": fields})
                builder.withPartitionSpec(self._jvm.org.apache.iceberg.PartitionSpecParser.fromJson(java_schema, spec))
            return self._table(name, builder.withProperties(dict(properties)).create())
        except Py4JJavaError as error:
            if _class_of(error) == "AlreadyExistsException" and (found := self.load(name)):
                return found
            raise _translated(error) from error

    def add_columns(self, table: IcebergTable, schema: Json) -> IcebergTable:
        """Add every column and nested field of this schema that the table lacks."""
        try:
            wanted = self._schema_of(json.dumps(schema))
            (table.pending or table.java).updateSchema().unionByNameWith(wanted).commit()
            return self._with_pending(table, table.pending) if table.pending else self.refresh(table)
        except Py4JJavaError as error:
            raise _translated(error) from error

    def repartition(self, table: IcebergTable, gone: Iterable[str], come: Iterable[Json]) -> IcebergTable:
        """Another spec for files that are written from now on: without these fields, and with these ones."""
        try:
            update, schema = table.java.updateSpec(), table.java.schema()
            for name in gone:
                update.removeField(name)
            for field in come:
                column = schema.findColumnName(field["source-id"])
                update.addField(field["name"], self._term(field["transform"], column))
            update.commit()
            return self.refresh(table)
        except Py4JJavaError as error:
            raise _translated(error) from error

    def _term(self, transform: str, column: str) -> Any:
        kind, _, width = transform.partition("[")
        terms = self._jvm.org.apache.iceberg.expressions.Expressions
        if kind == "identity":
            return terms.ref(column)
        return getattr(terms, kind)(column, int(width[:-1])) if width else getattr(terms, kind)(column)

    def reorder(self, table: IcebergTable, fields: Sequence[Json]) -> tuple[IcebergTable, int]:
        """The table with this sort order, and the order's id."""
        orders = self._jvm.org.apache.iceberg
        try:
            known = json.loads(orders.SortOrderParser.toJson(table.java.sortOrder()))
            if known["fields"] == list(fields):
                return table, known["order-id"]
            update, schema = table.java.replaceSortOrder(), table.java.schema()
            for field in fields:
                take = update.asc if field["direction"] == "asc" else update.desc
                take(self._term("identity", schema.findColumnName(field["source-id"])), orders.NullOrder.NULLS_LAST)
            update.commit()
            return self._table(table.name, table.java), int(table.java.sortOrder().orderId())
        except Py4JJavaError as error:
            raise _translated(error) from error

    def rename_columns(self, table: IcebergTable, paths: Iterable[str], name: str) -> IcebergTable:
        """Columns, given by their paths, under another name; not visible before something is staged."""
        return self._with_schema(table, paths, lambda update, path: update.renameColumn(path, name))

    def drop_columns(self, table: IcebergTable, paths: Iterable[str]) -> IcebergTable:
        """Leave these columns out from now on, as soon as something is staged; earlier snapshots keep them."""
        return self._with_schema(table, paths, lambda update, path: update.deleteColumn(path))

    def note_guesses(self, table: IcebergTable, text: str) -> IcebergTable:
        """A table of changes says which of its columns are guesses."""
        try:
            _set_properties((table.pending or table.java).updateProperties(), {GUESSES: text})
            return replace(table, guesses=text)
        except Py4JJavaError as error:
            raise _translated(error) from error

    def retype_columns(
        self, table: IcebergTable, types: Mapping[tuple[str, ...], str], comments: Mapping[str, str] | None = None
    ) -> IcebergTable:
        """Columns of other types under the same names, at the same places; not visible before something is staged.

        To Iceberg these are new columns, because it changes a type only where old files can be read as the new one: who
        stages must bring the old rows along in new files.
        """
        try:
            transaction = table.pending or table.java.newTransaction()
            schema, update = transaction.table().schema(), transaction.updateSchema()
            parse = self._jvm.org.apache.iceberg.types.Types.fromPrimitiveString
            for path, type_ in types.items():
                *parents, name = path
                full, parent = ".".join(path), ".".join(parents)
                before = self._column_before(schema, path)
                update.deleteColumn(full)
                update.addColumn(parent or None, name, parse(type_), (comments or {}).get(name))
                if before:
                    update.moveAfter(full, before)
                else:
                    update.moveFirst(full)
            update.commit()
            return self._with_pending(table, transaction)
        except Py4JJavaError as error:
            raise _translated(error) from error

    def upgrade(self, table: IcebergTable, format_version: int) -> IcebergTable:
        """The table in a later format of Iceberg's, for which nothing is written anew."""
        try:
            _set_properties(table.java.updateProperties(), {"format-version": str(format_version)})
            return self._table(table.name, table.java)
        except Py4JJavaError as error:
            raise _translated(error) from error

    def take_over(self, table: IcebergTable, schema: Json, properties: Mapping[str, str]) -> IcebergTable:
        """A table that somebody else has made becomes ours: with our columns, and all of its own may be null."""
        try:
            wanted = self._schema_of(json.dumps(schema))
            update = table.java.updateSchema().unionByNameWith(wanted)
            update.setIdentifierFields(self._jvm.java.util.ArrayList())
            for column in table.java.schema().columns():
                if column.isRequired() and source_name(column.name()) is not None:
                    update.makeColumnOptional(column.name())
            update.commit()
            _set_properties(table.java.updateProperties(), properties)
            table.java.refresh()
            return self._table(table.name, table.java)
        except Py4JJavaError as error:
            raise _translated(error) from error

    def _with_pending(self, table: IcebergTable, transaction: Any) -> IcebergTable:
        schema = self._schema_json(transaction.table().schema())
        return replace(table, schema=schema, pending=transaction)

    def rename(self, table: IcebergTable, name: tuple[str, ...], properties: Mapping[str, str]) -> IcebergTable:
        """The same table under another name."""
        try:
            self._create_namespace(name[:-1])
            self._catalog.renameTable(self._identifier(table.name), self._identifier(name))
            found = self._catalog.loadTable(self._identifier(name))
            _set_properties(found.updateProperties(), properties)
            return self._table(name, found)
        except Py4JJavaError as error:
            raise _translated(error) from error

    def _column_before(self, schema: Any, path: tuple[str, ...]) -> str | None:
        """The path of the neighbour to the left."""
        *parents, name = path
        struct = schema.findType(".".join(parents)).asStructType() if parents else schema.asStruct()
        names = [field.name() for field in struct.fields()]
        at = names.index(name)
        return ".".join((*parents, names[at - 1])) if at else None

    def _with_schema(
        self, table: IcebergTable, paths: Iterable[str], change: Callable[[Any, str], Any]
    ) -> IcebergTable:
        """Change the columns at these paths in a transaction that stays open; a path that is not there stays away."""
        try:
            transaction = table.pending or table.java.newTransaction()
            update, schema = transaction.updateSchema(), transaction.table().schema()
            for path in paths:
                if schema.findField(path) is not None:
                    change(update, path)
            update.commit()
            return self._with_pending(table, transaction)
        except Py4JJavaError as error:
            raise _translated(error) from error

    def refresh(self, table: IcebergTable) -> IcebergTable:
        try:
            java = table.java
            java.refresh()
            is_same = table.pending is None and java.schema().schemaId() == table.schema_id
            if is_same and java.spec().specId() == table.spec["spec-id"]:
                snapshot, properties = java.currentSnapshot(), java.properties()
                return replace(
                    table,
                    snapshot_id=None if snapshot is None else snapshot.snapshotId(),
                    guesses=properties.get(GUESSES),
                    rescued=properties.get(RESCUED_COLUMNS),
                )
            return self._table(table.name, java)
        except Py4JJavaError as error:
            raise _translated(error) from error

    def manifest_count(self, table: IcebergTable) -> int:
        """Of the current snapshot."""
        snapshot = table.java.currentSnapshot()
        return 0 if snapshot is None else int(snapshot.allManifests(table.java.io()).size())

    def files(self, table: IcebergTable, *, has_counts: bool = False) -> Iterator[tuple[Json, list[Json]]]:
        """Every live data file with the delete files that apply to it; `has_counts` says with counts of its values."""
        if table.snapshot_id is None:
            return
        specs = {spec["spec-id"]: self._spec(table, spec["spec-id"]) for spec in table.specs}
        scan = table.java.newScan()
        tasks = (scan.includeColumnStats() if has_counts else scan).planFiles()

        def entry(file: Any) -> Json:
            spec = specs[file.specId() if len(specs) > 1 else table.spec["spec-id"]]
            found: Json = json.loads(self._file_json(file, spec))
            return found

        try:
            for task in _each(tasks.iterator()):
                yield entry(task.file()), [entry(each) for each in task.deletes()]
        finally:
            tasks.close()

    def origins(self, table: IcebergTable, *, is_newest: bool = False) -> dict[str, Origin]:
        """Where the rows of data files come from: of all files, or of those that the newest snapshot has added."""
        if table.snapshot_id is None:
            return {}
        try:
            if is_newest:
                snapshot = table.java.currentSnapshot()
                number = snapshot.sequenceNumber()
                added = _each(snapshot.addedDataFiles(table.java.io()).iterator())
                return {file.location(): Origin(file.firstRowId(), number) for file in added}
            tasks = table.java.newScan().planFiles()
            try:
                files = (task.file() for task in _each(tasks.iterator()))
                return {file.location(): Origin(file.firstRowId(), file.dataSequenceNumber()) for file in files}
            finally:
                tasks.close()
        except Py4JJavaError as error:
            raise _translated(error) from error

    # --- publishing --------------------------------------------------------------------------------------------------

    def stage(self, change: TableChange, summary: Mapping[str, str]) -> StagedCommit:
        """Write the manifests of a table's next snapshot; nothing is visible yet."""
        java = change.table.java
        try:
            transaction = change.table.pending or java.newTransaction()
            if change.properties:
                _set_properties(transaction.updateProperties(), change.properties)
            if change.is_regrouping:
                every = self._jvm.com.google.common.base.Functions.constant("all")
                update = transaction.rewriteManifests().clusterBy(every)
            elif change.is_rewrite:
                update = self._rewrite(transaction, change)
            elif change.add_deletes or change.remove_deletes or change.remove_rows:
                update = self._row_delta(transaction, change)
            else:
                update = transaction.newAppend()
                for file in self._content_files(change.add_rows, change.table):
                    update.appendFile(file)
            for key, value in summary.items():
                update.set(key, value)
            if not (change.is_rewrite or change.is_regrouping):  # which may read many
                update.scanManifestsWith(self._at_once)
            update.commit()
            start, end = transaction.startMetadata(), transaction.currentMetadata()
            snapshot = end.currentSnapshot()
            commit = self._table_commit(self._identifier(change.table.name), start, end)
        except Py4JJavaError as error:
            raise _translated(error) from error
        table, manifest_list = change.table, snapshot.manifestListLocation()
        folders = _folders_of(change)
        return StagedCommit(table.name, table.location, snapshot.snapshotId(), manifest_list, commit, folders)

    def commit(self, staged: Iterable[StagedCommit]) -> None:
        """Make all of these visible at once, or none."""
        commits = self._jvm.java.util.ArrayList()
        for each in staged:
            commits.add(each.java)
        try:
            self._catalog.commitTransaction(commits)
        except Py4JJavaError as error:
            raise _translated(error) from error

    def _row_delta(self, transaction: Any, change: TableChange) -> Any:
        """Without the two validations a delete that races a compaction is lost, and rows come back."""
        table = change.table
        update = transaction.newRowDelta()
        if change.table.snapshot_id is not None:
            update.validateFromSnapshot(change.table.snapshot_id)
        update.validateDataFilesExist(list(change.touched)).validateDeletedFiles()
        for file in self._content_files(change.add_rows, table):
            update.addRows(file)
        for file in self._content_files(change.remove_rows, table):
            update.removeRows(file)
        for file in self._content_files(change.add_deletes, table):
            update.addDeletes(file)
        for file in self._content_files(change.remove_deletes, table):
            update.removeDeletes(file)
        return update

    def _rewrite(self, transaction: Any, change: TableChange) -> Any:
        update = transaction.newRewrite().validateFromSnapshot(change.table.snapshot_id)
        for entries, take in (
            (change.remove_rows, update.deleteFile),
            (change.remove_deletes, update.deleteFile),
            (change.add_rows, update.addFile),
            (change.add_deletes, update.addFile),
        ):
            for file in self._content_files(entries, change.table):
                take(file)
        return update

    def _content_files(self, entries: Sequence[Json], table: IcebergTable) -> Iterator[Any]:
        """Iceberg's own JSON saves a dozen calls into Java for each file."""
        if entries:
            specs = {id_: self._spec(table, id_) for id_ in {entry["spec-id"] for entry in entries}}
            node = self._mapper.readTree(json.dumps(list(entries)))
            for index, entry in enumerate(entries):
                yield self._file_of(node.get(index), specs[entry["spec-id"]])

    # --- names -------------------------------------------------------------------------------------------------------

    def _table(self, name: tuple[str, ...], java: Any) -> IcebergTable:
        snapshot, schema, properties = java.currentSnapshot(), java.schema(), java.properties()
        return IcebergTable(
            name=name,
            uuid=java.uuid().toString(),
            location=java.location(),
            schema=self._schema_json(schema),
            schema_id=schema.schemaId(),
            snapshot_id=None if snapshot is None else snapshot.snapshotId(),
            is_managed=properties.get(MANAGED) == "true",
            ours=properties.get(OURS),
            java=java,
            specs=self._specs(java),
            sorted_by=self._sorted_by(java),
            format_version=self._format_of(java),
            guesses=properties.get(GUESSES),
            rescued=properties.get(RESCUED_COLUMNS),
        )

    def _sorted_by(self, java: Any) -> frozenset[int]:
        parse = self._jvm.org.apache.iceberg.SortOrderParser.toJson
        orders = [json.loads(parse(order)) for order in java.sortOrders().values()]
        return frozenset(field["source-id"] for order in orders for field in order["fields"])

    def _spec(self, table: IcebergTable, id_: int) -> Any:
        return table.java.spec() if id_ == table.spec["spec-id"] else table.java.specs().get(id_)

    def _specs(self, java: Any) -> tuple[Json, ...]:
        """The current one last."""
        current, specs = java.spec(), java.specs()
        if specs.size() == 1 and current.isUnpartitioned():
            return (_UNPARTITIONED | {"spec-id": current.specId()},)
        parse = self._jvm.org.apache.iceberg.PartitionSpecParser.toJson
        others = [json.loads(parse(specs.get(id_))) for id_ in specs if id_ != current.specId()]
        return (*others, json.loads(parse(current)))

    def _create_namespace(self, parts: tuple[str, ...]) -> None:
        for depth in range(1, len(parts) + 1):
            namespace = self._jvm.org.apache.iceberg.catalog.Namespace.of(self._strings(parts[:depth]))
            try:
                self._catalog.createNamespace(namespace, {})
            except Py4JJavaError as error:
                if _class_of(error) != "AlreadyExistsException":
                    raise

    def _identifier(self, name: tuple[str, ...]) -> Any:
        if name not in self._identifiers:
            of = self._jvm.org.apache.iceberg.catalog.TableIdentifier.of
            self._identifiers[name] = of(self._strings(name))
        return self._identifiers[name]

    def _strings(self, parts: Sequence[str]) -> Any:
        array = self._gateway.new_array(self._jvm.java.lang.String, len(parts))
        for index, part in enumerate(parts):
            array[index] = part
        return array


def _set_properties(update: Any, properties: Mapping[str, str]) -> None:
    for key, value in properties.items():
        update.set(key, value)
    update.commit()


def _folders_of(change: TableChange) -> frozenset[str]:
    """Those of new files, and all above them in the table's data, in whichever place that is."""
    roots = tuple(f"{place}/data/" for place in (change.table.location, change.place) if place)
    found: set[str] = set()
    for entry in (*change.add_rows, *change.add_deletes):
        folder = entry["file-path"].rpartition("/")[0]
        while f"{folder}/".startswith(roots) and folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return frozenset(found)


def _each(iterator: Any) -> Iterator[Any]:
    while iterator.hasNext():
        yield iterator.next()


def _class_of(error: Py4JJavaError) -> str:
    name: str = error.java_exception.getClass().getSimpleName()
    return name


def _translated(error: Py4JJavaError) -> DoLakeError:
    """What Java threw, by what the pipeline can do about it."""
    kind, message = _class_of(error), str(error.java_exception.getMessage()).partition("\n")[0]
    if kind in (
        "CommitStateUnknownException",
        "ServiceFailureException",
        "ServiceUnavailableException",
        "RESTException",
    ):
        return OutcomeUnknown(f"{kind}: {message}", hint="read the published row, then decide")
    if kind in ("CommitFailedException", "ValidationException", "AlreadyExistsException", "NoSuchTableException"):
        return Conflict(f"{kind}: {message}", hint="load the tables again, then retry")
    return Unavailable(f"{kind}: {message}", hint="look at the warehouse and the catalog, then try again")
