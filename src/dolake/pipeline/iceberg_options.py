"""How Iceberg's Java library reaches our catalog and our store.

From publish.py, for iceberg.py. Promise: no key of a store that was not given to us is written down here.
"""

from __future__ import annotations

from dolake.catalog.base import PIPELINE_HEADER
from dolake.pipeline.java_classes import STORE_FILES
from dolake.pipeline.store import is_local, store

_RETRY_MIN_MS = "200"


def rest_options(uri: str, secret: str) -> dict[str, str]:
    """Our own server as the catalog."""
    return {
        "type": "rest",
        "uri": uri,
        f"header.{PIPELINE_HEADER}": secret,
        "snapshot-loading-mode": "refs",
        # Where our server says «later» it has tried the store often enough; Java would ask five times more.
        "rest.client.max-retries": "1",
        "rest-metrics-reporting-enabled": "false",
    }


def store_options() -> dict[str, str]:
    """How Java gets to the warehouse where that is in a store; keys that are not given it finds by itself."""
    if is_local():
        return {}
    from dolake.storage.s3 import CONNECT_MAX_MS, S3Storage  # its client is for lakes in a store alone

    storage = store()
    assert isinstance(storage, S3Storage)
    # As patient as our own client: Iceberg's would wait for half a minute, six times, until a publish has failed.
    patience = {
        "http-client.apache.socket-timeout-ms": str(storage.timeout_ms),
        "http-client.apache.connection-timeout-ms": str(min(storage.timeout_ms, CONNECT_MAX_MS)),
        "s3.retry.num-retries": str(storage.tries_max - 1),
        "s3.retry.min-wait-ms": _RETRY_MIN_MS,
    }
    options = {"io-impl": STORE_FILES, **patience, **storage.client_options}
    if given := storage.given_keys:
        options |= {"s3.access-key-id": given.access_key_id, "s3.secret-access-key": given.secret_access_key}
        options |= {"s3.session-token": given.session_token} if given.session_token else {}
    return options
