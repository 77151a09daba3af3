"""What stands in deploy/ fits the server: every metric exists, every option is one, every file is what it claims."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import strictyaml  # type: ignore[import-untyped]

from dolake.cli.app import app as command_line
from dolake.settings import load_settings
from tests.support.server import ServerProcess

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
HOWTO = DEPLOY.parent / "docs" / "howto" / "run-in-production.md"
_OF_PROMETHEUS = {"histogram_quantile", "rate", "increase", "sum", "by", "max", "le", "state"}


def yaml(name: str) -> Any:
    return strictyaml.load((DEPLOY / name).read_text()).data


def dashboard() -> Any:
    return json.loads((DEPLOY / "grafana-dashboard.json").read_text())


def expressions() -> list[str]:
    rules = [rule["expr"] for group in yaml("alerts.yaml")["groups"] for rule in group["rules"]]
    return rules + [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]


@pytest.fixture(scope="module")
def metrics(query_server: ServerProcess) -> set[str]:
    """The names of all series that a real server has, and those that it describes without having any yet."""
    text = query_server.get("/metrics")[1]
    found = set(re.findall(r"^(\w+)(?:{| )", text, re.MULTILINE))
    page = (DEPLOY.parent / "docs" / "reference" / "metrics.md").read_text()  # held to the code by tests/tidy
    pipeline = set(re.findall(r"^\| `(dolake_\w+)` \|", page, re.MULTILINE))
    return found | pipeline


def test_every_metric_in_dashboard_and_alerts_is_one_of_a_real_server(metrics: set[str]) -> None:
    for expression in expressions():
        plain = re.sub(r"\[[^]]*\]|{[^}]*}|\"[^\"]*\"", "", expression)
        used = set(re.findall(r"[a-z_][a-z_0-9]*", plain)) - _OF_PROMETHEUS
        assert used, expression
        assert not used - metrics, expression


def test_every_alert_says_for_how_long_how_bad_and_what_it_means() -> None:
    rules = [rule for group in yaml("alerts.yaml")["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 5
    for rule in rules:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+m", rule["for"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"].endswith((".", "?"))
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_the_dashboard_is_one_that_grafana_can_import() -> None:
    found = dashboard()
    assert found["uid"] == "dolake"
    assert {"title", "panels", "schemaVersion", "templating"} <= set(found)
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in found["panels"]]
    assert len(set(places)) == len(places), "panels lie on each other"
    for panel in found["panels"]:
        assert all(target["expr"] and target["refId"] for target in panel["targets"])


def test_the_unit_starts_the_server_as_the_command_line_knows_it() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "dolake.service")
    _check_serve(unit["Service"]["ExecStart"].split()[1:])
    wait_ms = load_settings(home=None, config_file=None, environ={}, flags={}).current.server.shutdown_wait_ms
    assert int(unit["Service"]["TimeoutStopSec"]) * 1000 > wait_ms
    assert unit["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not there")
def test_systemd_itself_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "dolake.service"
    text = (DEPLOY / "dolake.service").read_text()
    unit.write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", text).replace("User=dolake", "User=root"))
    found = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    said = [line for line in found.stderr.splitlines() if "dolake.service" in line]
    assert not said, found.stderr


def test_the_container_file_copies_what_is_there_and_runs_as_nobody_special() -> None:
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    words = {word for word, _ in steps}
    known = "FROM WORKDIR RUN COPY ENV USER VOLUME EXPOSE STOPSIGNAL HEALTHCHECK ENTRYPOINT CMD"
    assert all(word in known for word in words), words
    assert steps[0][0] == "FROM"
    assert [rest for word, rest in steps if word == "USER"] == ["dolake"]
    for word, rest in steps:
        if word == "COPY" and not rest.startswith("--from"):
            *sources, _target = rest.split()
            assert all((DEPLOY.parent / source).exists() for source in sources), rest
        if word == "RUN" and "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert "rm -rf /var/lib/apt/lists/*" in rest
    assert [json.loads(rest) for word, rest in steps if word == "ENTRYPOINT"] == [["dolake"]]
    (command,) = [json.loads(rest) for word, rest in steps if word == "CMD"]
    _check_serve(command)
    port = load_settings(home=None, config_file=None, environ={}, flags={}).current.server.port
    assert [rest for word, rest in steps if word == "EXPOSE"] == [str(port)]


def test_the_compose_file_names_files_and_volumes_that_are_there() -> None:
    found = yaml("compose.yaml")
    for name, service in found["services"].items():
        assert set(service) <= {
            "image", "build", "restart", "stop_grace_period", "ports", "volumes", "ulimits", "profiles", "depends_on"
        }, name  # fmt: skip
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (DEPLOY / source).exists() or source.endswith(".token"), volume
            else:
                assert source in found["volumes"], volume
        assert set(service.get("depends_on", ())) <= set(found["services"])
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), "only this machine reaches it"
    build = found["services"]["dolake"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).exists()
    (job,) = yaml("prometheus.yaml")["scrape_configs"]
    assert job["static_configs"][0]["targets"] == ["dolake:8787"]


def test_the_how_to_leads_to_every_file() -> None:
    text = HOWTO.read_text()
    for path in DEPLOY.iterdir():
        assert path.name in text, path.name


def _check_serve(words: list[str]) -> None:
    import typer

    serve = typer.main.get_command(command_line).commands["serve"].loaded  # type: ignore[attr-defined]
    assert words[0] == "serve"
    known = {option for parameter in serve.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known
