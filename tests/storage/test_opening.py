"""Which storage the settings mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from dolake.errors import InvalidInput, SettingsError
from dolake.settings import CatalogSettings, DoLakeConfig, StorageSettings, load_settings, to_public
from dolake.storage.local import LocalStorage
from dolake.storage.opening import open_storage, place_of


def place(location: str) -> str:
    return place_of(DoLakeConfig(), StorageSettings(location=location)).location


def test_without_a_word_the_tables_are_in_the_home(tmp_path: Path) -> None:
    found = place_of(DoLakeConfig(), StorageSettings(), CatalogSettings(location_roots=(str(tmp_path / "shared"),)))
    assert found.is_local
    storage = open_storage(tmp_path, DoLakeConfig(r2_base_path="team/lake"), found)
    assert isinstance(storage, LocalStorage)
    assert storage.root == f"file://{tmp_path}/team/lake"
    assert storage.is_inside(f"{tmp_path}/shared/t")


def test_a_place_in_a_store_takes_bucket_and_path_from_where_they_are_said() -> None:
    assert place("s3://mine/team/lake") == "s3://mine/team/lake"
    assert place("r2://mine/team") == "s3://mine/team"
    assert place("s3://mine") == "s3://mine/warehouse"
    assert place("s3://") == place("r2://") == "s3://lakehouse-data/warehouse"
    own = DoLakeConfig(r2_bucket_name="shop", r2_base_path="tables")
    assert place_of(own, StorageSettings(location="r2://")).location == "s3://shop/tables"


def test_old_partitions_go_where_the_settings_say(tmp_path: Path) -> None:
    def cold(name: str) -> str:
        place = place_of(DoLakeConfig(), StorageSettings(cold_location=name))
        return open_storage(tmp_path, DoLakeConfig(), place).tiers.cold

    assert cold("") == f"file://{tmp_path}/warehouse-cold"
    assert cold("old") == f"file://{tmp_path}/old"
    assert cold(f"{tmp_path}/disk/old") == f"file://{tmp_path}/disk/old"
    for refused in (".", "warehouse", "s3://bucket/old"):  # one that has the warehouse in it, or is in no folder
        with pytest.raises(InvalidInput, match="cold"):
            cold(refused)


@pytest.mark.parametrize(
    "location", ["mine/lake", "s3:/mine", "http://mine", "s3://mine/../lake", "s3://mine/", "gs://b/p"]
)
def test_what_is_no_place_in_a_store_is_refused(location: str) -> None:
    with pytest.raises(SettingsError, match=r"storage\.location"):
        load_settings(home=None, config_file=None, environ={}, flags={"storage.location": location})


def test_the_keys_of_a_store_are_shown_to_nobody() -> None:
    given = {"DOLAKE_STORAGE_ACCESS_KEY_ID": "mine", "DOLAKE_STORAGE_SECRET_ACCESS_KEY": "hidden"}
    settings = load_settings(home=None, config_file=None, environ=given, flags={}).current
    assert settings.storage.secret_access_key == "hidden"
    shown = to_public(settings.storage)
    assert shown["accessKeyId"] == shown["secretAccessKey"] == "***"
    with pytest.raises(SettingsError) as caught:
        load_settings(home=None, config_file=None, environ={}, flags={"storage.secret_access_key": "hid den"})
    assert "hid den" not in str(caught.value)
