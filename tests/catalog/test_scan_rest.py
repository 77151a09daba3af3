"""Scan planning over HTTP: what a client is answered, page by page, and that PyIceberg finds the same with it."""

from __future__ import annotations

import datetime as dt
import json
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg import expressions as pe
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField

from dolake.identity.store import TokenFile
from dolake.identity.tokens import mint
from tests.catalog.asking import Asker, Reply
from tests.catalog.examples import Json
from tests.catalog.planned_tables import append, delete_rows, grown_table, row
from tests.support.server import ServerProcess
from tools.duckdb_client import duck_on

pytestmark = pytest.mark.own_lake
PAGE = 3
SETTINGS = f"[catalog]\nplan_tasks_max = {PAGE}\n"
GROWN = "/namespaces/shop/tables/grown"


@pytest.fixture(scope="module")
def planning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose answers have few files each."""
    with ServerProcess(tmp_path_factory.mktemp("planning"), settings=SETTINGS) as process:
        yield process


@pytest.fixture(scope="module")
def ask(planning: ServerProcess) -> Asker:
    return Asker(planning.url)


@pytest.fixture(scope="module")
def alone(planning: ServerProcess) -> Iterator[RestCatalog]:
    """PyIceberg that plans for itself."""
    catalog = RestCatalog("alone", uri=planning.url)
    catalog.create_namespace("shop")
    yield catalog
    catalog.close()


@pytest.fixture(scope="module")
def served(planning: ServerProcess) -> Iterator[RestCatalog]:
    """PyIceberg that asks for plans."""
    catalog = RestCatalog("served", uri=planning.url, **{"scan-planning-mode": "server"})
    assert catalog.supports_server_side_planning()
    yield catalog
    catalog.close()


@pytest.fixture(scope="module")
def grown(alone: RestCatalog) -> Table:
    return grown_table(alone, "shop.grown")


def small_table(catalog: RestCatalog, name: str, appends: int = 3) -> Table:
    """A row in each of some snapshots: 0, 1, 2 ..."""
    table: Table = catalog.create_table(name, Schema(NestedField(1, "id", LongType())))
    for id_ in range(appends):
        append(table, [{"id": id_}])
    return table


def pages_of(ask: Asker, path: str, body: Json, *, base: str | None = None) -> list[Json]:
    """All answers of a plan, the first one first."""
    reply = ask("POST", f"{path}/plan", body, base=base)
    assert reply.status == 200, reply.raw
    assert reply.body["status"] == "completed"
    found, waiting = [reply.body], list(reply.body.get("plan-tasks", ()))
    while waiting:
        reply = ask("POST", f"{path}/tasks", {"plan-task": waiting.pop()}, base=base)
        assert reply.status == 200, reply.raw
        found.append(reply.body)
        waiting += reply.body.get("plan-tasks", ())
    return found


Planned = dict[str, tuple[frozenset[str], Any]]


def plan_of(ask: Asker, path: str, body: Json, *, base: str | None = None) -> Planned:
    """Each data file with its deletes and its residual."""
    found: Planned = {}
    for page in pages_of(ask, path, body, base=base):
        deletes = [each["file-path"] for each in page.get("delete-files", ())]
        for task in page["file-scan-tasks"]:
            named = frozenset(deletes[at] for at in task.get("delete-file-references", ()))
            assert task["data-file"]["file-path"] not in found
            found[task["data-file"]["file-path"]] = named, task["residual-filter"]
    return found


def own_plan(tasks: list[FileScanTask]) -> dict[str, frozenset[str]]:
    return {task.file.file_path: frozenset(each.file_path for each in task.delete_files) for task in tasks}


def refused(ask: Asker, path: str, body: Any) -> str:
    reply = ask("POST", f"{path}/plan", body)
    assert reply.refusal == (400, "IllegalArgumentException")
    message: str = reply.error["message"]
    return message


def ids_in(table: Table, files: Planned) -> list[int]:
    """The ids in these files of a small table."""
    by_path = {task.file.file_path: task for task in table.scan().plan_files()}
    assert set(files) <= set(by_path)
    lows = [next(iter((by_path[path].file.lower_bounds or {}).values())) for path in files]
    return sorted(int.from_bytes(low, "little") for low in lows)


# --- the same rows ---------------------------------------------------------------------------------------------------

MOMENTS = [dt.datetime(2026, 1, day, hour, tzinfo=dt.UTC) for day in range(1, 7) for hour in (0, 5, 23)]
TEXTS = ["n0", "n3", "n6", "n", "zzz", ""]


def random_predicate(rng: random.Random) -> Any:
    comparing = [pe.LessThan, pe.LessThanOrEqual, pe.GreaterThan, pe.GreaterThanOrEqual, pe.EqualTo, pe.NotEqualTo]
    column = rng.choice(["id", "at", "label", "price"])
    if rng.random() < 0.15:
        return rng.choice([pe.IsNull, pe.NotNull])(column)
    if column == "label" and rng.random() < 0.3:
        return rng.choice([pe.StartsWith, pe.NotStartsWith])(column, rng.choice(["n", "n1", "z"]))
    if column == "price" and rng.random() < 0.15:
        return rng.choice([pe.IsNaN, pe.NotNaN])(column)
    values: dict[str, list[Any]] = {
        "id": [-1, 0, 13, 49, 50, 77, 99, 119, 500],
        "at": [moment.isoformat() for moment in MOMENTS],
        "label": TEXTS,
        "price": [0.0, 25.0, 38.5, 49.5, 1e9],
    }
    if rng.random() < 0.25:
        return rng.choice([pe.In, pe.NotIn])(column, set(rng.sample(values[column], 3)))
    return rng.choice(comparing)(column, rng.choice(values[column]))


def random_filter(rng: random.Random, depth: int = 3) -> Any:
    if depth == 0 or rng.random() < 0.3:
        return random_predicate(rng)
    if rng.random() < 0.2:
        return pe.Not(random_filter(rng, depth - 1))
    return rng.choice([pe.And, pe.Or])(random_filter(rng, depth - 1), random_filter(rng, depth - 1))


def test_a_hundred_filters_find_the_files_the_deletes_and_the_rows_that_pyiceberg_finds_alone(
    alone: RestCatalog, served: RestCatalog, grown: Table
) -> None:
    rng, here, there = random.Random(20261118), alone.load_table("shop.grown"), served.load_table("shop.grown")
    sizes = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(100):
            wanted = random_filter(rng)
            mine, theirs = here.scan(wanted), there.scan(wanted)
            planned = own_plan(list(theirs.plan_files()))
            assert planned == own_plan(list(mine.plan_files())), wanted
            sizes.add(len(planned))
            if number % 16 == 0:  # reading takes longer than planning
                assert str(theirs.to_arrow().sort_by("id")) == str(mine.to_arrow().sort_by("id")), wanted
                assert theirs.count() == mine.count(), wanted
    assert len(sizes) > 5, "the filters are too much alike to show anything"


def test_pyiceberg_sees_deletes_evolved_specs_and_evolved_schemas_through_the_servers_plan(
    served: RestCatalog, grown: Table
) -> None:
    table = served.load_table("shop.grown")
    assert len(table.specs()) == 3
    assert len(table.schemas()) > 1
    gone = {3, 13, 23, 33, 43, 77, 78}
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [id_ for id_ in range(120) if id_ not in gone]
    assert table.scan("label = 'n3' and id < 50", selected_fields=("id",)).to_arrow().column_names == ["id"]
    first = table.history()[0].snapshot_id
    assert table.scan("id < 50", snapshot_id=first).count() == 50


def test_deletes_of_a_manifest_with_the_fields_of_all_specs_are_found(
    alone: RestCatalog, served: RestCatalog, planning: ServerProcess
) -> None:
    by_group = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "a"))
    schema = Schema(*(NestedField(at, name, IntegerType()) for at, name in enumerate(("id", "a", "b"), 1)))
    table = alone.create_table("shop.moved", schema, partition_spec=by_group)
    with table.update_spec() as spec:
        spec.add_identity("b").remove_field("a")
    table = alone.load_table("shop.moved")
    append(table, [{"id": id_, "a": id_ % 2, "b": id_ % 3} for id_ in range(12)])
    with duck_on(planning.url) as duck:  # which writes the value of the dropped field, too
        duck.execute("DELETE FROM lake.shop.moved WHERE id IN (4, 5)")
    for where in ("b >= 0", "b = 1", "b = 2", "id > 3"):
        found = served.load_table("shop.moved").scan(where).to_arrow()["id"].to_pylist()
        assert not {4, 5} & set(found), where
    assert len(served.load_table("shop.moved").scan().to_arrow()) == 10


def test_a_partition_without_a_value_is_judged_too(ask: Asker, alone: RestCatalog) -> None:
    by_group = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "group"))
    schema = Schema(NestedField(1, "id", IntegerType()), NestedField(2, "group", IntegerType()))
    table = alone.create_table("shop.nothing", schema, partition_spec=by_group)
    append(table, [{"id": 1, "group": 1}, {"id": 2, "group": None}])
    low, two = {"type": "lt", "term": "group", "value": 5}, {"type": "eq", "term": "id", "value": 2}
    (page,) = pages_of(ask, "/namespaces/shop/tables/nothing", {"filter": {"type": "or", "left": low, "right": two}})
    shown = [(task["data-file"]["partition"], task["residual-filter"]) for task in page["file-scan-tasks"]]
    assert sorted(shown, key=str) == [([1], True), ([None], two)]


def test_equality_deletes_are_in_the_plan_for_engines_that_know_them(ask: Asker, alone: RestCatalog) -> None:
    table = small_table(alone, "shop.equal", appends=2)
    delete_rows(table, 1, by_value=True)
    (page,) = pages_of(ask, "/namespaces/shop/tables/equal", {"filter": {"type": "gt-eq", "term": "id", "value": 1}})
    (deletes,) = page["delete-files"]
    assert (deletes["content"], deletes["equality-ids"]) == ("equality-deletes", [1])
    assert [task["delete-file-references"] for task in page["file-scan-tasks"]] == [[0]]


# --- what can be asked for -------------------------------------------------------------------------------------------


def test_the_routes_are_advertised(ask: Asker) -> None:
    table = "/v1/{prefix}/namespaces/{namespace}/tables/{table}"
    advertised = ask("GET", "/config").body["endpoints"]
    for endpoint in (
        f"POST {table}/plan",
        f"GET {table}/plan/{{plan-id}}",
        f"DELETE {table}/plan/{{plan-id}}",
        f"POST {table}/tasks",
    ):
        assert endpoint in advertised


def test_an_answer_has_few_files_and_leads_to_the_next(ask: Asker, grown: Table) -> None:
    pages = pages_of(ask, GROWN, {})
    files = [len(page["file-scan-tasks"]) for page in pages]
    assert max(files) == PAGE
    assert sum(files) == len(list(grown.scan().plan_files()))
    assert len(pages) == -(-sum(files) // PAGE)
    assert "plan-tasks" not in pages[-1]
    for page in pages:
        named = {at for task in page["file-scan-tasks"] for at in task.get("delete-file-references", ())}
        assert named == set(range(len(page.get("delete-files", ()))))


def test_a_table_without_data_has_an_empty_plan(ask: Asker, alone: RestCatalog) -> None:
    small_table(alone, "shop.empty", appends=0)
    (page,) = pages_of(ask, "/namespaces/shop/tables/empty", {})
    assert page["file-scan-tasks"] == []
    assert "delete-files" not in page


def test_an_earlier_snapshot_is_planned_in_its_own_schema_or_in_todays(ask: Asker, grown: Table) -> None:
    first = grown.history()[0].snapshot_id
    old, new = ({"type": "eq", "term": name, "value": "n3"} for name in ("name", "label"))
    then = {"snapshot-id": first, "use-snapshot-schema": True}
    assert len(plan_of(ask, GROWN, then | {"filter": old})) == 5
    assert len(plan_of(ask, GROWN, {"snapshot-id": first, "filter": new})) == 5
    assert refused(ask, GROWN, then | {"filter": new}) == "Cannot find field 'label'"
    assert refused(ask, GROWN, {"snapshot-id": first, "filter": old}) == "Cannot find field 'name'"
    assert all(not deletes for deletes, _ in plan_of(ask, GROWN, then).values())


def test_what_was_appended_between_two_snapshots_is_planned_alone(ask: Asker, alone: RestCatalog) -> None:
    table, path = small_table(alone, "shop.steps", appends=5), "/namespaces/shop/tables/steps"
    ids = [each.snapshot_id for each in table.history()]

    def between(start: int, end: int, **more: Any) -> list[int]:
        body = {"start-snapshot-id": ids[start], "end-snapshot-id": ids[end]} | more
        return ids_in(table, plan_of(ask, path, body))

    assert between(1, 3) == [2, 3]
    assert between(0, 4) == [1, 2, 3, 4]
    assert between(2, 2) == []
    assert between(0, 4, filter={"type": "gt", "term": "id", "value": 3}) == [4]
    table.delete("id = 4")  # rewrites, and is no append
    table = alone.load_table("shop.steps")
    append(table, [{"id": 9}])
    now = table.current_snapshot()
    assert now
    assert ids_in(table, plan_of(ask, path, {"start-snapshot-id": ids[4], "end-snapshot-id": now.snapshot_id})) == [9]


def test_a_range_that_is_none_is_refused(ask: Asker, alone: RestCatalog) -> None:
    table, path = small_table(alone, "shop.ranges"), "/namespaces/shop/tables/ranges"
    first, _, last = (each.snapshot_id for each in table.history())
    assert "go together" in refused(ask, path, {"start-snapshot-id": first})
    assert "go together" in refused(ask, path, {"end-snapshot-id": first})
    both = {"start-snapshot-id": first, "end-snapshot-id": last}
    assert "does not go with" in refused(ask, path, both | {"snapshot-id": last})
    assert "not an ancestor" in refused(ask, path, {"start-snapshot-id": last, "end-snapshot-id": first})
    assert "Cannot find snapshot with ID 5" in refused(ask, path, {"snapshot-id": 5})
    assert "Cannot find snapshot with ID 5" in refused(ask, path, {"start-snapshot-id": first, "end-snapshot-id": 5})


def test_planning_ends_when_the_files_surely_hold_the_rows_that_are_enough(ask: Asker, grown: Table) -> None:
    every = plan_of(ask, GROWN, {})
    assert 0 < len(plan_of(ask, GROWN, {"min-rows-requested": 1})) < len(every)
    assert len(plan_of(ask, GROWN, {"min-rows-requested": 113})) == len(every)
    some = {"type": "gt", "term": "price", "value": 0.0}  # no file is sure to have a row of it
    assert len(plan_of(ask, GROWN, {"min-rows-requested": 1, "filter": some})) == len(
        plan_of(ask, GROWN, {"filter": some})
    )
    assert "less than nothing" in refused(ask, GROWN, {"min-rows-requested": -1})


def test_statistics_come_for_the_fields_that_are_named_and_no_others(ask: Asker, grown: Table) -> None:
    keys = ("value-counts", "null-value-counts", "lower-bounds", "upper-bounds", "column-sizes")
    for page in pages_of(ask, GROWN, {}):
        assert not [task for task in page["file-scan-tasks"] if set(keys) & set(task["data-file"])]
    for page in pages_of(ask, GROWN, {"stats-fields": ["ID", "label"], "case-sensitive": False}):
        for task in page["file-scan-tasks"]:
            assert all(set(task["data-file"][key]["keys"]) <= {1, 3} for key in keys if key in task["data-file"])
            lower = dict(zip(*(task["data-file"]["lower-bounds"][key] for key in ("keys", "values")), strict=True))
            assert bytes.fromhex(lower[1])
    assert refused(ask, GROWN, {"stats-fields": ["nope"]}) == "Cannot find field 'nope'"


def test_names_have_to_be_the_tables_own(ask: Asker, grown: Table) -> None:
    upper = {"type": "lt", "term": "ID", "value": 20}
    assert refused(ask, GROWN, {"filter": upper}) == "Cannot find field 'ID'"
    assert len(plan_of(ask, GROWN, {"filter": upper, "case-sensitive": False})) == 5
    assert plan_of(ask, GROWN, {"select": ["id", "_file", "_partition.at_day", "_pos"]})
    assert refused(ask, GROWN, {"select": ["id", "nope"]}) == "Cannot find field 'nope'"


@pytest.mark.parametrize(
    "body",
    [
        {"filter": None},
        {"filter": []},
        {"filter": {"type": "eq", "term": "id", "value": {"type": "literal"}}},
        {"snapshot-id": "1"},
        {"case-sensitive": 1},
        {"select": "id"},
        {"select": [1]},
        {"min-rows-requested": 2**70},
        {"filter": {"type": "in", "term": "label", "values": ["x" * 1000] * 1100}},
        [],
    ],
)
def test_a_request_that_makes_no_sense_is_refused_in_words(ask: Asker, grown: Table, body: Any) -> None:
    assert refused(ask, GROWN, body)


@pytest.mark.parametrize("depth", [700, 20_000])
def test_a_filter_without_a_bottom_is_refused(ask: Asker, grown: Table, depth: int) -> None:
    for opening, closing in ((b'{"type":"not","child":', b"}"), (b'{"type":"eq","term":"id","value":[', b"]}")):
        assert refused(ask, GROWN, b'{"filter":' + opening * depth + b"1" + closing * depth + b"}")


def test_a_pinned_warehouse_plans_its_own_moment(ask: Asker, alone: RestCatalog, planning: ServerProcess) -> None:
    table = small_table(alone, "shop.pinned")
    second = table.history()[1]
    path, moment = "/namespaces/shop/tables/pinned", dt.datetime.fromtimestamp(second.timestamp_ms / 1000, dt.UTC)
    pin = f"/v1/lake%40{moment.isoformat().replace('+00:00', 'Z')}"
    assert ids_in(table, plan_of(ask, path, {}, base=pin)) == [0, 1]
    last = {"snapshot-id": table.history()[2].snapshot_id}
    assert ask("POST", f"{path}/plan", last, base=pin).refusal == (400, "IllegalArgumentException")


def test_a_long_answer_is_compressed_for_who_takes_it(ask: Asker, grown: Table) -> None:
    reply = ask("POST", f"{GROWN}/plan", {"stats-fields": ["id", "label", "at"]}, {"Accept-Encoding": "gzip"})
    assert reply.headers["content-encoding"] == "gzip"


# --- plans and their tasks -------------------------------------------------------------------------------------------


def first_page(ask: Asker, path: str, headers: dict[str, str] | None = None) -> Json:
    page: Json = ask("POST", f"{path}/plan", {}, headers).body
    return page


def next_page(ask: Asker, path: str, page: Json, headers: dict[str, str] | None = None) -> Reply:
    return ask("POST", f"{path}/tasks", {"plan-task": page["plan-tasks"][0]}, headers)


def test_a_plan_is_kept_until_it_is_cancelled_and_its_tasks_are_good_even_then(ask: Asker, grown: Table) -> None:
    page = first_page(ask, GROWN)
    path = f"{GROWN}/plan/{page['plan-id']}"
    again = ask("GET", path).body
    assert again == {key: value for key, value in page.items() if key != "plan-id"}
    second = next_page(ask, GROWN, page)
    assert ask("DELETE", path).status == 204
    for method in ("GET", "DELETE"):
        assert ask(method, path).refusal == (404, "NoSuchPlanIdException")
    assert next_page(ask, GROWN, page).body == second.body


@pytest.mark.parametrize("token", ["", "x", "eJw", "é", "A" * 10_000, "eNqLjgUAARUAuQ"])
def test_a_plan_task_that_never_was_is_not_found(ask: Asker, grown: Table, token: str) -> None:
    assert ask("POST", f"{GROWN}/tasks", {"plan-task": token}).refusal == (404, "NoSuchPlanTaskException")


def test_a_plan_task_of_another_table_or_of_an_expired_snapshot_is_not_found(ask: Asker, alone: RestCatalog) -> None:
    table, path = small_table(alone, "shop.expiring", appends=5), "/namespaces/shop/tables/expiring"
    small_table(alone, "shop.other")
    page = first_page(ask, path)
    assert next_page(ask, "/namespaces/shop/tables/other", page).refusal == (404, "NoSuchPlanTaskException")
    assert ask("GET", f"/namespaces/shop/tables/other/plan/{page['plan-id']}").status == 404
    ask("DELETE", f"{path}/plan/{page['plan-id']}")
    seen = table.current_snapshot()
    assert seen
    append(table, [{"id": 9}])
    table.maintenance.expire_snapshots().by_id(seen.snapshot_id).commit()
    assert next_page(ask, path, page).refusal == (404, "NoSuchPlanTaskException")


def result_of(ask: Asker, path: str, body: Json) -> Json:
    """A plan that is only begun with the request."""
    begun = ask("POST", f"{path}/plan", body).body
    assert set(begun) == {"status", "plan-id"}
    assert begun["status"] == "submitted"
    while True:
        page: Json = ask("GET", f"{path}/plan/{begun['plan-id']}").body
        if page != {"status": "submitted"}:
            return page


def test_a_plan_that_takes_long_is_asked_for_again_and_its_tasks_outlive_the_server(tmp_path: Path) -> None:
    server, path = ServerProcess(tmp_path, settings=f"{SETTINGS}plan_wait_ms = 0\n"), "/namespaces/shop/tables/t"
    with server:
        catalog = RestCatalog("c", uri=server.url)
        catalog.create_namespace("shop")
        small_table(catalog, "shop.t", appends=4)
        catalog.close()
        ask = Asker(server.url)
        page = result_of(ask, path, {})
        assert (page["status"], len(page["file-scan-tasks"])) == ("completed", PAGE)
        failed = result_of(ask, path, {"filter": {"type": "eq", "term": "nope", "value": 1}})
        assert failed["status"] == "failed"
        assert (failed["error"]["message"], failed["error"]["code"]) == ("Cannot find field 'nope'", 400)
    with server:
        rest = next_page(Asker(server.url), path, page).body["file-scan-tasks"]
        paths = {task["data-file"]["file-path"] for task in (*page["file-scan-tasks"], *rest)}
        assert len(paths) == 4


def test_a_missing_manifest_is_named_until_it_is_back(ask: Asker, alone: RestCatalog) -> None:
    table, path = small_table(alone, "shop.broken", appends=4), "/namespaces/shop/tables/broken"
    snapshot = table.current_snapshot()
    assert snapshot
    manifest = Path(snapshot.manifests(table.io)[0].manifest_path.removeprefix("file://"))
    page = first_page(ask, path)
    ask("DELETE", f"{path}/plan/{page['plan-id']}")
    away = manifest.rename(manifest.with_suffix(".away"))
    assert ask("POST", f"{path}/plan", {}).refusal == (404, "NotFoundException")
    assert next_page(ask, path, page).refusal == (404, "NotFoundException")
    away.rename(manifest)
    assert next_page(ask, path, page).status == 200, "what failed once is tried again"


# --- tokens ----------------------------------------------------------------------------------------------------------


def test_a_tenant_gets_plans_of_his_own_files_and_nobody_elses_plans(tmp_path: Path) -> None:
    sent = {}
    for name, namespaces in (("boss", []), ("a", ["a"]), ("b", ["b"])):
        token, secret = mint(name, ["admin"], namespaces, [], now_ms=1, expires_ms=None)
        TokenFile(tmp_path).add(token)
        sent[name] = {"Authorization": f"Bearer {secret}"}
    with ServerProcess(tmp_path, settings=SETTINGS) as server:
        ask, boss = Asker(server.url), RestCatalog("c", uri=server.url, token=sent["boss"]["Authorization"][7:])
        for name in ("a", "b"):
            boss.create_namespace(name)
            small_table(boss, f"{name}.t", appends=4)
        page = first_page(ask, "/namespaces/a/tables/t", sent["a"])
        path = f"/namespaces/a/tables/t/plan/{page['plan-id']}"
        assert ask("GET", path, None, sent["a"]).status == 200
        assert ask("GET", path, None, sent["boss"]).refusal == (404, "NoSuchPlanIdException")
        for method, target, body in (("POST", "plan", {}), ("POST", "tasks", {"plan-task": page["plan-tasks"][0]})):
            reply = ask(method, f"/namespaces/a/tables/t/{target}", body, sent["b"])
            assert reply.refusal == (404, "NoSuchTableException")
        # A manifest list of a's that names b's manifests: who can write files need not ask the catalog.
        theirs, mine = (boss.load_table(f"{name}.t").current_snapshot() for name in ("b", "a"))
        assert theirs
        assert mine
        local = [Path(each.manifest_list.removeprefix("file://")) for each in (theirs, mine)]
        local[1].write_bytes(local[0].read_bytes())
        ask("DELETE", path, None, sent["a"])
        reply = ask("POST", "/namespaces/a/tables/t/plan", {}, sent["a"])
        assert reply.status == 403, json.loads(reply.raw)
        boss.close()


def test_rows_of_a_partitioned_table_are_what_they_were(served: RestCatalog, grown: Table) -> None:
    found = served.load_table("shop.grown").scan("id = 60").to_arrow().to_pylist()
    assert found == [row(60, label="n4", price=30.0)]
