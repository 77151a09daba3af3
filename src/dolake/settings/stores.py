"""The settings of a store: where the tables are if not in the home, and how to get there.

From schema.py, which has all other sections. Names that end in a key, a secret or a token print as `***` (names.py).
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from dolake.settings.words import RESTART, says, whole

_STORAGE_LOCATION = Meta(
    pattern=r"^((s3|r2)://([A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*)?)?\Z",
    max_length=1024,
    description="Where the tables are: empty for a folder of the home, or a place in an S3-compatible store.",
    extra={
        **RESTART,
        "allowed": "empty, `s3://bucket/path` (or `r2://`, which means the same), or `s3://` alone for `r2_bucket_name`"
        " and `r2_base_path`",
    },
)
_COLD_LOCATION = Meta(
    pattern=r"^((s3|r2)://[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*|[^\x00-\x1f:]*)\Z",
    max_length=1024,
    description="Where old partitions go; empty means beside the warehouse, under its name and `-cold`.",
    extra={
        **RESTART,
        "allowed": "empty; a path, inside the home if it is not absolute; `s3://bucket/path` for a lake in a store",
    },
)
_COLD_CLASS = Meta(
    pattern=r"^[A-Z0-9_]*\Z",
    max_length=64,
    description="Storage class of files in the cold location; empty means the bucket's own.",
    extra={
        **RESTART,
        "allowed": "empty, or a class that is read without waiting, such as `STANDARD_IA` or `GLACIER_IR`",
    },
)


def _price(tier: str) -> Meta:
    return Meta(
        ge=0.0,
        le=1e6,
        description=f"What a gigabyte in the {tier} tier costs a month, in your currency: for `GET /v1/tiers`.",
        extra={"allowed": "a number from 0 to 1_000_000"},
    )


def _address(description: str, example: str) -> Meta:
    return Meta(
        pattern=r"^(https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9._-]*)(:[0-9]{1,5})?)?\Z",
        max_length=1024,
        description=description,
        extra={**RESTART, "allowed": f"empty, or an address such as `{example}`"},
    )


def _word_for_store(description: str, allowed: str) -> Meta:
    return Meta(
        pattern=r"^[!-~]*\Z",
        max_length=4096,
        description=description,
        extra={**RESTART, "allowed": f"empty, or {allowed}"},
    )


class StorageSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the tables' files are: a folder of the home, or an S3-compatible store."""

    location: Annotated[str, _STORAGE_LOCATION] = ""
    endpoint: Annotated[
        str, _address("Address of the store; empty means AWS.", "https://<account>.r2.cloudflarestorage.com")
    ] = ""
    region: Annotated[
        str,
        _word_for_store(
            "Region of the bucket; empty means what the environment or the profile says.", "`eu-central-1`"
        ),
    ] = ""
    path_style: Annotated[
        Literal["auto", "on", "off"],
        says("Name the bucket in the path and not in the host; `auto` does so where there is an endpoint.", RESTART),
    ] = "auto"
    access_key_id: Annotated[
        str, _word_for_store("Key of the store; empty means that of the environment or the profile.", "a key")
    ] = ""
    secret_access_key: Annotated[str, _word_for_store("The secret of that key.", "a secret")] = ""
    session_token: Annotated[str, _word_for_store("The session of that key, where it has one.", "a token")] = ""
    profile: Annotated[
        str, _word_for_store("Profile in the shared AWS files that has key and region.", "the name of a profile")
    ] = ""
    timeout_ms: Annotated[
        int, whole("Longest wait for the store to say something, for one try.", 100, 600_000, RESTART)
    ] = 20_000
    tries_max: Annotated[
        int,
        whole("Most tries of a request that the store did not answer well; the waits between grow.", 1, 20, RESTART),
    ] = 5
    vending: Annotated[
        Literal["off", "signing", "sts", "keys"],
        says(
            "How the catalog lets clients to the files of a table that their token allows: not at all; by signing their"
            " requests; with keys of a role for that table; with the read-only key below. The last two sign, too.",
            RESTART,
        ),
    ] = "off"
    vending_unasked: Annotated[
        bool, says("Do so also for clients that do not ask for it (`X-Iceberg-Access-Delegation`).", RESTART)
    ] = False
    vending_role_arn: Annotated[
        str, _word_for_store("For `sts`: the role whose keys clients get.", "`arn:aws:iam::123456789012:role/lake`")
    ] = ""
    vending_endpoint: Annotated[
        str, _address("For `sts`: who gives keys of a role; empty means the store, or AWS.", "http://minio:9000")
    ] = ""
    vending_lifetime_ms: Annotated[
        int, whole("For `sts`: how long such keys are good.", 900_000, 43_200_000, RESTART)
    ] = 3_600_000
    vending_access_key_id: Annotated[
        str, _word_for_store("For `keys`: a key that can only read, which clients of the whole lake get.", "a key")
    ] = ""
    vending_secret_access_key: Annotated[str, _word_for_store("The secret of that key.", "a secret")] = ""
    cold_location: Annotated[str, _COLD_LOCATION] = ""
    cold_class: Annotated[str, _COLD_CLASS] = ""
    hot_price: Annotated[float, _price("hot")] = 0.2
    warm_price: Annotated[float, _price("warm")] = 0.015
    cold_price: Annotated[float, _price("cold")] = 0.01
