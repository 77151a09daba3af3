"""What we install is what pyproject.toml says, pinned and checked by hash, from whatever registry the user has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NAMES = ("base", "server", "dev")


def wanted(name: str) -> list[Requirement]:
    """The requirements that this .in file adds, without the files it includes."""
    lines = (REQUIREMENTS / f"{name}.in").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith(("#", "-r"))]


def locked(name: str) -> dict[Requirement, list[str]]:
    """Each pinned requirement of a lock file and the lines that follow it."""
    entries: dict[Requirement, list[str]] = {}
    for line in (REQUIREMENTS / f"{name}.lock").read_text().splitlines():
        if re.match(r"[A-Za-z0-9]", line):
            lines = entries[Requirement(line.rstrip("\\ "))] = []
        elif not line.startswith("#"):
            lines.append(line)
    return entries


def pins(name: str) -> set[str]:
    """Name and version; the markers may differ, because dev needs a package in more cases than base does."""
    return {f"{canonicalize_name(entry.name)}{entry.specifier}" for entry in locked(name)}


def as_text(requirements: list[Requirement]) -> list[str]:
    return sorted(str(requirement) for requirement in requirements)


def test_the_light_client_installs_what_pyproject_says() -> None:
    declared = [Requirement(text) for text in PROJECT["project"]["dependencies"]]
    assert as_text(wanted("base")) == as_text(declared)


def test_the_server_installs_what_pyproject_says() -> None:
    declared = [Requirement(text) for text in PROJECT["project"]["optional-dependencies"]["server"]]
    assert as_text(wanted("server")) == as_text(declared)


def test_the_build_tools_are_pinned_too() -> None:
    pinned = {canonicalize_name(requirement.name) for requirement in locked("dev")}
    for text in PROJECT["build-system"]["requires"]:
        assert canonicalize_name(Requirement(text).name) in pinned


@pytest.mark.parametrize("name", NAMES)
def test_every_wanted_package_is_in_its_lock_file(name: str) -> None:
    versions = {canonicalize_name(entry.name): next(iter(entry.specifier)).version for entry in locked(name)}
    for requirement in wanted(name):
        found = versions.get(canonicalize_name(requirement.name))
        assert found is not None, f"{requirement} is not in {name}.lock: run `make lock`"
        assert found in requirement.specifier, f"{name}.lock has {found}, wanted is {requirement}: run `make lock`"


@pytest.mark.parametrize("name", NAMES)
def test_every_locked_package_is_pinned_and_has_hashes(name: str) -> None:
    entries = locked(name)
    assert entries
    for entry, lines in entries.items():
        assert [specifier.operator for specifier in entry.specifier] == ["=="], f"{entry} is not pinned"
        assert any("--hash=sha256:" in line for line in lines), f"{entry} has no hash"


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_file_names_no_host_and_no_path_of_a_machine(name: str) -> None:
    text = (REQUIREMENTS / f"{name}.lock").read_text()
    assert "://" not in text
    assert not re.search(r"--(extra-)?index|--find-links|--trusted-host", text)
    assert not re.search(r"(?m)(^|\s)/\w", text)


@pytest.mark.parametrize("smaller", ["base", "server"])
def test_the_lock_files_agree_on_versions(smaller: str) -> None:
    assert pins(smaller) <= pins("dev")
