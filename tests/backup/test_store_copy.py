"""The copy of a home in the store: what is in it, in which order, and what comes back from it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dolake.backup.base import UNFINISHED_FILE, refuse_unfinished
from dolake.backup.database import DATABASE
from dolake.backup.recover import recover
from dolake.backup.store_copy import Copy, StoreCopy, find_copy
from dolake.catalog.base import Create, Move, Name, Publish
from dolake.catalog.locations import checked_location, default_location
from dolake.catalog.sqlite import SqliteStore
from dolake.errors import Conflict, Damaged, InvalidInput, NotFound
from dolake.journal.embedded import EmbeddedJournal
from dolake.positions import Position
from dolake.settings import CatalogSettings
from dolake.storage.s3 import S3Storage
from tests.support.clock import Clock
from tests.support.journals import SOURCE, batch_of, fill, keep, opened, sequences_in, state_of
from tools.s3_server import S3Server

_ORDERS = Name(("default",), "orders")


@pytest.fixture
def storage(s3: S3Server) -> Iterator[S3Storage]:
    location = f"s3://{s3.new_bucket()}/lake"
    found = S3Storage(location, s3.settings(location))
    yield found
    found.close()


@dataclass
class Machine:
    """A home whose tables are in the store, without a server around it."""

    home: Path
    storage: S3Storage
    journal: EmbeddedJournal
    catalog: SqliteStore
    copy: StoreCopy
    held: frozenset[str] = frozenset()

    async def bring_up_to_now(self) -> Copy:
        return await asyncio.to_thread(self.copy.bring_up_to_now)

    def publish(self, to: Position) -> str:
        """As the pipeline does: new metadata in the store, then pointer and position together."""
        start = self.catalog.published()
        metadata = f"{self.storage.root}/default/orders/metadata/{to:05d}.metadata.json"
        self.storage.write(metadata, b"{}")
        change: Create | Move = Create(_ORDERS, "table", "1-2-3", metadata, is_managed=True)
        with contextlib.suppress(NotFound):
            change = Move(_ORDERS, "table", self.catalog.find(_ORDERS, "table").version, metadata)
        generation = self.catalog.begin_generation().generation
        self.catalog.commit([change], Publish(start.position, to, generation, to))
        return metadata


@contextlib.asynccontextmanager
async def machine(home: Path, storage: S3Storage) -> AsyncIterator[Machine]:
    home.mkdir(exist_ok=True)
    with contextlib.closing(SqliteStore(home / DATABASE)) as catalog:
        with contextlib.suppress(Conflict):
            catalog.create_namespace(("default",), {})
        async with opened(home / "journal") as journal:
            found = Machine(home, storage, journal, catalog, None)  # type: ignore[arg-type]

            def hold(metadata: frozenset[str]) -> None:
                found.held = metadata

            found.copy = StoreCopy(
                home,
                storage,
                CatalogSettings(),
                journal,
                journal.recovered.journal_id.hex(),
                hold=hold,
                clock_ms=Clock(),
            )
            yield found


def recovered(storage: S3Storage, home: Path) -> Path:
    home.mkdir()
    recover(storage, home)
    refuse_unfinished(home)
    return home


async def test_every_durable_change_comes_back_and_streams_go_on_where_they_were(
    tmp_path: Path, storage: S3Storage
) -> None:
    async with machine(tmp_path / "lost", storage) as old:
        last = await fill(old.journal, 2)
        await keep(old.journal, state_of(last + 1, {"at": last}))
        old.publish(3)
        copy = await old.bring_up_to_now()
        assert (copy.position, copy.published) == (last + 1, 3)
        await keep(old.journal, batch_of(last + 1, last + 1, number=last + 2))  # after the copy, and lost
    new = recovered(storage, tmp_path / "new")
    async with opened(new / "journal") as journal:
        assert (journal.point(SOURCE).sequence, journal.point(SOURCE).state) == (last, b'{"at":%d}' % last)
        assert journal.oldest <= 3  # what is in tables need not be in the journal
        assert sequences_in(journal.read(journal.oldest)) == list(range(journal.oldest + 1, last + 1))
        await keep(journal, batch_of(last + 1, last + 2, number=1))  # its source sends it again
        assert journal.durable == last + 3
    with contextlib.closing(SqliteStore(new / DATABASE)) as catalog:
        assert catalog.published().position == 3
        assert catalog.find(_ORDERS, "table").metadata_location.endswith("00003.metadata.json")


async def test_what_is_published_after_the_copy_is_not_in_its_catalog_nor_in_the_hint(
    tmp_path: Path, storage: S3Storage
) -> None:
    async with machine(tmp_path / "lost", storage) as old:
        await keep(old.journal, batch_of(1, 4))
        kept = old.publish(2)
        await old.bring_up_to_now()
        assert old.held == {kept}
        old.publish(4)
        storage.overwrite(f"{storage.root}/default/orders/metadata/version-hint.text", b"00004")
    recovered(storage, tmp_path / "new")
    assert storage.read(f"{storage.root}/default/orders/metadata/version-hint.text") == b"00002"


async def test_a_publish_during_the_copy_leaves_no_gap(
    tmp_path: Path, storage: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog is copied after most segments were sent, and the rest is sent after it."""
    async with machine(tmp_path / "lost", storage) as old:
        await keep(old.journal, batch_of(1, 4))
        loop, send = asyncio.get_running_loop(), old.copy._send
        sends: list[int] = []

        def send_and_publish(sealed: object) -> None:
            send(sealed)  # type: ignore[arg-type]
            sends.append(1)
            if len(sends) == 1:
                asyncio.run_coroutine_threadsafe(keep(old.journal, batch_of(5, 9, number=2)), loop).result()
                old.publish(9)

        monkeypatch.setattr(old.copy, "_send", send_and_publish)
        copy = await old.bring_up_to_now()
        assert copy.published <= copy.position == 9


async def test_the_journal_in_a_copy_ends_behind_its_catalog_whenever_a_publish_comes(
    tmp_path: Path, storage: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publish follows on each piece of journal that is sent, also on the last one."""
    async with machine(tmp_path / "lost", storage) as old:
        await keep(old.journal, batch_of(1, 4))
        loop, send = asyncio.get_running_loop(), old.copy._send
        sends: list[Position] = []

        def send_and_publish(sealed: object) -> None:
            send(sealed)  # type: ignore[arg-type]
            last = old.journal.durable
            number = len(sends) + 2
            asyncio.run_coroutine_threadsafe(
                keep(old.journal, batch_of(last + 1, last + 5, number=number)), loop
            ).result()
            old.publish(last + 5)
            sends.append(last)

        monkeypatch.setattr(old.copy, "_send", send_and_publish)
        copy = await old.bring_up_to_now()
        assert len(sends) > 1
        assert copy.published <= copy.position == sends[-1]


async def test_a_round_without_news_writes_nothing_and_one_with_news_removes_what_is_needless(
    tmp_path: Path, storage: S3Storage, s3: S3Server
) -> None:
    async with machine(tmp_path / "home", storage) as lake:
        await keep(lake.journal, batch_of(1, 4))
        await lake.bring_up_to_now()
        puts = s3.requests["PUT"]
        await lake.bring_up_to_now()
        assert s3.requests["PUT"] == puts
        lake.publish(4)
        await keep(lake.journal, batch_of(5, 6, number=2))
        copy = await lake.bring_up_to_now()
        assert [(each.base, each.end) for each in copy.segments] == [(4, 6)]
        there = {file.location.rpartition(".dolake-copy/")[2] for file in storage.list(f"{storage.root}/.dolake-copy")}
        assert there == {"copy.json", copy.home.name, copy.segments[0].file.name}


async def test_a_journal_of_which_all_was_published_and_removed_still_knows_its_streams(
    tmp_path: Path, storage: S3Storage
) -> None:
    async with machine(tmp_path / "lost", storage) as old:
        await keep(old.journal, batch_of(1, 4))
        old.publish(4)
        old.journal.seal()
        old.journal.register("pipeline", 4)
        old.journal.trim(is_pressed=True)
        assert not old.journal.sealed()
        assert (await old.bring_up_to_now()).position == 4
    async with opened(recovered(storage, tmp_path / "new") / "journal") as journal:
        assert (journal.durable, journal.point(SOURCE).sequence) == (4, 4)


async def test_a_restarted_server_goes_on_and_the_one_before_it_stops(tmp_path: Path, storage: S3Storage) -> None:
    async with machine(tmp_path / "home", storage) as first:
        await keep(first.journal, batch_of(1, 4))
        await first.bring_up_to_now()
        old_copy = first.copy
    async with machine(tmp_path / "home", storage) as second:
        await keep(second.journal, batch_of(5, 6, number=1))
        copy = await second.bring_up_to_now()
        assert [(each.base, each.end) for each in copy.segments] == [(0, 4), (4, 6)]
        old_copy._journal = second.journal
        with pytest.raises(Conflict, match="another server"):
            old_copy.bring_up_to_now()


async def test_the_copy_of_another_lake_is_never_touched(tmp_path: Path, storage: S3Storage) -> None:
    async with machine(tmp_path / "lost", storage) as lost:
        await keep(lost.journal, batch_of(1, 4))
        await lost.bring_up_to_now()
    before = find_copy(storage)
    async with machine(tmp_path / "empty", storage) as empty:  # started by mistake, where `dolake recover` was due
        with pytest.raises(Conflict, match="another lake"):
            await empty.bring_up_to_now()
    assert find_copy(storage) == before


async def test_a_recovery_that_stops_half_way_leaves_no_lake_and_goes_on_when_it_is_run_again(
    tmp_path: Path, storage: S3Storage
) -> None:
    async with machine(tmp_path / "lost", storage) as lost:
        await keep(lost.journal, batch_of(1, 4))
        metadata = lost.publish(2)
        copy = await lost.bring_up_to_now()
    home = tmp_path / "new"
    home.mkdir()
    storage.delete(metadata)
    with pytest.raises(Damaged, match="no metadata"):
        recover(storage, home)
    with pytest.raises(Damaged, match="did not finish"):
        refuse_unfinished(home)
    storage.write(metadata, b"{}")
    location = f"{storage.root}/.dolake-copy/{copy.segments[0].file.name}"
    data = storage.read(location)
    storage.overwrite(location, data[:-1] + b"?")
    with pytest.raises(Damaged, match="not as it was copied"):
        recover(storage, home)
    storage.overwrite(location, data)
    assert recover(storage, home).position == 4
    assert not (home / UNFINISHED_FILE).exists()
    with pytest.raises(Conflict, match="not empty"):
        recover(storage, home)


def test_without_a_copy_there_is_nothing_to_recover(tmp_path: Path, storage: S3Storage) -> None:
    with pytest.raises(NotFound, match="no copy"):
        recover(storage, tmp_path)
    assert not list(tmp_path.iterdir())


def test_no_table_lies_where_the_copy_is(storage: S3Storage) -> None:
    for location in (f"{storage.root}/.dolake-copy", f"{storage.root}/.dolake-copy/journal"):
        with pytest.raises(InvalidInput, match="not inside the warehouse"):
            checked_location(storage, location)
    assert "/.dolake-copy" not in default_location(storage, Name((".dolake-copy",), "home"))
