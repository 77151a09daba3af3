"""What a setting is called: one table of every spelling, computed from the Structs of schema.py.

    key           journal.size_max_bytes        rate_limit.messages_per_second        lake.flush_threshold_events
    flat          journal_size_max_bytes        rate_limit_messages_per_second        flush_threshold_events
    bare          (seed settings only)          messages_per_second                   flush_threshold_events
    environment   DOLAKE_ and a flat or bare name in upper case
    wire          any of the above in camelCase: journalSizeMaxBytes, rateLimit.messagesPerSecond

To layers.py, which looks names up here. Promise: no spelling means two settings; an ambiguous bare name is no name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

import msgspec.inspect
from msgspec import NODEFAULT
from msgspec.structs import fields

from dolake.settings.schema import Settings
from dolake.suggestions import closest

PREFIX = "DOLAKE_"
NOT_SETTINGS = frozenset(
    {"DOLAKE_HOME", "DOLAKE_CONFIG", "DOLAKE_URL", "DOLAKE_TOKEN", "DOLAKE_CA_FILE", "DOLAKE_CACHE", "DOLAKE_CRASH_AT"}
)
"""Variables that start like ours and are read elsewhere, by the command line and the client."""
SEED_SECTIONS = ("lake", "rate_limit", "compaction")

_SECRET = re.compile(r"secret|token|password|passphrase|credential|key_id|access_key|private_key")
_PASSWORD = re.compile(r"(?<=://)([^/?#@\s:]*):[^\s]*@")
_PASSWORD_OPTION = re.compile(r"((?:ssl)?password=)[^&\s]*")


@dataclass(frozen=True, slots=True)
class Setting:
    """One option, and all that schema.py says about it."""

    section: str
    name: str
    type: Any
    shape: msgspec.inspect.Type
    default: Any
    description: str
    allowed: str
    needs_restart: bool
    is_in_effect: bool
    find_problem: Callable[[Any], str] | None

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def flat_name(self) -> str:
        """The name to show: settings of the lake go without a prefix, and nobody has to say `compaction_compaction`."""
        stands_alone = self.section == "lake" or self.name.startswith(f"{self.section}_")
        return self.name if stands_alone else f"{self.section}_{self.name}"

    @property
    def environment_name(self) -> str:
        return PREFIX + self.flat_name.upper()

    @property
    def is_secret(self) -> bool:
        return is_secret(self.name)

    def flat_names(self) -> set[str]:
        names = {f"{self.section}_{self.name}", self.flat_name}
        return names | {self.name} if self.section in SEED_SECTIONS else names

    def spellings(self) -> set[str]:
        sections = {self.section, camel(self.section)}
        dotted = {f"{section}.{name}" for section in sections for name in (self.name, camel(self.name))}
        return dotted | self.flat_names() | {camel(name) for name in self.flat_names()}


def camel(name: str) -> str:
    """`size_max_bytes` becomes `sizeMaxBytes`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def is_secret(name: str) -> bool:
    """Whether the value behind this name must not be shown. A name decides, so that nobody can forget to mark one."""
    return bool(_SECRET.search(name))


def without_passwords(text: str) -> str:
    """An address as it may be shown: `postgresql://ann:***@host/db`."""
    return _PASSWORD_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))


def closest_spelling(spelt: str) -> str:
    """The name that was probably meant, or an empty string."""
    # `port` is too short to look like `server_port`, but it can only mean that.
    same = [setting.key for setting in SETTINGS.values() if spelt in (setting.name, camel(setting.name))]
    return same[0] if same else closest(spelt, BY_SPELLING)


def closest_variable(name: str) -> str:
    """The same for the environment. The prefix is left out of the comparison, since it makes all of them look alike."""
    word = name.removeprefix(PREFIX)
    same = [setting.environment_name for setting in SETTINGS.values() if setting.name == word.lower()]
    known = {known.removeprefix(PREFIX) for known in (*BY_ENVIRONMENT_NAME, *NOT_SETTINGS)}
    found = closest(word, known)
    return same[0] if same else found and PREFIX + found


def describe_allowed(shape: msgspec.inspect.Type, declared: Any) -> str:
    """What a value may be, in words."""
    match shape:
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.LiteralType():
            return "one of " + ", ".join(get_args(declared))  # in the order of schema.py; `shape` has them sorted
        case msgspec.inspect.IntType(ge=int(low), le=int(high)):
            return f"a whole number from {low:_} to {high:_}"
        case msgspec.inspect.FloatType(gt=float(low), le=float(high)):
            return f"a number above {low:g}, at most {high:g}"
    raise TypeError(f"no words for {shape}: give the setting an `allowed` text")


def _settings() -> Iterator[Setting]:
    for section in fields(Settings):
        for field in fields(section.type):
            meta = msgspec.inspect.type_info(field.type)
            assert isinstance(meta, msgspec.inspect.Metadata)
            extra = meta.extra or {}
            yield Setting(
                section=section.name,
                name=field.name,
                type=field.type,
                shape=meta.type,
                default=field.default if field.default is not NODEFAULT else field.default_factory(),
                description=(meta.extra_json_schema or {})["description"],
                allowed=extra.get("allowed") or describe_allowed(meta.type, get_args(field.type)[0]),
                needs_restart="restart" in extra,
                is_in_effect="later" not in extra,
                find_problem=extra.get("check"),
            )


def _unambiguous(claims: Iterable[tuple[str, Setting]]) -> dict[str, Setting]:
    claimed: dict[str, list[Setting]] = {}
    for name, setting in claims:
        claimed.setdefault(name, []).append(setting)
    return {name: claimants[0] for name, claimants in claimed.items() if len(claimants) == 1}


SETTINGS: dict[str, Setting] = {setting.key: setting for setting in _settings()}
SECTIONS: dict[str, str] = {
    spelling: section.name for section in fields(Settings) for spelling in (section.name, camel(section.name))
}
BY_SPELLING = _unambiguous((name, setting) for setting in SETTINGS.values() for name in setting.spellings())
BY_ENVIRONMENT_NAME = _unambiguous(
    (PREFIX + name.upper(), setting) for setting in SETTINGS.values() for name in setting.flat_names()
)
