"""Every option of DoLake: what it is called, what it may be, who set it, and how to change it while the server runs.

    schema.py   the settings themselves: type, default, bounds, one line of meaning each; stores.py those of a store,
                upkeep.py those of upkeep; sources.py the databases that the server follows
    names.py    all spellings of a setting (file, environment, wire), computed from schema.py
    layers.py   who wins: default < dolake.toml < changed at run time < DOLAKE_* < flag
    store.py    the settings of a running server: what is in effect, from where, and change()

From the command line, which calls load_settings() once; to every part, which gets its own section as an argument.
Promise: whatever is in `SettingsStore.current` was checked, alone and together with the others.
"""

from dolake.settings.journal import JournalSettings
from dolake.settings.layers import CHANGED_FILE, CONFIG_FILE
from dolake.settings.names import NOT_SETTINGS, SETTINGS, Setting
from dolake.settings.schema import (
    DEFAULT_COMPACTION_CONFIG,
    DEFAULT_DOLAKE_CONFIG,
    DEFAULT_RATE_LIMIT_CONFIG,
    ORDERS,
    CatalogSettings,
    CompactionConfig,
    DoLakeConfig,
    Order,
    PipelineSettings,
    QuerySettings,
    RateLimitConfig,
    ServerSettings,
    Settings,
    SubscriptionSettings,
)
from dolake.settings.sources import SourceSettings, followed_source
from dolake.settings.store import Origin, SettingsChange, SettingsStore, load_settings, to_public
from dolake.settings.stores import StorageSettings
from dolake.settings.upkeep import MaintenanceSettings

__all__ = [
    "CHANGED_FILE",
    "CONFIG_FILE",
    "DEFAULT_COMPACTION_CONFIG",
    "DEFAULT_DOLAKE_CONFIG",
    "DEFAULT_RATE_LIMIT_CONFIG",
    "NOT_SETTINGS",
    "ORDERS",
    "SETTINGS",
    "CatalogSettings",
    "CompactionConfig",
    "DoLakeConfig",
    "JournalSettings",
    "MaintenanceSettings",
    "Order",
    "Origin",
    "PipelineSettings",
    "QuerySettings",
    "RateLimitConfig",
    "ServerSettings",
    "Setting",
    "Settings",
    "SettingsChange",
    "SettingsStore",
    "SourceSettings",
    "StorageSettings",
    "SubscriptionSettings",
    "followed_source",
    "load_settings",
    "to_public",
]
