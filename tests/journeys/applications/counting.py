"""What the applications of this folder share: they count their writes, and those that failed.

Each is a program that a test runs in processes of its own: `program.py FILE STEP`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


class Writes:
    """Does what it is given, and goes on where it fails."""

    def __init__(self) -> None:
        self.done = 0
        self.failures: list[str] = []

    def do(self, write: Callable[..., Any], *values: Any) -> Any:
        try:
            found = write(*values)
        except Exception as error:
            self.failures.append(f"{type(error).__name__}: {error}")
            return None
        self.done += 1
        return found


def main(steps: dict[str, Callable[[str, Writes], None]]) -> None:
    """Run the step that the command line names, and print what became of its writes."""
    writes = Writes()
    steps[sys.argv[2]](sys.argv[1], writes)
    sys.stdout.write(json.dumps({"done": writes.done, "failures": writes.failures}) + "\n")
