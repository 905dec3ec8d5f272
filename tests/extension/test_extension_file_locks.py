"""extensions.md rule 51: tools that change the same file do it one after another."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from patience import promptly
from replsvc import file_lock
from replsvc.extension import file_locks


@pytest.fixture(autouse=True)
async def nothing_is_kept():
    """Freed when unused, whatever a test does with them."""
    yield
    assert file_locks._known() == {}


async def test_who_asks_first_comes_first_and_nobody_meanwhile(tmp_path):
    order = []

    async def change(number):
        async with file_lock(tmp_path / "file"):
            order.append(number)
            await trio.lowlevel.checkpoint()
            order.append(number)

    async with trio.open_nursery() as nursery, file_lock(tmp_path / "file"):
        for number in range(5):
            nursery.start_soon(change, number)
            await trio.testing.wait_all_tasks_blocked()
        assert order == []
    assert order == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


async def test_a_link_is_the_file_that_it_leads_to_and_other_files_do_not_wait(tmp_path):
    (tmp_path / "link").symlink_to("file")
    with promptly():
        async with file_lock(tmp_path / "file"), file_lock(tmp_path / "other"):
            with trio.move_on_after(0) as scope:
                async with file_lock(tmp_path / "link"):
                    raise AssertionError
    assert scope.cancelled_caught


async def test_who_is_cancelled_while_waiting_gives_up_its_place(tmp_path):
    path, got = tmp_path / "file", trio.Event()

    async def second(scope):
        with scope:
            async with file_lock(path):
                raise AssertionError

    async def third():
        async with file_lock(path):
            got.set()

    scope = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        async with file_lock(path):
            nursery.start_soon(second, scope)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(third)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
        with promptly():
            await got.wait()


async def test_it_is_free_again_after_an_error(tmp_path):
    for _ in range(2):
        with promptly(), pytest.raises(KeyError):
            async with file_lock(tmp_path / "file"):
                raise KeyError


async def test_threads_stand_in_the_same_queue(tmp_path):
    path = tmp_path / "count"
    path.write_text("0")

    def one_more():
        with file_lock(path):
            path.write_text(str(int(path.read_text()) + 1))

    async with trio.open_nursery() as nursery, file_lock(path):
        for number in range(10):
            nursery.start_soon(
                lambda abandon: trio.to_thread.run_sync(one_more, abandon_on_cancel=abandon),
                number % 2 == 0,
            )
        await trio.testing.wait_all_tasks_blocked()
        assert path.read_text() == "0"
    assert path.read_text() == "10"


async def test_one_lock_twice_is_an_error_instead_of_waiting_for_itself(tmp_path):
    lock = file_lock(tmp_path / "file")
    async with lock:
        with pytest.raises(RuntimeError, match="make one for each use"):
            async with lock:
                raise AssertionError
