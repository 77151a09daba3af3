"""One HTTP request, from inside a test's event loop."""

from __future__ import annotations

from typing import Any, NamedTuple

import aiohttp
from yarl import URL


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any
    """Decoded where it is JSON, else text."""


async def ask(url: str, path: str, method: str = "GET", **options: Any) -> Answer:
    """The path is sent as it is written; the options are aiohttp's."""
    async with aiohttp.request(method, URL(url + path, encoded=True), **options) as answer:
        is_json = answer.content_type == "application/json"
        return Answer(answer.status, dict(answer.headers), await (answer.json() if is_json else answer.text()))
