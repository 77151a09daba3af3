"""`dolake demo`: four SQLite files become a live lake, in about a minute and a half, with a crash in the middle.

demo_shop.py has the files and who writes to them, demo_stage.py the processes, demo_acts.py the story, demo_engines.py
what others see, demo_view.py what you see.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dolake.cli.demo_acts import Story
from dolake.cli.demo_shop import open_shop
from dolake.cli.demo_stage import Stage
from dolake.cli.demo_view import View
from dolake.client import connect

_WIDTH = 130
_QUESTION = 'dolake query "SELECT status, COUNT(*) FROM orders GROUP BY 1" --url {url}'
_CHANGE = "sqlite3 {file} \"UPDATE inventory SET quantity = 0 WHERE product_id = 'p1'\""


def demo(
    once: Annotated[
        bool, typer.Option("--once", help="End by itself; so it does wherever output is not a terminal.")
    ] = False,
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="How long to watch the stream.")] = 20.0,
    rate: Annotated[int, typer.Option(min=100, max=100_000, help="How many changes a second the shop makes.")] = 3_000,
) -> None:
    """Stream a shop of four SQLite files into a lake, query it, kill it, and compare every row with the files."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH)
    view = View(console)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dolake-demo-", ignore_cleanup_errors=True) as folder:
        stage = Stage(Path(folder), rate)
        rows = open_shop(stage.shop)
        try:
            with stage:
                view.title("DoLake demo")
                console.print(
                    f"The lake is ready at {stage.server.url}, in a temporary folder. Spark starts meanwhile."
                )
                asyncio.run(_play(view, stage, rows, seconds))
                console.print(f"\nThe demo took {time.monotonic() - began:.0f} s; everything above was computed in it.")
                if view.is_terminal and not once:
                    _keep_serving(console, stage)
                stage.stop()
        except KeyboardInterrupt:
            console.print("stopped")
            sys.exit(0)


async def _play(view: View, stage: Stage, rows: int, seconds: float) -> None:
    async with connect(stage.server.url, source="demo") as lake:
        story = Story(view, stage, lake)
        await story.copy(rows)
        await story.stream(seconds)
        await story.revenue()
        await story.past()
        await story.history()
        await story.engines()
        await story.crash()
        await story.settle()
        await story.compact()
        await story.verify()


def _keep_serving(console: Console, stage: Stage) -> None:
    """The shop opens again, and goes on until Ctrl-C."""
    stage.start_selling()
    url = stage.server.url
    console.print(
        f"\nThe shop goes on selling; the lake serves at [bold]{url}[/bold] until Ctrl-C. Try, in another terminal:\n"
    )
    for words in (_QUESTION, f"dolake shell --url {url}", _CHANGE):
        console.print(f"   {words.format(url=url, file=stage.files[1])}", markup=False, soft_wrap=True)
    stage.server.wait_exit()
