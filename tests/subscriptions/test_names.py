"""Named subscriptions on disk: a position is kept when it is said to be, and not before."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from dolake.errors import InvalidResumeToken, NotFound, Unavailable
from dolake.query.announcing import Wish
from dolake.subscriptions.names import Names, write_file
from dolake.subscriptions.tokens import position_in, token_of

WISH = Wish(("orders",))


async def opened(folder: Path, **options: object) -> Names:
    names = Names(folder, lambda: 7, **options)  # type: ignore[arg-type]
    await names.open()
    return names


async def test_a_position_outlives_its_server_and_never_goes_back(tmp_path: Path) -> None:
    names = await opened(tmp_path)
    await names.keep("search", WISH, 10)
    assert await names.acknowledge("search", 25) == 25
    assert await names.acknowledge("search", 20) == 25
    names.close()
    again = await opened(tmp_path)
    (found,) = again.all()
    assert (found.name, found.wish, found.position, found.acknowledged_ms) == ("search", WISH, 25, 7)
    assert (await again.keep("search", Wish(("orders", "users")), 0)).position == 25
    await again.drop("search")
    again.close()
    assert not (await opened(tmp_path)).all()


async def test_a_write_that_fails_leaves_the_position_as_it_was_and_is_told(tmp_path: Path) -> None:
    is_full = False

    def write(path: Path, data: bytes) -> None:
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_file(path, data)

    names = await opened(tmp_path, write=write)
    await names.keep("search", WISH, 10)
    is_full = True
    with pytest.raises(Unavailable, match="No space left"):
        await names.acknowledge("search", 25)
    found = names.find("search")
    assert found is not None
    assert found.position == 10
    is_full = False
    assert await names.acknowledge("search", 12) == 12, "who was refused is not moved by the next one"
    names.close()


async def test_an_acknowledgement_of_a_dropped_name_moves_no_later_one(tmp_path: Path) -> None:
    names = await opened(tmp_path)
    await names.keep("search", WISH, 10)
    await names.drop("search")
    with pytest.raises(NotFound):
        await names.acknowledge("search", 500)
    await names.keep("search", WISH, 0)
    assert await names.acknowledge("search", 10) == 10
    names.close()


async def test_many_acknowledgements_at_once_share_a_write(tmp_path: Path) -> None:
    written: list[Path] = []

    def write(path: Path, data: bytes) -> None:
        written.append(path)
        write_file(path, data)

    names = await opened(tmp_path, write=write)
    await names.keep("search", WISH, 0)
    kept = await asyncio.gather(*(names.acknowledge("search", position) for position in range(1, 101)))
    assert all(found >= position for position, found in enumerate(kept, 1))
    assert len(written) < 10
    with pytest.raises(NotFound):
        await names.acknowledge("other", 1)
    names.close()


async def test_a_file_that_cannot_be_read_costs_no_other_subscription(tmp_path: Path) -> None:
    names = await opened(tmp_path)
    await names.keep("good", WISH, 1)
    names.close()
    (tmp_path / "bad.json").write_text("{")
    assert [each.name for each in (await opened(tmp_path)).all()] == ["good"]


def test_a_token_is_of_one_lake_and_not_of_its_future() -> None:
    token = token_of(b"lake-one-", 1200)
    assert position_in(token, b"lake-one-", 1200) == 1200
    with pytest.raises(InvalidResumeToken, match="another lake"):
        position_in(token, b"another--", 1200)
    with pytest.raises(InvalidResumeToken, match="ends at 1199"):
        position_in(token, b"lake-one-", 1199)
    with pytest.raises(InvalidResumeToken, match="resume token"):
        position_in(token[:-3] + "AAA", b"lake-one-", 1200)
