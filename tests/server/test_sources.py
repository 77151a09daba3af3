"""The server runs the sources: real files and child processes, one server that is changed, stopped and killed."""

from __future__ import annotations

import json
import os
import pty
import select
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from dolake.client.sync import connect
from dolake.errors import NotFound, Unavailable
from tests.support.command import invoke
from tests.support.server import ServerProcess, children_of, post, refusal, status_of, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.own_lake]  # it has sources, is killed and started again
MODULE = "dolake.sources"
_WAIT_S = 60.0
headers: dict[str, str] = {}
"""With the token of an administrator, once the lake has tokens."""


class App:
    """A SQLite file of an application, with one table; made if it is not there."""

    def __init__(self, path: Path, table: str, rows: int = 3) -> None:
        self.path, self.table = path, table
        path.parent.mkdir(exist_ok=True)
        with sqlite3.connect(path) as db:
            db.execute(f"CREATE TABLE IF NOT EXISTS {table} (id INTEGER PRIMARY KEY, name TEXT)")
        self.insert(*range(1, rows + 1))

    def insert(self, *ids: int) -> None:
        db = sqlite3.connect(self.path, timeout=30)
        with db:
            db.executemany(f"INSERT INTO {self.table} VALUES (?, ?)", [(each, f"row {each}") for each in ids])  # noqa: S608
        db.close()


class Terminal:
    """What a process has written to a terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.text = ""

    def wait_for(self, words: str) -> None:
        give_up_s = time.monotonic() + _WAIT_S
        while words not in self.text:
            left_s = give_up_s - time.monotonic()
            readable, _, _ = select.select([self._descriptor], [], [], max(0.0, left_s))
            assert readable, f"never said: {words}\n{self.text}"
            self.text += os.read(self._descriptor, 65_536).decode(errors="replace").replace("\r\n", "\n")


@contextmanager
def typed_in_a_terminal(command: str, folder: Path) -> Iterator[Terminal]:
    """`dolake` with these words, in this folder, without any setting of ours; ended in order with the block."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DOLAKE_")}
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "dolake.cli", *command.split()], cwd=folder, env=environ, stdout=its, stderr=its
    )
    os.close(its)
    draining = threading.Event()
    terminal = Terminal(ours)
    try:
        yield terminal
    finally:
        process.terminate()
        thread = threading.Thread(target=_drain, args=(ours, draining), daemon=True)
        thread.start()  # a terminal that nobody reads would stop the process
        try:
            assert process.wait(_WAIT_S) == 0
        finally:
            draining.set()
            thread.join()
            os.close(ours)


def _drain(descriptor: int, until: threading.Event) -> None:
    while not until.is_set():
        if select.select([descriptor], [], [], 0.05)[0]:
            try:
                os.read(descriptor, 65_536)
            except OSError:  # the other side is closed
                return


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """With one source in its file, whose database the application has not made yet."""
    folder = tmp_path_factory.mktemp("sources")
    settings = '[[sources]]\nname = "shop"\npath = "../app/shop.db"\nexclude = ["log"]\n'
    with ServerProcess(folder / "home", settings=settings, has_queries=True) as server:
        yield server


def app_folder(server: ServerProcess) -> Path:
    return server.home.parent / "app"


def source_named(server: ServerProcess, name: str) -> dict[str, Any]:
    status, answer = server.get("/v1/sources", headers=headers)
    assert status == 200, answer
    found = [each for each in answer["sources"] if each["name"] == name]
    assert len(found) == 1, answer
    return dict(found[0])


def token_for(server: ServerProcess) -> dict[str, str]:
    made = invoke("token", "create", "--name", "all", "--scope", "admin", "--home", server.home, "--json")
    return {"Authorization": f"Bearer {json.loads(made.output)['token']}"}


def sequence_of(server: ServerProcess, stream: str) -> int:
    streams = server.get("/v1/sources", headers=headers)[1]["streams"]
    return max((each["lastDurableSequence"] for each in streams if each["source"] == stream), default=0)


def wait_for_state(server: ServerProcess, name: str, state: str) -> dict[str, Any]:
    wait_for(lambda: source_named(server, name)["state"] == state, f"{name} is {state}", wait_s=_WAIT_S)
    return source_named(server, name)


def rows_of(server: ServerProcess, table: str) -> list[int]:
    """The ids that the lake has; none where it has no such table yet."""
    status, answer = server.get("/v1/query", method="POST", body={"sql": f"SELECT id FROM {table} ORDER BY id"})  # noqa: S608
    return [row["id"] for row in answer["rows"]] if status == 200 else []


def wait_for_rows(server: ServerProcess, table: str, ids: list[int]) -> None:
    wait_for(lambda: rows_of(server, table) == ids, f"{table} has {ids}", wait_s=_WAIT_S)


def test_a_file_that_is_not_there_yet_degrades_the_server_with_the_reason_and_is_followed_when_it_comes(
    server: ServerProcess,
) -> None:
    source = wait_for_state(server, "shop", "waiting")
    assert "shop.db does not exist" in source["problem"]
    assert "as soon as your application has made it" in source["problem"]
    code, health = server.get("/health")
    assert (code, health["status"], health["ready"]) == (200, "degraded", True)
    assert "the source shop cannot run" in health["reason"]
    App(app_folder(server) / "shop.db", "orders")
    with sqlite3.connect(app_folder(server) / "shop.db") as db:
        db.execute("CREATE TABLE log (id INTEGER PRIMARY KEY)")
    wait_for_rows(server, "orders", [1, 2, 3])
    source = wait_for_state(server, "shop", "following")
    assert [each["table"] for each in source["streams"][0]["tables"]] == ["orders"]
    assert (source["origin"], source["problem"], source["lagMs"]) == ("file", "", 0)
    assert server.get("/health")[1]["status"] == "ok"


def test_what_is_committed_while_the_process_of_a_source_is_dead_arrives(server: ServerProcess) -> None:
    source = wait_for_state(server, "shop", "following")
    app = sqlite3.connect(app_folder(server) / "shop.db", timeout=30)
    psutil.Process(source["pid"]).kill()
    with app:
        app.execute("INSERT INTO orders VALUES (4, 'row 4')")
    app.close()
    wait_for_rows(server, "orders", [1, 2, 3, 4])
    after = wait_for_state(server, "shop", "following")
    assert after["starts"] == source["starts"] + 1
    assert "source shop: ended  reason=killed by SIGKILL" in server.log


def test_a_source_is_added_paused_resumed_and_removed_by_commands_while_the_server_runs(server: ServerProcess) -> None:
    app = App(app_folder(server) / "crm.db", "people")
    added = invoke("sources", "add", app.path, "--mask", "people.name=redact", "--home", server.home)
    assert "is followed as crm" in added.output, added.output
    wait_for_rows(server, "people", [1, 2, 3])
    assert "paused" in invoke("sources", "pause", "crm", "--home", server.home).output
    assert len(children_of(server, MODULE)) == 1
    app.insert(4)
    listed = invoke("sources", "--home", server.home).output
    assert "crm" in listed
    assert "paused" in listed
    assert rows_of(server, "people") == [1, 2, 3]
    assert "followed again" in invoke("sources", "resume", "crm", "--home", server.home).output
    wait_for_rows(server, "people", [1, 2, 3, 4])
    assert "is removed" in invoke("sources", "remove", "crm", "--home", server.home).output
    assert [each["name"] for each in status_of(server)["sources"]] == ["shop"]
    assert rows_of(server, "people") == [1, 2, 3, 4]
    with connect(server.url) as lake:
        assert {row.name for row in lake.query("SELECT name FROM people")} == {"***"}


def test_what_cannot_be_done_is_refused_in_words(server: ServerProcess) -> None:
    unknown = invoke("sources", "pause", "shpo", "--home", server.home)
    assert (unknown.exit_code, "there is no source 'shpo'" in unknown.output) == (1, True)
    of_file = invoke("sources", "remove", "shop", "--home", server.home)
    assert "is written in dolake.toml" in of_file.output
    assert refusal(server, "/v1/sources", path="app.db")[1]["message"] == "the path 'app.db' is not absolute"
    own = refusal(server, "/v1/sources", path=str(server.home / "catalog.db"))[1]
    assert "it belongs to the lake" in own["message"]


def test_a_file_that_is_no_database_is_told_in_words_and_the_others_go_on(server: ServerProcess) -> None:
    text = app_folder(server) / "notes.db"
    text.write_text("this is no database" * 100)
    post(server, "/v1/sources", path=str(text))
    assert "is no SQLite file" in wait_for_state(server, "notes", "waiting")["problem"]
    assert "the source notes cannot run" in server.get("/health")[1]["reason"]
    assert wait_for_state(server, "shop", "following")["problem"] == ""
    assert server.get("/v1/sources/notes", method="DELETE")[0] == 204
    assert server.get("/health")[1]["status"] == "ok"


def test_status_metrics_and_streams_show_the_sources(server: ServerProcess) -> None:
    wait_for_state(server, "shop", "following")
    (source,) = status_of(server)["sources"]
    assert (source["name"], source["state"], source["tables"], source["tablesCopying"]) == ("shop", "following", 1, 0)
    assert "path" not in source
    metrics = server.get("/metrics")[1]
    assert 'dolake_source_state{source="shop",state="following"} 1.0' in metrics
    assert 'dolake_source_tables_copying{source="shop"} 0.0' in metrics
    streams = {each["source"]: each for each in server.get("/v1/sources")[1]["streams"]}
    assert streams["shop"]["connected"] is True
    assert streams["crm"]["connected"] is False


def test_each_line_of_a_sources_log_has_its_name(server: ServerProcess) -> None:
    lines = [line for line in server.log.splitlines() if "table is followed" in line]
    assert lines
    assert all("source shop: " in line or "source crm: " in line for line in lines)


def test_a_file_is_not_disabled_while_a_source_follows_it(server: ServerProcess) -> None:
    app = App(app_folder(server) / "stock.db", "shelves")
    post(server, "/v1/sources", path=str(app.path))
    wait_for_state(server, "stock", "following")
    command = "source", "disable", app.path, "--to", server.url
    refused = invoke(*command, "--yes")
    assert (refused.exit_code, "stock.db is being followed now" in refused.output) == (1, True), refused.output
    assert "_dolake_outbox" in tables_in(app.path)
    assert server.get("/v1/sources/stock", method="DELETE")[0] == 204
    assert invoke(*command).exit_code == 0
    assert tables_in(app.path) == ["shelves"]


def tables_in(path: Path) -> list[str]:
    """Of the file itself."""
    with closing(sqlite3.connect(path)) as db:
        return [name for (name,) in db.execute("SELECT name FROM sqlite_schema ORDER BY name")]


def test_a_folder_is_one_source_with_a_stream_for_each_file(server: ServerProcess) -> None:
    folder = server.home.parent / "branches"
    for name, key in (("north", 1), ("south", 2)):
        App(folder / f"{name}.db", "sales", rows=0).insert(key)
    post(server, "/v1/sources", path=str(folder))
    wait_for_rows(server, "sales", [1, 2])
    source = wait_for_state(server, "branches", "following")
    assert [each["stream"] for each in source["streams"]] == ["branches/north", "branches/south"]
    assert server.get("/v1/sources/branches", method="DELETE")[0] == 204


def test_a_source_goes_on_when_the_first_token_is_made_and_health_then_names_no_source(server: ServerProcess) -> None:
    app = App(app_folder(server) / "erp.db", "parts")
    post(server, "/v1/sources", path=str(app.path))
    before = wait_for_state(server, "erp", "following")
    post(server, "/v1/sources/shop/pause")
    headers.update(token_for(server))
    wait_for(lambda: server.get("/status")[0] == 401, "the server asks for tokens")
    app.insert(4)
    wait_for(lambda: sequence_of(server, "erp") >= 4, "the change is durable")
    assert wait_for_state(server, "erp", "following")["pid"] == before["pid"]
    (app_folder(server) / "bad.db").write_text("this is no database" * 100)
    body = {"path": str(app_folder(server) / "bad.db")}
    assert server.get("/v1/sources", method="POST", body=body, headers=headers)[0] == 200
    wait_for_state(server, "bad", "waiting")
    reason = server.get("/health")[1]["reason"]
    assert reason == "1 source cannot run; `dolake sources` says why"
    assert server.get("/v1/sources/bad", method="DELETE", headers=headers)[0] == 204


def test_added_and_paused_sources_are_there_after_a_restart_and_no_process_is_left(server: ServerProcess) -> None:
    (child,) = children_of(server, MODULE)
    before = sequence_of(server, "erp")
    assert server.stop() == 0
    assert not child.is_running()
    App(app_folder(server) / "erp.db", "parts", rows=0).insert(5)
    server.start()
    wait_for(lambda: sequence_of(server, "erp") > before, "the change is durable")
    assert wait_for_state(server, "erp", "following")["origin"] == "added"
    assert source_named(server, "shop")["state"] == "paused"


def test_one_command_follows_a_file_from_an_empty_folder_and_says_when_its_tables_are_complete(tmp_path: Path) -> None:
    App(tmp_path / "app.db", "orders")
    with typed_in_a_terminal("serve --follow app.db --port 0", tmp_path) as said:
        said.wait_for(f"following {tmp_path / 'app.db'}: 1 table with ")
        address = json.loads((tmp_path / "dolake-home" / "server.json").read_text())["url"]
        with connect(address) as lake:

            def has_all() -> bool:
                with suppress(NotFound, Unavailable):  # the table comes with its first rows
                    return [row.id for row in lake.query("SELECT id FROM orders ORDER BY id")] == [1, 2, 3]
                return False

            wait_for(has_all, "the rows of app.db are in the lake", wait_s=_WAIT_S)


def test_a_server_that_is_killed_leaves_no_source_behind(server: ServerProcess) -> None:
    (child,) = children_of(server, MODULE)
    server.kill()
    psutil.wait_procs([child], timeout=_WAIT_S)
    assert not child.is_running()
