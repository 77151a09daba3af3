"""Settings that tests of several rooms start a server with."""

from __future__ import annotations

from typing import Any

from dolake.settings import SettingsStore
from tests.support.lake import settings_of


def limited(**limits: Any) -> SettingsStore:
    """No address is exempt from the limits. A name without a section is one of `rate_limit`."""
    named = {name if "__" in name else f"rate_limit__{name}": value for name, value in limits.items()}
    return settings_of(**{"rate_limit__whitelisted_ips": [], **named})
