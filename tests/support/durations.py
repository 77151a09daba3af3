"""Where the time of a test run goes: the slowest files and tests, printed at its end and kept in docs/explain/tests.md.

From the root's conftest.py, in the process that prints (with pytest-xdist the one that hands out the tests). order.py
reads the table of that page, so that the longest files begin first.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "explain" / "tests.md"
FILES_SHOWN, TESTS_SHOWN = 40, 20
_ROW = re.compile(r"^\| `(?P<file>[\w/]+\.py)` \| (?P<tests>\d+) \| (?P<seconds>[\d.]+) \|$", re.MULTILINE)
_BEGIN, _END = "<!-- durations: written by `make durations` -->\n", "<!-- end of durations -->"


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--durations-page", action="store_true", help=f"write the slowest files into {PAGE.name}")


class Durations:
    """A plugin that adds up set-up, call and tear-down of each test."""

    def __init__(self, config: pytest.Config) -> None:
        self._is_written = bool(config.getoption("--durations-page"))
        self._began_s = time.monotonic()
        self._by_test: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._by_test[report.nodeid] += report.duration  # type: ignore[assignment] # Counter counts in fractions, too

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        files = self._by_file()
        if len(files) < 2:
            return
        terminalreporter.section(f"the slowest {FILES_SHOWN} of {len(files)} files, and {TESTS_SHOWN} tests")
        for file, count, seconds in files[:FILES_SHOWN]:
            terminalreporter.write_line(f"{seconds:8.1f} s {count:5} tests  {file}")
        for nodeid, seconds in self._by_test.most_common(TESTS_SHOWN):
            terminalreporter.write_line(f"{seconds:8.1f} s  {nodeid}")
        if self._is_written:
            self._write(files)

    def _by_file(self) -> list[tuple[str, int, float]]:
        """File, number of tests, seconds; the slowest first."""
        counts: Counter[str] = Counter(map(file_of, self._by_test))
        seconds: Counter[str] = Counter()
        for nodeid, duration in self._by_test.items():
            seconds[file_of(nodeid)] += duration
        return [(file, counts[file], float(spent)) for file, spent in seconds.most_common()]

    def _write(self, files: list[tuple[str, int, float]]) -> None:
        head, _, rest = PAGE.read_text().partition(_BEGIN)
        minutes, spent = (time.monotonic() - self._began_s) / 60, sum(seconds for _, _, seconds in files)
        lines = [
            f"{len(self._by_test):,} tests in {len(files)} files: {minutes:.1f} minutes on {os.cpu_count()} cores, "
            f"{spent:.0f} s of tests.\n\n",
            "| file | tests | seconds |\n|---|---|---|\n",
            *(f"| `{file}` | {count} | {seconds:.1f} |\n" for file, count, seconds in files[:FILES_SHOWN]),
        ]
        PAGE.write_text(head + _BEGIN + "".join(lines) + _END + rest.partition(_END)[2])


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def kept_seconds() -> dict[str, float]:
    """The table of the page: how long each of the slowest files took when it was last written."""
    return {row["file"]: float(row["seconds"]) for row in _ROW.finditer(PAGE.read_text())}
