"""What an operator sees while the pipeline cannot run: `degraded`, with the reason, until it publishes again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dolake.client.sync import connect
from tests.support.server import ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.own_lake]
_WAIT_S = 240.0
_SETTINGS = "[pipeline]\nretry_delay_ms = 50\nretry_delay_max_ms = 100\n"


def health_when(server: ServerProcess, status: str, word: str = "") -> dict[str, object]:
    """The answer of /health as soon as it says this."""
    give_up_s = time.monotonic() + _WAIT_S
    while time.monotonic() < give_up_s:
        code, health = server.get("/health")
        if health["status"] == status and word in health.get("reason", ""):
            assert code == 200, "batches are kept, so the server is ready"
            return dict(health)
        time.sleep(0.02)
    raise AssertionError(f"never {status}: {server.get('/health')}")


def test_health_is_degraded_while_the_pipeline_cannot_run_and_ok_when_it_publishes_again(tmp_path: Path) -> None:
    java_options = tmp_path / "java-options"
    java_options.write_text("-Xnonsense\n")
    environ = {"JDK_JAVA_OPTIONS": f"@{java_options}"}
    with ServerProcess(
        tmp_path / "home", settings=_SETTINGS, environ=environ, has_pipeline=True, has_queries=False
    ) as server:
        with connect(server.url, source="shop") as lake:
            lake.send({"table": "orders", "operation": "INSERT", "rowId": "1", "after": {"id": 1}})
        health = health_when(server, "degraded", "2 times without a publish")
        assert "DoLake needs Java 17 or newer to run Spark" in str(health["reason"])
        assert health["ready"] is True
        assert "dolake_degraded 1.0" in server.get("/metrics")[1]
        assert "pipeline cannot run: changes are durable and SQL sees them, but no table is published" in server.log
        assert "`dolake doctor` checks Java and Spark" in server.log
        java_options.write_text("")
        assert "reason" not in health_when(server, "ok")
        server.flush()
        assert "dolake_degraded 0.0" in server.get("/metrics")[1]
