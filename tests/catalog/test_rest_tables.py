"""Tables on a running server: create, commit, transactions, asking twice, register, rename, drop, where files lie."""

from __future__ import annotations

import json
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.catalog.asking import (
    Asker,
    Reply,
    eventually,
    lineage,
    main_is,
    namespace_path,
    set_properties,
    snapshot_updates,
    table_body,
    view_body,
)
from tests.catalog.examples import Json
from tests.support.server import ServerProcess


def path_of(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def files_of(location: str) -> set[str]:
    return {path.name for path in path_of(location).rglob("*") if path.is_file()}


def identifier(path: str, table: str) -> Json:
    return {"namespace": [path.rpartition("/")[2]], "name": table}


def transaction(ask: Asker, *changes: Json, **headers: str) -> Reply:
    return ask("POST", "/transactions/commit", {"table-changes": list(changes)}, headers)


def change(ns: str, table: str, *updates: Json, needs: list[Json] | None = None) -> Json:
    return {"identifier": identifier(ns, table), "requirements": needs or [], "updates": list(updates)}


# --- create ----------------------------------------------------------------------------------------------------------


def test_a_created_table_is_what_a_load_shows_and_exists_once(ask: Asker, ns: str) -> None:
    made = ask.table(ns, properties={"owner": "ann"})
    assert made.body == ask("GET", f"{ns}/tables/t").body
    assert made.metadata["properties"]["owner"] == "ann"
    assert ask("HEAD", f"{ns}/tables/t").status == 204
    assert ask.table(ns).refusal == (409, "AlreadyExistsException")
    assert ask.table("/namespaces/nowhere").refusal == (404, "NoSuchNamespaceException")
    assert json.loads(path_of(made.body["metadata-location"]).read_bytes()) == made.metadata


def test_a_staged_table_exists_only_after_its_commit_and_only_once(ask: Asker, ns: str) -> None:
    staged = ask.table(ns, stage_create=True)
    assert staged.status == 200
    assert ask("HEAD", f"{ns}/tables/t").status == 404
    metadata = staged.metadata
    updates: list[Json] = [
        {"action": "assign-uuid", "uuid": metadata["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": metadata["schemas"][0], "last-column-id": metadata["last-column-id"]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": metadata["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": metadata["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": metadata["location"]},
        set_properties(owner="ann"),
    ]
    create = [{"type": "assert-create"}]
    made = ask.commit(f"{ns}/tables/t", *updates, needs=create)
    assert made.metadata["table-uuid"] == metadata["table-uuid"]
    assert ask("GET", f"{ns}/tables/t").metadata["properties"]["owner"] == "ann"
    assert ask.commit(f"{ns}/tables/t", *updates, needs=create).refusal == (409, "CommitFailedException")


def test_a_commit_with_assert_create_over_a_view_is_a_conflict(ask: Asker, ns: str) -> None:
    ask.view(ns, "t")
    metadata = ask.table(ns, "other", stage_create=True).metadata
    updates = [{"action": "set-location", "location": metadata["location"]}]
    assert ask.commit(f"{ns}/tables/t", *updates, needs=[{"type": "assert-create"}]).status == 409


# --- commit ----------------------------------------------------------------------------------------------------------


def test_a_commit_is_what_later_loads_show(ask: Asker, ns: str) -> None:
    made = ask.table(ns)
    done = ask.append(f"{ns}/tables/t")
    assert done.status == 200
    loaded = ask("GET", f"{ns}/tables/t")
    assert loaded.metadata == done.metadata
    assert loaded.body["metadata-location"] == done.body["metadata-location"]
    assert done.metadata["metadata-log"][-1]["metadata-file"] == made.body["metadata-location"]


def test_a_requirement_that_does_not_hold_is_a_conflict_and_changes_nothing(ask: Asker, ns: str) -> None:
    before = ask.table(ns)
    needs: list[Json] = [
        {"type": "assert-table-uuid", "uuid": str(uuid.uuid4())},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 5},
        {"type": "assert-current-schema-id", "current-schema-id": 9},
        {"type": "assert-create"},
    ]
    for need in needs:
        reply = ask.commit(f"{ns}/tables/t", set_properties(a="1"), needs=[need])
        assert reply.refusal == (409, "CommitFailedException"), need
    assert ask("GET", f"{ns}/tables/t").body == before.body
    files = {Path(before.body["metadata-location"]).name, "version-hint.text"}
    eventually(lambda: files_of(before.metadata["location"]) == files)


@pytest.mark.parametrize("way", ["", "/commits"])
def test_updates_and_requirements_that_nobody_knows_are_refused(ask: Asker, ns: str, way: str) -> None:
    ask.table(ns)
    assert ask.commit(f"{ns}/tables/t{way}", {"action": "explode"}).status == 400
    assert ask.commit(f"{ns}/tables/t{way}", set_properties(a="1"), {"action": "explode"}).status == 400
    assert ask.commit(f"{ns}/tables/t{way}", set_properties(a="1"), needs=[{"type": "assert-luck"}]).status == 400
    assert "a" not in ask("GET", f"{ns}/tables/t").metadata.get("properties", {})


def test_the_seeds_commits_route_is_the_same_commit(ask: Asker, ns: str) -> None:
    ask.table(ns)
    assert ask.commit(f"{ns}/tables/t/commits", set_properties(a="1")).metadata["properties"]["a"] == "1"
    assert ask("GET", f"{ns}/tables/t").metadata["properties"]["a"] == "1"


def test_a_commit_prepared_on_older_metadata_lands_when_its_requirements_still_hold(ask: Asker, ns: str) -> None:
    old = ask.table(ns).metadata
    same_table = {"type": "assert-table-uuid", "uuid": old["table-uuid"]}
    assert ask.commit(f"{ns}/tables/t", set_properties(a="1"), needs=[same_table]).status == 200
    assert ask.append(f"{ns}/tables/t").status == 200
    assert ask.commit(f"{ns}/tables/t", set_properties(b="2"), needs=[same_table]).status == 200
    now = ask("GET", f"{ns}/tables/t").metadata
    assert (now["properties"]["a"], now["properties"]["b"], len(now["snapshots"])) == ("1", "2", 1)
    late = ask.commit(f"{ns}/tables/t", *snapshot_updates(old), needs=[same_table, main_is(old)])
    assert late.refusal == (409, "CommitFailedException")


def test_a_commit_to_nothing_is_not_found(ask: Asker, ns: str) -> None:
    assert ask.commit(f"{ns}/tables/none", set_properties(a="1")).refusal == (404, "NoSuchTableException")
    ask.view(ns, "v")
    assert ask.commit(f"{ns}/tables/v", set_properties(a="1")).refusal == (404, "NoSuchTableException")


@pytest.mark.parametrize("snapshot", ["text", 5, [], {"summary": "text"}, {"summary": {"dolake.published-to": []}}])
def test_a_snapshot_that_is_none_is_refused(ask: Asker, ns: str, snapshot: Any) -> None:
    ask.table(ns)
    assert ask.commit(f"{ns}/tables/t", {"action": "add-snapshot", "snapshot": snapshot}).status == 400


# --- transactions ----------------------------------------------------------------------------------------------------


def test_a_transaction_changes_all_its_tables_or_none(ask: Asker, ns: str) -> None:
    for each in "abc":
        ask.table(ns, each)
    parts = [change(ns, each, set_properties(round="1")) for each in "abc"]
    assert transaction(ask, *parts).status == 204
    before = [ask("GET", f"{ns}/tables/{each}").body for each in "abc"]
    assert [each["metadata"]["properties"]["round"] for each in before] == ["1"] * 3
    good = [change(ns, each, set_properties(round="2")) for each in "ab"]
    for bad, status in [
        (change(ns, "c", set_properties(a="1"), needs=[{"type": "assert-create"}]), 409),
        (change(ns, "c", {"action": "explode"}), 400),
        (change(ns, "none", set_properties(a="1")), 404),
        (change(ns, "a", set_properties(a="1")), 400),
        (change(ns, "c", {"action": "set-location", "location": "file:///tmp/elsewhere"}), 400),
        (change(ns, "c", set_properties(**{"dolake.managed": "true"})), 403),
    ]:
        assert transaction(ask, *good, bad).status == status, bad
        assert [ask("GET", f"{ns}/tables/{each}").body for each in "abc"] == before


def test_a_transaction_needs_a_table(ask: Asker) -> None:
    assert transaction(ask).status == 400
    assert ask("POST", "/transactions/commit", {}).status == 400
    assert ask("POST", "/transactions/commit", {"table-changes": [{"updates": []}]}).status == 400


# --- asking twice ----------------------------------------------------------------------------------------------------


def test_a_commit_asked_twice_with_one_key_is_done_once_and_answered_alike(ask: Asker, ns: str) -> None:
    made = ask.table(ns, properties={"pad": "x" * 5000})
    key, updates = str(uuid.uuid4()), snapshot_updates(made.metadata)
    first = ask.commit(f"{ns}/tables/t", *updates, headers={"Idempotency-Key": key})
    ask.append(f"{ns}/tables/t")
    again = ask.commit(f"{ns}/tables/t", *updates, headers={"Idempotency-Key": key})
    assert first.status == again.status == 200
    assert first.body == again.body
    assert len(ask("GET", f"{ns}/tables/t").metadata["snapshots"]) == 2
    other = ask.commit(f"{ns}/tables/t", *updates, headers={"Idempotency-Key": str(uuid.uuid4())})
    assert other.status in (400, 409)


def test_the_same_key_at_the_same_time_is_one_commit(ask: Asker, ns: str) -> None:
    made = ask.table(ns)
    key, updates = str(uuid.uuid4()), snapshot_updates(made.metadata)
    with ThreadPoolExecutor(12) as pool:
        asked = [
            pool.submit(ask.commit, f"{ns}/tables/t", *updates, headers={"Idempotency-Key": key}) for _ in range(12)
        ]
        answers = [each.result() for each in asked]
    assert {answer.status for answer in answers} == {200}
    assert len({answer.raw for answer in answers}) == 1
    assert len(ask("GET", f"{ns}/tables/t").metadata["metadata-log"]) == 1


@pytest.mark.parametrize("accepted", ["gzip", "identity"])
def test_every_kind_of_change_asked_twice_is_answered_alike(ask: Asker, ns: str, name: str, accepted: str) -> None:
    padding = {"pad": "x" * 5000}
    other = ask.table(ns, "other", properties=padding)
    moved = {"source": identifier(ns, "t"), "destination": identifier(ns, "moved")}
    registration = {"name": "twin", "metadata-location": other.body["metadata-location"]}
    for method, path, body, status in [
        ("POST", "/namespaces", {"namespace": [name, "inner"]}, 200),
        ("POST", f"{ns}/properties", {"updates": {"a": "1"}, "removals": ["a0"]}, 200),
        ("DELETE", namespace_path(name, "inner"), None, 204),
        ("POST", f"{ns}/tables", table_body("s", stage_create=True), 200),
        ("POST", f"{ns}/tables", table_body("t", properties=padding), 200),
        ("POST", f"{ns}/tables/t", {"requirements": [], "updates": [set_properties(a="1")]}, 200),
        ("POST", "/transactions/commit", {"table-changes": [change(ns, "t", set_properties(a="2"))]}, 204),
        ("POST", "/tables/rename", moved, 204),
        ("POST", f"{ns}/register", registration, 200),
        ("POST", f"{ns}/tables/twin/unregister", {}, 200),
        ("POST", f"{ns}/tables/moved/adopt", {}, 200),
        ("DELETE", f"{ns}/tables/moved?force=true", None, 204),
        ("POST", f"{ns}/views", view_body("v", properties=padding), 200),
        ("POST", f"{ns}/views/v", {"requirements": [], "updates": [set_properties(a="1")]}, 200),
        ("DELETE", f"{ns}/views/v", None, 204),
    ]:
        headers = {"Idempotency-Key": str(uuid.uuid4()), "Accept-Encoding": accepted}
        first, again = (ask(method, path, body, headers) for _ in range(2))
        assert (first.status, again.status) == (status, status), path
        assert unpacked(first) == unpacked(again), path
        assert first.headers.get("etag") == again.headers.get("etag"), path


def unpacked(reply: Reply) -> Any:
    import gzip

    raw = gzip.decompress(reply.raw) if reply.headers.get("content-encoding") == "gzip" else reply.raw
    return json.loads(raw) if raw else None


def test_a_refused_request_may_be_asked_again_with_its_key(ask: Asker, ns: str) -> None:
    key = str(uuid.uuid4())
    assert ask.commit(f"{ns}/tables/t", set_properties(a="1"), headers={"Idempotency-Key": key}).status == 404
    ask.table(ns)
    assert ask.commit(f"{ns}/tables/t", set_properties(a="1"), headers={"Idempotency-Key": key}).status in (200, 404)


def test_a_commit_asked_again_after_its_file_is_gone_is_still_a_success(ask: Asker, ns: str) -> None:
    keep_one = {"write.metadata.previous-versions-max": "1", "write.metadata.delete-after-commit.enabled": "true"}
    creation, headers = table_body(properties=keep_one), {"Idempotency-Key": str(uuid.uuid4())}
    assert ask("POST", f"{ns}/tables", creation, headers).status == 200
    first = ask.commit(f"{ns}/tables/t", set_properties(a="1"), headers=headers)
    for number in range(3):
        ask.commit(f"{ns}/tables/t", set_properties(b=str(number)))
    eventually(lambda: not path_of(first.body["metadata-location"]).exists())
    again = ask.commit(f"{ns}/tables/t", set_properties(a="1"), headers=headers)
    assert again.metadata["properties"]["b"] == "2"
    assert ask("POST", f"{ns}/tables", creation, headers).metadata == again.metadata


def test_a_key_that_is_no_uuid_is_refused(ask: Asker, ns: str) -> None:
    ask.table(ns)
    for key in ("1", "not-a-uuid", "x" * 5000, ""):
        assert ask.commit(f"{ns}/tables/t", set_properties(a="1"), headers={"Idempotency-Key": key}).status == 400
    assert "a" not in ask("GET", f"{ns}/tables/t").metadata.get("properties", {})


@pytest.mark.own_lake
@pytest.mark.slow
def test_kept_answers_and_tables_survive_a_kill_of_the_server(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as process:
        ask = Asker(process.url)
        ns = ask.namespace("shop")
        made = ask.table(ns)
        key, updates = str(uuid.uuid4()), snapshot_updates(made.metadata)
        first = ask.commit(f"{ns}/tables/t", *updates, headers={"Idempotency-Key": key})
        both = [change(ns, "t", set_properties(round="1"))]
        pair = {"Idempotency-Key": str(uuid.uuid4())}
        assert ask("POST", "/transactions/commit", {"table-changes": both}, pair).status == 204
        process.kill()
        process.start()
        location = ask("GET", f"{ns}/tables/t").body["metadata-location"]
        again = ask.commit(f"{ns}/tables/t", *updates, headers={"Idempotency-Key": key})
        assert (again.status, again.body) == (200, first.body)
        assert ask("POST", "/transactions/commit", {"table-changes": both}, pair).status == 204
        assert ask("GET", f"{ns}/tables/t").body["metadata-location"] == location


# --- register, unregister, rename, drop ------------------------------------------------------------------------------


def test_an_unregistered_table_leaves_its_files_and_can_be_registered_again(ask: Asker, ns: str) -> None:
    ask.table(ns)
    last = ask.append(f"{ns}/tables/t")
    gone = ask("POST", f"{ns}/tables/t/unregister", {})
    assert gone.body["metadata-location"] == last.body["metadata-location"]
    assert ask("HEAD", f"{ns}/tables/t").status == 404
    back = {"name": "t2", "metadata-location": gone.body["metadata-location"]}
    assert ask("POST", f"{ns}/register", back).metadata == last.metadata
    assert ask.append(f"{ns}/tables/t2").status == 200
    assert ask("POST", f"{ns}/register", back).refusal == (409, "AlreadyExistsException")
    assert ask("POST", f"{ns}/register", back | {"overwrite": True}).metadata == last.metadata
    assert ask("GET", f"{ns}/tables/t2").metadata == last.metadata


def test_a_file_that_is_missing_broken_or_elsewhere_cannot_be_registered(
    ask: Asker, ns: str, warehouse: Path, tmp_path: Path
) -> None:
    made = ask.table(ns)
    good = path_of(made.body["metadata-location"])
    outside = tmp_path / good.name
    outside.write_bytes(good.read_bytes())
    link = warehouse / f"link-{good.name}"
    link.symlink_to(outside)
    (warehouse / "broken.metadata.json").write_bytes(b"{")
    (warehouse / "binary.metadata.json").write_bytes(b"\xff\x00")
    (warehouse / "list.metadata.json").write_bytes(b"[]")
    moved = made.metadata | {"location": f"file://{tmp_path}"}
    (warehouse / "moved.metadata.json").write_text(json.dumps(moved))
    for location, statuses in [
        (f"file://{warehouse}/none.metadata.json", {404}),
        (f"file://{warehouse}", {400, 404}),
        (f"file://{good.parent}", {400, 404}),
        (f"file://{outside}", {400}),
        (f"file://{link}", {400}),
        (f"file://{warehouse}/../{tmp_path.name}/{good.name}", {400}),
        (f"file://{warehouse}/broken.metadata.json", {400}),
        (f"file://{warehouse}/binary.metadata.json", {400}),
        (f"file://{warehouse}/list.metadata.json", {400}),
        (f"file://{warehouse}/moved.metadata.json", {400}),
        ("s3://bucket/t.metadata.json", {400}),
        ("a\x00b", {400}),
        ("x" * 5000, {400}),
        ("", {400}),
    ]:
        for way in ("register", "register-view"):
            reply = ask("POST", f"{ns}/{way}", {"name": "r", "metadata-location": location})
            assert reply.status in statuses, (location, reply)
    assert ask("HEAD", f"{ns}/tables/r").status == 404


def test_a_broken_file_can_be_registered_once_it_is_repaired(ask: Asker, ns: str, warehouse: Path) -> None:
    good = path_of(ask.table(ns).body["metadata-location"])
    file = warehouse / f"repaired-{good.name}"
    file.write_bytes(b"{")
    registration = {"name": "r", "metadata-location": f"file://{file}"}
    assert ask("POST", f"{ns}/register", registration).status == 400
    file.write_bytes(good.read_bytes())
    assert ask("POST", f"{ns}/register", registration).status == 200


def test_a_renamed_table_keeps_its_data_also_in_another_namespace(ask: Asker, ns: str, name: str) -> None:
    uuid_ = ask.table(ns).metadata["table-uuid"]
    other = ask.namespace(f"{name}-other")
    move = {"source": identifier(ns, "t"), "destination": identifier(other, "u")}
    assert ask("POST", "/tables/rename", move).status == 204
    assert ask("GET", f"{other}/tables/u").metadata["table-uuid"] == uuid_
    assert ask("HEAD", f"{ns}/tables/t").status == 404
    assert ask.append(f"{other}/tables/u").status == 200
    assert ask("POST", "/tables/rename", move).refusal == (404, "NoSuchTableException")
    nowhere = {"source": identifier(other, "u"), "destination": {"namespace": ["nowhere"], "name": "u"}}
    assert ask("POST", "/tables/rename", nowhere).refusal == (404, "NoSuchNamespaceException")


def test_nothing_is_renamed_over_a_table_or_a_view(ask: Asker, ns: str) -> None:
    ask.table(ns, "a")
    ask.table(ns, "b")
    ask.view(ns, "v")
    ask.view(ns, "w")
    for kind, source, target in [("tables", "a", "b"), ("tables", "a", "v"), ("views", "v", "a"), ("views", "v", "w")]:
        move = {"source": identifier(ns, source), "destination": identifier(ns, target)}
        reply = ask("POST", f"/{kind}/rename", move)
        assert reply.refusal == (409, "AlreadyExistsException")
        assert "already exists" in reply.error["message"]
    wrong_kind = {"source": identifier(ns, "v"), "destination": identifier(ns, "x")}
    assert ask("POST", "/tables/rename", wrong_kind).status == 404
    into_a_path = {"source": identifier(ns, "a"), "destination": identifier(ns, "\x00")}
    assert ask("POST", "/tables/rename", into_a_path).status == 400


def test_a_dropped_table_leaves_its_files_and_a_purged_one_does_not(ask: Asker, ns: str) -> None:
    kept, purged = (ask.table(ns, each).metadata["location"] for each in ("kept", "purged"))
    (path_of(purged) / "data").mkdir()
    (path_of(purged) / "data" / "f.parquet").write_bytes(b"x")
    assert ask("DELETE", f"{ns}/tables/kept?purgeRequested=false").status == 204
    assert ask("DELETE", f"{ns}/tables/purged?purgeRequested=true").status == 204
    assert files_of(kept)
    assert not path_of(purged).exists()
    assert ask("DELETE", f"{ns}/tables/kept").refusal == (404, "NoSuchTableException")


def test_a_purge_never_takes_the_files_of_another_table_or_view(ask: Asker, ns: str, name: str) -> None:
    outer = ask.table(ns, "outer").metadata["location"]
    ask.namespace(name, "outer")
    inner = ask.view(namespace_path(name, "outer"), "view")
    assert inner.metadata["location"].startswith(outer + "/")
    assert ask("DELETE", f"{ns}/tables/outer?purgeRequested=true").status == 204
    assert ask("GET", f"{namespace_path(name, 'outer')}/views/view").metadata == inner.metadata
    assert path_of(inner.body["metadata-location"]).exists()


@pytest.mark.parametrize("spelling", ["{0}", "file:{0}", "file:///{0}", "{1}/./{2}", "{1}/x/../{2}", "{1}//{2}"])
def test_a_purge_spares_a_neighbour_however_its_folder_is_spelled(ask: Asker, ns: str, spelling: str) -> None:
    victim = ask.table(ns, "victim")
    path = path_of(victim.metadata["location"])
    location = spelling.format(path, path.parent, path.name)
    elsewhere = f"{path.parent}/elsewhere"
    sly = ask.table(ns, "sly", location=location, properties={"write.metadata.path": elsewhere})
    assert sly.status in (200, 400)
    if sly.status == 200:
        assert ask("DELETE", f"{ns}/tables/sly?purgeRequested=true").status == 204
    assert ask("GET", f"{ns}/tables/victim").metadata == victim.metadata
    assert path_of(victim.body["metadata-location"]).exists()


def test_old_metadata_files_of_another_table_are_never_deleted(ask: Asker, ns: str, warehouse: Path) -> None:
    victim = ask.table(ns, "victim").body["metadata-location"]
    made = ask.table(ns, "sly").metadata
    properties = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    log = [{"timestamp-ms": made["last-updated-ms"], "metadata-file": victim}]
    forged = made | {"properties": properties, "metadata-log": log}
    file = path_of(made["location"]) / "metadata" / "00009-forged.metadata.json"
    file.write_text(json.dumps(forged))
    body = {"name": "forged", "metadata-location": f"file://{file}"}
    if ask("POST", f"{ns}/register", body).status == 200:
        for number in range(3):
            assert ask.commit(f"{ns}/tables/forged", set_properties(a=str(number))).status == 200
    assert path_of(victim).exists()


def test_a_table_registered_under_a_second_name_does_not_delete_the_firsts_metadata(ask: Asker, ns: str) -> None:
    keep_one = {"write.metadata.previous-versions-max": "1", "write.metadata.delete-after-commit.enabled": "true"}
    first = ask.table(ns, "first", properties=keep_one)
    twin = {"name": "twin", "metadata-location": first.body["metadata-location"]}
    assert ask("POST", f"{ns}/register", twin).status == 200
    for number in range(4):
        assert ask.commit(f"{ns}/tables/twin", set_properties(a=str(number))).status == 200
    assert path_of(first.body["metadata-location"]).exists()
    assert ask("GET", f"{ns}/tables/first").body == first.body


# --- where files lie -------------------------------------------------------------------------------------------------


def test_a_table_lies_in_warehouse_namespace_table_and_only_on_collision_elsewhere(
    ask: Asker, ns: str, name: str, warehouse: Path
) -> None:
    first = ask.table(ns).metadata["location"]
    assert first == f"file://{warehouse}/{name}/t"
    ask("DELETE", f"{ns}/tables/t")
    second = ask.table(ns).metadata["location"]
    assert second.startswith(first + "-")
    ask("DELETE", f"{ns}/tables/t?purgeRequested=true")
    assert files_of(first)
    nested = ask.namespace(name, "eu")
    assert ask.table(nested).metadata["location"] == f"file://{warehouse}/{name}/eu/t"


def test_a_location_inside_the_warehouse_is_honoured(ask: Asker, ns: str, warehouse: Path) -> None:
    made = ask.table(ns, location=f"file://{warehouse}/my/place/")
    assert made.metadata["location"] == f"file://{warehouse}/my/place"
    assert made.body["metadata-location"].startswith(f"file://{warehouse}/my/place/metadata/")


def test_nothing_is_written_outside_the_warehouse(ask: Asker, ns: str, warehouse: Path, tmp_path: Path) -> None:
    link = warehouse / f"way-out-{tmp_path.name}"
    link.symlink_to(tmp_path)
    ask.table(ns)
    ask.view(ns)
    for place in [
        f"file://{tmp_path}/x",
        f"{tmp_path}/x",
        f"file://{warehouse}/../x",
        f"file://{warehouse}/a/../../x",
        f"file://{link}/x",
        f"file://{warehouse}",
        f"file://{warehouse}-beside/x",
        "s3://bucket/x",
        "relative/x",
        "file://",
        "/",
        f"file://{warehouse}/a\x00b",
        f"file://{warehouse}/{'x' * 300}",
        f"file://{warehouse}/{'x/' * 3000}",
    ]:
        for reply in [
            ask.table(ns, "new", location=place),
            ask.view(ns, "newview", location=place),
            ask.table(ns, "staged", location=place, stage_create=True) if "xxx" not in place else None,
            ask.commit(f"{ns}/tables/t", {"action": "set-location", "location": place}),
            ask.commit(f"{ns}/views/v", {"action": "set-location", "location": place}),
            *(
                (
                    ask.table(ns, "new", properties={"write.metadata.path": place}),
                    ask.commit(f"{ns}/tables/t", set_properties(**{"write.metadata.path": place})),
                    ask.commit(f"{ns}/views/v", set_properties(**{"write.metadata.path": place})),
                )
                if place != f"file://{warehouse}"
                else ()
            ),
        ]:
            assert reply is None or reply.status == 400, (place, reply)
    assert list(tmp_path.iterdir()) == []
    assert ask("HEAD", f"{ns}/tables/new").status == 404
    assert not os.path.lexists(f"{warehouse}/../x")
    link.unlink()


def test_a_location_on_top_of_a_file_is_refused(ask: Asker, ns: str) -> None:
    file = ask.table(ns).body["metadata-location"]
    assert ask.table(ns, "on", location=file).status == 400
    assert ask.table(ns, "below", location=f"{file}/deeper").status == 400


def test_a_hint_names_the_newest_metadata_file(ask: Asker, ns: str) -> None:
    made = ask.table(ns)
    hint = path_of(made.metadata["location"]) / "metadata" / "version-hint.text"
    for reply in (made, ask.append(f"{ns}/tables/t"), ask.append(f"{ns}/tables/t")):
        assert reply.body["metadata-location"].endswith(f"/{Path(reply.body['metadata-location']).name}")
    newest = Path(reply.body["metadata-location"]).name
    eventually(lambda: hint.exists() and f"{hint.read_text()}.metadata.json" == newest)


def test_old_metadata_files_go_as_the_table_says(ask: Asker, ns: str) -> None:
    keep = {"write.metadata.previous-versions-max": "2"}
    kept = ask.table(ns, "kept", properties=keep).metadata["location"]
    going = ask.table(ns, "going", properties=keep | {"write.metadata.delete-after-commit.enabled": "true"}).metadata[
        "location"
    ]
    for _ in range(5):
        ask.append(f"{ns}/tables/kept")
        ask.append(f"{ns}/tables/going")
    assert len([file for file in files_of(kept) if file.endswith(".json")]) == 6
    now = ask("GET", f"{ns}/tables/going")
    logged = {Path(entry["metadata-file"]).name for entry in now.metadata["metadata-log"]}
    current = Path(now.body["metadata-location"]).name
    eventually(lambda: {file for file in files_of(going) if file.endswith(".json")} == logged | {current})
    assert len(logged) == 2
    assert len(lineage(now.metadata)) == 5


# --- managed tables --------------------------------------------------------------------------------------------------


def test_a_managed_tables_data_is_changed_by_the_pipeline_alone_and_the_refusal_says_so(ask: Asker, ns: str) -> None:
    ask.table(ns)
    adopted = ask("POST", f"{ns}/tables/t/adopt", {})
    assert adopted.metadata["properties"]["dolake.managed"] == "true"
    assert adopted.metadata["properties"]["write.metadata.delete-after-commit.enabled"] == "true"
    location = ask("GET", f"{ns}/tables/t").body["metadata-location"]
    schema = {"action": "add-schema", "schema": adopted.metadata["schemas"][0] | {"schema-id": 9}}
    for updates in [
        snapshot_updates(adopted.metadata),
        [schema],
        [{"action": "remove-snapshots", "snapshot-ids": [1]}],
        [{"action": "set-location", "location": adopted.metadata["location"] + "2"}],
        [set_properties(a="1", **{"dolake.managed": "false"})],
        [{"action": "remove-properties", "removals": ["dolake.managed"]}],
    ]:
        for secret in (None, "guess", "", "\xff"):
            sent: dict[str, str] = {} if secret is None else {"X-DoLake-Pipeline": secret}
            reply = ask.commit(f"{ns}/tables/t", *updates, headers=sent)
            assert reply.refusal == (403, "ManagedTableException")
            assert "managed by DoLake" in reply.error["message"]
            assert reply.error["hint"]
        assert transaction(ask, change(ns, "t", *updates)).status == 403
    assert ask("GET", f"{ns}/tables/t").body["metadata-location"] == location
    assert ask.commit(f"{ns}/tables/t", set_properties(comment="ours")).metadata["properties"]["comment"] == "ours"
    assert ask.commit(f"{ns}/tables/t", {"action": "remove-properties", "removals": ["comment"]}).status == 200
    assert ask.append(f"{ns}/tables/t").status == 403


def test_a_managed_table_is_not_renamed_replaced_or_dropped_by_accident(ask: Asker, ns: str) -> None:
    ask.table(ns)
    ask("POST", f"{ns}/tables/t/adopt", {})
    file = ask.table(ns, "other").body["metadata-location"]
    for method, path, body in [
        ("DELETE", f"{ns}/tables/t", None),
        ("DELETE", f"{ns}/tables/t?purgeRequested=true", None),
        ("DELETE", f"{ns}/tables/t?force=yes", None),
        ("POST", f"{ns}/tables/t/unregister", {}),
        ("POST", "/tables/rename", {"source": identifier(ns, "t"), "destination": identifier(ns, "u")}),
        ("POST", f"{ns}/register", {"name": "t", "metadata-location": file, "overwrite": True}),
    ]:
        reply = ask(method, path, body)
        assert reply.refusal == (403, "ManagedTableException"), path
    assert "force=true" in ask("DELETE", f"{ns}/tables/t").error["hint"]
    assert ask("HEAD", f"{ns}/tables/t").status == 204
    assert ask("DELETE", f"{ns}/tables/t?force=true&purgeRequested=true").status == 204
    assert ask("HEAD", f"{ns}/tables/t").status == 404


@pytest.mark.parametrize("value", ["true", "TRUE"])
def test_a_table_cannot_be_made_managed_by_hand(ask: Asker, ns: str, value: str) -> None:
    managed = {"dolake.managed": value}
    assert ask.table(ns, properties=managed).status == 403
    assert ask.table(ns, properties=managed, stage_create=True).status == 403
    ask.table(ns)
    assert ask.commit(f"{ns}/tables/t", set_properties(**managed)).status == 403
    assert "adopt" in ask.commit(f"{ns}/tables/t", set_properties(**managed)).error["hint"]
    assert ask("POST", f"{ns}/tables/none/adopt", {}).refusal == (404, "NoSuchTableException")


def test_a_table_without_data_has_no_partitions(ask: Asker, ns: str) -> None:
    ask.table(ns)
    assert ask("GET", f"{ns}/tables/t/partitions").body == {"partitions": []}
    assert ask("GET", f"{ns}/tables/t/partition-stats").body == {"partitions": []}
    assert ask("GET", f"{ns}/tables/none/partitions").refusal == (404, "NoSuchTableException")


def test_a_table_whose_manifests_cannot_be_read_has_no_partition_figures(ask: Asker, ns: str) -> None:
    ask.table(ns)
    ask.append(f"{ns}/tables/t")
    assert ask("GET", f"{ns}/tables/t/partitions").refusal == (404, "NotFoundException")
