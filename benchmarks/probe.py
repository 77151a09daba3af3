"""Looks rows up, one after the other, and measures each: `python -m benchmarks.probe`, started by lookup.py.

What to do comes by stdin, what was found goes to stdout, both as JSON. Promise: nothing is left out; an answer that is
not the row that was asked for is counted as wrong, unless the row is gone, which the stream's deletes may have done.
"""

from __future__ import annotations

import http.client
import json
import random
import sys
import time
from typing import Any
from urllib.parse import urlsplit

_WARM_UP = 50
_PERCENTS = (50, 90, 99)


def main() -> None:
    asked = json.loads(sys.stdin.read())
    connection = http.client.HTTPConnection(urlsplit(asked["url"]).netloc, timeout=60)
    connection.connect()
    chance = random.Random(1)
    ask, times = _select if asked["is_sql"] else _look_up, list[float]()
    wrong = gone = 0
    for _ in range(0 if asked["is_sql"] else _WARM_UP):
        _look_up(connection, asked, str(asked["first"] + chance.randrange(asked["rows"])))
    end_s = time.perf_counter() + asked["seconds"]
    while time.perf_counter() < end_s:
        key = asked["first"] + chance.randrange(asked["rows"])
        began = time.perf_counter()
        row = ask(connection, asked, str(key))
        times.append(time.perf_counter() - began)
        gone += row is None
        wrong += row is not None and row["id"] != key
        time.sleep(asked["pause_ms"] / 1000)
    json.dump({"ms": _report(times), "gone": gone, "wrong": wrong}, sys.stdout)


def _look_up(connection: http.client.HTTPConnection, asked: dict[str, Any], key: str) -> dict[str, Any] | None:
    connection.request("GET", f"/v1/tables/default/{asked['table']}/rows/{key}")
    answer = connection.getresponse()
    body = json.loads(answer.read())
    if answer.status == 404 and body["error"]["type"] == "no_such_row":
        return None
    if answer.status != 200:
        raise SystemExit(f"{answer.status} {body}")
    row: dict[str, Any] = body["row"]
    return row


def _select(connection: http.client.HTTPConnection, asked: dict[str, Any], key: str) -> dict[str, Any] | None:
    sql = f"SELECT * FROM {asked['table']} WHERE _key = ?"  # noqa: S608
    connection.request("POST", "/v1/query", json.dumps({"sql": sql, "params": [key]}))
    answer = connection.getresponse()
    body = json.loads(answer.read())
    if answer.status != 200:
        raise SystemExit(f"{answer.status} {body}")
    rows: list[dict[str, Any]] = body["rows"]
    return rows[0] if rows else None


def _report(times_s: list[float]) -> dict[str, Any]:
    if not times_s:
        return {"count": 0}
    ordered = sorted(1000 * each for each in times_s)
    found = {
        f"p{percent}": round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 2) for percent in _PERCENTS
    }
    return {**found, "max": round(ordered[-1], 2), "count": len(ordered)}


if __name__ == "__main__":
    main()
