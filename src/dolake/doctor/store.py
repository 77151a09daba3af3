"""The store that the tables are in, where they are in one: whether it answers, to these keys, for this bucket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from dolake.doctor.base import Finding, ok, problem, warning
from dolake.errors import DoLakeError
from dolake.pipeline.jars import STORE_JAR, jar_in
from dolake.pipeline.java import cache_folder
from dolake.settings import Settings
from dolake.storage.opening import open_store, place_of


def check_store(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Nothing where the tables are in the home."""
    place = place_of(settings.lake, settings.storage, settings.catalog)
    if place.is_local:
        return
    try:
        storage = open_store(place)
        try:
            next(storage.list(storage.root), None)
        finally:
            storage.close()
    except DoLakeError as error:
        yield problem("store", error.message, error.hint)
    else:
        yield ok("store", f"{place.location} can be listed")
    if settings.pipeline.enabled:
        yield _jar(settings.pipeline.jar_cache, environ)


def _jar(own_cache: str, environ: Mapping[str, str]) -> Finding:
    jar = jar_in((Path(own_cache) if own_cache else cache_folder(environ)) / "jars", STORE_JAR)
    if jar.is_file():
        return ok("jar of the store", f"{jar}, {jar.stat().st_size:,} bytes")
    remedy = f"nothing, where Maven Central can be reached; else copy {jar.name} to {jar.parent} from another machine"
    return warning("jar of the store", f"{STORE_JAR} is not in the cache; Spark fetches it at its first start", remedy)
