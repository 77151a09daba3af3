"""A server inside the test's own event loop, for what no other process lets one order: clock, disk, publishing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from dolake.server.app import build_runner
from dolake.server.home import Home
from dolake.server.lake import Lake, now_ms
from dolake.settings import SettingsStore, load_settings


def settings_of(home: Path | None = None, **flags: Any) -> SettingsStore:
    """Settings by key, with `__` for the dot: `settings_of(lake__max_fallback_size=0)`."""
    named = {name.replace("__", "."): value for name, value in flags.items()}
    return load_settings(home=home, config_file=None, environ={}, flags=named)


@asynccontextmanager
async def serving(lake: Lake, port: int = 0) -> AsyncIterator[str]:
    """The routes of this lake on a loopback port, whatever state it is in."""
    runner = build_runner(lake)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def running_lake(
    home: Path, *, clock_ms: Callable[[], int] = now_ms, settings: SettingsStore | None = None, port: int = 0
) -> AsyncIterator[tuple[Lake, str]]:
    """A lake that is open, and its address."""
    with Home(home) as locked:
        lake = Lake(locked, settings or settings_of(), clock_ms)
        async with serving(lake, port) as url:
            await lake.open()
            try:
                yield lake, url
            finally:
                await lake.close()
