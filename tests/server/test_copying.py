"""While a source copies a table, every answer about it says that rows are missing."""

from __future__ import annotations

import pytest

from dolake.changes import StreamId
from dolake.client.sync import connect
from dolake.journal.record import StreamPoint
from dolake.query.copying import from_header, to_header
from dolake.server.copying import CopyingTables
from tests.support.changes import insert
from tests.support.server import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.spark]
SETTINGS = ""


def state(phase: str, copied: int) -> dict[str, object]:
    return {"tables": {"Orders": {"lake": "copied", "phase": phase, "copied": copied, "total": 10}}}


def test_an_answer_names_a_table_that_is_not_complete_until_it_is(lake: ServerProcess) -> None:
    with connect(lake.url, source="copied app") as client:
        client.send([insert("copied", 1), insert("copied", 2)], source_state=state("copying", 2))
        client.send(insert("complete", 1))
        found = client.query("SELECT count(*) AS n FROM default.copied JOIN complete ON true")
        assert {name: (each.copied, each.total) for name, each in found.freshness.copying.items()} == {
            "copied": (2, 10)
        }
        assert found.warnings == ["table copied is not complete: 2 of about 10 rows are copied so far"]
        assert client.query("SELECT * FROM copied__changes").freshness.copying.keys() == {"copied"}
        other = client.query("SELECT * FROM complete")
        assert (other.freshness.copying, other.warnings) == ({}, [])
        client.send_state(state("live", 10))
        done = client.query("SELECT * FROM copied")
        assert (done.freshness.copying, done.warnings) == ({}, [])


def test_a_table_without_a_phase_is_copying_and_odd_states_say_nothing() -> None:
    points = {
        StreamId("a"): StreamPoint(state=b'{"tables":{"t":{"lake":"default.t","total":5}}}'),
        StreamId("b"): StreamPoint(state=b'{"tables":[{"lake":"x"}]}'),
        StreamId("c"): StreamPoint(state=b'{"tables":{"t":{"lake":7},"u":"lake"}}'),
        StreamId("d"): StreamPoint(),
    }
    assert CopyingTables(lambda: points).now() == {"t": (0, 5)}
    assert from_header(CopyingTables(lambda: points).header()) == {"t": (0, 5)}
    assert CopyingTables(dict).header() == ""


def test_names_of_any_language_pass_in_a_header_and_too_many_are_cut() -> None:
    many = {f"täbelle {number}": (number, 100) for number in range(1_000)}
    told = to_header(many)
    assert told.isascii()
    assert len(told) < 8_000
    found = from_header(told)
    assert len(found) > 50
    assert all(many[name] == rows for name, rows in found.items())
