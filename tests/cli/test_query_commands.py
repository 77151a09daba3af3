"""The commands that ask, and those that change tables: against a server on a real socket."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiohttp import web
from typer.testing import Result

from dolake.cli.hints import for_commands
from dolake.cli.moments import moment_of, place_of
from dolake.errors import InvalidInput
from tests.support.answering_lake import (
    AnsweringLake,
    answering_lake_in_a_thread,
    arrow_answer,
    arrow_bytes,
    json_answer,
    plain_answer,
    refusal,
)
from tests.support.command import invoke

NOW = datetime(2025, 1, 14, 12, tzinfo=UTC)
ROWS = pa.record_batch(
    {
        "id": pa.array([1, 2**60, None], pa.int64()),
        "city": pa.array(["Oslo", 'a "b",\nc', ""], pa.string()),
        "total": pa.array([Decimal("1.50"), None, Decimal("-20.00")], pa.decimal128(10, 2)),
        "at": pa.array([NOW, None, NOW + timedelta(milliseconds=5)], pa.timestamp("us", "UTC")),
        "tags": pa.array([["a", "b"], [], None], pa.list_(pa.string())),
        "ok": pa.array([True, False, None], pa.bool_()),
    }
)


@pytest.fixture
def lake() -> Iterator[AnsweringLake]:
    with answering_lake_in_a_thread({"POST /v1/query": arrow_answer(arrow_bytes(ROWS))}) as found:
        yield found


def invoke_on(lake: AnsweringLake, *arguments: object, typed: str | None = None) -> Result:
    return invoke(*arguments, "--url", lake.url, typed=typed)


def cells(text: str) -> list[list[str]]:
    """What stands in each line of a table; columns are two spaces apart at least."""
    return [line.split() for line in text.splitlines() if line.strip() and "─" not in line]


# --- query -----------------------------------------------------------------------------------------------------------


def test_an_answer_is_shown_as_a_table_and_its_facts_beside_it(lake: AnsweringLake) -> None:
    answer = invoke_on(lake, "query", "SELECT * FROM orders")
    assert answer.exit_code == 0
    head, first, second, third = cells(answer.stdout)
    assert head == ["id", "city", "total", "at", "tags", "ok"]
    assert first == ["1", "Oslo", "1.50", "2025-01-14", "12:00:00Z", '["a","b"]', "true"]
    assert second[:3] == ["1152921504606846976", "a", '"b",\\nc']
    assert third[:2] == ["NULL", "-20.00"]
    assert third[2:4] == ["2025-01-14", "12:00:00.005Z"]
    lines = answer.stdout.splitlines()
    assert lines[2].index("1") == lines[3].index("1152921504606846976") + 18, "numbers stand on the right"
    assert "3 rows in" in answer.stderr
    assert "position 1,200, 12 ms old; 3 files read, 9 left out, 14 rows from the journal" in answer.stderr
    assert lake.bodies()[0]["limit"] == 1000


def test_a_table_of_few_rows_does_not_wait_for_pyarrow(lake: AnsweringLake) -> None:
    lake.answers["POST /v1/query"] = json_answer([{"id": 2**60, "total": "1.50"}], id="BIGINT", total="DECIMAL(10,2)")
    script = (
        "import sys; from dolake.cli import main; sys.argv[0] = 'dolake'\ntry: main()\nfinally: print(*sys.modules)"
    )
    command = [sys.executable, "-c", script, "query", "SELECT * FROM orders", "--url", lake.url]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert lake.bodies()[0]["format"] == "json"
    *shown, modules = answer.stdout.splitlines()
    assert shown[-1].split() == [str(2**60), "1.50"]
    assert not {"pyarrow", "duckdb", "rich.progress"} & set(modules.split())
    invoke_on(lake, "query", "SELECT * FROM orders", "--limit", 1_001)
    assert lake.bodies()[1]["format"] == "arrow"


def test_json_has_every_value_in_full(lake: AnsweringLake) -> None:
    answer = invoke_on(lake, "query", "SELECT * FROM orders", "--format", "json")
    assert json.loads(answer.stdout) == [
        {
            "id": 1,
            "city": "Oslo",
            "total": "1.50",
            "at": "2025-01-14T12:00:00.000000Z",
            "tags": ["a", "b"],
            "ok": True,
        },
        {"id": str(2**60), "city": 'a "b",\nc', "total": None, "at": None, "tags": [], "ok": False},
        {"id": None, "city": "", "total": "-20.00", "at": "2025-01-14T12:00:00.005000Z", "tags": None, "ok": None},
    ]
    assert answer.stdout.count("\n") == 3
    assert "3 rows in" in answer.stderr
    assert "limit" not in lake.bodies()[0]


def test_csv_can_be_read_back(lake: AnsweringLake) -> None:
    answer = invoke_on(lake, "query", "SELECT * FROM orders", "-f", "csv", "--limit", 10)
    head, *rows = list(csv.reader(io.StringIO(answer.stdout_bytes.decode(), newline="")))
    assert head == ["id", "city", "total", "at", "tags", "ok"]
    assert rows[0] == ["1", "Oslo", "1.50", "2025-01-14T12:00:00.000000Z", '["a","b"]', "true"]
    assert rows[1] == [str(2**60), 'a "b",\nc', "", "", "[]", "false"]
    assert answer.stdout_bytes.splitlines()[-1].startswith(b',"",-20.00,')
    assert lake.bodies()[0]["limit"] == 10


@pytest.mark.parametrize(("form", "text"), [("json", "[]\n"), ("csv", "id,city,total,at,tags,ok\n")])
def test_an_answer_without_rows_is_still_one(lake: AnsweringLake, form: str, text: str) -> None:
    lake.answers["POST /v1/query"] = arrow_answer(arrow_bytes(ROWS.slice(0, 0)))
    answer = invoke_on(lake, "query", "SELECT * FROM orders", "--format", form)
    assert answer.stdout == text
    assert "0 rows in" in answer.stderr


def test_options_are_passed_on(lake: AnsweringLake) -> None:
    invoke_on(lake, "query", "SELECT 1", "--snapshot", 7, "--timeout", 2)
    invoke_on(lake, "query", "-", "--as-of", "2025-01-14 12:00", typed="SELECT\n 2")
    first, second = lake.bodies()
    assert (first["sql"], first["snapshotId"], first["timeoutMs"]) == ("SELECT 1", "7", pytest.approx(2000, abs=200))
    assert (second["sql"], second["asOf"]) == ("SELECT\n 2", "2025-01-14T12:00:00.000000Z")


@pytest.mark.parametrize(
    ("sql", "given", "sent"),
    [
        ("SELECT ? + ?", ["1", "a=b"], ["1", "a=b"]),
        ("SELECT $1", ["1"], ["1"]),
        ("SELECT :day, '?'", ["day=2025-01-14"], {"day": "2025-01-14"}),
        ("SELECT $day -- ?", ["day=a=b"], {"day": "a=b"}),
    ],
)
def test_parameters_go_by_order_or_by_name(lake: AnsweringLake, sql: str, given: list[str], sent: Any) -> None:
    invoke_on(lake, "query", sql, *(part for each in given for part in ("--param", each)))
    assert lake.bodies()[0]["params"] == sent


def test_a_parameter_without_a_name_is_refused_where_names_are_wanted(lake: AnsweringLake) -> None:
    answer = invoke_on(lake, "query", "SELECT :day", "--param", "1")
    assert answer.exit_code == 1
    assert "name=value" in answer.stderr


def test_warnings_and_cut_answers_are_told(lake: AnsweringLake) -> None:
    data = arrow_bytes(
        ROWS, notes={"warnings": ["orders has a column _operation of its own"]}, last={"truncated": True}
    )
    lake.answers["POST /v1/query"] = arrow_answer(data)
    answer = invoke_on(lake, "query", "SELECT * FROM orders")
    assert "warning: orders has a column _operation of its own" in answer.stderr
    assert "3 rows in" in answer.stderr
    assert "more that a limit cut off" in answer.stderr


def test_what_is_in_a_row_cannot_steer_the_terminal(lake: AnsweringLake) -> None:
    evil = pa.record_batch({"\x1b]0;x\x07": ["\x1b[2J\u202eoops", "[bold]x[/bold]"]})
    lake.answers["POST /v1/query"] = arrow_answer(arrow_bytes(evil))
    answer = invoke_on(lake, "query", "SELECT * FROM orders")
    assert "\x1b" not in answer.stdout
    assert "\\u001b[2J\\u202eoops" in answer.stdout
    assert "[bold]x[/bold]" in answer.stdout


def test_an_error_of_the_server_is_one_clear_line(lake: AnsweringLake) -> None:
    lake.answers["POST /v1/query"] = refusal(404, "unknown_table", "there is no table x", "GET /v1/tables lists them")
    answer = invoke_on(lake, "query", "SELECT * FROM x")
    assert answer.exit_code == 1
    assert answer.stderr.splitlines() == ["dolake: there is no table x", "        `dolake tables` lists them"]


@pytest.mark.parametrize(
    ("hint", "shown"),
    [
        ("GET /v1/tables/shop/orders/snapshots lists them; asOf works without one", "`dolake snapshots shop.orders`"),
        ("write its digits; GET /v1/snapshots lists them", "`dolake snapshots`"),
        ("GET /v1/quarantine lists those with entries", "`dolake quarantine list`"),
        ("GET /v1/subscriptions lists them", "`dolake subscriptions list`"),
        ("it is not published yet: wait a moment, or POST /flush", "`dolake flush`"),
    ],
)
def test_a_hint_names_the_command_and_not_the_route(hint: str, shown: str) -> None:
    found = for_commands(hint)
    assert shown in found
    assert not re.search(r"(GET|POST) /|asOf", found)


def test_a_hint_without_a_command_stays_as_it_is() -> None:
    assert for_commands("GET /v1/queries lists them") == "GET /v1/queries lists them"


def test_flush_says_how_many_changes_were_published(lake: AnsweringLake) -> None:
    done = {"success": True, "durablePosition": 1200, "committedPosition": 1200, "eventsFlushed": 14}
    lake.answers["POST /flush"] = plain_answer(done)
    assert invoke_on(lake, "flush").stdout == "14 changes published; the tables are at position 1,200\n"
    assert json.loads(invoke_on(lake, "flush", "--json").stdout) == done
    lake.answers["POST /flush"] = plain_answer(done | {"eventsFlushed": 0})
    assert invoke_on(lake, "flush").stdout == "nothing was waiting; the tables are at position 1,200\n"


def test_flush_fails_where_nothing_can_be_published(lake: AnsweringLake) -> None:
    failed = {
        "success": False,
        "durablePosition": 9,
        "committedPosition": 0,
        "eventsFlushed": 0,
        "message": "it is off",
    }
    lake.answers["POST /flush"] = plain_answer(failed)
    answer = invoke_on(lake, "flush")
    assert (answer.exit_code, answer.stderr) == (1, "not published: it is off\n")
    lake.answers["POST /flush"] = refusal(503, "flush_error", "the disk is full")
    assert "the disk is full" in invoke_on(lake, "flush").stderr


def test_a_home_without_a_server_says_how_to_start_one(tmp_path: Path) -> None:
    answer = invoke("query", "SELECT 1", "--home", tmp_path)
    assert answer.exit_code == 1
    assert "no server runs on" in answer.stderr


def test_the_server_of_a_home_is_asked(lake: AnsweringLake, tmp_path: Path) -> None:
    (tmp_path / "server.json").write_text(json.dumps({"url": lake.url}))
    assert invoke("query", "SELECT 1", "--home", tmp_path).exit_code == 0
    assert lake.bodies()[0]["sql"] == "SELECT 1"


def test_a_plan_says_what_would_be_read(lake: AnsweringLake) -> None:
    plan = {
        "engine": "duckdb",
        "tables": [
            {
                "table": "default.orders",
                "snapshotId": "7",
                "files": {"kept": 3, "pruned": 9},
                "bytes": {"kept": 1_500_000, "pruned": 9_000_000},
                "reasons": [{"file": "a.parquet", "reason": "id: upper bound 5 < 7"}],
                "tailRows": 12,
            }
        ],
        "warnings": ["careful"],
    }
    lake.answers["POST /v1/query/plan"] = plain_answer(plan)
    answer = invoke_on(lake, "query", "SELECT * FROM orders WHERE id = ?", "--plan", "--param", "7")
    assert cells(answer.stdout)[1] == ["default.orders", "7", "3", "9", "1.5", "9.0", "12"]
    assert "left out: a.parquet: id: upper bound 5 < 7" in answer.stdout
    assert "warning: careful" in answer.stderr
    assert lake.bodies("/v1/query/plan")[0]["params"] == ["7"]
    as_json = json.loads(invoke_on(lake, "query", "SELECT 1", "--plan", "--format", "json").stdout)
    assert as_json["tables"][0]["files"] == {"kept": 3, "pruned": 9}


def test_signs_of_life_on_the_terminal_stay_out_of_the_answer(lake: AnsweringLake) -> None:
    ours, theirs = os.openpty()
    try:
        command = [sys.executable, "-m", "dolake.cli", "query", "SELECT 1", "--format", "json", "--url", lake.url]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("DOLAKE_")}
        answer = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=theirs, env=environ | {"TERM": "xterm"}, timeout=60, check=True
        )
        shown = os.read(ours, 100_000)
    finally:
        os.close(ours)
        os.close(theirs)
    assert len(json.loads(answer.stdout)) == 3
    assert b"0:00:0" in shown
    assert b"Oslo" not in shown


def test_ctrl_c_cancels_the_query() -> None:
    started, left = threading.Event(), threading.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        raise AssertionError

    with answering_lake_in_a_thread({"POST /v1/query": hang}) as lake:
        command = [sys.executable, "-m", "dolake.cli", "query", "SELECT 1", "--url", lake.url]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        assert started.wait(30)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
        assert left.wait(10), "the server was told"
    assert process.returncode == 130
    assert stderr.splitlines() == ["cancelled"]


# --- what there is ---------------------------------------------------------------------------------------------------


def test_tables_are_listed(lake: AnsweringLake) -> None:
    orders = {
        "namespace": "default",
        "name": "orders",
        "managed": True,
        "snapshotId": "7345",
        "updatedAt": "2025-01-14T00:00:00.000Z",
        "rows": 1234,
    }
    lake.answers["GET /v1/tables"] = plain_answer({"tables": [orders], "nextPageToken": None})
    answer = invoke_on(lake, "tables")
    assert cells(answer.stdout)[1] == ["default.orders", "1,234", "7345", "2025-01-14", "00:00:00Z"]
    assert json.loads(invoke_on(lake, "tables", "--changes", "--json").stdout)[0] == orders | {
        "updatedAt": "2025-01-14T00:00:00Z",
        "rescued": {},
    }
    lake.answers["GET /v1/tables"] = plain_answer({"tables": []})
    assert "no tables yet" in invoke_on(lake, "tables").stdout


def test_snapshots_are_listed(lake: AnsweringLake) -> None:
    snapshot = {
        "snapshotId": "7345",
        "table": "default.orders",
        "timestamp": "2025-01-14T00:00:00.500Z",
        "operation": "overwrite",
        "position": 1200,
        "addedRecords": 5,
        "deletedRecords": 0,
        "rows": 20,
        "isCurrent": True,
    }
    listed = plain_answer({"snapshots": [snapshot]})
    lake.answers["GET /v1/snapshots"] = lake.answers["GET /v1/tables/shop/orders/snapshots"] = listed
    made = ["2025-01-14", "00:00:00.5Z"]
    wanted = ["7345", "*", "default.orders", *made, "overwrite", "1,200", "20", "5", "0"]
    assert cells(invoke_on(lake, "snapshots").stdout)[1] == wanted
    assert cells(invoke_on(lake, "snapshots", "shop.orders", "--limit", 3).stdout)[1] == wanted
    assert json.loads(invoke_on(lake, "snapshots", "--json").stdout)[0]["snapshotId"] == "7345"
    assert [each.path for each in lake.asked][1] == "/v1/tables/shop/orders/snapshots?limit=3"


def test_a_schema_shows_which_columns_came_and_went(lake: AnsweringLake) -> None:
    def field(name: str, kind: Any) -> dict[str, Any]:
        return {"id": 1, "name": name, "type": kind, "required": False}

    tags = {"type": "list", "element-id": 5, "element": "string", "element-required": False}
    schema = {
        "table": "default.orders",
        "version": 3,
        "fields": [field("id", "long"), field("tags", tags)],
        "versions": [
            {"version": 1, "since": None, "fields": [field("id", "int"), field("old", "string")]},
            {"version": 2, "since": None, "fields": [field("id", "long"), field("old", "string")]},
            {"version": 3, "since": None, "fields": [field("id", "long"), field("tags", tags)]},
        ],
    }
    lake.answers["GET /v1/tables/default/orders/schema"] = plain_answer(schema)
    assert cells(invoke_on(lake, "schema", "orders").stdout)[1:] == [
        ["id", "long", "2"],
        ["tags", "list<string>", "3"],
        ["old", "string", "1", "2"],
        ["id", "int", "1", "1"],
    ]
    assert json.loads(invoke_on(lake, "schema", "orders", "--json").stdout)["version"] == 3


# --- diff and rollback -----------------------------------------------------------------------------------------------


def test_a_difference_is_shown_row_by_row(lake: AnsweringLake) -> None:
    diff = {
        "table": "default.orders",
        "counts": {"added": 1, "removed": 1, "changed": 5},
        "columns": [{"name": "id", "type": "BIGINT"}, {"name": "total", "type": "DECIMAL(5,2)"}],
        "added": [{"id": 1, "total": "1.50"}],
        "removed": [{"id": 2, "total": None}],
        "changed": [
            {
                "key": "3",
                "before": {"id": 3, "total": "1.00"},
                "after": {"id": 3, "total": "2.00"},
                "columns": ["total"],
            }
        ],
        "truncated": True,
    }
    lake.answers["POST /v1/diff"] = plain_answer(diff)
    answer = invoke_on(lake, "diff", "orders", "--from", "2025-01-14T00:00Z", "--to", "7345987345", "--limit", 1)
    assert answer.exit_code == 0, answer.output
    assert cells(answer.stdout) == [
        ["id", "total"],
        ["+", "1", "1.50"],
        ["-", "2", "NULL"],
        ["key", "column", "before", "after"],
        ["~", "3", "total", "1.00", "2.00"],
        ["1", "added,", "1", "removed,", "5", "changed"],
    ]
    assert "--limit shows more" in answer.stderr
    assert lake.bodies("/v1/diff") == [
        {"table": "orders", "from": "2025-01-14T00:00:00.000000Z", "to": {"snapshotId": "7345987345"}, "limit": 1}
    ]
    as_json = json.loads(invoke_on(lake, "diff", "orders", "--from", "1h", "--json").stdout)
    assert as_json["changed"][0]["after"] == {"id": 3, "total": "2.00"}


def test_a_rollback_asks_first(lake: AnsweringLake) -> None:
    lake.answers["POST /v1/tables/default/orders/rollback"] = plain_answer(
        {"table": "default.orders", "position": 70, "changes": {"added": 1, "removed": 2, "changed": 3}}
    )
    refused = invoke_on(lake, "rollback", "orders", "7345987345", typed="n\n")
    assert refused.exit_code == 1
    assert "the snapshot 7345987345?" in refused.output
    assert not lake.asked
    answer = invoke_on(lake, "rollback", "orders", "7345987345", typed="y\n")
    assert "1 rows added, 2 removed, 3 changed; position 70" in answer.stdout
    invoke_on(lake, "rollback", "orders", "2025-01-14T00:00Z", "--yes")
    assert [each.body for each in lake.asked] == [
        {"snapshotId": "7345987345"},
        {"asOf": "2025-01-14T00:00:00.000000Z"},
    ]


def test_a_key_is_forgotten_after_a_confirmation_and_the_report_names_everything(lake: AnsweringLake) -> None:
    report = {
        "position": 1207,
        "rowsRemoved": 1,
        "changesBlanked": 2,
        "tables": [{"table": "default.people", "snapshotsExpired": 4, "bytesRemoved": 108402, "tagsRemoved": ["end"]}],
        "journalBytesRemoved": 10240,
        "lastByteMs": 1_763_457_164_000,
        "outside": ["backups"],
    }
    path = "POST /v1/tables/default/people/forget"
    lake.answers[path] = plain_answer({"jobId": "job-1", "state": "done", "forgotten": report})
    refused = invoke_on(lake, "forget", "people", "4711", typed="n\n")
    assert refused.exit_code == 1
    assert not lake.asked
    answer = invoke_on(lake, "forget", "people", "4711", typed="y\n")
    assert answer.exit_code == 0, answer.output
    assert ["default.people", "0", "4", "0", "108,402", "end"] in cells(answer.stdout)
    for words in (
        "1 rows went, 2 changes are blank",
        "10,240 bytes",
        "gone at 2025-11-18 09:12:44",
        "reached: backups",
    ):
        assert words in answer.stdout
    lake.answers[path] = plain_answer(
        {"jobId": "job-1", "state": "done", "forgotten": report | {"lastByteMs": None, "waits": ["a transaction"]}}
    )
    answer = invoke_on(lake, "forget", "people", "4711", "--yes", "--patient")
    assert "waits: a transaction" in answer.stdout
    assert "not gone" in answer.stdout
    printed = json.loads(invoke_on(lake, "forget", "people", "4711", "--yes", "--json").stdout)
    assert printed["waits"] == ["a transaction"]
    assert [each.body["patient"] for each in lake.asked] == [False, True, False]


# --- points in time ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2025-01-13", datetime(2025, 1, 13, tzinfo=UTC)),
        ("2025-01-13 10:00", datetime(2025, 1, 13, 10, tzinfo=UTC)),
        ("2025-01-13T11:00:00.5+01:00", datetime(2025, 1, 13, 10, 0, 0, 500_000, tzinfo=UTC)),
        ("5 minutes ago", NOW - timedelta(minutes=5)),
        ("1h", NOW - timedelta(hours=1)),
        ("1h30m", NOW - timedelta(minutes=90)),
        ("-90 s", NOW - timedelta(seconds=90)),
        ("an hour and 1.5 minutes ago", NOW - timedelta(minutes=61, seconds=30)),
        ("2 Weeks ago", NOW - timedelta(weeks=2)),
        ("yesterday", NOW - timedelta(days=1)),
        ("today", NOW.replace(hour=0)),
        (" now ", NOW),
    ],
)
def test_a_point_in_time_is_written_as_people_do(text: str, moment: datetime) -> None:
    assert moment_of(text, NOW) == moment


@pytest.mark.parametrize("text", ["", "ago", "5", "5 lightyears ago", "soon", "2025-13-01", "1 month ago"])
def test_what_is_no_point_in_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidInput, match="5 minutes ago"):
        moment_of(text, NOW)


def test_many_digits_are_a_snapshot_and_eight_a_day() -> None:
    assert place_of("7345987345987345987") == {"snapshot_id": "7345987345987345987"}
    assert place_of("20250114") == datetime(2025, 1, 14, tzinfo=UTC)


# --- quarantine ------------------------------------------------------------------------------------------------------

ENTRY = {
    "table": "default.orders",
    "position": 4711,
    "reason": "column text was not sent",
    "operation": "UPDATE",
    "key": "7",
    "sequence": 12,
    "source": "shop",
    "event": '{"operation":"UPDATE","rowId":"7"}',
}
QUARANTINE = "/v1/quarantine/default/orders"


def test_tables_with_a_quarantine_and_their_entries_are_listed(lake: AnsweringLake) -> None:
    lake.answers["GET /v1/quarantine"] = plain_answer(
        {"tables": [{"namespace": "default", "name": "orders", "entries": 1200}]}
    )
    lake.answers[f"GET {QUARANTINE}"] = plain_answer({"entries": [ENTRY], "nextAfter": None})
    assert cells(invoke_on(lake, "quarantine", "list").stdout) == [["table", "entries"], ["default.orders", "1,200"]]
    (_, line) = cells(invoke_on(lake, "quarantine", "list", "orders").stdout)
    assert line[:4] == ["4711", "UPDATE", "7", "shop"]
    assert json.loads(invoke_on(lake, "quarantine", "list", "orders", "--json").stdout)[0]["key"] == "7"
    shown = invoke_on(lake, "quarantine", "show", "orders", 4711)
    assert '"rowId": "7"' in shown.stdout
    assert "column text was not sent" in shown.stdout
    missing = invoke_on(lake, "quarantine", "show", "orders", 4712)
    assert missing.exit_code == 1


def test_entries_are_sent_again_or_let_go_as_they_are_named(lake: AnsweringLake) -> None:
    done = {"table": "default.orders", "position": 5003, "refused": []}
    refused = [{"position": 1, "reason": "is not in the quarantine"}]
    lake.answers[f"POST {QUARANTINE}/replay"] = plain_answer(done | {"replayed": 1, "refused": refused})
    lake.answers[f"POST {QUARANTINE}/drop"] = plain_answer(done | {"dropped": 3})
    answer = invoke_on(lake, "quarantine", "replay", "orders", 1, 4711)
    assert answer.exit_code == 1
    assert "default.orders: 1 sent again; position 5,003" in answer.stdout
    assert "1: is not in the quarantine" in answer.stdout
    assert invoke_on(lake, "quarantine", "drop", "orders", 4711, 4712).exit_code == 0
    assert invoke_on(lake, "quarantine", "drop", "orders", "--all", "--yes").exit_code == 0
    assert [each.body for each in lake.asked] == [{"positions": [1, 4711]}, {"positions": [4711, 4712]}, {}]


@pytest.mark.parametrize("arguments", [(), (1, "--all")])
def test_a_drop_is_told_which_entries_to_let_go(lake: AnsweringLake, arguments: tuple[object, ...]) -> None:
    assert invoke_on(lake, "quarantine", "drop", "orders", *arguments).exit_code == 1
    assert not lake.asked
