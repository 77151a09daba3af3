"""PyIceberg on a running server: whatever its REST client can do, it can do here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    ForbiddenError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType
from pyiceberg.view.metadata import SQLViewRepresentation, ViewVersion

from tests.support.server import ServerProcess

USERS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def users(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [f"user {id_}" for id_ in ids]}, schema=USERS)


def ids_of(table: Table, snapshot_id: int | None = None) -> list[int]:
    ids: list[int] = table.scan(snapshot_id=snapshot_id).to_arrow()["id"].to_pylist()
    return sorted(ids)


# --- namespaces ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "/lakehouse", "/lakehouse/v1"])
def test_the_lake_is_found_under_every_address_that_clients_are_given(
    path: str, server: ServerProcess, namespace: str
) -> None:
    catalog = RestCatalog("elsewhere", uri=server.url + path)
    table = catalog.create_table((namespace, f"users{len(path)}"), USERS)
    table.append(users(1))
    assert ids_of(catalog.load_table(table.name())) == [1]
    catalog.close()


def test_namespaces_nest_and_keep_their_properties(catalog: RestCatalog, namespace: str) -> None:
    inner = (namespace, "eu", "north")
    catalog.create_namespace((namespace, "eu"))
    catalog.create_namespace(inner, {"owner": "ada", "old": "yes"})
    catalog.update_namespace_properties(inner, removals={"old"}, updates={"owner": "grace"})
    assert catalog.load_namespace_properties(inner) == {"owner": "grace"}
    assert catalog.list_namespaces(namespace) == [(namespace, "eu")]
    assert catalog.list_namespaces((namespace, "eu")) == [inner]
    table = catalog.create_table((*inner, "users"), USERS)
    table.append(users(1, 2))
    assert ids_of(catalog.load_table((*inner, "users"))) == [1, 2]


def test_a_namespace_goes_only_when_it_is_empty(catalog: RestCatalog, namespace: str) -> None:
    catalog.create_table((namespace, "users"), USERS)
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace(namespace)
    catalog.drop_table((namespace, "users"))
    catalog.drop_namespace(namespace)
    assert not catalog.namespace_exists(namespace)
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_tables(namespace)


@pytest.mark.parametrize("name", ["with space", "with/slash", "with.dot", "with%percent", "näme", "Ünïcode 雪", "a+b"])
def test_a_table_may_have_any_name_that_people_think_of(name: str, catalog: RestCatalog, namespace: str) -> None:
    catalog.create_table((namespace, name), USERS).append(users(1))
    assert ids_of(catalog.load_table((namespace, name))) == [1]
    assert catalog.list_tables(namespace) == [(namespace, name)]


# --- tables ----------------------------------------------------------------------------------------------------------


def test_appended_rows_are_read_back(catalog: RestCatalog, namespace: str) -> None:
    table = catalog.create_table((namespace, "users"), USERS)
    table.append(users(1, 2))
    table.append(users(3))
    loaded = catalog.load_table((namespace, "users"))
    assert loaded.scan().to_arrow().sort_by("id").to_pylist() == users(1, 2, 3).to_pylist()
    assert loaded.scan("id >= 2", selected_fields=("name",)).to_arrow().num_rows == 2


def test_overwritten_deleted_and_upserted_rows_are_read_as_they_are_last(catalog: RestCatalog, namespace: str) -> None:
    table = catalog.create_table((namespace, "users"), USERS)
    table.append(users(1, 2, 3))
    table.delete("id = 2")
    table.overwrite(users(7), "id = 3")
    table.upsert(pa.table({"id": [1, 9], "name": ["renamed", "new"]}, schema=USERS), join_cols=["id"])
    rows = catalog.load_table((namespace, "users")).scan().to_arrow().sort_by("id").to_pylist()
    assert [(row["id"], row["name"]) for row in rows] == [(1, "renamed"), (7, "user 7"), (9, "new")]


def test_a_schema_evolves_and_old_rows_follow(catalog: RestCatalog, namespace: str) -> None:
    narrow = pa.schema([("id", pa.int32()), ("name", pa.string()), ("gone", pa.string())])
    table = catalog.create_table((namespace, "users"), narrow)
    table.append(pa.table({"id": [1], "name": ["ada"], "gone": ["x"]}, schema=narrow))
    with table.update_schema() as update:
        update.add_column("email", StringType(), doc="where to write to")
        update.rename_column("name", "full_name")
        update.update_column("id", LongType())
        update.delete_column("gone")
    big = 2**40
    table.append(pa.table({"id": [big], "full_name": ["grace"], "email": ["g@navy.mil"]}))
    loaded = catalog.load_table((namespace, "users"))
    assert loaded.scan().to_arrow().sort_by("id").to_pylist() == [
        {"id": 1, "full_name": "ada", "email": None},
        {"id": big, "full_name": "grace", "email": "g@navy.mil"},
    ]
    assert [field.field_id for field in loaded.schema().fields] == [1, 2, 4]
    assert len(loaded.schemas()) == 2


def test_every_snapshot_shows_the_rows_of_its_time(catalog: RestCatalog, namespace: str) -> None:
    table = catalog.create_table((namespace, "users"), USERS)
    for id_ in (1, 2, 3):
        table.append(users(id_))
    loaded = catalog.load_table((namespace, "users"))
    history = [snapshot.snapshot_id for snapshot in loaded.snapshots()]
    assert [ids_of(loaded, snapshot_id) for snapshot_id in history] == [[1], [1, 2], [1, 2, 3]]
    moment_ms = loaded.snapshots()[1].timestamp_ms
    then = loaded.snapshot_as_of_timestamp(moment_ms)
    assert then is not None
    assert then.snapshot_id == history[1]


def test_tags_and_branches_name_snapshots(catalog: RestCatalog, namespace: str) -> None:
    table = catalog.create_table((namespace, "users"), USERS)
    table.append(users(1))
    first = table.metadata.current_snapshot_id
    assert first is not None
    table.manage_snapshots().create_tag(first, "v1").create_branch(first, "draft").commit()
    table.append(users(2), branch="draft")
    table.append(users(3))
    loaded = catalog.load_table((namespace, "users"))
    assert ids_of(loaded) == [1, 3]
    assert sorted(loaded.scan().use_ref("v1").to_arrow()["id"].to_pylist()) == [1]
    assert sorted(loaded.scan().use_ref("draft").to_arrow()["id"].to_pylist()) == [1, 2]
    loaded.manage_snapshots().remove_tag("v1").remove_branch("draft").commit()
    assert set(catalog.load_table((namespace, "users")).refs()) == {"main"}


def test_expired_snapshots_are_gone_and_the_rows_stay(catalog: RestCatalog, namespace: str) -> None:
    table = catalog.create_table((namespace, "users"), USERS)
    table.append(users(1))
    table.append(users(2))
    first, last = (snapshot.snapshot_id for snapshot in table.snapshots())
    table.maintenance.expire_snapshots().by_id(first).commit()
    loaded = catalog.load_table((namespace, "users"))
    assert [snapshot.snapshot_id for snapshot in loaded.snapshots()] == [last]
    assert ids_of(loaded) == [1, 2]


def test_table_properties_are_set_and_removed(catalog: RestCatalog, namespace: str) -> None:
    table = catalog.create_table((namespace, "users"), USERS, properties={"owner": "ada", "old": "yes"})
    with table.transaction() as transaction:
        transaction.set_properties(owner="grace")
        transaction.remove_properties("old")
    properties = catalog.load_table((namespace, "users")).properties
    assert properties["owner"] == "grace"
    assert "old" not in properties


def test_a_partitioned_table_reads_only_the_files_it_must(catalog: RestCatalog, namespace: str) -> None:
    columns = pa.schema([("id", pa.int64()), ("country", pa.string()), ("year", pa.int32())])
    visits = pa.table({"id": [1, 2, 3], "country": ["fr", "fr", "de"], "year": [2025, 2026, 2026]}, schema=columns)
    # Identity only: PyIceberg writes other partitions with a package of its own.
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "country"))
    schema = Schema(
        NestedField(1, "id", LongType()), NestedField(2, "country", StringType()), NestedField(3, "year", IntegerType())
    )
    table = catalog.create_table((namespace, "visits"), schema, partition_spec=spec)
    table.append(visits)
    with table.update_spec() as update:
        update.add_field("year", IdentityTransform(), "year")
    table.append(visits)
    loaded = catalog.load_table((namespace, "visits"))
    assert [field.name for field in loaded.spec().fields] == ["country", "year"]
    assert ids_of(loaded) == [1, 1, 2, 2, 3, 3]
    germany = loaded.scan("country = 'de'")
    assert germany.to_arrow()["id"].to_pylist() == [3, 3]
    assert len(list(germany.plan_files())) == 2
    assert len(loaded.inspect.partitions()) == 5


def test_a_table_created_in_a_transaction_appears_with_its_rows_or_not_at_all(
    catalog: RestCatalog, namespace: str
) -> None:
    with catalog.create_table_transaction((namespace, "users"), USERS) as transaction:
        transaction.append(users(1))
        assert not catalog.table_exists((namespace, "users"))
    assert ids_of(catalog.load_table((namespace, "users"))) == [1]
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table((namespace, "users"), USERS)


def test_a_renamed_table_keeps_its_rows_and_frees_its_name(catalog: RestCatalog, namespace: str) -> None:
    catalog.create_namespace((namespace, "archive"))
    catalog.create_table((namespace, "users"), USERS).append(users(1))
    catalog.rename_table((namespace, "users"), (namespace, "archive", "people"))
    assert not catalog.table_exists((namespace, "users"))
    catalog.create_table((namespace, "users"), USERS).append(users(2))
    assert ids_of(catalog.load_table((namespace, "archive", "people"))) == [1]
    assert ids_of(catalog.load_table((namespace, "users"))) == [2]


def test_a_dropped_table_can_be_registered_again_and_a_purged_one_is_gone(
    catalog: RestCatalog, namespace: str, server: ServerProcess
) -> None:
    table = catalog.create_table((namespace, "users"), USERS)
    table.append(users(1))
    catalog.drop_table((namespace, "users"))
    with pytest.raises(NoSuchTableError):
        catalog.load_table((namespace, "users"))
    back = catalog.register_table((namespace, "back"), table.metadata_location)
    back.append(users(2))
    assert ids_of(catalog.load_table((namespace, "back"))) == [1, 2]
    folder = server.home / "warehouse" / namespace / "users"
    assert folder.is_dir()
    catalog.purge_table((namespace, "back"))
    assert not catalog.table_exists((namespace, "back"))
    assert not folder.exists()


def test_who_writes_to_a_managed_table_is_told_why_not(
    catalog: RestCatalog, namespace: str, server: ServerProcess
) -> None:
    table = catalog.create_table((namespace, "users"), USERS)
    table.append(users(1))
    assert server.get(f"/v1/namespaces/{namespace}/tables/users/adopt", method="POST", body={})[0] == 200
    with pytest.raises(ForbiddenError, match="managed by DoLake"):
        table.append(users(2))
    with pytest.raises(ForbiddenError, match="managed by DoLake"):
        catalog.drop_table((namespace, "users"))
    assert ids_of(catalog.load_table((namespace, "users"))) == [1]


# --- views -----------------------------------------------------------------------------------------------------------


def test_a_view_is_created_loaded_listed_dropped_and_registered_again(
    catalog: RestCatalog, namespace: str, server: ServerProcess
) -> None:
    query = SQLViewRepresentation(type="sql", sql="SELECT id FROM users", dialect="spark")
    version = ViewVersion.model_validate(
        {
            "version-id": 1,
            "schema-id": 0,
            "timestamp-ms": 1_763_251_200_000,
            "summary": {"engine": "pyiceberg"},
            "representations": [query],
            "default-namespace": [namespace],
        }
    )
    schema = Schema(NestedField(1, "id", LongType(), required=True))
    made = catalog.create_view((namespace, "ids"), schema, version, properties={"comment": "only ids"})
    loaded = catalog.load_view((namespace, "ids"))
    assert loaded == made
    assert loaded.sql_for("spark") == query
    assert loaded.properties == {"comment": "only ids"}
    assert catalog.list_views(namespace) == [(namespace, "ids")]
    assert catalog.list_tables(namespace) == []
    _, answer = server.get(f"/v1/namespaces/{namespace}/views/ids")  # View does not tell where its metadata is
    catalog.drop_view((namespace, "ids"))
    assert not catalog.view_exists((namespace, "ids"))
    with pytest.raises(NoSuchViewError):
        catalog.load_view((namespace, "ids"))
    back = catalog.register_view((namespace, "back"), answer["metadata-location"])
    assert back.metadata == made.metadata


# --- two writers -----------------------------------------------------------------------------------------------------


def test_an_append_to_a_stale_table_is_retried_and_loses_nothing(catalog: RestCatalog, namespace: str) -> None:
    catalog.create_table((namespace, "users"), USERS, properties={"commit.retry.min-wait-ms": "1"})
    ours, theirs = (catalog.load_table((namespace, "users")) for _ in range(2))
    ours.append(users(1))
    theirs.append(users(2))  # knows of no snapshot: the server refuses, PyIceberg looks again and retries
    ours.append(users(3))
    assert ids_of(catalog.load_table((namespace, "users"))) == [1, 2, 3]


def test_a_writer_that_does_not_retry_hears_of_the_conflict(catalog: RestCatalog, namespace: str) -> None:
    catalog.create_table((namespace, "users"), USERS, properties={"commit.retry.num-retries": "0"})
    ours, theirs = (catalog.load_table((namespace, "users")) for _ in range(2))
    ours.append(users(1))
    with pytest.raises(CommitFailedException, match="main"):
        theirs.append(users(2))
    assert ids_of(catalog.load_table((namespace, "users"))) == [1]


def test_two_schema_changes_at_once_do_not_overwrite_each_other(catalog: RestCatalog, namespace: str) -> None:
    catalog.create_table((namespace, "users"), USERS)
    ours, theirs = (catalog.load_table((namespace, "users")) for _ in range(2))
    with ours.update_schema() as update:
        update.add_column("email", StringType())
    with pytest.raises(CommitFailedException), theirs.update_schema() as update:
        update.add_column("phone", StringType())
    columns = catalog.load_table((namespace, "users")).schema().column_names
    assert columns == ["id", "name", "email"]


def test_four_writers_at_once_lose_no_append(server: ServerProcess, catalog: RestCatalog, namespace: str) -> None:
    patient = {"commit.retry.num-retries": "100", "commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "20"}
    catalog.create_table((namespace, "users"), USERS, properties=patient)

    def append_five(writer: int) -> None:
        own = RestCatalog(f"writer {writer}", uri=server.url)
        table = own.load_table((namespace, "users"))
        for number in range(5):
            table.append(users(10 * writer + number))
        own.close()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(append_five, range(4)))
    table = catalog.load_table((namespace, "users"))
    assert ids_of(table) == [10 * writer + number for writer in range(4) for number in range(5)]
    assert [snapshot.sequence_number for snapshot in table.snapshots()] == list(range(1, 21))
