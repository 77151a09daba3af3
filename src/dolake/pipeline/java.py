"""Find Java 17 or newer for Spark; fetch one into DoLake's cache if there is none, or say exactly what to type.

Run by `make` with the Python of `.venv`. Promise: find_java() returns only a Java that was started and said its
version; a download that fails or hangs leaves nothing behind that could be mistaken for one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

JAVA_VERSION_MIN = 17
JAVA_VERSION_FETCHED = 21
FETCH_TIME_MAX_S = 300.0
ASK_TIME_MAX_S = 30.0

# In a process of its own, because install-jdk takes no time limit and its download can only be stopped from outside.
INSTALLER = (
    sys.executable,
    "-c",
    f"import jdk, sys; jdk.install('{JAVA_VERSION_FETCHED}', jre=True, path=sys.argv[1])",
)

ADVICE = f"""\
DoLake needs Java {JAVA_VERSION_MIN} or newer to run Spark, and found none. To get one, type:
  Debian, Ubuntu:  sudo apt-get install openjdk-21-jre-headless || sudo apt-get install openjdk-17-jre-headless
  Fedora:          sudo dnf install java-21-openjdk-headless
  macOS:           brew install openjdk@21 && export JAVA_HOME="$(brew --prefix openjdk@21)"
If Java is already somewhere else:  export JAVA_HOME=<folder that contains bin/java>"""


def find_java(environ: Mapping[str, str] | None = None) -> Path | None:
    """The first usable `java` of JAVA_HOME, PATH and our cache, in this order."""
    for java in _candidates(os.environ if environ is None else environ):
        version = java_version(java)
        if version is not None and version >= JAVA_VERSION_MIN:
            return java
    return None


def java_version(java: Path) -> int | None:
    """The major version that this executable says it has; None if it does not start."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=ASK_TIME_MAX_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    if not (match := re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr + answer.stdout)):
        return None
    major, minor = match.groups()
    # Java 8 and older call themselves 1.8.
    return int(minor) if major == "1" and minor else int(major)


def fetch_java(
    cache: Path, *, installer: Sequence[str] = INSTALLER, time_max_s: float = FETCH_TIME_MAX_S
) -> Path | None:
    """Install a Java into the cache; None if that is not possible from here."""
    cache.mkdir(parents=True, exist_ok=True)
    # The download goes to a folder beside the final one, and only a complete Java is moved over.
    with tempfile.TemporaryDirectory(dir=cache, prefix="fetching-") as staging:
        unpacked = Path(staging, "jdk")
        try:
            subprocess.run(
                [*installer, str(unpacked)],
                env={**os.environ, "TMPDIR": staging},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=time_max_s,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        if not any((java_version(java) or 0) >= JAVA_VERSION_MIN for java in _unpacked_javas(unpacked)):
            return None
        final = cache / "jdk"
        shutil.rmtree(final, ignore_errors=True)
        unpacked.rename(final)
    return next(_unpacked_javas(final), None)


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where DoLake keeps what it fetched for all its projects on this machine."""
    return Path(environ.get("DOLAKE_CACHE") or Path.home() / ".cache" / "dolake")


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    if home := environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(on_path)
    yield from _unpacked_javas(cache_folder(environ) / "jdk")


def _unpacked_javas(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.glob("*/bin/java"))
    yield from sorted(folder.glob("*/Contents/Home/bin/java"))  # macOS


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 and one line when there is a Java, otherwise 1 and what to type."""
    parser = argparse.ArgumentParser(description=f"Find or fetch Java {JAVA_VERSION_MIN} or newer.")
    parser.add_argument("--quiet", action="store_true", help="say nothing when Java is there")
    parser.add_argument("--no-fetch", action="store_true", help="only look, download nothing")
    options = parser.parse_args(arguments)

    java = find_java()
    if java is None and not options.no_fetch:
        print(f"java: none of version {JAVA_VERSION_MIN} or newer found, trying to fetch one", flush=True)
        java = fetch_java(cache_folder(os.environ))
    if java is None:
        print(ADVICE, file=sys.stderr)
        return 1
    if not options.quiet:
        print(f"java: version {java_version(java)} in {java}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
