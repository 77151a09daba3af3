"""Lines over time as an SVG, written by hand: one panel above the other, a line for each series.

From soak.py. Promise: the file needs nothing else to be shown, and starts each axis at zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 900, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 190, 34, 30
_COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")
_STEPS = 4


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: what its lines show, and each line by its name, as (second, value)."""

    title: str
    lines: Mapping[str, Points]


def write_svg(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Write the panels below a common title."""
    height = _TOP + _HEIGHT * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        _text(_LEFT, 20, title, size=15),
    ]
    for number, panel in enumerate(panels):
        parts += [f'<g transform="translate(0,{_TOP + number * _HEIGHT})">', *_panel(panel), "</g>"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


def _panel(panel: Panel) -> Iterator[str]:
    points = [point for line in panel.lines.values() for point in line]
    seconds = max((second for second, _ in points), default=0) or 1
    highest = max((value for _, value in points), default=0) or 1
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    yield _text(_LEFT, _TOP - 10, panel.title, size=13)
    for step in range(_STEPS + 1):
        y = _TOP + height - height * step / _STEPS
        x = _LEFT + width * step / _STEPS
        yield f'<line x1="{_LEFT}" x2="{_LEFT + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
        yield _text(_LEFT - 6, y + 4, f"{highest * step / _STEPS:,.4g}", anchor="end")
        yield _text(x, _TOP + height + 16, f"{seconds * step / _STEPS:,.0f} s", anchor="middle")
    for number, (name, line) in enumerate(panel.lines.items()):
        color = _COLORS[number % len(_COLORS)]
        places = " ".join(
            f"{_LEFT + width * second / seconds:.1f},{_TOP + height - height * value / highest:.1f}"
            for second, value in line
        )
        yield f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="1.5"/>'
        yield _text(_LEFT + width + 10, _TOP + 12 + 15 * number, name, color=color)


def _text(x: float, y: float, text: str, *, size: int = 11, anchor: str = "start", color: str = "#333333") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{color}"'
    return f"<text {place}>{escape(text)}</text>"
