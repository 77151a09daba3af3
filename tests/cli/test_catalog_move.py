"""`dolake catalog move`: a lake's catalog goes into Postgres and comes back, whole or not at all."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from dolake.backup.restore import restore
from dolake.backup.take import take_backup
from dolake.catalog.base import Published
from dolake.catalog.moving import copy_store
from dolake.catalog.postgres import PostgresStore
from dolake.catalog.sqlite import SqliteStore
from dolake.catalog.stores import open_store
from dolake.errors import Conflict
from dolake.server.home import Home
from dolake.settings import CatalogSettings
from tests.support.command import invoke
from tests.support.postgres import PostgresServer
from tests.verify.lake import HandLake, insert


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of a server that has stopped, with two tables and a namespace of somebody's own."""
    lake = HandLake(tmp_path / "home")
    lake.publish(insert("1", n=1), insert("2", n=2))
    lake.publish(insert("3", n=3))
    lake.store.create_namespace(("own",), {"owner": "Ada"})
    lake.store.keep_answer("k", b"answer\0", until_ms=2**60)
    lake.close()
    return lake.home


@pytest.fixture
def schema(postgres: PostgresServer) -> str:
    return postgres.new_schema()


def everything(store: SqliteStore | PostgresStore) -> tuple[object, ...]:
    position = store.published().position
    times = [store.time_of(each) for each in range(position + 1)]
    answer = store.recall_answer("k", 0)
    return sorted(map(str, store.pointers())), store.published(), times, answer, store.namespace_properties(("own",))


def use(home: Path, postgres: PostgresServer, schema: str) -> None:
    (home / "dolake.toml").write_text(f'[catalog]\nstore = "{postgres.url}"\nstore_schema = "{schema}"\n')


def test_a_catalog_goes_to_postgres_and_back_with_all_that_is_in_it(
    home: Path, postgres: PostgresServer, schema: str
) -> None:
    with closing(SqliteStore(home / "catalog.db")) as store:
        before = everything(store)
    there = invoke("catalog", "move", "--to", postgres.url, "--schema", schema, "--home", home)
    assert there.exit_code == 0, there.stderr
    assert "moved: 2 namespaces, 2 tables and views, 2 publishes, 1 kept answers; published position 3" in there.stdout
    assert f'store = "{postgres.url}"' in there.stdout
    assert f'store_schema = "{schema}"' in there.stdout
    with closing(PostgresStore(postgres.url, schema)) as moved:
        assert everything(moved) == before

    with pytest.raises(Conflict, match="was moved to Postgres"):
        open_store(home, CatalogSettings())
    use(home, postgres, schema)
    verified = invoke("verify", "--home", home)
    assert verified.exit_code == 0, verified.output

    back = invoke("catalog", "move", "--to", "sqlite", "--home", home)
    assert back.exit_code == 0, back.stderr
    assert 'store = "sqlite"' in back.stdout
    with closing(SqliteStore(home / "catalog.db")) as store:
        assert everything(store) == before
    (home / "dolake.toml").unlink()
    again = invoke("catalog", "move", "--to", postgres.url, "--schema", schema, "--home", home)
    assert again.exit_code == 0, again.stderr  # what has left a schema makes room there


def test_a_catalog_is_not_moved_while_a_server_runs(home: Path, postgres: PostgresServer, schema: str) -> None:
    with Home(home):
        refused = invoke("catalog", "move", "--to", postgres.url, "--schema", schema, "--home", home)
    assert refused.exit_code == 1
    assert "is using" in refused.stderr
    assert (home / "catalog.db").exists()


def test_a_catalog_is_not_moved_into_another_one(home: Path, postgres: PostgresServer, schema: str) -> None:
    with closing(PostgresStore(postgres.url, schema)) as others:
        others.create_namespace(("theirs",), {})
        refused = invoke("catalog", "move", "--to", postgres.url, "--schema", schema, "--home", home)
        assert refused.exit_code == 1
        assert "there is a catalog already" in refused.stderr
        assert others.list_namespaces((), None, None).items == ["theirs"]
    with closing(SqliteStore(home / "catalog.db")) as store:
        assert store.published().position == 3


def test_a_copy_that_fails_in_the_middle_leaves_nothing(home: Path, postgres: PostgresServer, schema: str) -> None:
    with closing(SqliteStore(home / "catalog.db")) as source, closing(PostgresStore(postgres.url, schema)) as target:
        postgres.ask(f"DROP TABLE {schema}.answers")  # the last of those that are copied
        with pytest.raises(Exception, match="answers"):
            copy_store(source, target)
        assert target.pointers() == []
        assert target.published() == Published(0, 0, 0)


def test_a_catalog_comes_back_only_to_the_home_whose_journal_it_counts(
    home: Path, tmp_path: Path, postgres: PostgresServer, schema: str
) -> None:
    assert invoke("catalog", "move", "--to", postgres.url, "--schema", schema, "--home", home).exit_code == 0
    other = HandLake(tmp_path / "other")
    other.publish(insert("1", n=1))
    other.close()
    (other.home / "catalog.db").unlink()
    use(other.home, postgres, schema)
    refused = invoke("catalog", "move", "--to", "sqlite", "--home", other.home)
    assert refused.exit_code == 1
    assert "belongs to the journal of another home" in refused.stderr
    assert not (other.home / "catalog.db").exists()
    with closing(PostgresStore(postgres.url, schema)) as store:
        store.create_namespace(("works",), {})


def test_a_password_is_never_printed(home: Path) -> None:
    refused = invoke("catalog", "move", "--to", "postgresql://ann:s3cret@127.0.0.1:1/db", "--home", home)
    assert refused.exit_code == 1
    assert "is not reached" in refused.stderr
    wrong = invoke("catalog", "move", "--to", "postgresql://ann:s3cret@ho st/db", "--home", home)
    assert wrong.exit_code == 1
    assert "s3cret" not in refused.stderr + refused.stdout + wrong.stderr + wrong.stdout


def test_a_backup_of_a_lake_in_postgres_is_whole_without_it(
    home: Path, tmp_path: Path, postgres: PostgresServer, schema: str
) -> None:
    assert invoke("catalog", "move", "--to", postgres.url, "--schema", schema, "--home", home).exit_code == 0
    settings = CatalogSettings(store=postgres.url, store_schema=schema)
    manifest = take_backup(home, home / "warehouse", tmp_path / "backup", catalog=settings)
    assert (manifest.published, manifest.table_count) == (3, 2)
    shutil.rmtree(home)
    restore(tmp_path / "backup", home)
    with closing(SqliteStore(home / "catalog.db")) as store:
        assert store.namespace_properties(("own",)) == {"owner": "Ada"}
        assert store.published().position == 3


def test_settings_that_name_postgres_do_not_hide_a_file_that_was_never_moved(
    home: Path, postgres: PostgresServer, schema: str
) -> None:
    with pytest.raises(Conflict, match="dolake catalog move"):
        open_store(home, CatalogSettings(store=postgres.url, store_schema=schema))
