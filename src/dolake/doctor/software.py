"""Python, the packages of the server, Java, and what Spark needs: Iceberg's jar and the class archive."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from dolake.doctor.base import Finding, ok, problem, warning
from dolake.pipeline.classes import archive_of
from dolake.pipeline.jars import ICEBERG_JAR, jar_in
from dolake.pipeline.java import ADVICE, JAVA_VERSION_MIN, cache_folder, find_java, java_version
from dolake.settings import PipelineSettings

_PYTHON_MIN = (3, 11)
_TESTED = {"pyspark": "4.1.4", "duckdb": "1.5.5", "duckdb-extension-iceberg": "1.5.5"}
"""Versions that are bound to each other and to the jar; others are as free as pyproject.toml says."""
_NEEDED = (*_TESTED, "pyiceberg", "pyarrow", "numpy", "aiohttp", "msgspec")


def check_software(settings: PipelineSettings, environ: Mapping[str, str]) -> Iterator[Finding]:
    yield _python()
    yield _packages()
    if not settings.enabled:
        yield ok("java", "not needed: pipeline.enabled is false")
        return
    yield _java(environ)
    yield _jar(settings, environ)
    yield from _archive(environ)


def _python() -> Finding:
    found = f"{platform.python_version()} in {sys.executable}"
    if sys.version_info < _PYTHON_MIN:
        return problem("python", found, "install Python 3.11 or newer, then `make setup PYTHON=<path to python>`")
    return ok("python", found)


def _packages() -> Finding:
    found: dict[str, str] = {}
    for name in _NEEDED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            return problem(
                "packages", f"{name} is missing", "install from requirements/server.lock, or run `make setup`"
            )
    for name, tested in _TESTED.items():
        if found[name] != tested:
            remedy = f"pip install '{name}=={tested}'"
            return warning("packages", f"{name} is {found[name]}; this release was tested with {tested}", remedy)
    return ok("packages", ", ".join(f"{name} {version}" for name, version in found.items()))


def _java(environ: Mapping[str, str]) -> Finding:
    java = find_java(environ)
    if java is None:
        return problem("java", f"no Java {JAVA_VERSION_MIN} or newer", ADVICE)
    return ok("java", f"version {java_version(java)} in {java}")


def _jar(settings: PipelineSettings, environ: Mapping[str, str]) -> Finding:
    cache = Path(settings.jar_cache) if settings.jar_cache else cache_folder(environ)
    jar = jar_in(cache / "jars")
    if not jar.is_file():
        remedy = (
            f"nothing, where Maven Central can be reached; else copy {jar.name} to {jar.parent} from another machine"
        )
        return warning("jar", f"{ICEBERG_JAR} is not in the cache; Spark fetches it at its first start", remedy)
    return ok("jar", f"{jar}, {jar.stat().st_size:,} bytes")


def _archive(environ: Mapping[str, str]) -> Iterator[Finding]:
    if (java := find_java(environ)) is None:
        return  # the first thing to mend, and said already
    archive = archive_of(java)
    if archive.is_file():
        yield ok("class archive", str(archive))
    else:
        yield warning("class archive", "there is none, so Spark takes twice as long to start", "`dolake prepare`, once")
