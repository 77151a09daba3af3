"""The settings of a running server: what is in effect, where each value came from, and how to change one.

From cli, which calls load_settings() once, and from PATCH /v1/config, which calls change(); to every part that
registered with on_change(). Promise: a change is checked as a whole before any of it counts, is on disk before it is
in effect, and a setting that needs a restart keeps its value in `current` until there is one.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import fields

from dolake.errors import OutcomeUnknown, Unavailable
from dolake.settings.layers import (
    CHANGED_FILE,
    CHANGED_ORIGIN,
    CONFIG_FILE,
    Given,
    Layer,
    Values,
    build,
    merge,
    read_changed,
    read_environment,
    read_file,
    read_flags,
    read_patch,
)
from dolake.settings.names import SETTINGS, camel, is_secret, without_passwords
from dolake.settings.schema import Settings
from dolake.settings.sources import SourceSettings

logger = logging.getLogger(__name__)

Listener = Callable[[Settings], None]


class Origin(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A value in effect and who set it. `after_restart` is the value that waits for a restart, if one does."""

    value: Any
    origin: str
    needs_restart: bool = False
    after_restart: Any = None


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """What became of a patch, by key; each key is in exactly one of the three."""

    applied: tuple[str, ...]
    needs_restart: tuple[str, ...]
    overruled: dict[str, str]


@dataclass(frozen=True, slots=True)
class _State:
    """All that changes in a store, in one object, so that a reader in another thread never sees half a change."""

    changed: Values
    running: Values
    after_restart: Values
    settings: Settings


def load_settings(
    *,
    home: Path | None,
    config_file: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, Any],
) -> SettingsStore:
    """Read every layer. Without `config_file` this is home/dolake.toml where it exists; a file that is named must."""
    if config_file is None and home is not None and (home / CONFIG_FILE).exists():
        config_file = home / CONFIG_FILE
    values, sources = read_file(config_file) if config_file else ({}, ())
    return SettingsStore(
        file=values,
        sources=sources,
        changed_file=home / CHANGED_FILE if home else None,
        environment=read_environment(environ),
        flags=read_flags(flags),
    )


class SettingsStore:
    """Read `current` from anywhere; call change() from a worker thread, because it waits for the disk.

    Without `changed_file` run-time changes last as long as the store.
    """

    def __init__(
        self,
        *,
        file: Values,
        changed_file: Path | None,
        environment: Values,
        flags: Values,
        sources: tuple[SourceSettings, ...] = (),
    ) -> None:
        self._file = file
        self.sources = sources
        """Those of the file; others are added while the server runs."""
        self._changed_file = changed_file
        self._overrules = {**environment, **flags}
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()
        changed = read_changed(changed_file) if changed_file else {}
        winners = merge(file, changed, self._overrules)
        self._state = _State(changed, running=winners, after_restart=winners, settings=build(winners))

    @property
    def current(self) -> Settings:
        """The settings in effect now."""
        return self._state.settings

    def origins(self) -> dict[str, Origin]:
        """Each setting by key: its value, who set it, and what a restart would make of it."""
        state = self._state
        return {key: _origin(key, state.running[key], state.after_restart[key]) for key in SETTINGS}

    def on_change(self, listener: Listener) -> None:
        """Call `listener` with the new settings after each change, in the thread of change(), which waits for it.

        A listener that touches the event loop hops there by itself, and none may call change().
        """
        self._listeners.append(listener)

    def change(self, patch: Mapping[str, Any]) -> SettingsChange:
        """Check all of the patch, keep it, put it into effect, tell the listeners. None takes a change back.

        Raises SettingsError when any part is refused and Unavailable when it cannot be saved; then nothing changed.
        OutcomeUnknown: not in effect, but perhaps after a restart.
        """
        wishes = read_patch(patch)
        with self._lock:
            wishes = {key: _joined(given, self._state.after_restart[key]) for key, given in wishes.items()}
            state = self._changed_by(wishes)
            if self._changed_file:
                _save(self._changed_file, state.changed)
            self._state = state
            change = _report(wishes, state)
            logger.info("settings changed", extra={"applied": change.applied, "needs_restart": change.needs_restart})
            self._tell_listeners(state.settings)
        return change

    def _changed_by(self, wishes: Values) -> _State:
        """The state with the wishes in it, if it is possible in every situation that can follow from it."""
        old = self._state
        changed = {key: given for key, given in {**old.changed, **wishes}.items() if given.value is not None}
        after_restart = merge(self._file, changed, self._overrules)
        build(after_restart)
        # A wish that is overruled today counts once the variable or flag is gone, and must not stop that start.
        hidden = {
            key: given for key, given in self._overrules.items() if key in wishes and wishes[key].value is not None
        }
        visible = {key: given for key, given in self._overrules.items() if key not in hidden}
        without = ", ".join(given.origin for given in hidden.values())
        build(merge(self._file, changed, visible), note=without and f"as it would be without {without}")
        running = {
            key: old.running[key] if _waits(key, old.running[key], given) else given
            for key, given in after_restart.items()
        }
        waiting = ", ".join(key for key, given in after_restart.items() if given is not running[key])
        settings = build(running, note=waiting and f"waits for a restart: {waiting}")
        return _State(_accepted(changed), _accepted(running), _accepted(after_restart), settings)

    def _tell_listeners(self, settings: Settings) -> None:
        for listener in self._listeners:
            try:
                listener(settings)
            except Exception:
                # The change is saved and in effect; the other listeners must hear of it whatever this one does.
                logger.exception("settings listener failed")


def to_public(settings: msgspec.Struct) -> dict[str, Any]:
    """Settings to show: camelCase, laid out as PATCH /v1/config takes them, secrets as ***."""
    shown: dict[str, Any] = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, msgspec.Struct):
            section = to_public(value)
            shown.update(section if field.name == "lake" else {camel(field.name): section})
        else:
            shown[camel(field.name)] = _public_value(field.name, value)
    return shown


def _public_value(name: str, value: Any) -> Any:
    if is_secret(name) and value:
        return "***"
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, str):
        return without_passwords(value)
    return msgspec.to_builtins(value) if isinstance(value, dict) else value


def _joined(wish: Given, now: Given) -> Given:
    """What is said of one table leaves the others as they are."""
    return replace(wish, value={**now.value, **wish.value}) if isinstance(wish.value, dict) else wish


def _waits(key: str, running: Given, wanted: Given) -> bool:
    return SETTINGS[key].needs_restart and running.value != wanted.value


def _origin(key: str, running: Given, after_restart: Given) -> Origin:
    name = SETTINGS[key].name
    return Origin(
        value=_public_value(name, running.value),
        origin=running.origin,
        needs_restart=SETTINGS[key].needs_restart,
        after_restart=None if running.value == after_restart.value else _public_value(name, after_restart.value),
    )


def _accepted(values: Values) -> Values:
    """From here on a wish is a change like any other."""
    return {
        key: replace(given, layer=Layer.CHANGED, origin=CHANGED_ORIGIN, spelt=key)
        if given.layer is Layer.PATCH
        else given
        for key, given in values.items()
    }


def _report(wishes: Values, state: _State) -> SettingsChange:
    winners = {key: state.after_restart[key] for key in wishes}
    overruled = {key: given.origin for key, given in winners.items() if given.layer > Layer.CHANGED}
    waiting = {key for key, given in winners.items() if _waits(key, state.running[key], given)} - overruled.keys()
    applied = wishes.keys() - overruled.keys() - waiting
    return SettingsChange(tuple(sorted(applied)), tuple(sorted(waiting)), overruled)


def _save(path: Path, changed: Values) -> None:
    """Replace the file as a whole: after a crash it is either the old one or the new one."""
    content = msgspec.json.format(msgspec.json.encode({key: changed[key].value for key in sorted(changed)}))
    draft = path.with_name(path.name + ".tmp")
    try:
        # Readable by the owner alone, because a password may be among the settings.
        with open(draft, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(content + b"\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror}", hint="nothing was changed") from error
    try:
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        hint = "not in effect now, but perhaps after a restart; send the change again"
        raise OutcomeUnknown(f"{path} was written, but may not survive a crash: {error.strerror}", hint=hint) from error
