"""The SDK: `connect` to a lake and `send` it changes. `dolake.client.sync` has the same without async."""

from dolake.client.aio import LakeClient, connect
from dolake.client.outgoing import ChangeLike
from dolake.client.window import Receipt

create_lake_client = connect

__all__ = ["ChangeLike", "LakeClient", "Receipt", "connect", "create_lake_client"]
