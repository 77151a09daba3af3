"""The systems that peers.py compares, each at work in a process of its own: our client, Spark, PyIceberg, DuckLake.

Started by systems.py as `python -m benchmarks.contenders NAME DATA HOME [URL]`; takes orders as JSON lines on stdin and
answers each on stdout when it is done. What it needs of the workload it has before the first answer, in the form that
its users would have: dictionaries in memory, Parquet files for Spark, Arrow for the others. Promise: it ends when stdin
does.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import queue
import sys
import sysconfig
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.workload import as_dicts, batch_file, inserts_file

TABLE = "orders"
NAMESPACE = "shop"
SPARK_HEAP_BYTES = 3 * 1024**3


class Contender(Protocol):
    """Data and a home of its own come with the constructor; `start` is what is not counted."""

    async def start(self) -> None: ...

    async def insert(self) -> None:
        """All rows, as fast as it goes; visible, or in our case durable, on return."""

    async def apply(self, number: int) -> None:
        """One batch of changes, likewise."""


class Client:
    """Our client, as docs/reference/client.md tells to use it: many changes in one send()."""

    def __init__(self, data: Path, home: Path, url: str) -> None:
        gc.disable()
        self._inserts = [insert_of(row) for row in as_dicts(pq.read_table(inserts_file(data)))]
        self._batches = [[change_of(row) for row in as_dicts(batch)] for batch in _batches(data)]
        gc.freeze()  # a source has its rows in its database, not as millions of objects in the collector's way
        gc.enable()
        self._url = url

    async def start(self) -> None:
        from dolake.client import connect

        self._stack = AsyncExitStack()
        self._lake = await self._stack.enter_async_context(connect(self._url, source="bench-peers"))

    async def insert(self) -> None:
        await self._lake.send(iter(self._inserts))  # an iterator goes out as it comes; a list is checked as a whole

    async def apply(self, number: int) -> None:
        await self._lake.send(self._batches[number])


def insert_of(row: dict[str, Any], table: str = TABLE) -> dict[str, Any]:
    """A row as our client takes it."""
    return {"table": table, "operation": "INSERT", "rowId": str(row["id"]), "after": row}


def change_of(row: dict[str, Any], table: str = TABLE) -> dict[str, Any]:
    """The same for a row of a batch file."""
    if row.pop("op") == "D":
        return {"table": table, "operation": "DELETE", "rowId": str(row["id"])}
    return {"table": table, "operation": "UPDATE", "rowId": str(row["id"]), "after": row}


class Spark:
    """A stream of files, and MERGE INTO for each of them, as people write it by hand; format 2, merge-on-read."""

    def __init__(self, data: Path, home: Path) -> None:
        self._data, self._home, self._incoming = data, home, home / "incoming"
        self._incoming.mkdir(parents=True)
        self._done: queue.SimpleQueue[int] = queue.SimpleQueue()

    async def start(self) -> None:
        from dolake.pipeline.spark import start_spark
        from dolake.settings import PipelineSettings

        scratch = self._home / "scratch"
        scratch.mkdir()
        options = {
            # Java's own defaults, not the pipeline's: a MERGE is long scans, which gain from the best machine code.
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={(scratch / 'log4j2.properties').as_uri()}",
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": str(self._home / "warehouse"),
        }
        pipeline = PipelineSettings(
            spark_master="local[2]",
            driver_memory_bytes=SPARK_HEAP_BYTES,
            spark_settings=tuple(f"{key}={value}" for key, value in options.items()),
        )
        self._session = start_spark(pipeline, scratch)
        self._rows = self._session.read.parquet(str(inserts_file(self._data)))
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in self._rows.schema)
        modes = ", ".join(f"'write.{kind}.mode'='merge-on-read'" for kind in ("merge", "update", "delete"))
        self._name = f"lake.{NAMESPACE}.{TABLE}"
        self._session.sql(
            f"CREATE TABLE {self._name} ({columns}) USING iceberg TBLPROPERTIES ('format-version'='2', {modes})"
        )

    async def insert(self) -> None:
        self._rows.writeTo(self._name).append()

    async def apply(self, number: int) -> None:
        if number == 0:
            self._follow()
        file = batch_file(self._data, number)
        (self._incoming / file.name).hardlink_to(file)
        while True:
            try:
                self._done.get(timeout=1.0)
                return
            except queue.Empty:
                if not self._query.isActive:
                    raise RuntimeError(f"the stream ended: {self._query.exception()}") from None

    def _follow(self) -> None:
        """Start the stream, on whose folder there is nothing yet."""
        names = self._rows.columns
        values = ", ".join(f"changes.{name}" for name in names)
        merge = (
            f"MERGE INTO {self._name} AS rows USING changes ON rows.id = changes.id "  # noqa: S608 - our own names
            f"WHEN MATCHED AND changes.op = 'D' THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {', '.join(f'rows.{name} = changes.{name}' for name in names)} "
            f"WHEN NOT MATCHED AND changes.op <> 'D' THEN INSERT ({', '.join(names)}) VALUES ({values})"
        )

        def take(frame: Any, number: int) -> None:
            frame.createOrReplaceTempView("changes")
            frame.sparkSession.sql(merge)
            self._done.put(number)

        schema = self._session.read.parquet(str(batch_file(self._data, 0))).schema
        stream = self._session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(self._incoming))
        checkpoints = str(self._home / "checkpoints")
        self._query = stream.writeStream.option("checkpointLocation", checkpoints).foreachBatch(take).start()


class PyIceberg:
    """Its own upsert, on a catalog in SQLite."""

    def __init__(self, data: Path, home: Path) -> None:
        self._home = home
        self._inserts = pq.read_table(inserts_file(data))
        self._batches = [split(batch) for batch in _batches(data)]

    async def start(self) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        self._home.mkdir()
        catalog = SqlCatalog("peer", uri=f"sqlite:///{self._home}/catalog.db", warehouse=f"file://{self._home}")
        catalog.create_namespace(NAMESPACE)
        self._table = catalog.create_table((NAMESPACE, TABLE), schema=self._inserts.schema)

    async def insert(self) -> None:
        self._table.append(self._inserts)

    async def apply(self, number: int) -> None:
        from pyiceberg.expressions import In

        updates, deletes = self._batches[number]
        self._table.upsert(updates, join_cols=["id"])
        self._table.delete(In("id", deletes["id"].to_pylist()))  # type: ignore[call-arg, arg-type]


class DuckLake:
    """DuckDB with a lake of its own format, on a catalog in SQLite; a batch is one transaction."""

    def __init__(self, data: Path, home: Path) -> None:
        self._home = home
        self._inserts = pq.read_table(inserts_file(data))
        self._batches = [split(batch) for batch in _batches(data)]

    async def start(self) -> None:
        (self._home / "data").mkdir(parents=True)
        self._duck = duckdb.connect()
        attach_ducklake(self._duck, self._home)
        self._duck.register("inserts", self._inserts)
        self._duck.execute(f"CREATE TABLE {TABLE} AS FROM inserts LIMIT 0")

    async def insert(self) -> None:
        self._duck.execute(f"INSERT INTO {TABLE} FROM inserts")

    async def apply(self, number: int) -> None:
        merge_into_ducklake(self._duck, TABLE, *self._batches[number])


def attach_ducklake(duck: duckdb.DuckDBPyConnection, home: Path, *options: str) -> None:
    """The lake of this home, as what unqualified names mean. Its extensions are wheels: nothing is downloaded."""
    load_extensions(duck, "sqlite_scanner", "ducklake")
    more = ", ".join((f"DATA_PATH '{home}/data'", *options))
    duck.execute(f"ATTACH 'ducklake:sqlite:{home}/catalog.db' AS lake ({more}); USE lake")


def merge_into_ducklake(duck: duckdb.DuckDBPyConnection, table: str, updates: pa.Table, deletes: pa.Table) -> None:
    """A batch as one transaction."""
    duck.register("updates", updates)
    duck.register("deletes", deletes)
    duck.execute(
        f"BEGIN; MERGE INTO {table} USING updates USING (id) "  # noqa: S608 - our own names
        f"WHEN MATCHED THEN UPDATE WHEN NOT MATCHED THEN INSERT; "
        f"DELETE FROM {table} WHERE id IN (SELECT id FROM deletes); COMMIT"
    )


def load_extensions(duck: duckdb.DuckDBPyConnection, *names: str) -> None:
    duck.execute("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")
    for name in names:
        file = f"duckdb_extension_{name}/extensions/v{duckdb.__version__}/{name}.duckdb_extension"
        duck.execute(f"LOAD '{sysconfig.get_path('purelib')}/{file}'")


def _batches(data: Path) -> list[pa.Table]:
    return [pq.read_table(file) for file in sorted(data.glob("batch-*.parquet"))]


def split(batch: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The updates and the deletes."""
    is_delete = pc.equal(batch["op"], "D")
    rows = batch.drop_columns(["op"])
    return rows.filter(pc.invert(is_delete)), rows.filter(is_delete)


CONTENDERS: dict[str, Callable[..., Contender]] = {
    "dolake": Client,
    "spark": Spark,
    "pyiceberg": PyIceberg,
    "ducklake": DuckLake,
}


async def main(name: str, data: str, home: str, *more: str) -> None:
    # Whatever prints, in Python or in Java, must not get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    contender = CONTENDERS[name](Path(data), Path(home), *more)
    orders: dict[str, Callable[..., Awaitable[None]]] = {
        "start": contender.start,
        "insert": contender.insert,
        "apply": contender.apply,
    }
    print("read", file=answers)
    while line := await asyncio.to_thread(sys.stdin.readline):
        order, *arguments = json.loads(line)
        await orders[order](*arguments)
        print(order, file=answers)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
