"""The catalog's routes on a running server: what is advertised, how paths are read, pages, ETags, names."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from urllib.parse import quote

import pytest

from dolake.catalog import rest
from tests.catalog.asking import Asker, namespace_path, set_properties, table_body, view_body

FILLED = {"{namespace}": "nowhere", "{table}": "none", "{view}": "none", "{prefix}/": ""}


def filled(path: str) -> str:
    for part, value in FILLED.items():
        path = path.replace(part, value)
    return path


def pages(ask: Asker, path: str, size: int, between: Callable[[], object] = lambda: None) -> list[str]:
    """Names of all pages, in order; `between` is called after each page."""
    found, token = [], ""
    while True:
        body = ask("GET", f"{path}{'&' if '?' in path else '?'}pageSize={size}&pageToken={quote(token)}").body
        items = body["namespaces"] if "namespaces" in body else [each["name"] for each in body["identifiers"]]
        assert len(items) <= size
        found += [item[-1] if isinstance(item, list) else item for item in items]
        if body["next-page-token"] is None:
            return found
        token = body["next-page-token"]
        between()


# --- config ----------------------------------------------------------------------------------------------------------


def test_everything_that_is_advertised_is_served(ask: Asker) -> None:
    for endpoint in ask("GET", "/config").body["endpoints"]:
        method, path = endpoint.split(" ")
        reply = ask(method, filled(path), None if method in ("GET", "HEAD") else {}, base="")
        assert reply.status != 405, endpoint
        assert b"No such path" not in reply.raw, endpoint
        assert reply.status in (200, 204, 400, 404), endpoint


def test_every_iceberg_route_that_is_served_is_advertised(ask: Asker) -> None:
    advertised = set(ask("GET", "/config").body["endpoints"])
    served = {f"{method} /v1/{{prefix}}{path}" for method, path, _ in rest.ROUTES}
    ours = {"GET /v1/{prefix}/published", "POST /v1/{prefix}/published"}
    assert served - advertised == {"GET /v1/{prefix}/config", *ours}
    assert advertised <= served


def test_what_iceberg_lists_and_we_lack_is_neither_advertised_nor_served(ask: Asker) -> None:
    advertised = ask("GET", "/config").body["endpoints"]
    for path in ("functions", "functions/{function}"):
        assert not [each for each in advertised if each.endswith("/" + path)]
        assert ask("GET", f"/namespaces/a/{path}").status == 404


def test_config_has_defaults_overrides_and_how_long_answers_are_kept(ask: Asker) -> None:
    body = ask("GET", "/config?warehouse=anything").body
    assert body["defaults"] == {}
    assert body["overrides"] == {}
    assert body["idempotency-key-lifetime"] == "PT30M"


def test_a_method_that_a_path_has_not_is_refused_with_those_it_has(ask: Asker) -> None:
    reply = ask("PUT", "/namespaces/a")
    assert reply.refusal == (405, "method_not_allowed")
    assert {part.strip() for part in reply.headers["allow"].split(",")} == {"GET", "HEAD", "DELETE"}


@pytest.mark.parametrize("base", ["/v1", "/v1/v1", "/lakehouse/v1", "/lakehouse/v1/v1", "/lakehouse/v1//v1"])
def test_the_catalog_answers_under_the_base_path_and_where_clients_given_v1_look(
    ask: Asker, ns: str, name: str, base: str
) -> None:
    assert "endpoints" in ask("GET", "/config", base=base).body
    assert ask("GET", ns, base=base).body["namespace"] == [name]
    assert ask("POST", f"{ns}/tables", table_body(), base=base).status == 200
    assert ask("HEAD", f"{ns}/tables/t", base=base).status == 204


def test_errors_have_icebergs_shape_and_tell_what_is_missing(ask: Asker, ns: str) -> None:
    assert ask("GET", "/namespaces/nowhere").refusal == (404, "NoSuchNamespaceException")
    assert ask("GET", f"{ns}/tables/none").refusal == (404, "NoSuchTableException")
    assert ask("GET", f"{ns}/views/none").refusal == (404, "NoSuchViewException")
    assert ask("GET", "/nothing").error["hint"]
    assert ask("POST", f"{ns}/tables", b"{").status == 400
    assert ask("POST", f"{ns}/tables", b"[]").status == 400
    assert ask("POST", f"{ns}/tables", b"\xff").status == 400
    assert ask("HEAD", f"{ns}/tables/none").raw == b""


# --- namespaces ------------------------------------------------------------------------------------------------------


def test_a_namespace_is_created_once_loaded_listed_and_dropped(ask: Asker, name: str) -> None:
    path = ask.namespace(name, owner="ann")
    assert ask("POST", "/namespaces", {"namespace": [name]}).refusal == (409, "AlreadyExistsException")
    assert ask("GET", path).body == {"namespace": [name], "properties": {"owner": "ann"}}
    assert ask("HEAD", path).status == 204
    assert [name] in ask("GET", "/namespaces").body["namespaces"]
    assert ask("DELETE", path).status == 204
    assert ask("HEAD", path).status == 404
    assert ask("DELETE", path).refusal == (404, "NoSuchNamespaceException")


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_properties_are_set_and_removed_also_as_the_seeds_do_it(ask: Asker, name: str, method: str) -> None:
    path = ask.namespace(name, a="1", b="2")
    reply = ask(method, f"{path}/properties", {"removals": ["a", "x"], "updates": {"c": "3"}})
    assert reply.body == {"updated": ["c"], "removed": ["a"], "missing": ["x"]}
    assert ask("GET", path).body["properties"] == {"b": "2", "c": "3"}
    assert ask(method, f"{path}/properties", {"removals": ["c"], "updates": {"c": "3"}}).status == 422
    assert ask(method, f"{path}/properties", {"updates": {"c": 3}}).status == 400


def test_nested_namespaces_list_below_their_parent_and_keep_it(ask: Asker, ns: str, name: str) -> None:
    inner = ask.namespace(name, "eu")
    ask.namespace(name, "us")
    deep = ask.namespace(name, "eu", "fr")
    assert ask("GET", f"/namespaces?parent={name}").body["namespaces"] == [[name, "eu"], [name, "us"]]
    assert ask("GET", f"/namespaces?parent={name}%1Feu").body["namespaces"] == [[name, "eu", "fr"]]
    assert [name, "eu"] not in ask("GET", "/namespaces").body["namespaces"]
    assert ask("DELETE", inner).refusal == (409, "NamespaceNotEmptyException")
    assert ask.table(deep).status == 200
    assert ask("GET", f"{deep}/tables").body["identifiers"] == [{"namespace": [name, "eu", "fr"], "name": "t"}]
    assert ask("DELETE", deep).refusal == (409, "NamespaceNotEmptyException")
    assert ask("POST", "/namespaces", {"namespace": [name, "no", "parent"]}).status == 404
    assert ask("GET", "/namespaces?parent=nowhere").status == 404


# --- paths as they were sent -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "odd",
    ["a/b", "..", ".", "%2F", "a.b", "größe", "日本", "a b", "a+b", "?x=1", "#", "a;b", "\u202e", "~", "a\\b", "v1"],
)
def test_a_name_comes_back_as_it_was_sent_whatever_is_in_it(ask: Asker, ns: str, name: str, odd: str) -> None:
    path = ask.namespace(name, odd)
    assert ask("GET", path).body["namespace"] == [name, odd]
    made = ask.table(path, odd)
    location = made.metadata["location"]
    assert "/../" not in location + "/"
    assert "/./" not in location + "/"
    loaded = ask("GET", f"{path}/tables/{quote(odd, safe='').replace('.', '%2E')}")
    assert loaded.metadata["table-uuid"] == made.metadata["table-uuid"]
    assert ask("GET", f"{path}/tables").body["identifiers"] == [{"namespace": [name, odd], "name": odd}]


def test_a_separator_inside_a_path_parts_levels_and_a_slash_does_not(ask: Asker, name: str) -> None:
    ask.namespace(name)
    ask.namespace(name, "x")
    ask.namespace(f"{name}/x")
    assert ask("GET", f"/namespaces/{name}%1Fx").body["namespace"] == [name, "x"]
    assert ask("GET", f"/namespaces/{name}%1fx").body["namespace"] == [name, "x"]
    assert ask("GET", f"/namespaces/{name}%2Fx").body["namespace"] == [f"{name}/x"]
    assert ask("GET", f"/namespaces/{name}/x").status == 404


def test_an_empty_part_of_a_path_never_means_the_part_behind_it(ask: Asker, ns: str) -> None:
    assert ask("GET", "/namespaces//tables").status == 400
    assert ask.table(ns, "metrics").status == 200
    assert ask.commit(f"{ns}/tables//metrics", set_properties(a="1")).status != 200
    assert ask("DELETE", f"{ns}//tables/metrics").status == 404
    assert "a" not in ask("GET", f"{ns}/tables/metrics").metadata.get("properties", {})


@pytest.mark.parametrize("bad", ["", "\x00", "a\nb", "\x7f", "\u0085", "x" * 256, "ü" * 128])
def test_names_that_are_empty_too_long_or_hold_control_characters_are_refused(ask: Asker, ns: str, bad: str) -> None:
    assert ask("POST", "/namespaces", {"namespace": [bad]}).status == 400
    assert ask.table(ns, bad).status == 400
    assert ask.view(ns, bad).status == 400
    if bad:
        assert ask("GET", f"{ns}/tables/{quote(bad, safe='')}").status == 400
    assert ask("GET", f"{ns}/tables").body["identifiers"] == []


def test_levels_that_are_none_or_too_many_or_hold_the_separator_are_refused(ask: Asker) -> None:
    for levels in ([], ["a\x1fb"], ["deep"] * 17, ["deep"] * 5000, [""], ["a", ""], "a", [1], None):
        assert ask("POST", "/namespaces", {"namespace": levels}).status == 400, levels


@pytest.mark.parametrize("long", ["x" * 255, "/" * 255, "ü" * 127, "." * 255])
def test_the_longest_names_are_tables_like_others(ask: Asker, name: str, long: str) -> None:
    levels = [name]
    ask.namespace(name)
    for _ in range(3):
        levels.append(long)
        ask.namespace(*levels)
    made = ask.table(namespace_path(*levels), long)
    assert made.status == 200, made
    assert ask.commit(f"{namespace_path(*levels)}/tables/{quote(long, safe='')}", set_properties(a="1")).status == 200
    assert ask.view(namespace_path(*levels), long[:-1]).status == 200


def test_the_deepest_namespace_with_the_longest_names_is_refused_or_served_but_never_breaks(ask: Asker) -> None:
    levels: list[str] = []
    for _ in range(16):
        levels.append("y" * 255)
        assert ask("POST", "/namespaces", {"namespace": levels}).status == 200
    assert ask.table(namespace_path(*levels), "z" * 255).status in (200, 400)


def test_names_differ_by_case(ask: Asker, ns: str) -> None:
    assert ask.table(ns, "Orders").status == 200
    assert ask.table(ns, "orders").status == 200
    assert len(ask("GET", f"{ns}/tables").body["identifiers"]) == 2


# --- pages -----------------------------------------------------------------------------------------------------------


def test_pages_of_namespaces_have_no_gap_and_no_repeat(ask: Asker, ns: str, name: str) -> None:
    wanted = sorted(["a", "b b", "c/d", "é", "日", "z", "Z", "_"])
    for each in wanted:
        ask.namespace(name, each)
    for size in (1, 3, 8, 100):
        assert sorted(pages(ask, f"/namespaces?parent={name}", size)) == wanted


@pytest.mark.parametrize("kind", ["tables", "views"])
def test_pages_of_tables_and_views_have_no_gap_and_no_repeat_while_others_come_and_go(
    ask: Asker, ns: str, kind: str
) -> None:
    body = table_body if kind == "tables" else view_body
    wanted = [f"k{number:02}" for number in range(11)]
    for each in wanted:
        assert ask("POST", f"{ns}/{kind}", body(each)).status == 200
    other = "views" if kind == "tables" else "tables"
    assert ask("POST", f"{ns}/{other}", (view_body if kind == "tables" else table_body)("k05-other")).status == 200
    assert pages(ask, f"{ns}/{kind}", 3) == wanted
    made = iter(range(100))

    def change() -> None:
        """One that comes at the front, one that goes from there: neither may move the others."""
        number = next(made)
        ask("POST", f"{ns}/{kind}", body(f"a{number}"))
        ask("DELETE", f"{ns}/{kind}/a{number - 1}")

    found = pages(ask, f"{ns}/{kind}", 2, change)
    assert [each for each in found if each.startswith("k")] == wanted
    assert len(found) == len(set(found))


def test_a_page_token_of_a_name_that_was_dropped_still_continues(ask: Asker, ns: str) -> None:
    for each in "abcd":
        ask.table(ns, each)
    first = ask("GET", f"{ns}/tables?pageToken=&pageSize=2").body
    ask("DELETE", f"{ns}/tables/b")
    rest_ = ask("GET", f"{ns}/tables?pageToken={first['next-page-token']}&pageSize=2").body
    assert [each["name"] for each in rest_["identifiers"]] == ["c", "d"]


def test_without_a_token_everything_is_listed_and_senseless_sizes_are_refused(ask: Asker, ns: str) -> None:
    for each in "abc":
        ask.table(ns, each)
    body = ask("GET", f"{ns}/tables").body
    assert len(body["identifiers"]) == 3
    assert body["next-page-token"] is None
    for size in ("0", "-1", "x", "1.5", "9" * 5000, "", "²"):
        assert ask("GET", f"{ns}/tables?pageToken=&pageSize={quote(size)}").status == 400, size


# --- loads that cost little ------------------------------------------------------------------------------------------


def test_who_has_this_version_gets_304_without_a_body_until_it_changes(ask: Asker, ns: str) -> None:
    ask.table(ns)
    first = ask("GET", f"{ns}/tables/t")
    etag = first.headers["etag"]
    again = ask("GET", f"{ns}/tables/t", headers={"If-None-Match": etag})
    assert (again.status, again.raw, again.headers["etag"]) == (304, b"", etag)
    assert ask("GET", f"{ns}/tables/t", headers={"If-None-Match": f'"x", W/{etag}'}).status == 304
    changed = ask.commit(f"{ns}/tables/t", set_properties(a="1"))
    assert changed.headers["etag"] != etag
    fresh = ask("GET", f"{ns}/tables/t", headers={"If-None-Match": etag})
    assert fresh.metadata["properties"]["a"] == "1"
    assert fresh.headers["etag"] == changed.headers["etag"]


def test_a_table_with_all_its_snapshots_and_one_with_those_of_refs_are_two_versions(ask: Asker, ns: str) -> None:
    ask.table(ns)
    for _ in range(3):
        assert ask.append(f"{ns}/tables/t").status == 200
    every, refs = ask("GET", f"{ns}/tables/t?snapshots=all"), ask("GET", f"{ns}/tables/t?snapshots=refs")
    assert len(every.metadata["snapshots"]) == 3
    assert [each["snapshot-id"] for each in refs.metadata["snapshots"]] == [every.metadata["current-snapshot-id"]]
    assert every.headers["etag"] != refs.headers["etag"]
    for path, etag, status in [
        ("?snapshots=refs", every.headers["etag"], 200),
        ("", refs.headers["etag"], 200),
        ("?snapshots=refs", refs.headers["etag"], 304),
        ("", every.headers["etag"], 304),
    ]:
        assert ask("GET", f"{ns}/tables/t{path}", headers={"If-None-Match": etag}).status == status


def test_a_change_is_never_answered_with_304(ask: Asker, ns: str) -> None:
    etag = ask.table(ns).headers["etag"]
    reply = ask.commit(f"{ns}/tables/t", {"action": "set-properties", "updates": {}}, headers={"If-None-Match": etag})
    assert reply.status == 200


def test_a_commit_of_many_megabytes_is_taken_and_a_larger_one_is_refused_in_the_one_shape(ask: Asker, ns: str) -> None:
    ask.table(ns)
    assert ask.commit(f"{ns}/tables/t", set_properties(pad="x" * 5_000_000)).status == 200
    assert len(ask("GET", f"{ns}/tables/t").metadata["properties"]["pad"]) == 5_000_000
    before = ask("GET", f"{ns}/tables/t").headers["etag"]
    refused = ask("POST", f"{ns}/tables/t", b" " * (64 * 1024 * 1024 + 1))
    assert refused.refusal == (413, "request_entity_too_large")
    assert "64 MiB" in refused.error["hint"]
    assert ask("GET", f"{ns}/tables/t").headers["etag"] == before


def test_large_answers_are_compressed_for_who_takes_it(ask: Asker, ns: str) -> None:
    ask.table(ns, properties={"pad": "x" * 5000})
    packed = ask("GET", f"{ns}/tables/t", headers={"Accept-Encoding": "gzip"})
    plain = ask("GET", f"{ns}/tables/t", headers={"Accept-Encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert len(packed.raw) < len(plain.raw) / 2
    assert json.loads(gzip.decompress(packed.raw)) == plain.body
    refused = ask("GET", f"{ns}/tables/t", headers={"Accept-Encoding": "gzip;q=0"})
    assert "content-encoding" not in refused.headers


def test_a_report_of_metrics_is_taken(ask: Asker, ns: str) -> None:
    ask.table(ns)
    assert ask("POST", f"{ns}/tables/t/metrics", {"report-type": "scan-report", "metrics": {}}).status == 204
    assert ask("POST", f"{ns}/tables/t/metrics", {}).status == 400


def test_what_was_published_can_be_asked(ask: Asker) -> None:
    assert set(ask("GET", "/published").body) == {"position", "generation", "atMs"}
