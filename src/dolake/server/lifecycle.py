"""Start and stop: the home is locked, the port opened, the journal recovered; then everything in reverse.

From cli/serve.py. Promise: /health answers while the journal is recovered; SIGTERM and SIGINT let every batch on its
way be answered and end with exit code 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import signal
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

import dolake
from dolake.errors import Conflict, InvalidInput
from dolake.server.app import build_app
from dolake.server.home import Home
from dolake.server.lake import Lake
from dolake.settings import SettingsStore

logger = logging.getLogger(__name__)


async def serve(home_path: Path, settings: SettingsStore, on_ready: Callable[[str], None] = lambda _url: None) -> None:
    """Run a server until it is told to stop."""
    refuse_open_doors(settings.current.server.host)
    with Home(home_path) as home:
        lake = Lake(home, settings)
        runner = web.AppRunner(build_app(lake), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            url = await _listen(runner, settings.current.server.host, settings.current.server.port)
            stopping = _stop_on_signals()
            logger.info("server started", extra={"url": url, "home": str(home_path), "version": dolake.__version__})
            await _run(lake, url, stopping, on_ready)
        finally:
            await runner.cleanup()
        logger.info("server stopped")


def refuse_open_doors(host: str) -> None:
    """Until tokens exist, whoever reaches the port may write: so only this machine may reach it."""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    if host == "localhost":
        return
    raise InvalidInput(
        f"server.host {host!r} is not a loopback address",
        hint="this release has no tokens yet, so anybody who reaches the port could write; use 127.0.0.1 or ::1",
    )


async def _run(lake: Lake, url: str, stopping: asyncio.Event, on_ready: Callable[[str], None]) -> None:
    try:
        await lake.open()
        found = lake.journal.recovered
        logger.info(
            "journal recovered",
            extra={
                "position": lake.journal.durable,
                "batches": found.record_count,
                "segments": lake.journal.segment_count,
                "torn_bytes": found.torn_bytes,
            },
        )
        async with asyncio.TaskGroup() as tasks:
            if lake.settings.current.pipeline.enabled:
                tasks.create_task(lake.start_pipeline(url).supervise())
            if lake.settings.current.query.enabled:
                tasks.create_task(lake.start_query().supervise())
            lake.home.write_address(url, dolake.__version__)
            on_ready(url)
            await stopping.wait()
            logger.info("server stopping", extra={"connections": lake.receiver.connection_count})
            await lake.close()
    finally:
        await lake.close()


async def _listen(runner: web.AppRunner, host: str, port: int) -> str:
    site = web.TCPSite(runner, host, port, backlog=1024)
    try:
        await site.start()
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
            raise Conflict(
                f"cannot listen on {host}:{port}: {error.strerror}", hint="choose another --port, or 0 for any free one"
            ) from None
        raise
    address = runner.addresses[0]
    shown = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"http://{shown}:{address[1]}"


def _stop_on_signals() -> asyncio.Event:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping
