"""PyIceberg as second opinion: the same commits to a v2 table, applied by both, give the same metadata.

Accepted differences, each put out of the way by `comparable()` or by what we generate, with its reason:

- `last-updated-ms`, and the time of a rollback in the snapshot log: PyIceberg takes them from its own clock or from the
  snapshot, Java and we take the time of the commit.
- A snapshot that was current only within the commit: Java and we leave it out of the snapshot log, PyIceberg does not.
- After remove-snapshots we drop partition statistics as Java does; PyIceberg keeps them, and clears the parent of the
  children. In the log PyIceberg and we drop the entry itself, Java all before it too.
- Adding an equal schema, spec or order again: Java and we reuse the old one, PyIceberg adds it a second time under the
  id that the client proposed. So we generate only new ones, with the id that both give them.
- Removing a property, statistics or snapshot that is not there: PyIceberg fails, Java and we see nothing to do.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import metadata as pyiceberg_metadata
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata

from dolake.catalog.commit import apply_updates, check_requirements
from dolake.catalog.create import new_table_metadata
from dolake.catalog.errors import CommitConflict
from dolake.catalog.readers import current_schema, current_snapshot_id
from tests.catalog.examples import FILE, START_MS, UUID, act, add, field, main, order, ref, schema, snapshot, table
from tests.catalog.test_requirements import FAILS, HOLDS, TABLE
from tests.support.property import examples

Json = dict[str, Any]
Draw = Any

UPDATES: TypeAdapter[list[TableUpdate]] = TypeAdapter(list[TableUpdate])
REQUIREMENT: TypeAdapter[TableRequirement] = TypeAdapter(TableRequirement)


# --- generating commits ----------------------------------------------------------------------------------------------


def some_append(draw: Draw, metadata: Json) -> list[Json]:
    branch = draw(st.sampled_from(["main", "main", "audit"]))
    head = metadata["refs"].get(branch, {}).get("snapshot-id")
    id_ = metadata["last-sequence-number"] + 1
    made = snapshot(id_, id_, head, schema_id=metadata["current-schema-id"])
    return [add(made), ref(branch, id_)]


def some_column(draw: Draw, metadata: Json) -> list[Json]:
    current = current_schema(metadata)
    assert current is not None
    id_ = metadata["last-column-id"] + 1
    types = st.sampled_from(["int", "string", "decimal(9, 2)", "timestamp", "uuid", "fixed[4]"])
    wider = schema(
        *current["fields"], field(id_, f"c{id_}", draw(types)), id_=next_id(metadata, "schemas", "schema-id")
    )
    return [act("add-schema", schema=wider), act("set-current-schema", schema_id=-1)]


def some_spec(draw: Draw, metadata: Json) -> list[Json]:
    id_ = next_id(metadata, "partition-specs", "spec-id")
    each = {
        "name": f"p{id_}",
        "transform": draw(st.sampled_from(["identity", "bucket[8]", "truncate[10]"])),
        "source-id": 1,
        "field-id": metadata["last-partition-id"] + 1,
    }
    updates = [act("add-spec", spec={"spec-id": id_, "fields": [each]})]
    return updates + [act("set-default-spec", spec_id=-1)] * draw(st.integers(0, 1))


def some_order(draw: Draw, metadata: Json) -> list[Json]:
    id_ = next_id(metadata, "sort-orders", "order-id")
    made = order(*[1] * id_, id_=id_)  # the same column once more each time: never equal to an older one
    return [act("add-sort-order", sort_order=made), act("set-default-sort-order", sort_order_id=-1)]


def some_properties(draw: Draw, metadata: Json) -> list[Json]:
    names = st.sampled_from(["a", "b", "c"])
    updates = [act("set-properties", updates=draw(st.dictionaries(names, st.text(max_size=3), min_size=1)))]
    if known := sorted(metadata["properties"]):
        updates.insert(0, act("remove-properties", removals=[draw(st.sampled_from(known))]))
    return updates


def some_ref(draw: Draw, metadata: Json) -> list[Json]:
    if not metadata["snapshots"]:
        return []
    id_ = draw(st.sampled_from(metadata["snapshots"]))["snapshot-id"]
    limits = {"max-ref-age-ms": draw(st.integers(1, 10**12))} if draw(st.booleans()) else {}
    return [draw(st.sampled_from([ref("v1", id_, "tag", **limits), ref("audit", id_, **limits), main(id_)]))]


def some_ref_gone(draw: Draw, metadata: Json) -> list[Json]:
    return [act("remove-snapshot-ref", ref_name=name) for name in sorted(metadata["refs"])[:1] if draw(st.booleans())]


def some_expiry(draw: Draw, metadata: Json) -> list[Json]:
    """Never the current snapshot: what is left of the history then is a matter of its own, told in test_snapshots."""
    old = [each["snapshot-id"] for each in metadata["snapshots"]]
    candidates = [id_ for id_ in old if id_ != current_snapshot_id(metadata)]
    if not candidates:
        return []
    return [act("remove-snapshots", snapshot_ids=draw(st.lists(st.sampled_from(candidates), min_size=1, unique=True)))]


def some_statistics(draw: Draw, metadata: Json) -> list[Json]:
    if not metadata["snapshots"]:
        return []
    id_ = draw(st.sampled_from(metadata["snapshots"]))["snapshot-id"]
    file = {"snapshot-id": id_, "statistics-path": draw(st.sampled_from("ab")), "file-size-in-bytes": 9}
    puffin = {**file, "file-footer-size-in-bytes": 1, "blob-metadata": []}
    return [act("set-statistics", statistics=puffin), act("set-partition-statistics", partition_statistics=file)]


def some_statistics_gone(draw: Draw, metadata: Json) -> list[Json]:
    return [act("remove-statistics", snapshot_id=each["snapshot-id"]) for each in metadata["statistics"][:1]]


def some_cleaning(draw: Draw, metadata: Json) -> list[Json]:
    specs = [s["spec-id"] for s in metadata["partition-specs"] if s["spec-id"] != metadata["default-spec-id"]]
    schemas = [s["schema-id"] for s in metadata["schemas"] if s["schema-id"] != metadata["current-schema-id"]]
    # Not the highest: the next one gets the highest id plus one here and with every client, so its id would come again.
    return [
        *(act("remove-partition-specs", spec_ids=specs[:1]) for _ in specs[1:2]),
        *(act("remove-schemas", schema_ids=schemas[:1]) for _ in schemas[1:2]),
    ]


def next_id(metadata: Json, key: str, id_key: str) -> int:
    return max(int(each[id_key]) for each in metadata[key]) + 1


STEPS = [
    some_append,
    some_append,
    some_append,
    some_column,
    some_spec,
    some_order,
    some_properties,
    some_ref,
    some_ref_gone,
    some_expiry,
    some_statistics,
    some_statistics_gone,
    some_cleaning,
]


def some_commit(draw: Draw, metadata: Json, now_ms: int) -> list[Json]:
    """Up to four steps as one commit; each is made for the metadata that the ones before it leave behind."""
    updates: list[Json] = []
    for step in draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=4)):
        made = step(draw, metadata)
        metadata = apply_updates(metadata, made, now_ms=now_ms, metadata_location=None)
        updates += made
    return updates


# --- comparing -------------------------------------------------------------------------------------------------------


def comparable(metadata: Json, updates: list[Json]) -> Json:
    """As PyIceberg's model sees it, without the differences that the docstring above gives reasons for."""
    model: TableMetadata = TableMetadataUtil.parse_obj(metadata)
    plain = model.model_dump(by_alias=True)
    plain.pop("last-updated-ms")
    kept = {each["snapshot-id"] for each in plain["snapshots"]}
    added = [update["snapshot"]["snapshot-id"] for update in updates if update["action"] == "add-snapshot"]
    in_passing = set(added) - {plain.get("current-snapshot-id")}
    log = [each for each in plain["snapshot-log"] if each["snapshot-id"] not in in_passing]
    plain["snapshot-log"] = [each["snapshot-id"] for each in log]
    for each in plain["snapshots"]:
        if each.get("parent-snapshot-id") not in kept:
            each.pop("parent-snapshot-id", None)
    plain["partition-statistics"] = [file for file in plain["partition-statistics"] if file["snapshot-id"] in kept]
    return plain


def pyiceberg_applies(metadata: Json, updates: list[Json]) -> Json:
    base = TableMetadataUtil.parse_obj(copy.deepcopy(metadata))
    parsed = tuple(UPDATES.validate_python(copy.deepcopy(updates)))
    return update_table_metadata(base, parsed, metadata_location=FILE).model_dump(by_alias=True)


@settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(data=st.data(), commits=st.integers(1, 6))
def test_random_commits_give_what_pyiceberg_gives(data: st.DataObject, commits: int) -> None:
    metadata = table(properties={"write.metadata.previous-versions-max": "3"})
    for number in range(commits):
        now_ms = START_MS + number * 1000
        updates = some_commit(data.draw, metadata, now_ms)
        before, sent = copy.deepcopy(metadata), copy.deepcopy(updates)
        ours = apply_updates(metadata, updates, now_ms=now_ms, metadata_location=FILE)
        assert (metadata, updates) == (before, sent)
        theirs = pyiceberg_applies(metadata, updates) if ours is not metadata else ours
        assert comparable(ours, updates) == comparable(theirs, updates)
        metadata = ours


@pytest.mark.parametrize("requirement", [*HOLDS, *(each for each, _ in FAILS)], ids=str)
def test_requirements_hold_and_fail_where_they_do_with_pyiceberg(requirement: Json) -> None:
    model = TableMetadataUtil.parse_obj(TABLE)
    try:
        REQUIREMENT.validate_python(requirement).validate(model)
    except CommitFailedException:
        with pytest.raises(CommitConflict):
            check_requirements(TABLE, [requirement])
    else:
        check_requirements(TABLE, [requirement])


# --- new tables ------------------------------------------------------------------------------------------------------

PRIMITIVES = st.sampled_from(["int", "long", "string", "date", "decimal(9, 2)", "fixed[4]", "timestamptz"])


@st.composite
def schemas(draw: st.DrawFn) -> Json:
    """Nested at random, with ids in no order at all, as clients may send them."""
    free = draw(st.permutations(range(1, 61)))

    def type_(depth: int) -> Any:
        kind = draw(st.sampled_from(["primitive", "primitive", "struct", "list", "map"])) if depth < 3 else "primitive"
        match kind:
            case "struct":
                return {"type": "struct", "fields": fields(depth + 1)}
            case "list":
                id_ = free.pop()
                return {"type": "list", "element-id": id_, "element": type_(depth + 1), "element-required": False}
            case "map":
                map_ids = {"key-id": free.pop(), "value-id": free.pop()}
                return {"type": "map", **map_ids, "key": "string", "value": type_(depth + 1), "value-required": True}
        return draw(PRIMITIVES)

    def fields(depth: int) -> list[Json]:
        return [
            field(free.pop(), f"f{place}", type_(depth), required=draw(st.booleans()))
            for place in range(draw(st.integers(1, 3 - depth // 2)))
        ]

    return schema(field(free.pop(), "key", "long", required=True), *fields(0))


@settings(max_examples=examples(150), deadline=None)
@given(sent=schemas(), data=st.data())
def test_a_new_table_gets_the_ids_that_pyiceberg_gives(sent: Json, data: st.DataObject) -> None:
    key = sent["fields"][0]["id"]
    sent["identifier-field-ids"] = data.draw(st.sampled_from([[], [key]]))
    by_key = {"name": "key_bucket", "transform": "bucket[4]", "source-id": key, "field-id": 1007}
    spec = {"spec-id": 3, "fields": data.draw(st.sampled_from([[], [by_key]]))}
    sort_order = data.draw(st.sampled_from([order(), order(key, id_=1)]))
    version = data.draw(st.sampled_from([1, 2]))
    request = {"name": "t", "schema": sent, "partition-spec": spec, "write-order": sort_order, "properties": {"a": "b"}}
    ours = new_table_metadata(request, location="file:///t", uuid=UUID, now_ms=START_MS, format_version=version)
    theirs = pyiceberg_metadata.new_table_metadata(
        schema=Schema.model_validate(sent),
        partition_spec=PartitionSpec.model_validate(spec),
        sort_order=SortOrder.model_validate(sort_order),
        location="file:///t",
        properties={"format-version": str(version), "write.parquet.compression-codec": "zstd", "a": "b"},
    ).model_dump(by_alias=True)
    parsed = TableMetadataUtil.parse_obj(ours).model_dump(by_alias=True)
    for each in (parsed, theirs):
        each.pop("last-updated-ms")
        each.pop("table-uuid")
    assert parsed == theirs
