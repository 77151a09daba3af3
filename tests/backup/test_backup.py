"""A backup of a lake without a server, and the way back: nothing missing, nothing half, nothing mixed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dolake.backup.base import UNFINISHED_FILE
from dolake.backup.manifest import FILE_NAME, Manifest, find_manifest
from dolake.backup.restore import check_backup, refuse_to_restore, restore
from dolake.backup.take import take_backup
from dolake.changes import StreamId
from dolake.errors import Conflict, Damaged, InvalidInput, NotFound, Unavailable
from dolake.journal.reader import JournalReader
from dolake.server.home import Home
from dolake.settings import DoLakeConfig
from dolake.storage.local import path_of
from dolake.verify.moment import opened
from tests.support.aio import run
from tests.support.journals import opened as opened_journal
from tests.support.journals import segments_of
from tests.verify.lake import HandLake, differing, insert, update


def back_up(lake: HandLake, folder: Path) -> Manifest:
    return take_backup(lake.home, lake.home / "warehouse", folder)


def lose(lake: HandLake) -> None:
    """The machine is gone."""
    lake.close()
    shutil.rmtree(lake.home)


def durable(home: Path) -> int:
    with JournalReader(home / "journal") as reader:
        return reader.durable()


def test_a_lost_home_comes_back_with_all_that_was_durable_and_in_the_tables(lake: HandLake, tmp_path: Path) -> None:
    lake.append(insert("99", n=99))  # durable, and not yet in a table
    (lake.home / "dolake.toml").write_text("[lake]\nfreshness_target_ms = 500\n")
    before = durable(lake.home)
    manifest = back_up(lake, tmp_path / "backup")
    assert (manifest.position, manifest.published) == (before, before - 1)
    assert [(end.stream, end.sequence) for end in manifest.streams] == [("other", 2), ("shop", 28)]
    lose(lake)
    restore(tmp_path / "backup", lake.home)
    assert (lake.home / "dolake.toml").read_text() == "[lake]\nfreshness_target_ms = 500\n"
    assert durable(lake.home) == before
    lake.open()
    assert not lake.verify().difference_count
    lake.publish_all()
    lake.publish(update("3", {"n": 33}, {"n": 333}))
    report = lake.verify()
    assert not report.difference_count
    assert report.position == before + 1


def test_states_of_sources_come_back_and_are_no_difference(lake: HandLake, tmp_path: Path) -> None:
    lake.append_state({"place": 1, "gone": 1})
    lake.publish(insert("99", n=99))
    lake.append_state({"place": 2, "gone": None})
    assert not lake.verify().difference_count
    manifest = back_up(lake, tmp_path / "backup")
    assert manifest.position == durable(lake.home)
    lose(lake)
    restore(tmp_path / "backup", lake.home)
    lake.open()
    assert not lake.verify().difference_count
    lake.publish(insert("100", n=100))
    assert not lake.verify().difference_count

    async def state() -> bytes:
        async with opened_journal(lake.home / "journal") as journal:
            return journal.point(StreamId("shop")).state

    assert run(state()) == b'{"place":2}'


def test_no_subscription_in_a_backup_is_ahead_of_its_journal(lake: HandLake, tmp_path: Path) -> None:
    subscription = lake.home / "subscriptions" / "reader.json"
    subscription.parent.mkdir()
    subscription.write_text(str(durable(lake.home)))

    def live_on(what: str, _done: int, _total: int) -> None:
        """Changes arrive beside the backup, and a reader acknowledges them at once."""
        if what == "journal":
            lake.append(insert("99", n=99))
            subscription.write_text(str(durable(lake.home)))

    manifest = take_backup(lake.home, lake.home / "warehouse", tmp_path / "backup", progress=live_on)
    assert durable(lake.home) > manifest.position
    lose(lake)
    restore(tmp_path / "backup", lake.home)
    assert int(subscription.read_text()) <= durable(lake.home) == manifest.position


def test_what_was_copied_is_not_copied_again_and_what_nobody_needs_goes(lake: HandLake, tmp_path: Path) -> None:
    first = back_up(lake, tmp_path / "backup")
    kept = {file.kept: (tmp_path / "backup" / file.kept).stat().st_ino for file in first.files}
    lake.publish(insert("100", n=100))
    second = back_up(lake, tmp_path / "backup")
    again = {file.kept for file in second.files if file.kept.endswith(".parquet")} & kept.keys()
    assert again
    assert all((tmp_path / "backup" / name).stat().st_ino == kept[name] for name in again)
    assert len(list((tmp_path / "backup" / "runs").iterdir())) == 1
    on_disk = {
        str(path.relative_to(tmp_path / "backup")) for path in (tmp_path / "backup").rglob("*") if path.is_file()
    }
    assert on_disk == {file.kept for file in second.files} | {FILE_NAME}
    lose(lake)
    restore(tmp_path / "backup", lake.home)
    lake.open()
    assert not lake.verify().difference_count


def test_a_backup_that_was_stopped_is_none_and_leaves_the_one_before_it(
    lake: HandLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "backup"
    with monkeypatch.context() as patch:
        patch.setattr("dolake.backup.take.store_manifest", stop)
        with pytest.raises(KeyboardInterrupt):
            back_up(lake, folder)
    with pytest.raises(NotFound, match="is no backup"):
        restore(folder, tmp_path / "home")
    first = back_up(lake, folder)
    lake.publish(insert("101", n=101))
    with monkeypatch.context() as patch:
        patch.setattr("dolake.backup.take.sync_folders", stop)
        with pytest.raises(KeyboardInterrupt):
            back_up(lake, folder)
    assert find_manifest(folder) == first
    assert check_backup(folder)[1] == []


def test_a_restore_that_was_stopped_looks_like_no_lake_and_goes_on_when_asked_again(
    lake: HandLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dolake.backup import restore as module

    folder = tmp_path / "backup"
    back_up(lake, folder)
    lose(lake)
    brought: list[object] = []
    real = module._bring

    def stop_after_five(*arguments: object) -> None:
        if len(brought) == 5:
            raise KeyboardInterrupt
        brought.append(arguments)
        real(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(module, "_bring", stop_after_five)
        with pytest.raises(KeyboardInterrupt):
            restore(folder, lake.home)
    with pytest.raises(Damaged, match="did not finish"), Home(lake.home):
        pass
    with pytest.raises(Damaged, match="did not finish"), opened(lake.home, DoLakeConfig()):
        pass
    with pytest.raises(Damaged, match="did not finish"):
        back_up(lake, tmp_path / "another")
    assert not (lake.home / "catalog.db").exists()
    restore(folder, lake.home)
    assert not (lake.home / UNFINISHED_FILE).exists()
    with Home(lake.home):
        pass
    lake.open()
    assert not lake.verify().difference_count


def test_one_changed_byte_is_named_and_never_restored(lake: HandLake, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    manifest = back_up(lake, folder)
    victim = next(file for file in manifest.files if file.kept.endswith(".parquet"))
    data = bytearray((folder / victim.kept).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / victim.kept).write_bytes(data)
    assert check_backup(folder)[1] == [f"{victim.kept} is not as it was backed up"]
    lose(lake)
    with pytest.raises(Damaged, match="is not as it was backed up"):
        restore(folder, lake.home)
    with pytest.raises(Damaged, match="did not finish"), Home(lake.home):
        pass
    (folder / victim.kept).unlink()
    with pytest.raises(NotFound, match="the backup lacks"):
        restore(folder, lake.home)


def test_a_manifest_that_was_changed_or_is_of_a_later_release_is_refused(lake: HandLake, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    back_up(lake, folder)
    file = folder / FILE_NAME
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"table_count":4', b'"table_count":5'))
    with pytest.raises(Damaged, match="not as it was written"):
        check_backup(folder)
    file.write_bytes(whole[:-100])
    with pytest.raises(Damaged, match="cannot be read"):
        check_backup(folder)


def test_a_home_with_something_in_it_is_never_restored_over(lake: HandLake, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    back_up(lake, folder)
    with pytest.raises(Conflict, match="is not empty"):
        refuse_to_restore(folder, lake.home)
    assert not lake.verify().difference_count


def test_tables_are_restored_to_the_place_that_they_name_or_to_a_link_there(lake: HandLake, tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "backup", tmp_path / "elsewhere"
    back_up(lake, folder)
    lose(lake)
    with pytest.raises(InvalidInput, match="tables name their files by full paths"):
        refuse_to_restore(folder, elsewhere)
    elsewhere.mkdir()
    lake.home.symlink_to(elsewhere)
    restore(folder, elsewhere)
    lake.open()
    assert not lake.verify().difference_count
    lake.publish(insert("102", n=102))
    assert not lake.verify().difference_count
    lake.close()
    lake.home.unlink()
    lake.home.mkdir()
    lake.open()


def test_a_backup_does_not_go_where_it_would_be_part_of_the_lake_or_among_other_things(
    lake: HandLake, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match="inside the home"):
        back_up(lake, lake.home / "backup")
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InvalidInput, match="other things, such as thesis"):
        back_up(lake, tmp_path)
    with pytest.raises(NotFound, match="no lake"):
        take_backup(tmp_path, tmp_path / "warehouse", tmp_path / "backup")


def test_an_index_that_is_missing_is_left_out_and_said(lake: HandLake, tmp_path: Path) -> None:
    shutil.rmtree(lake.index_folder("default.items"))
    manifest = back_up(lake, tmp_path / "backup")
    assert manifest.indexes_left_out == ["default.items"]
    lose(lake)
    restore(tmp_path / "backup", lake.home)
    lake.open()
    assert differing(lake.verify()) == {"index"}


def test_a_lost_file_of_a_table_stops_the_backup_instead_of_leaving_it_out(lake: HandLake, tmp_path: Path) -> None:
    path_of(lake.files["default.items"][0][0]["file-path"]).unlink()
    with pytest.raises(Unavailable, match="went while they were copied"):
        back_up(lake, tmp_path / "backup")


def test_of_a_server_that_lost_power_also_what_lies_behind_the_mark_is_kept(lake: HandLake, tmp_path: Path) -> None:
    """The mark is not synced: after a power failure it may be older than what was acknowledged."""
    mark = (lake.home / "journal" / "durable.mark").read_bytes()
    lake.append(insert("103", n=103))
    (lake.home / "journal" / "durable.mark").write_bytes(mark)
    back_up(lake, tmp_path / "backup")
    lose(lake)
    restore(tmp_path / "backup", lake.home)
    assert any(b'"103"' in path.read_bytes() for path in segments_of(lake.home / "journal"))
    lake.open()
    lake.publish(insert("104", n=104))
    assert not lake.verify().difference_count


def test_the_places_of_consumers_never_lie_ahead_of_the_copied_catalog(lake: HandLake, tmp_path: Path) -> None:
    (lake.home / "journal" / "consumers.json").write_text(json.dumps({"pipeline": 1_000_000, "reader": 3}))
    manifest = back_up(lake, tmp_path / "backup")
    copied = tmp_path / "backup" / "runs" / manifest.id / "home" / "journal" / "consumers.json"
    assert json.loads(copied.read_text()) == {"pipeline": manifest.published, "reader": 3}
