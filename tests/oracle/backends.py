"""Where a lake under test keeps its files and its catalog: the home, or an S3 store and PostgreSQL.

From conftest.py, test_in_a_store.py and chaos.py; to driver.py, which gives each server what `environ` says, and to
engines.py, which gives engines what they need to read there. Promise: each lake has a place and a schema of its own,
and leaving the `with` block leaves nothing in the store.

The store is moto's, behind a proxy that can fail, unless TEST_S3_ENDPOINT and TEST_S3_BUCKET name another one; its keys
are TEST_S3_ACCESS_KEY_ID and TEST_S3_SECRET_ACCESS_KEY, its region is TEST_S3_REGION (us-east-1 where it is not set).
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from dolake.settings import StorageSettings
from dolake.storage.s3 import S3Storage
from tests.support.postgres import PostgresServer, running_postgres
from tools.faulty_proxy import FaultyProxy, faulty_proxy
from tools.s3_server import KEY, SECRET, S3Server, s3_server

Warehouse = Literal["local", "s3"]
CatalogStore = Literal["sqlite", "postgres"]


@dataclass(frozen=True, slots=True)
class Store:
    """An S3 server, and a place in it."""

    location: str
    endpoint: str
    key: str
    secret: str
    region: str
    proxy: FaultyProxy | None = None
    """What can fail on the way to it; only in front of moto."""

    @property
    def settings(self) -> StorageSettings:
        return StorageSettings(
            location=self.location,
            endpoint=self.endpoint,
            region=self.region,
            access_key_id=self.key,
            secret_access_key=self.secret,
        )

    @property
    def environ(self) -> dict[str, str]:
        """For a server."""
        return {
            "DOLAKE_STORAGE_LOCATION": self.location,
            "DOLAKE_STORAGE_ENDPOINT": self.endpoint,
            "DOLAKE_STORAGE_REGION": self.region,
            "DOLAKE_STORAGE_ACCESS_KEY_ID": self.key,
            "DOLAKE_STORAGE_SECRET_ACCESS_KEY": self.secret,
        }

    @property
    def keys(self) -> dict[str, str]:
        """For PyIceberg and Spark, which hear from the catalog where the store is."""
        return {"s3.access-key-id": self.key, "s3.secret-access-key": self.secret}

    @property
    def duck_secret(self) -> str:
        """For DuckDB, which wants to be told everything."""
        place = urlsplit(self.endpoint)
        return (
            f"CREATE SECRET store (TYPE s3, KEY_ID '{self.key}', SECRET '{self.secret}', ENDPOINT '{place.netloc}',"
            f" URL_STYLE 'path', USE_SSL {place.scheme == 'https'}, REGION '{self.region}')"
        )


@dataclass(frozen=True, slots=True)
class Backend:
    """Without anything in it: the home, where all is by default."""

    store: Store | None = None
    postgres: PostgresServer | None = None
    schema: str = field(default_factory=lambda: f"lake_{uuid.uuid4().hex[:12]}")

    @property
    def environ(self) -> Mapping[str, str]:
        catalog: dict[str, str] = {}
        if self.postgres:
            catalog = {"DOLAKE_CATALOG_STORE": self.postgres.url, "DOLAKE_CATALOG_STORE_SCHEMA": self.schema}
        return catalog | (self.store.environ if self.store else {})


LOCAL = Backend()


def is_other_store() -> bool:
    """Whether the environment names a store that is not moto's."""
    return bool(os.environ.get("TEST_S3_ENDPOINT"))


class Machines:
    """The S3 server and the PostgreSQL that lakes share, each started when a lake first needs it."""

    def __init__(self, s3: S3Server | None = None, postgres: PostgresServer | None = None) -> None:
        self._s3, self._postgres = s3, postgres
        self._proxy: FaultyProxy | None = None
        self._running = contextlib.ExitStack()

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    @contextlib.contextmanager
    def backend(self, warehouse: Warehouse, catalog: CatalogStore) -> Iterator[Backend]:
        """For one lake; what it leaves in the store and in the database is removed."""
        store = self._new_store() if warehouse == "s3" else None
        postgres = self._database() if catalog == "postgres" else None
        found = Backend(store, postgres)
        try:
            yield found
        finally:
            if store:
                _empty(store)
            if postgres:
                postgres.ask(f"DROP SCHEMA IF EXISTS {found.schema} CASCADE")

    def _database(self) -> PostgresServer:
        self._postgres = self._postgres or self._running.enter_context(running_postgres())
        return self._postgres

    def _new_store(self) -> Store:
        if is_other_store():
            endpoint, bucket = os.environ["TEST_S3_ENDPOINT"], os.environ["TEST_S3_BUCKET"]
            key, secret = os.environ["TEST_S3_ACCESS_KEY_ID"], os.environ["TEST_S3_SECRET_ACCESS_KEY"]
            region = os.environ.get("TEST_S3_REGION", "us-east-1")
            return Store(f"s3://{bucket}/dolake-{uuid.uuid4().hex[:12]}", endpoint, key, secret, region)
        self._s3 = self._s3 or self._running.enter_context(s3_server())
        self._proxy = self._proxy or self._running.enter_context(faulty_proxy(self._s3.port))
        location = f"s3://{self._s3.new_bucket()}/lake"
        return Store(location, self._proxy.endpoint, KEY, SECRET, "us-east-1", self._proxy)


def _empty(store: Store) -> None:
    storage = S3Storage(store.location, store.settings)
    with contextlib.closing(storage):
        storage.delete_all([file.location for file in storage.list(storage.root)])
