"""Which sources a server runs: those of dolake.toml, of --follow, and those that were added."""

from __future__ import annotations

from pathlib import Path

import pytest

from dolake.errors import Conflict, Damaged, DoLakeError, InvalidInput, NotFound, SettingsError
from dolake.server.source_list import SOURCES_FILE, SourceList
from dolake.settings import SettingsStore, followed_source, load_settings
from dolake.settings.sources import SourceSettings, checked_source


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    return path


def settings_of(home: Path, text: str) -> SettingsStore:
    (home / "dolake.toml").write_text(text)
    return load_settings(home=home, config_file=None, environ={}, flags={})


def source(path: str, **more: object) -> SourceSettings:
    return checked_source({"path": path, **more}, None, "test")


def names(found: SourceList) -> list[tuple[str, str, bool]]:
    return [(each.settings.name, each.origin, each.is_paused) for each in found.entries()]


def test_sources_of_the_file_have_paths_relative_to_it_and_names_of_their_files(home: Path) -> None:
    store = settings_of(home, '[[sources]]\npath = "../app/shop.db"\nexclude = ["log_*"]\n[server]\nport = 0\n')
    (found,) = store.sources
    assert (found.name, found.path, found.exclude) == ("shop", str(home.parent / "app" / "shop.db"), ("log_*",))
    assert store.current.server.port == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[sources]]\npath = "a.db"\ntable = "x"', "sources.table is not a setting (did you mean tables?"),
        ('[[sources]]\nname = "a"', "missing required field `path`"),
        ('[[sources]]\npath = ""', "a source needs a path"),
        ('[[sources]]\npath = "a.db"\nkind = "oracle"', "Invalid enum value 'oracle'"),
        ('[[sources]]\npath = "a.db"\nname = "a/b"', "'a/b' cannot be the name of a source"),
        ('[[sources]]\npath = "a.db"\nnamespace = "a/b"', "cannot be a namespace"),
        ('[[sources]]\npath = "a.db"\n[[sources]]\npath = "a.db"\nname = "b"', "is followed already, as a"),
        ('[[sources]]\npath = "a.db"\n[[sources]]\npath = "b.db"\nname = "a"', "there are two sources 'a'"),
        ('[[sources]]\npath = "p1/a.db"\n[[sources]]\npath = "p2/a.db"\nname = "b"', "their rows would mix"),
        ('[sources]\npath = "a.db"', "write [[sources]] above each source"),
    ],
)
def test_a_source_that_is_not_right_ends_the_start_in_words(home: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_of(home, text)
    assert words in str(caught.value)
    assert "dolake.toml" in str(caught.value)


def test_what_was_added_and_paused_is_there_after_a_restart(home: Path) -> None:
    of_file = (source("/srv/a.db"),)
    found = SourceList(home, of_file)
    found.add(source("/srv/b.db"))
    found.add(source("/srv/c.db"))
    found.pause("a", is_paused=True)
    found.pause("b", is_paused=True)
    found.pause("b", is_paused=False)
    found.remove("c")
    assert names(SourceList(home, of_file)) == [("a", "file", True), ("b", "added", False)]


def test_a_file_that_is_followed_already_is_not_followed_twice(home: Path) -> None:
    found = SourceList(home, (source("/srv/a.db"),), (source("/srv/a.db"), source("/srv/d.db")))
    assert names(found) == [("a", "file", False), ("d", "flag", False)]


def test_the_second_file_of_one_name_has_a_name_of_its_own_but_not_one_stream(home: Path) -> None:
    first = followed_source(home.parent / "p1" / "db.sqlite3")
    second = followed_source(home.parent / "p2" / "db.sqlite3", [first])
    assert (first.name, second.name) == ("db", "db-2")
    with pytest.raises(SettingsError, match="their rows would mix"):
        SourceList(home, (), (first, second))


def test_what_is_written_elsewhere_is_removed_there(home: Path) -> None:
    found = SourceList(home, (source("/srv/a.db"),), (source("/srv/b.db"),))
    with pytest.raises(Conflict, match=r"written in dolake\.toml"):
        found.remove("a")
    with pytest.raises(Conflict, match="--follow"):
        found.remove("b")
    with pytest.raises(NotFound, match="there is no source 'c'"):
        found.remove("c")


def test_files_of_the_lake_are_not_followed(home: Path) -> None:
    found = SourceList(home)
    for path in (home / "catalog.db", home):
        with pytest.raises(InvalidInput, match="it belongs to the lake"):
            found.add(source(str(path)))


def test_a_source_in_the_file_that_was_added_before_is_refused_at_the_start(home: Path) -> None:
    SourceList(home).add(source("/srv/a.db"))
    with pytest.raises(DoLakeError, match=r"remove it from dolake\.toml, or from sources\.json"):
        SourceList(home, (source("/srv/a.db"),))


def test_a_list_that_is_damaged_is_refused_and_not_overwritten(home: Path) -> None:
    (home / SOURCES_FILE).write_text("{")
    with pytest.raises(Damaged, match="repair it, or remove it"):
        SourceList(home)
    assert (home / SOURCES_FILE).read_text() == "{"
