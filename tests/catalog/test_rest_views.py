"""Views on a running server: create, load, replace, list, drop, and one space of names with tables."""

from __future__ import annotations

import uuid

from tests.catalog.asking import Asker, set_properties
from tests.catalog.examples import Json, view_version


def test_a_created_view_is_what_a_load_shows_and_exists_once(ask: Asker, ns: str) -> None:
    made = ask.view(ns)
    assert made.body == ask("GET", f"{ns}/views/v").body
    assert ask("HEAD", f"{ns}/views/v").status == 204
    assert ask.view(ns).refusal == (409, "AlreadyExistsException")
    assert ask.view("/namespaces/nowhere").refusal == (404, "NoSuchNamespaceException")
    assert ask("DELETE", f"{ns}/views/v").status == 204
    assert ask("DELETE", f"{ns}/views/v").refusal == (404, "NoSuchViewException")
    assert ask("HEAD", f"{ns}/views/v").status == 404


def test_a_name_is_a_table_or_a_view_and_never_both(ask: Asker, ns: str) -> None:
    ask.table(ns, "t")
    ask.view(ns, "v")
    assert "Table with same name already exists" in ask.view(ns, "t").error["message"]
    assert "View with same name already exists" in ask.table(ns, "v").error["message"]
    assert ask.table(ns, "v", stage_create=True).status == 409
    assert ask("GET", f"{ns}/views/t").refusal == (404, "NoSuchViewException")
    assert ask("GET", f"{ns}/tables/v").refusal == (404, "NoSuchTableException")
    assert ask("DELETE", f"{ns}/tables/v").status == 404
    assert ask("DELETE", f"{ns}/views/t").status == 404
    assert [each["name"] for each in ask("GET", f"{ns}/tables").body["identifiers"]] == ["t"]
    assert [each["name"] for each in ask("GET", f"{ns}/views").body["identifiers"]] == ["v"]


def test_a_replaced_view_shows_its_new_version(ask: Asker, ns: str) -> None:
    made = ask.view(ns).metadata
    same = {"type": "assert-view-uuid", "uuid": made["view-uuid"]}
    updates: list[Json] = [
        {"action": "add-view-version", "view-version": view_version(2, "select 2")},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]
    done = ask.commit(f"{ns}/views/v", *updates, needs=[same])
    assert done.metadata["current-version-id"] == 2
    assert ask("GET", f"{ns}/views/v").metadata == done.metadata
    stranger = {"type": "assert-view-uuid", "uuid": str(uuid.uuid4())}
    assert ask.commit(f"{ns}/views/v", set_properties(a="1"), needs=[stranger]).status == 409
    assert ask.commit(f"{ns}/views/v", {"action": "explode"}).status == 400
    assert ask.commit(f"{ns}/views/none", set_properties(a="1")).refusal == (404, "NoSuchViewException")


def test_a_view_is_renamed_and_registered(ask: Asker, ns: str, name: str) -> None:
    made = ask.view(ns)
    move = {"source": {"namespace": [name], "name": "v"}, "destination": {"namespace": [name], "name": "w"}}
    assert ask("POST", "/views/rename", move).status == 204
    assert ask("GET", f"{ns}/views/w").metadata == made.metadata
    assert ask("POST", "/views/rename", move).refusal == (404, "NoSuchViewException")
    ask("DELETE", f"{ns}/views/w")
    body = {"name": "x", "metadata-location": made.body["metadata-location"]}
    assert ask("POST", f"{ns}/register-view", body).metadata == made.metadata
    assert ask("POST", f"{ns}/register-view", body).status == 409
    assert ask("POST", f"{ns}/register", body | {"name": "y"}).status == 400
    assert ask.commit(f"{ns}/views/x", set_properties(a="1")).metadata["properties"]["a"] == "1"
