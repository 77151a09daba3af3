"""Start and stop: the home is locked, the port opened, the journal recovered; then everything in reverse.

From cli/serve.py. Promise: /health answers while the journal is recovered; SIGTERM and SIGINT let every batch on its
way be answered and end with exit code 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

import dolake
from dolake.errors import Conflict, InvalidInput
from dolake.server.app import build_runner
from dolake.server.forgetting import Forgets
from dolake.server.home import Home
from dolake.server.journal_copy import refuse_without_store
from dolake.server.lake import Lake
from dolake.server.tls import Certificate, certificate_of
from dolake.settings import ServerSettings, SettingsStore, SourceSettings

logger = logging.getLogger(__name__)


async def serve(
    home_path: Path,
    settings: SettingsStore,
    on_ready: Callable[[str], None] = lambda _url: None,
    *,
    followed: tuple[SourceSettings, ...] = (),
    say: Callable[[str], None] = lambda _text: None,
) -> None:
    """Run a server until it is told to stop; `say` gets what a person at its terminal wants to know of the sources."""
    refuse_without_store(settings.current)
    with Home(home_path) as home:
        lake = Lake(home, settings, followed=followed)
        lake.sources.say = say
        refuse_open_doors(settings.current.server.host, has_tokens=lake.doorkeeper.book.is_required)
        certificate = certificate_of(settings.current.server, home_path)
        runner = build_runner(lake)
        await runner.setup()
        try:
            url = await _listen(runner, settings.current.server, certificate)
            own_url = url if certificate is None else await _listen_for_own(runner, lake)
            stopping = _stop_on_signals(certificate)
            logger.info("server started", extra={"url": url, "home": str(home_path), "version": dolake.__version__})
            await _run(lake, Doors(url, own_url, certificate), stopping, on_ready)
        finally:
            await runner.cleanup()
        logger.info("server stopped")


def refuse_open_doors(host: str, *, has_tokens: bool) -> None:
    """Until tokens exist, whoever reaches the port may write: so only this machine may reach it."""
    if has_tokens:
        return
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    if host == "localhost":
        return
    raise InvalidInput(
        f"server.host {host!r} is not a loopback address",
        hint="this lake has no tokens, so anybody who reaches the port could write: make one with"
        " `dolake token create`, or use 127.0.0.1 or ::1",
    )


@dataclass(frozen=True, slots=True)
class Doors:
    """Where the server is reached: by others, and by its own processes."""

    url: str
    own_url: str
    certificate: Certificate | None

    def write_address(self, home: Home) -> None:
        home.write_address(self.url, dolake.__version__, self.certificate.sha256 if self.certificate else None)


async def _run(lake: Lake, doors: Doors, stopping: asyncio.Event, on_ready: Callable[[str], None]) -> None:
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
            tasks.create_task(lake.doorkeeper.watch(stopping))
            watching: list[asyncio.Task[None]] = []
            if lake.settings.current.pipeline.enabled:
                pipeline, forgets = lake.start_pipeline(doors.own_url), Forgets(lake)
                pipeline.on_forgotten = forgets.take
                tasks.create_task(pipeline.supervise())
                watching.append(tasks.create_task(forgets.run()))
            if copying := lake.start_journal_copy():
                tasks.create_task(copying.run())
            if lake.settings.current.query.enabled:
                tasks.create_task(lake.start_query().supervise())
                tasks.create_task((await lake.open_subscriptions()).feeds.run())
            if doors.certificate:
                watch = doors.certificate.watch(lambda: doors.write_address(lake.home))
                watching.append(tasks.create_task(watch))
            # What is imported stays: Python's collector need not walk it again and again, for 50 ms each time, while
            # whoever sends or asks waits.
            gc.collect()
            gc.freeze()
            doors.write_address(lake.home)
            on_ready(doors.url)
            tasks.create_task(lake.sources.run(doors.own_url))
            await stopping.wait()
            logger.info("server stopping", extra={"connections": lake.receiver.connection_count})
            for each in watching:
                each.cancel()
            await lake.close()
    finally:
        await lake.close()


async def _listen(runner: web.AppRunner, settings: ServerSettings, certificate: Certificate | None) -> str:
    host, port = settings.host, settings.port
    site = web.TCPSite(runner, host, port, backlog=1024, ssl_context=certificate.context if certificate else None)
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
    return f"http{'s' if certificate else ''}://{shown}:{address[1]}"


async def _listen_for_own(runner: web.AppRunner, lake: Lake) -> str:
    """Spark's Java would have to be taught to trust our certificate; on loopback there is nobody to hide from."""
    listening = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listening).start()
    lake.own_port = listening.getsockname()[1]
    return f"http://127.0.0.1:{lake.own_port}"


def _stop_on_signals(certificate: Certificate | None) -> asyncio.Event:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    if certificate:
        loop.add_signal_handler(signal.SIGHUP, certificate.wish.set)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping
