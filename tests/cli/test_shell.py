"""The shell: statements from a pipe and from a keyboard, commands, completion, and what Ctrl-C does."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiohttp import web
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from typer.testing import Result

from dolake.cli.completing import LakeCompleter
from dolake.cli.shell import Shell, history_file
from dolake.cli.statements import is_complete, split
from dolake.client.sync import connect
from tests.support.answering_lake import (
    AnsweringLake,
    answering_lake_in_a_thread,
    arrow_answer,
    arrow_bytes,
    plain_answer,
    refusal,
)
from tests.support.command import invoke

THREE = arrow_answer(arrow_bytes(pa.record_batch({"count": pa.array([3], pa.int64())})))
TABLES = plain_answer(
    {
        "tables": [
            {"namespace": "default", "name": "orders", "rows": 7},
            {"namespace": "shop", "name": "customers", "rows": 8},
        ]
    }
)
SCHEMA = plain_answer(
    {
        "table": "default.orders",
        "version": 1,
        "fields": [{"id": 1, "name": "id", "type": "long"}, {"id": 2, "name": "order_total", "type": "double"}],
        "versions": [],
    }
)


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[AnsweringLake]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    answers = {
        "POST /v1/query": THREE,
        "GET /v1/tables": TABLES,
        "GET /v1/tables/default/orders/schema": SCHEMA,
        "GET /v1/snapshots": plain_answer({"snapshots": []}),
        "GET /v1/tables/default/orders/snapshots": plain_answer({"snapshots": []}),
    }
    with answering_lake_in_a_thread(answers) as found:
        yield found


def piped(lake: AnsweringLake, text: str, *options: str) -> Result:
    return invoke("shell", "--url", lake.url, *options, typed=text)


def asked(lake: AnsweringLake) -> list[str]:
    return [body["sql"] for body in lake.bodies()]


# --- from a pipe -----------------------------------------------------------------------------------------------------


def test_statements_are_read_from_a_pipe(lake: AnsweringLake) -> None:
    answer = piped(lake, "SELECT 1; SELECT\n  ';' -- ;\n;\n\nSELECT 3")
    assert answer.exit_code == 0
    assert asked(lake) == ["SELECT 1", "SELECT\n  ';' -- ;", "SELECT 3"]
    assert answer.stdout.count("count") == 3
    assert answer.stderr.count("1 row in") == 3


def test_a_statement_that_fails_does_not_keep_the_rest_and_the_exit_code_tells(lake: AnsweringLake) -> None:
    lake.answers["POST /v1/query"] = refusal(400, "invalid_sql", "no such thing", "look at it")
    answer = piped(lake, "SELECT 1;\nSELECT 2;\n")
    assert answer.exit_code == 1
    assert asked(lake) == ["SELECT 1", "SELECT 2"]
    assert answer.stderr.splitlines() == ["error: no such thing", "       look at it"] * 2


def test_commands_work_in_a_pipe_too(lake: AnsweringLake) -> None:
    answer = piped(lake, "\\tables\n\\schema orders\n\\snapshots\n\\snapshots orders;\n\\help\n\\q\nSELECT 1;")
    assert answer.exit_code == 0
    assert "shop.customers" in answer.stdout
    assert "order_total" in answer.stdout
    assert "\\asof [TIME]" in answer.stdout
    assert not asked(lake), "nothing is done after leaving"


@pytest.mark.parametrize(
    ("text", "words"),
    [("\\nothing", "not a command"), ("\\schema", "needs a table"), ("\\asof soon", "not a point in time")],
)
def test_a_command_that_cannot_be_is_an_error(lake: AnsweringLake, text: str, words: str) -> None:
    answer = piped(lake, text + "\n")
    assert answer.exit_code == 1
    assert words in answer.stderr


def test_a_moment_holds_until_it_is_taken_back(lake: AnsweringLake) -> None:
    piped(lake, "SELECT 1;\n\\asof 2025-01-15\nSELECT 2;\n\\asof\nSELECT 3;", "--as-of", "2025-01-14")
    moments = [body.get("asOf") for body in lake.bodies()]
    assert moments == ["2025-01-14T00:00:00.000000Z", "2025-01-15T00:00:00.000000Z", None]


def test_timing_can_be_turned_off(lake: AnsweringLake) -> None:
    answer = piped(lake, "\\timing\nSELECT 1;\n")
    assert answer.stderr.splitlines() == ["timing is off"]


# --- from a keyboard -------------------------------------------------------------------------------------------------


def typed(lake: AnsweringLake, *keys: str, prepare: Callable[[Shell], Any] = lambda _: None) -> Shell:
    """The shell on a terminal that is none, with these keys pressed."""
    shell = Shell(connect(lake.url))
    prepare(shell)
    with create_pipe_input() as keyboard:
        for each in keys:
            keyboard.send_text(each)
        shell.converse(keyboard, DummyOutput())
    return shell


def test_enter_ends_a_statement_only_behind_its_semicolon(lake: AnsweringLake) -> None:
    typed(lake, "SELECT 1\r", "FROM orders;\r", "\\timing\r", "exit\r", "\x04")
    assert asked(lake) == ["SELECT 1\nFROM orders"]


def test_what_was_typed_is_remembered(lake: AnsweringLake) -> None:
    typed(lake, "SELECT 1;\r", "\\q\r")
    assert "SELECT 1;" in history_file().read_text()
    typed(lake, "\x1b[A\x1b[A\r", "\\q\r")  # twice up
    assert asked(lake) == ["SELECT 1", "SELECT 1"]


def test_ctrl_c_clears_the_line_and_ctrl_d_leaves(lake: AnsweringLake) -> None:
    shell = typed(lake, "SELECT oops\x03", "SELECT 2;\r", "\x04")
    assert asked(lake) == ["SELECT 2"]
    assert not shell.is_over, "it left by the end of input"


def test_ctrl_c_ends_a_query_and_not_the_shell(
    lake: AnsweringLake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = threading.Event()

    async def interrupt(request: web.Request) -> web.StreamResponse:
        lake.answers["POST /v1/query"] = THREE
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)  # the main thread waits for the answer
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        raise AssertionError

    lake.answers["POST /v1/query"] = interrupt
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        typed(lake, "SELECT 1;\r", "SELECT 2;\r", "\\q\r")
    finally:
        signal.signal(signal.SIGINT, before)
    assert left.wait(10)
    assert asked(lake) == ["SELECT 1", "SELECT 2"]
    assert "cancelled" in capsys.readouterr().err


# --- completion ------------------------------------------------------------------------------------------------------


def suggested(lake: AnsweringLake, text: str, after: str = "") -> list[str]:
    completer = LakeCompleter(connect(lake.url), {"\\schema": True, "\\tables": False})
    document = Document(text + after, cursor_position=len(text))
    return [found.text for found in completer.get_completions(document, CompleteEvent())]


def test_tables_are_suggested_behind_from_and_their_columns_elsewhere(lake: AnsweringLake) -> None:
    assert suggested(lake, "SELECT * FROM ") == ["orders", "shop.customers"]
    assert suggested(lake, "SELECT * FROM orders JOIN s") == ["shop.customers"]
    assert suggested(lake, "SELECT ord", " FROM orders") == ["order_total", "orders", "ORDER"]
    assert suggested(lake, "sel") == ["SELECT"]


def test_commands_and_their_tables_are_suggested(lake: AnsweringLake) -> None:
    assert suggested(lake, "\\s") == ["\\schema"]
    assert suggested(lake, "\\schema o") == ["orders"]
    assert suggested(lake, "\\tables o") == []


def test_without_an_answer_there_are_only_words(lake: AnsweringLake) -> None:
    lake.answers.clear()
    assert suggested(lake, "SELECT * FROM ") == []
    assert suggested(lake, "S")[:1] == ["SELECT"]


def test_a_name_is_asked_for_once_in_a_while(lake: AnsweringLake) -> None:
    completer = LakeCompleter(connect(lake.url), {})
    for _ in range(3):
        assert [*completer.get_completions(Document("SELECT id FROM orders WHERE i"), CompleteEvent())]
    assert [each.path for each in lake.asked] == ["/v1/tables?pageSize=1000", "/v1/tables/default/orders/schema"]


# --- statements ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "statements", "rest"),
    [
        ("SELECT 1; SELECT 2", ["SELECT 1"], " SELECT 2"),
        ("SELECT ';'';' ; x", ["SELECT ';'';'"], " x"),
        ('SELECT ";" ;', ['SELECT ";"'], ""),
        ("SELECT 1 -- ; no\n;", ["SELECT 1 -- ; no"], ""),
        ("SELECT /* ; */ 1;", ["SELECT /* ; */ 1"], ""),
        ("SELECT $$;$$, $a$;$$;$a$;", ["SELECT $$;$$, $a$;$$;$a$"], ""),
        (";; -- nothing\n;", [], ""),
        ("SELECT 'open ; ", [], "SELECT 'open ; "),
        ("SELECT /* open ; ", [], "SELECT /* open ; "),
    ],
)
def test_text_is_cut_at_the_semicolons_that_end_statements(text: str, statements: list[str], rest: str) -> None:
    assert split(text) == (statements, rest)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1;", True),
        ("SELECT 1; -- and so on\n", True),
        ("SELECT 1", False),
        ("\\q", True),
        ("", True),
        ("';", False),
    ],
)
def test_text_is_complete_when_enter_means_do_it(text: str, expected: bool) -> None:
    assert is_complete(text) is expected
