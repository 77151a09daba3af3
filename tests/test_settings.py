"""What a user may write into settings, what wins, what is refused and how, and what happens to a change at run time."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dolake.errors import OutcomeUnknown, SettingsError, Unavailable
from dolake.settings import (
    DEFAULT_COMPACTION_CONFIG,
    DEFAULT_DOLAKE_CONFIG,
    DEFAULT_RATE_LIMIT_CONFIG,
    ORDERS,
    SETTINGS,
    Setting,
    Settings,
    SettingsStore,
    load_settings,
    to_public,
)
from dolake.settings.names import BY_ENVIRONMENT_NAME, BY_SPELLING

KIB, MIB = 1024, 1024**2


def load(
    home: Path | None = None,
    toml: str | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> SettingsStore:
    if toml is not None:
        assert home is not None
        (home / "dolake.toml").write_text(toml)
    return load_settings(home=home, config_file=None, environ=environ or {}, flags=flags or {})


def refusal(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        load(*args, **kwargs)
    return str(caught.value)


def refused_patch(store: SettingsStore, patch: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        store.change(patch)
    return str(caught.value)


# --- defaults --------------------------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_seeds() -> None:
    ours = {
        *("freshness_target_ms", "key_scope", "transaction_wait_max_ms", "transaction_bytes_max"),
        *("infer_timestamps", "columns_max", "struct_fields_max", "rebuild_rows_max", "partition_by"),
        *("archive_after_days", "include_tables", "exclude_tables", "mask_secret", "tables"),
    }
    assert {key: value for key, value in msgspec.to_builtins(DEFAULT_DOLAKE_CONFIG).items() if key not in ours} == {
        "r2_bucket_name": "lakehouse-data",
        "r2_base_path": "warehouse",
        "flush_threshold_events": 10000,
        "flush_threshold_bytes": 33554432,
        "flush_threshold_ms": 60000,
        "flush_interval_ms": 30000,
        "max_buffer_size": 134217728,
        "enable_fallback": True,
        "max_fallback_size": 67108864,
        "enable_deduplication": True,
        "deduplication_window_ms": 300000,
        "parquet_row_group_size": 100000,
        "parquet_compression": "snappy",
    }
    assert msgspec.to_builtins(DEFAULT_COMPACTION_CONFIG) == {
        "min_files_to_compact": 5,
        "max_files_to_compact": 100,
        "target_file_size_bytes": 128 * MIB,
        "auto_compact": True,
        "compaction_interval_ms": 3600000,
    }
    limits = msgspec.to_builtins(DEFAULT_RATE_LIMIT_CONFIG)
    for name in ("http_requests_per_second", "load_shedding_lag_ms"):  # ours
        del limits[name]
    assert {"127.0.0.0/8", "10.0.0.0/8", "::1/128"} <= set(limits.pop("whitelisted_ips"))
    assert limits == {
        "connections_per_second": 20,
        "messages_per_second": 100,
        "burst_capacity": 50,
        "refill_rate": 10,
        "max_payload_size": 4194304,
        "max_event_size": 1048576,
        "max_connections_per_source": 5,
        "max_connections_per_ip": 30,
        "subnet_rate_limit_threshold": 100,
        "backpressure_threshold": 0.8,
        "base_retry_delay_ms": 100,
        "max_retry_delay_ms": 30000,
    }


def test_with_nothing_given_everything_is_default() -> None:
    store = load()
    assert store.current == Settings()
    assert {origin.origin for origin in store.origins().values()} == {"default"}


def test_every_default_passes_its_own_check() -> None:
    flags = {key: setting.default for key, setting in SETTINGS.items()}
    assert load(flags=flags).current == Settings()


# --- names -----------------------------------------------------------------------------------------------------------


def test_every_setting_can_be_named_by_its_key_its_flat_name_and_in_the_environment() -> None:
    for key, setting in SETTINGS.items():
        assert BY_SPELLING[key] is BY_SPELLING[setting.flat_name] is setting
        assert BY_ENVIRONMENT_NAME[setting.environment_name] is setting


def test_a_file_may_use_sections_flat_names_and_bare_names(tmp_path: Path) -> None:
    store = load(
        tmp_path,
        """
        flush_threshold_events = 7
        journal_size_max_bytes = 1_073_741_824
        messages_per_second = 5
        [rate_limit]
        burst_capacity = 6
        [server]
        port = 0
        """,
    )
    assert store.current.lake.flush_threshold_events == 7
    assert store.current.journal.size_max_bytes == 1_073_741_824
    assert store.current.rate_limit.messages_per_second == 5
    assert store.current.rate_limit.burst_capacity == 6
    assert store.current.server.port == 0


@pytest.mark.parametrize(
    ("name", "text", "key", "value"),
    [
        ("DOLAKE_JOURNAL_SIZE_MAX_BYTES", "1_000_000_000", "journal.size_max_bytes", 1_000_000_000),
        ("DOLAKE_FLUSH_THRESHOLD_EVENTS", " 3 ", "lake.flush_threshold_events", 3),
        ("DOLAKE_RATE_LIMIT_MESSAGES_PER_SECOND", "5", "rate_limit.messages_per_second", 5),
        ("DOLAKE_MESSAGES_PER_SECOND", "5", "rate_limit.messages_per_second", 5),
        ("DOLAKE_COMPACTION_INTERVAL_MS", "5", "compaction.compaction_interval_ms", 5),
        ("DOLAKE_BACKPRESSURE_THRESHOLD", "0.5", "rate_limit.backpressure_threshold", 0.5),
        ("DOLAKE_BACKPRESSURE_THRESHOLD", "1", "rate_limit.backpressure_threshold", 1.0),
        ("DOLAKE_ENABLE_DEDUPLICATION", "no", "lake.enable_deduplication", False),
        ("DOLAKE_ENABLE_DEDUPLICATION", "0", "lake.enable_deduplication", False),
        ("DOLAKE_AUTO_COMPACT", "TRUE", "compaction.auto_compact", True),
        ("DOLAKE_PARQUET_COMPRESSION", "zstd", "lake.parquet_compression", "zstd"),
        ("DOLAKE_WHITELISTED_IPS", "10.0.0.0/8, ::1", "rate_limit.whitelisted_ips", ["10.0.0.0/8", "::1"]),
        ("DOLAKE_WHITELISTED_IPS", "", "rate_limit.whitelisted_ips", []),
        ("DOLAKE_SERVER_BASE_PATH", "", "server.base_path", ""),
    ],
)
def test_a_variable_is_read_by_the_type_of_its_setting(name: str, text: str, key: str, value: Any) -> None:
    found = load(environ={name: text}).origins()[key]
    assert (found.value, found.origin) == (value, f"environment {name}")


def test_variables_that_are_no_settings_are_left_alone() -> None:
    names = ("DOLAKE_HOME", "DOLAKE_CONFIG", "DOLAKE_URL", "DOLAKE_TOKEN", "DOLAKE_CACHE", "PATH", "DOLAKES")
    assert load(environ=dict.fromkeys(names, "x")).current == Settings()


@pytest.mark.parametrize(
    "patch",
    [
        {"rateLimit": {"messagesPerSecond": 5}, "journalSizeMaxBytes": 10**9},
        {"rate_limit": {"messages_per_second": 5}, "journal_size_max_bytes": 10**9},
        {"messagesPerSecond": 5, "journal.size_max_bytes": 10**9},
        {"rateLimitMessagesPerSecond": 5, "journal": {"sizeMaxBytes": 10**9}},
    ],
)
def test_a_patch_may_use_camel_case_or_snake_case_flat_or_in_sections(patch: dict[str, Any]) -> None:
    store = load()
    assert store.change(patch).applied == ("journal.size_max_bytes", "rate_limit.messages_per_second")
    assert store.current.rate_limit.messages_per_second == 5
    assert store.current.journal.size_max_bytes == 10**9


def test_a_flag_that_was_not_given_counts_for_nothing() -> None:
    assert load(flags={"server.port": None, "server.host": "::1"}).current.server.host == "::1"


def test_a_flag_may_be_text() -> None:
    assert load(flags={"server_port": "0"}).current.server.port == 0


def test_one_setting_under_two_names_in_one_layer_is_refused(tmp_path: Path) -> None:
    text = refusal(tmp_path, "journal_size_max_bytes = 1_000_000_000\n[journal]\nsize_max_bytes = 1_000_000_000")
    assert "journal.size_max_bytes and journal_size_max_bytes are the same setting" in text
    both = {"DOLAKE_MESSAGES_PER_SECOND": "1", "DOLAKE_RATE_LIMIT_MESSAGES_PER_SECOND": "1"}
    assert "are the same setting, rate_limit.messages_per_second" in refusal(environ=both)
    assert "are the same setting" in refused_patch(load(), {"maxBufferSize": 10**6, "max_buffer_size": 10**6})


# --- layers ----------------------------------------------------------------------------------------------------------


def test_each_layer_wins_over_the_ones_below_and_says_so(tmp_path: Path) -> None:
    load(tmp_path).change({"burstCapacity": 3, "refillRate": 3, "messagesPerSecond": 3})
    store = load(
        tmp_path,
        "[rate_limit]\nconnections_per_second = 2\nburst_capacity = 2\nrefill_rate = 2\nmessages_per_second = 2",
        environ={"DOLAKE_REFILL_RATE": "4", "DOLAKE_MESSAGES_PER_SECOND": "4"},
        flags={"messages_per_second": 5},
    )
    found = {key: (origin.value, origin.origin) for key, origin in store.origins().items()}
    assert found["rate_limit.max_connections_per_ip"] == (30, "default")
    assert found["rate_limit.connections_per_second"] == (2, f"file {tmp_path / 'dolake.toml'}")
    assert found["rate_limit.burst_capacity"] == (3, "changed at run time")
    assert found["rate_limit.refill_rate"] == (4, "environment DOLAKE_REFILL_RATE")
    assert found["rate_limit.messages_per_second"] == (5, "flag")


def test_a_named_file_is_read_instead_of_the_one_at_home(tmp_path: Path) -> None:
    (tmp_path / "dolake.toml").write_text("messages_per_second = 1")
    (tmp_path / "other.toml").write_text("messages_per_second = 2")
    store = load_settings(home=tmp_path, config_file=tmp_path / "other.toml", environ={}, flags={})
    assert store.current.rate_limit.messages_per_second == 2


def is_free(setting: Setting) -> bool:
    """Whether any value in its bounds is valid whatever the other settings are, and is shown as it was given."""
    if setting.is_secret or isinstance(setting.shape, msgspec.inspect.DictType):
        return False
    return not any(setting.key in (order.smaller, order.larger) for order in ORDERS)


def values_of(setting: Setting) -> st.SearchStrategy[Any]:
    match setting.shape:
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case msgspec.inspect.IntType(ge=low, le=high):
            return st.integers(low, high)
        case msgspec.inspect.FloatType(le=high):
            return st.floats(0.001, high)
        case msgspec.inspect.VarTupleType() if setting.name == "cors_origins":
            return st.lists(st.ip_addresses(v=4).map(lambda host: f"https://{host}:8787"), max_size=3)
        case msgspec.inspect.VarTupleType():
            return st.lists(st.ip_addresses().map(str), max_size=3)
        case _ if setting.key == "catalog.store":
            return st.sampled_from([setting.default, "postgresql://ann@db/lake"])
    if setting.key in ("storage.location", "storage.endpoint", "storage.vending_endpoint"):
        return st.sampled_from(["", "s3://b/p" if setting.name == "location" else "http://127.0.0.1:9000"])
    return st.sampled_from([setting.default, setting.default + "2"])


FREE = [setting for setting in SETTINGS.values() if is_free(setting)]
ASSIGNMENTS = st.lists(st.sampled_from(FREE), unique_by=lambda setting: setting.key).flatmap(
    lambda chosen: st.fixed_dictionaries({setting.key: values_of(setting) for setting in chosen})
)


def as_text(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)


@given(file=ASSIGNMENTS, changed=ASSIGNMENTS, environment=ASSIGNMENTS, flags=ASSIGNMENTS)
def test_the_highest_layer_that_speaks_always_wins(
    file: dict[str, Any], changed: dict[str, Any], environment: dict[str, Any], flags: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        toml = "\n".join(f"{SETTINGS[key].flat_name} = {json.dumps(value)}" for key, value in file.items())
        load(home, toml).change(changed)
        environ = {SETTINGS[key].environment_name: as_text(value) for key, value in environment.items()}
        store = load(home, environ=environ, flags=flags)

    defaults = {key: setting.default for key, setting in SETTINGS.items()}
    expected = {**defaults, **file, **changed, **environment, **flags}
    for key, found in store.origins().items():
        wanted = expected[key]
        assert found.value == (list(wanted) if isinstance(wanted, tuple) else wanted)
        assert (found.origin == "flag") == (key in flags)
        assert (found.origin == "changed at run time") == (key in changed.keys() - environment.keys() - flags.keys())


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("toml", "parts"),
    [
        (
            "flush_treshold_events = 1",
            ["flush_treshold_events is not a setting", "did you mean flush_threshold_events?"],
        ),
        ("[rate_limit]\nmesages_per_second = 1", ["rate_limit.mesages_per_second", "rate_limit.messages_per_second?"]),
        ("[rate_limits]\nburst_capacity = 1", ["rate_limits is not a setting"]),
        ("port = 1", ["port is not a setting", "did you mean server.port?"]),
        ("max_payload_size = '4MB'", ["max_payload_size = '4MB'", "a whole number from 1 to 1_073_741_824"]),
        ("max_payload_size = true", ["max_payload_size = True", "a whole number"]),
        ("max_payload_size = 1.5", ["max_payload_size = 1.5", "a whole number"]),
        ("flush_threshold_ms = 0", ["flush_threshold_ms = 0", "from 1 to"]),
        ("enable_fallback = 1", ["enable_fallback = 1", "true or false"]),
        ("parquet_compression = 'lz4'", ["parquet_compression = 'lz4'", "one of none, snappy, gzip, zstd"]),
        ("backpressure_threshold = 0", ["backpressure_threshold = 0", "above 0, at most 1"]),
        ("backpressure_threshold = nan", ["backpressure_threshold = nan", "above 0, at most 1"]),
        ("server.port = 65536", ["server.port = 65536", "from 0 to 65_535"]),
        ("server.base_path = '/lake/'", ["server.base_path = '/lake/'", "none at the end"]),
        ("server.base_path = 'lake'", ["server.base_path = 'lake'", "a slash in front"]),
        ('server.base_path = "/lake\\n"', ["server.base_path = '/lake\\n'"]),
        ("r2_base_path = '../x'", ["r2_base_path = '../x'"]),
        ("whitelisted_ips = ['10.0.0.1/8']", ["10.0.0.1/8 has host bits set", "a list of IP networks"]),
        ("whitelisted_ips = ['home']", ["'home'", "a list of IP networks"]),
        ("whitelisted_ips = '10.0.0.0/8'", ["whitelisted_ips = '10.0.0.0/8'", "a list of IP networks"]),
        ("server = 5", ["server = 5", "a section"]),
    ],
)
def test_a_bad_line_in_a_file_is_refused_with_key_value_and_what_is_allowed(
    tmp_path: Path, toml: str, parts: list[str]
) -> None:
    text = refusal(tmp_path, toml)
    for part in [*parts, f"file {tmp_path / 'dolake.toml'}"]:
        assert part in text


@pytest.mark.parametrize(
    ("environ", "parts"),
    [
        ({"DOLAKE_JOURNAL_SIZE_MAX": "1"}, ["not a setting", "did you mean DOLAKE_JOURNAL_SIZE_MAX_BYTES?"]),
        ({"DOLAKE_PORT": "1"}, ["DOLAKE_PORT is not a setting", "did you mean DOLAKE_SERVER_PORT?"]),
        ({"DOLAKE_SERVER_PORT": ""}, ["DOLAKE_SERVER_PORT = ''", "a whole number"]),
        ({"DOLAKE_AUTO_COMPACT": "maybe"}, ["DOLAKE_AUTO_COMPACT = 'maybe'", "true or false"]),
        ({"DOLAKE_SERVER_PORT": "x" * 500}, ["...", "environment DOLAKE_SERVER_PORT"]),
    ],
)
def test_a_bad_variable_is_refused_by_its_name(environ: dict[str, str], parts: list[str]) -> None:
    text = refusal(environ=environ)
    assert len(text) < 250
    for part in parts:
        assert part in text


def test_a_bad_flag_is_refused_as_a_flag() -> None:
    assert refusal(flags={"server.port": -1}) == "server.port = -1: expected a whole number from 0 to 65_535 (flag)"


@pytest.mark.parametrize(
    ("toml", "blamed"),
    [
        ("[rate_limit]\nbase_retry_delay_ms = 30_001", "rate_limit.base_retry_delay_ms = 30001"),
        ("[rate_limit]\nmax_retry_delay_ms = 99", "rate_limit.max_retry_delay_ms = 99"),
        ("[rate_limit]\nmax_payload_size = 16_777_216", "rate_limit.max_payload_size = 16777216"),
        ("[server]\nmessage_size_max_bytes = 4_194_304", "server.message_size_max_bytes = 4194304"),
        ("[rate_limit]\nmax_event_size = 4_194_305", "rate_limit.max_event_size = 4194305"),
        ("[journal]\nsize_max_bytes = 134_217_727", "journal.size_max_bytes = 134217727"),
        ("[journal]\ngroup_size_max_bytes = 67_108_865", "journal.group_size_max_bytes = 67108865"),
        ("[compaction]\nmin_files_to_compact = 101", "compaction.min_files_to_compact = 101"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_at_the_one_that_was_given(
    tmp_path: Path, toml: str, blamed: str
) -> None:
    text = refusal(tmp_path, toml)
    assert text.startswith(f"{blamed}: ")
    assert "must be" in text
    assert "dolake.toml" in text


def test_a_journal_can_be_small_enough_for_a_test() -> None:
    small = {"segment_size_bytes": 64 * KIB, "size_max_bytes": 128 * KIB, "group_size_max_bytes": 64 * KIB}
    assert load(flags={"journal": small}).current.journal.size_max_bytes == 128 * KIB


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"a = 1\nb = = 2\n", 2), (b"\n\nx = '''never closed\n", 4), (b"a = 1\n# \xff\n", 2), (b"a = " + b"9" * 5000, 1)],
)
def test_a_file_that_is_no_toml_is_refused_with_its_line(tmp_path: Path, content: bytes, line: int) -> None:
    (tmp_path / "dolake.toml").write_bytes(content)
    assert refusal(tmp_path).startswith(f"{tmp_path / 'dolake.toml'}, line {line}: ")


def test_a_named_file_must_exist_and_be_readable(tmp_path: Path) -> None:
    for path, problem in ((tmp_path / "none.toml", "does not exist"), (tmp_path, "cannot be read")):
        with pytest.raises(SettingsError, match=problem):
            load_settings(home=None, config_file=path, environ={}, flags={})


# --- changes at run time ---------------------------------------------------------------------------------------------


def test_a_change_survives_a_restart(tmp_path: Path) -> None:
    load(tmp_path).change({"flushThresholdEvents": 5, "whitelistedIps": ["::1"]})
    store = load(tmp_path)
    assert store.current.lake.flush_threshold_events == 5
    assert store.current.rate_limit.whitelisted_ips == ("::1",)
    assert store.origins()["lake.flush_threshold_events"].origin == "changed at run time"


def test_null_takes_a_change_back(tmp_path: Path) -> None:
    store = load(tmp_path, "flush_threshold_events = 2")
    store.change({"flushThresholdEvents": 5})
    assert store.change({"flushThresholdEvents": None}).applied == ("lake.flush_threshold_events",)
    for found in (store, load(tmp_path)):
        assert found.current.lake.flush_threshold_events == 2
        assert found.origins()["lake.flush_threshold_events"].origin.startswith("file ")


def test_a_patch_with_one_bad_value_changes_nothing(tmp_path: Path) -> None:
    store = load(tmp_path)
    heard: list[Settings] = []
    store.on_change(heard.append)
    for bad in ({"flushThresholdMs": -1}, {"flushThresholdMS": 1}, {"maxEventSize": 5 * MIB}, {"rateLimit": None}):
        assert "patch" in refused_patch(store, {"flushThresholdEvents": 5, **bad})
    assert store.current == Settings()
    assert heard == []
    assert not (tmp_path / "settings-changed.json").exists()


def test_a_patch_that_is_no_object_is_refused() -> None:
    assert "an object of settings" in refused_patch(load(), [1])


def test_settings_that_bound_each_other_can_be_changed_together() -> None:
    store = load()
    refused_patch(store, {"maxEventSize": 5 * MIB})
    store.change({"maxEventSize": 5 * MIB, "maxPayloadSize": 6 * MIB})
    assert store.current.rate_limit.max_event_size == 5 * MIB


def test_a_setting_that_needs_a_restart_keeps_its_value_until_then(tmp_path: Path) -> None:
    store = load(tmp_path)
    change = store.change({"server": {"port": 9000}, "burstCapacity": 9})
    assert (change.applied, change.needs_restart) == (("rate_limit.burst_capacity",), ("server.port",))
    assert store.current.server.port == 8787
    port = store.origins()["server.port"]
    assert (port.value, port.origin, port.after_restart) == (8787, "default", 9000)
    assert load(tmp_path).current.server.port == 9000

    assert store.change({"serverPort": None}).applied == ("server.port",)
    assert store.origins()["server.port"].after_restart is None


def test_a_limit_cannot_rise_above_one_that_waits_for_a_restart(tmp_path: Path) -> None:
    store = load(tmp_path)
    text = refused_patch(store, {"serverMessageSizeMaxBytes": 32 * MIB, "maxPayloadSize": 20 * MIB})
    assert "maxPayloadSize = 20971520" in text
    assert "waits for a restart: server.message_size_max_bytes" in text
    store.change({"serverMessageSizeMaxBytes": 32 * MIB})
    assert load(tmp_path).change({"maxPayloadSize": 20 * MIB}).applied == ("rate_limit.max_payload_size",)


def test_a_change_that_is_overruled_is_kept_and_says_by_whom(tmp_path: Path) -> None:
    store = load(tmp_path, environ={"DOLAKE_BURST_CAPACITY": "4"}, flags={"server.port": 1})
    change = store.change({"burstCapacity": 9, "server.port": 2, "refillRate": 9})
    assert change.applied == ("rate_limit.refill_rate",)
    assert change.needs_restart == ()
    assert change.overruled == {
        "rate_limit.burst_capacity": "environment DOLAKE_BURST_CAPACITY",
        "server.port": "flag",
    }
    assert store.current.rate_limit.burst_capacity == 4
    assert load(tmp_path).current.rate_limit.burst_capacity == 9


def test_an_overruled_change_must_be_possible_once_nothing_overrules_it(tmp_path: Path) -> None:
    store = load(tmp_path, environ={"DOLAKE_MAX_EVENT_SIZE": "1000"})
    text = refused_patch(store, {"maxEventSize": 5 * MIB})
    assert "as it would be without environment DOLAKE_MAX_EVENT_SIZE" in text
    assert load(tmp_path).current == Settings()


def test_a_change_that_no_longer_fits_the_file_says_where_it_is_kept(tmp_path: Path) -> None:
    load(tmp_path).change({"maxEventSize": 2 * MIB})
    text = refusal(tmp_path, "max_payload_size = 1_048_576")
    assert "rate_limit.max_event_size = 2097152" in text
    assert f"changed at run time, kept in {tmp_path / 'settings-changed.json'}" in text


def test_a_damaged_file_of_changes_stops_the_start_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "settings-changed.json").write_text('{"lake.flush')
    assert "remove it to take all run-time changes back" in refusal(tmp_path)


def test_without_a_home_changes_last_as_long_as_the_store() -> None:
    store = load()
    store.change({"burstCapacity": 9})
    assert store.current.rate_limit.burst_capacity == 9


def test_listeners_hear_the_new_settings_even_after_one_of_them_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = load(tmp_path)
    heard: list[Settings] = []

    def fail(_: Settings) -> None:
        raise RuntimeError("deaf")

    store.on_change(fail)
    store.on_change(heard.append)
    store.change({"burstCapacity": 9})
    assert heard == [store.current]
    assert "settings listener failed" in caplog.text


def test_a_change_that_cannot_be_saved_is_not_in_effect(tmp_path: Path) -> None:
    store = load(tmp_path / "gone")
    with pytest.raises(Unavailable, match="nothing was changed"):
        store.change({"burstCapacity": 9})
    assert store.current == Settings()


def test_a_rename_that_may_not_survive_a_crash_is_not_called_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = load(tmp_path)
    real_fsync, syncs = os.fsync, []

    def fail_on_directory(descriptor: int) -> None:
        syncs.append(descriptor)
        if len(syncs) == 2:
            raise OSError(5, "Input/output error")
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_on_directory)
    with pytest.raises(OutcomeUnknown, match="send the change again"):
        store.change({"burstCapacity": 9})
    assert store.current == Settings()
    store.change({"burstCapacity": 9})
    assert load(tmp_path).current.rate_limit.burst_capacity == 9


def test_changes_from_many_threads_all_count(tmp_path: Path) -> None:
    store = load(tmp_path)
    keys = ["burstCapacity", "refillRate", "messagesPerSecond", "connectionsPerSecond"]
    threads = [threading.Thread(target=store.change, args=({key: 7},)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for found in (store.current, load(tmp_path).current):
        assert to_public(found)["rateLimit"].items() >= dict.fromkeys(keys, 7).items()


# --- showing ---------------------------------------------------------------------------------------------------------


def test_what_is_shown_can_be_sent_back_as_a_patch() -> None:
    shown = to_public(load(flags={"burst_capacity": 9}).current)
    assert shown["flushThresholdEvents"] == 10_000
    store = load()
    store.change(json.loads(json.dumps(shown)))
    assert to_public(store.current) == shown


def test_origins_can_be_sent_as_json() -> None:
    found = json.loads(msgspec.json.encode(load().origins()))["server.port"]
    assert found == {"value": 8787, "origin": "default", "needsRestart": True, "afterRestart": None}


def test_secrets_are_never_shown() -> None:
    class Section(msgspec.Struct):
        access_token: str = "s3cret"
        db_password: str = "s3cret"
        s3_key_id: str = "s3cret"
        admin_secret: str = ""
        name: str = "open"

    shown = to_public(Section())
    assert shown == {"accessToken": "***", "dbPassword": "***", "s3KeyId": "***", "adminSecret": "", "name": "open"}


@pytest.mark.parametrize(
    ("store", "shown"),
    [
        ("postgresql://ann:s3cr:e/t@p@db:5432/lake", "postgresql://ann:***@db:5432/lake"),
        (
            "postgresql://db/lake?user=ann&password=s3cret&sslmode=require",
            "postgresql://db/lake?user=ann&password=***&sslmode=require",
        ),
        ("postgresql://ann@db/lake", "postgresql://ann@db/lake"),
        ("sqlite", "sqlite"),
    ],
)
def test_an_address_is_shown_without_its_password_and_not_taken_back_so(store: str, shown: str) -> None:
    found = load(flags={"catalog.store": store})
    assert found.current.catalog.store == store
    assert to_public(found.current)["catalog"]["store"] == found.origins()["catalog.store"].value == shown
    if "***" in shown:
        with pytest.raises(SettingsError, match="stands for a password"):
            load().change({"catalog": {"store": shown}})
    with pytest.raises(SettingsError) as refused:
        load(flags={"catalog.store": f"{store} with a space"})
    assert "s3cr" not in str(refused.value)


def test_only_secrets_are_taken_for_secrets() -> None:
    assert {key for key, setting in SETTINGS.items() if setting.is_secret} == {
        "lake.mask_secret",
        "storage.access_key_id",
        "storage.secret_access_key",
        "storage.session_token",
        "storage.vending_access_key_id",
        "storage.vending_secret_access_key",
    }


def test_a_struct_refuses_fields_it_does_not_know() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `bogus`"):
        msgspec.convert({"lake": {"bogus": 1}}, Settings)
