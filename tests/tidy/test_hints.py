"""Hints are for whoever reads them: on the command line they name a command wherever there is one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from dolake.cli.hints import for_commands

SOURCE = Path(__file__).resolve().parents[2] / "src" / "dolake"
ROUTE = re.compile(r"\b(GET|POST|PUT|PATCH|DELETE) /")
WITHOUT_COMMAND = ("GET /v1/compaction/jobs", "GET /v1/queries", "GET /v1/config")
"""No command does the same: jobs are followed by the command that began them, queries end with Ctrl-C."""


def hints() -> Iterator[tuple[str, str]]:
    """The text of each `hint=...` and `hint = ...`, with its file; what is computed in it is a name."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.keyword(arg="hint", value=value) | ast.Assign(targets=[ast.Name(id="hint")], value=value):
                    yield from ((path.name, text) for text in texts_of(value))


def texts_of(value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.JoinedStr):
        yield "".join(str(each.value) if isinstance(each, ast.Constant) else "x" for each in value.values)


def test_every_route_in_a_hint_has_a_command() -> None:
    found = list(hints())
    assert len(found) > 200
    named = [(name, hint) for name, hint in found if ROUTE.search(hint) and not hint.startswith(WITHOUT_COMMAND)]
    assert named
    assert not [(name, hint) for name, hint in named if ROUTE.search(for_commands(hint))]


def test_a_command_without_a_token_hears_of_the_variable_and_not_of_a_header() -> None:
    (hint,) = {hint for name, hint in hints() if name == "auth.py" and "Bearer" in hint}
    assert "DOLAKE_TOKEN" in for_commands(hint)
    assert "Authorization" not in for_commands(hint)
