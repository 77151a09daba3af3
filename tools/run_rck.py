"""Run Iceberg's REST compatibility kit against a real server: the newest kit, then the older one with its slash tests.

Run by `make test-rck`. The kit itself is not part of DoLake: a script named run-rck starts it, found by argument,
by the variable DOLAKE_RCK or beside this repository. Promise: exit code 0 only if every kit ran to its end with no
test failed; each kit gets a server with an empty warehouse, and no server, kit or home stays behind.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dolake.cli.child import COMMAND, ChildServer
from dolake.errors import DoLakeError
from dolake.pipeline.java import ADVICE as JAVA_ADVICE
from dolake.pipeline.java import find_java
from tests.oracle.backends import LOCAL, Backend, CatalogStore, Machines, Warehouse

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "tools" / "rck" / "run-rck"
KITS = {"newest": {}, "1.10.1": {"RCK_ICEBERG": "1.10.1"}}
SWITCHES = ("-Drck.requires-namespace-create=true", "-Drck.supports-names-with-dot=true")
# Some of the kit's tests ask for tables below this folder; a server takes them only where it is told to.
KIT_FOLDER = "/tmp"  # noqa: S108
ON_DISK = re.compile(
    r"^\S*FAILED .*(: location file:/\S+ is not inside the warehouse s3://"
    r"|\.testLoadTableWithMissingMetadataFile\(Path\): )"
)
"""Tests that want a table in a folder of this machine, which a lake in a store refuses, or move its files there."""
CLOSING = re.compile(r"(\d+) passed, (\d+) failed, (\d+) skipped")

ADVICE = """\
Iceberg's REST compatibility kit is needed and was not found. It is published as the tests of the artifacts
org.apache.iceberg:iceberg-open-api, iceberg-core and iceberg-api. Name a script that runs it, as in
  make test-rck RCK=<path to run-rck>        or        export DOLAKE_RCK=<path to run-rck>
It is called as `run-rck URL -Drck.KEY=VALUE ...`, takes another release's kit from the variable RCK_ICEBERG, brings
Iceberg's classes for S3 where RCK_S3 is 1, and ends with a line such as «147 passed, 0 failed, 10 skipped»."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make test-rck", description="Run Iceberg's REST compatibility kit.")
    parser.add_argument("script", nargs="?", help="the script that runs the kit; DOLAKE_RCK otherwise")
    parser.add_argument("--postgres", action="store_true", help="keep the catalog in PostgreSQL")
    parser.add_argument("--s3", action="store_true", help="keep the tables in an S3 store")
    options = parser.parse_args(arguments)
    script = find_script(options.script, os.environ)
    if script is None:
        print(ADVICE, file=sys.stderr)
        return 2
    java = find_java()
    if java is None:
        print(JAVA_ADVICE, file=sys.stderr)
        return 2
    environ = {"RCK_JAVA": str(java)} | os.environ
    place: tuple[Warehouse, CatalogStore] = (
        "s3" if options.s3 else "local",
        "postgres" if options.postgres else "sqlite",
    )
    with _terminate_as_exit(), Machines() as machines:
        passed = []
        for name, extra in KITS.items():
            with machines.backend(*place) as backend:
                passed.append(run_kit(script, name, environ | extra, backend=backend))
    return 0 if all(passed) else 1


def find_script(named: str | None, environ: Mapping[str, str]) -> Path | None:
    """What was named wins, even if it does not exist: another one would answer a question that nobody asked."""
    wanted = named or environ.get("DOLAKE_RCK")
    script = Path(wanted).expanduser().resolve() if wanted else BESIDE
    return script if script.is_file() else None


def run_kit(
    script: Path,
    name: str,
    environ: Mapping[str, str],
    command: Sequence[str] = COMMAND,
    *,
    backend: Backend = LOCAL,
) -> bool:
    """Whether the kit ran to its end and no test failed. What it says is shown as it says it."""
    print(f"--- the kit: {name}", flush=True)
    keys: list[str] = []
    if backend.store:
        environ = dict(environ) | {"RCK_S3": "1"}
        keys = [f"-Drck.{option}={value}" for option, value in backend.store.keys.items()]
    settings = f'[catalog]\nlocation_roots = ["{KIT_FOLDER}"]\n'
    with tempfile.TemporaryDirectory(prefix="dolake-rck-") as folder:
        try:
            home = Path(folder) / "home"
            with ChildServer(home, settings=settings, environ=backend.environ, command=command) as server:
                code, said = _run([str(script), f"{server.url}/lakehouse", *SWITCHES, *keys], environ)
                server.stop()
        except DoLakeError as error:
            print(f"{error.message}\n{error.hint}", file=sys.stderr)
            return False
    closing = CLOSING.search(said[-1]) if said else None
    if closing is None:
        print(f"the kit did not run to its end (exit code {code})", file=sys.stderr)
        return False
    passed, failed, _ = map(int, closing.groups())
    local = sum(bool(ON_DISK.search(line)) for line in said) if backend.store else 0
    if local:
        print(f"{local} of the failed ones keep files on the kit's own disk, and cannot pass in a store")
    return code == 0 and passed > 0 and failed == 0


def _run(command: list[str], environ: Mapping[str, str]) -> tuple[int, list[str]]:
    # A session of its own: the script starts others, and all of them must go when we do.
    kit = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True)
    said: list[str] = []
    try:
        assert kit.stdout is not None
        for line in kit.stdout:
            print(line, end="", flush=True)
            said.append(line)
        return kit.wait(), said
    finally:
        if kit.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(kit.pid, signal.SIGKILL)
            kit.wait()
        if kit.stdout:
            kit.stdout.close()


@contextlib.contextmanager
def _terminate_as_exit() -> Iterator[None]:
    """A SIGTERM unwinds us as Ctrl-C does, so that nothing stays behind."""

    def leave(_number: int, _frame: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
