"""What the demo shows: a picture that moves on a terminal, plain lines everywhere else.

From demo_acts.py, which measures. Nothing is computed here but averages of what was measured.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

_BARS = " ▁▂▃▄▅▆▇█"
_POINTS = 60
_LINE_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class Reading:
    """The lake at one moment."""

    elapsed_s: float
    durable: int
    rate: float
    """Changes a second that became durable, over the last two seconds."""
    lag_ms: float
    """The oldest change that a shop's file has and the lake has not acknowledged; 0 when there is none."""
    in_sql_ms: float
    """The age of the newest event that SQL sees, by the shop's own clock."""
    in_tables_s: float
    """The oldest change that is durable and not yet in the Iceberg tables."""


class View:
    """One console, and how it is written to."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.is_terminal = console.is_terminal
        self._rates: deque[float] = deque(maxlen=_POINTS)
        self._said_s = -_LINE_EVERY_S
        self._live: Live | None = None
        self._act = 0

    def title(self, words: str) -> None:
        self._console.rule(f"[bold]{words}") if self.is_terminal else self._console.print(words)

    def act(self, name: str, words: str) -> None:
        """The next of the story's parts."""
        self._act += 1
        self._console.print(f"\n[bold]{self._act}. {name}.[/bold] {words}")

    def say(self, words: str) -> None:
        self._console.print(f"   {words}", markup=False, soft_wrap=True)

    def show(self, table: Table) -> None:
        self._console.print(table)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While readings come: a picture in place, or lines."""
        if not self.is_terminal:
            yield
            return
        with Live(console=self._console, refresh_per_second=8, transient=True) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def take(self, reading: Reading) -> None:
        self._rates.append(reading.rate)
        if self._live:
            self._live.update(self._picture(reading))
        elif not self.is_terminal and reading.elapsed_s - self._said_s >= _LINE_EVERY_S:
            self._said_s = reading.elapsed_s
            self.say(line_of(reading))

    def _picture(self, reading: Reading) -> Group:
        figures = Table(box=None, padding=(0, 3, 0, 3), show_header=False)
        figures.add_column(justify="right", style="bold cyan", min_width=12)
        figures.add_column()
        figures.add_row(f"{reading.rate:,.0f}", "changes a second become durable")
        figures.add_row(f"{reading.durable:,}", "changes are durable")
        figures.add_row(_ms(reading.lag_ms), "from the SQLite files to the acknowledgement")
        figures.add_row(_ms(reading.in_sql_ms), "old is the newest event that SQL sees")
        figures.add_row(f"{reading.in_tables_s:.1f} s", "behind are the Iceberg tables, for every other engine")
        return Group(figures, Text(f"   {sparkline(self._rates)}", style="cyan"))


def line_of(reading: Reading) -> str:
    return (
        f"{reading.elapsed_s:4.0f} s  {reading.durable:>8,} durable  {reading.rate:>6,.0f}/s   "
        f"lag {_ms(reading.lag_ms)}   newest in SQL {_ms(reading.in_sql_ms)} old   "
        f"tables {reading.in_tables_s:.1f} s behind"
    )


def sparkline(values: deque[float]) -> str:
    """The values as a row of bars, the highest one full."""
    top = max(values, default=0.0) or 1.0
    return "".join(_BARS[min(len(_BARS) - 1, round(value / top * (len(_BARS) - 1)))] for value in values)


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value < 10_000 else f"{value / 1000:,.1f} s"


def plain_table(*titles: str, right: tuple[int, ...] = ()) -> Table:
    """A table without lines; these columns hold figures."""
    table = Table(box=None, padding=(0, 3, 0, 3))
    for index, title in enumerate(titles):
        table.add_column(title, justify="right" if index in right else "left")
    return table
