"""Where values come from and which one wins: default < dolake.toml < changed at run time < DOLAKE_* < flag.

From a file, a mapping or the environment; to store.py, which keeps one dict of Given values per layer. Promise: a
Given value was checked alone when it was read, and build() checks the winners together. Whoever erred reads the name
as they wrote it, the value, what is allowed, and where it was written.
"""

from __future__ import annotations

import re
import reprlib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec
import msgspec.inspect

from dolake.errors import SettingsError
from dolake.settings.names import (
    BY_ENVIRONMENT_NAME,
    BY_SPELLING,
    NOT_SETTINGS,
    PREFIX,
    SECTIONS,
    SETTINGS,
    Setting,
    closest_spelling,
    closest_variable,
    without_passwords,
)
from dolake.settings.schema import ORDERS, Settings
from dolake.settings.sources import SECTION, SourceSettings, read_sources

CONFIG_FILE = "dolake.toml"
CHANGED_FILE = "settings-changed.json"
CHANGED_ORIGIN = "changed at run time"


class Layer(IntEnum):
    """Who speaks; the higher one wins. A patch stands on top only until it is accepted, to be blamed first."""

    DEFAULT = 0
    FILE = 1
    CHANGED = 2
    ENVIRONMENT = 3
    FLAG = 4
    PATCH = 5


@dataclass(frozen=True, slots=True)
class Given:
    """A value and who gave it. `spelt` is the name as its author wrote it; None as value takes a change back."""

    value: Any
    layer: Layer
    spelt: str
    origin: str
    place: str = ""

    @property
    def hint(self) -> str:
        return f"{self.origin}, kept in {self.place}" if self.place else self.origin


Values = dict[str, Given]
"""What one layer says, or what all of them say together, by key."""

DEFAULTS: Values = {key: Given(setting.default, Layer.DEFAULT, key, "default") for key, setting in SETTINGS.items()}


# --- reading one layer -----------------------------------------------------------------------------------------------


def read_file(path: Path) -> tuple[Values, tuple[SourceSettings, ...]]:
    """The settings of a dolake.toml, and the sources that it names."""
    mapping, origin = _read_toml(path), f"file {path}"
    sources = read_sources(mapping.pop(SECTION, []), path.absolute().parent, origin)
    return _read_mapping(mapping, Layer.FILE, origin), sources


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise SettingsError(f"{path} does not exist", hint="create it, or name another file") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
    return _parse_toml(path, data)


def read_changed(path: Path) -> Values:
    """What earlier runs of the server changed; no file means nothing."""
    hint = "repair it, or remove it to take all run-time changes back"
    try:
        mapping = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is damaged: {error}", hint=hint) from None
    return _read_mapping(mapping, Layer.CHANGED, CHANGED_ORIGIN, place=str(path))


def read_patch(patch: Mapping[str, Any]) -> Values:
    """What somebody wants changed. None stays in, as the wish to take a change back."""
    if not isinstance(patch, Mapping):
        raise SettingsError(f"a patch is an object of settings, not {_SHORT.repr(patch)}", hint="patch")
    return _read_mapping(patch, Layer.PATCH, "patch")


def read_flags(flags: Mapping[str, Any]) -> Values:
    """Flags of the command line. None is a flag that was not given; text is read as in the environment."""
    return _read_mapping({name: flag for name, flag in flags.items() if flag is not None}, Layer.FLAG, "flag")


def read_environment(environ: Mapping[str, str]) -> Values:
    """Every DOLAKE_* variable; one that is no setting is refused, since it is most likely a typo."""
    values: Values = {}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in NOT_SETTINGS:
            continue
        setting = BY_ENVIRONMENT_NAME.get(name)
        if setting is None:
            raise _unknown(name, closest_variable(name), "environment")
        value = parse_text(setting, environ[name])
        _add(values, setting, Given(value, Layer.ENVIRONMENT, name, f"environment {name}"))
    return values


def parse_text(setting: Setting, text: str) -> Any:
    """Read text by the type of its setting. What cannot be read stays text, and is refused as such."""
    word = text.strip()
    try:
        match setting.shape:
            case msgspec.inspect.IntType():
                return int(word)
            case msgspec.inspect.FloatType():
                return float(word)
            case msgspec.inspect.BoolType():
                return _BOOLEANS.get(word.lower(), text)
            case msgspec.inspect.DictType():
                return msgspec.json.decode(word)
            case msgspec.inspect.VarTupleType():
                return [part.strip() for part in text.split(",") if part.strip()]
    except ValueError:
        return text
    return text


_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _parse_toml(path: Path, data: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{path}, line {line}: invalid UTF-8", hint="save the file as UTF-8") from None
    except ValueError as error:  # tomllib raises its own kind, and a plain one for a number that is far too long
        problem, line = str(error), data.count(b"\n") + 1
        if found := re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", problem):
            problem, line = problem[: found.start()], int(found[1] or line)
        raise SettingsError(f"{path}, line {line}: {problem}", hint="not valid TOML") from None


def _read_mapping(mapping: Mapping[str, Any], layer: Layer, origin: str, place: str = "") -> Values:
    values: Values = {}
    for spelt, lookup, value in _leaves(mapping, origin):
        setting = BY_SPELLING.get(lookup)
        if setting is None:
            raise _unknown(spelt, closest_spelling(lookup), origin)
        if layer is Layer.FLAG and isinstance(value, str):
            value = parse_text(setting, value)
        _add(values, setting, Given(value, layer, spelt, origin, place))
    return values


def _leaves(mapping: Mapping[str, Any], origin: str) -> Iterator[tuple[str, str, Any]]:
    """Each value with its name as written and its name to look up."""
    for name, value in mapping.items():
        if name not in SECTIONS:
            yield name, name, value
        elif isinstance(value, Mapping):
            for inner, inner_value in value.items():
                yield f"{name}.{inner}", f"{SECTIONS[name]}.{inner}", inner_value
        else:
            raise SettingsError(f"{name} = {_SHORT.repr(value)}: expected a section with settings in it", hint=origin)


def _add(values: Values, setting: Setting, given: Given) -> None:
    if other := values.get(setting.key):
        raise SettingsError(
            f"{given.spelt} and {other.spelt} are the same setting, {setting.key}", hint=f"keep one; {given.hint}"
        )
    takes_back = given.value is None and given.layer is Layer.PATCH
    values[setting.key] = given if takes_back else replace(given, value=_checked(setting, given))


def _checked(setting: Setting, given: Given) -> Any:
    try:
        value = msgspec.convert(given.value, setting.type)
    except msgspec.ValidationError:
        problem = f"expected {setting.allowed}"
    else:
        problem = setting.find_problem(value) if setting.find_problem else ""
        if not problem:
            return value
        problem += f"; expected {setting.allowed}"
    raise SettingsError(f"{given.spelt} = {_shown(setting, given.value)}: {problem}", hint=given.hint)


def _unknown(spelt: str, meant: str, origin: str) -> SettingsError:
    return SettingsError(f"{spelt} is not a setting", hint=f"did you mean {meant}? {origin}" if meant else origin)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def _shown(setting: Setting, value: Any) -> str:
    if setting.is_secret:
        return "***"
    return _SHORT.repr(without_passwords(value) if isinstance(value, str) else value)


# --- all layers together ---------------------------------------------------------------------------------------------


def merge(*layers: Values) -> Values:
    """Who wins for each setting: defaults below, then the layers in the order given."""
    winners = dict(DEFAULTS)
    for layer in layers:
        winners.update(layer)
    return winners


def build(winners: Values, *, note: str = "") -> Settings:
    """Check the winners against each other and make them one object. `note` goes into the hint of a refusal."""
    for order in ORDERS:
        small, large = winners[order.smaller], winners[order.larger]
        if not order.holds(small.value, large.value):
            blamed = max(small, large, key=lambda given: given.layer)
            raise SettingsError(
                f"{blamed.spelt} = {blamed.value}: {order} (which are {small.value} and {large.value})",
                hint="; ".join(filter(None, (blamed.hint, note))),
            )
    sections: dict[str, dict[str, Any]] = {}
    for key, setting in SETTINGS.items():
        sections.setdefault(setting.section, {})[setting.name] = winners[key].value
    return msgspec.convert(sections, Settings)
