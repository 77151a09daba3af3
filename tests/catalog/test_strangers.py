"""Whatever a stranger sends, the answer is new metadata or a refusal, never a crash: a crash would be a 5xx."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dolake.catalog.commit import apply_updates, check_requirements
from dolake.catalog.create import new_table_metadata, new_view_metadata
from dolake.catalog.errors import CommitConflict
from dolake.catalog.register import registered_table_metadata, registered_view_metadata
from dolake.errors import InvalidInput
from tests.catalog.examples import (
    FILE,
    ORDERS,
    START_MS,
    UUID,
    act,
    append,
    commit,
    field,
    main,
    need,
    order,
    ref,
    schema,
    spec,
    table,
    view,
    view_version,
)
from tests.catalog.test_create import NESTED
from tests.catalog.test_snapshots import partition_statistics, statistics
from tests.support.property import examples

Json = dict[str, Any]

TABLES = [table(version, history=2, partition_spec=spec(("at_day", "day", 2, 1000))) for version in (1, 2, 3)]
VIEW = commit(view(), act("add-view-version", view_version=view_version(2, "select 2")))
KEY = {"key-id": "k", "encrypted-key-metadata": "AAEC", "properties": {"a": "b"}}

TABLE_UPDATES = [
    act("assign-uuid", uuid=UUID),
    act("upgrade-format-version", format_version=3),
    act("add-schema", schema=schema(*NESTED["fields"], field(60, "v", "long", initial_default=3), doc="x")),
    act("add-schema", schema={**NESTED, "fields": [*ORDERS["fields"], *NESTED["fields"][2:4]]}),
    act("set-current-schema", schema_id=-1),
    act("remove-schemas", schema_ids=[1]),
    act("add-spec", spec=spec(("id_bucket", "bucket[16]", 1, 1001))),
    act("set-default-spec", spec_id=-1),
    act("remove-partition-specs", spec_ids=[1]),
    act("add-sort-order", sort_order=order(1, 2)),
    act("set-default-sort-order", sort_order_id=-1),
    *append(TABLES[1], 3),
    *append(TABLES[2], 3),
    act("remove-snapshots", snapshot_ids=[1]),
    main(1),
    ref("v1", 1, "tag", max_ref_age_ms=5),
    act("remove-snapshot-ref", ref_name="main"),
    act("set-statistics", statistics=statistics(1)),
    act("remove-statistics", snapshot_id=1),
    act("set-partition-statistics", partition_statistics=partition_statistics(1)),
    act("remove-partition-statistics", snapshot_id=1),
    act("set-location", location="file:///elsewhere"),
    act("set-properties", updates={"a": "1", "write.metadata.previous-versions-max": "3"}),
    act("remove-properties", removals=["a"]),
    act("add-encryption-key", encryption_key=KEY),
    act("remove-encryption-key", key_id="k"),
]
VIEW_UPDATES = [
    act("add-schema", schema=NESTED),
    act("add-view-version", view_version=view_version(3, "select 3", "spark", "trino", default_catalog="c")),
    act("set-current-view-version", view_version_id=-1),
    act("set-properties", updates={"version.history.num-entries": "2"}),
    act("assign-uuid", uuid=UUID),
    act("set-location", location="file:///elsewhere"),
]
REQUIREMENTS = [
    need("assert-create"),
    need("assert-table-uuid", uuid=UUID),
    need("assert-view-uuid", uuid=UUID),
    need("assert-ref-snapshot-id", ref="main", snapshot_id=2),
    need("assert-last-assigned-field-id", last_assigned_field_id=3),
]

numbers = st.sampled_from([-1, 0, 1, 2, 3, 1000, 2**31, 2**63, -(2**63) - 1, 1.5])
words = st.sampled_from(["", "a", "main", "tag", "long", "void", "list", "struct", "bucket[4]", "\ud800", "decimal(9,"])
anything = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)


def damaged(draw: Any, document: Any) -> Any:
    """A copy with some place in it, found by walking down at random, replaced or removed."""
    copied = copy.deepcopy(document)
    place = copied
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return copied
        key = draw(st.sampled_from(keys))
        if isinstance(place[key], dict | list) and place[key] and draw(st.integers(0, 3)):
            place = place[key]
        elif draw(st.booleans()):
            place[key] = draw(anything)
            return copied
        else:
            del place[key]
            return copied


@settings(max_examples=examples(600), deadline=None)
@given(data=st.data(), base=st.sampled_from([*TABLES, None]))
def test_no_update_of_a_table_crashes_the_engine(data: st.DataObject, base: Json | None) -> None:
    updates = data.draw(st.lists(st.sampled_from(TABLE_UPDATES), min_size=1, max_size=5))
    updates = damaged(data.draw, updates)
    try:
        made = apply_updates(base, updates, now_ms=START_MS + 9000, metadata_location=FILE, new_uuid=UUID)
    except (InvalidInput, CommitConflict):
        return
    json.dumps(made)
    assert registered_table_metadata(made) == made  # whatever was accepted, a careful reader accepts too


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_no_update_of_a_view_crashes_the_engine(data: st.DataObject) -> None:
    updates = data.draw(st.lists(st.sampled_from(VIEW_UPDATES), min_size=1, max_size=4))
    updates = damaged(data.draw, updates)
    try:
        made = apply_updates(VIEW, updates, now_ms=START_MS + 9000, metadata_location=FILE)
    except InvalidInput:
        return
    assert registered_view_metadata(made) == made


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data(), base=st.sampled_from([*TABLES, VIEW, None]))
def test_no_requirement_crashes_the_engine(data: st.DataObject, base: Json | None) -> None:
    requirements = data.draw(st.lists(st.sampled_from(REQUIREMENTS), min_size=1, max_size=2))
    requirements = damaged(data.draw, requirements)
    with suppress(InvalidInput, CommitConflict):
        check_requirements(base, requirements)


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_no_create_request_crashes_the_engine(data: st.DataObject) -> None:
    for_table = {
        "name": "t",
        "schema": NESTED,
        "partition-spec": spec(("day", "identity", 31, 1000)),
        "write-order": order(10),
        "properties": {"format-version": "2", "commit.retry.num-retries": "3"},
    }
    for_view = {"name": "v", "schema": NESTED, "view-version": view_version(), "properties": {"a": "b"}}
    tables, views = [], []
    with suppress(InvalidInput):
        tables.append(new_table_metadata(damaged(data.draw, for_table), location="s3://t", uuid=UUID, now_ms=START_MS))
    with suppress(InvalidInput):
        views.append(new_view_metadata(damaged(data.draw, for_view), location="s3://v", uuid=UUID, now_ms=START_MS))
    assert [registered_table_metadata(made) for made in tables] == tables
    assert [registered_view_metadata(made) for made in views] == views


@settings(max_examples=examples(400), deadline=None)
@given(data=st.data(), document=st.sampled_from(TABLES))
def test_no_metadata_file_crashes_the_engine(data: st.DataObject, document: Json) -> None:
    with suppress(InvalidInput):
        made = registered_table_metadata(damaged(data.draw, document))
        assert registered_table_metadata(made) == made
        apply_updates(made, [act("set-properties", updates={"a": "b"})], now_ms=START_MS, metadata_location=FILE)
        registered_view_metadata(damaged(data.draw, VIEW))
