"""What runs when the daemon ends, against generators that wait for ever."""

import asyncio

import pytest

from ftd.daemon.transfers import Transfers
from ftd.errors import Busy


class Endless:
    """Statuses of which there is one; ``is_closed`` when nothing of them is left."""

    def __init__(self):
        self.began = asyncio.Event()
        self.is_closed = False

    async def statuses(self):
        try:
            yield {"status": "begun"}
            self.began.set()
            await asyncio.Event().wait()
        finally:
            self.is_closed = True


async def all_of(statuses):
    return [status async for status in statuses]


async def begun(transfers):
    endless = Endless()
    task = asyncio.create_task(all_of(transfers.watched(endless.statuses())))
    await endless.began.wait()
    return endless, task


async def test_the_end_is_an_error_of_those_that_run_and_of_those_to_come():
    transfers = Transfers()
    (first, one), (second, two) = await begun(transfers), await begun(transfers)
    transfers.end()
    for task in (one, two):
        with pytest.raises(Busy, match="the server is shutting down"):
            await task
        assert task.cancelling() == 0
    assert first.is_closed and second.is_closed
    with pytest.raises(Busy):
        await all_of(transfers.watched(Endless().statuses()))


async def test_a_client_that_leaves_is_no_end():
    transfers = Transfers()
    endless, task = await begun(transfers)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert endless.is_closed
    transfers.end()


async def test_a_client_that_leaves_at_the_end_is_gone():
    transfers = Transfers()
    _, task = await begun(transfers)
    task.cancel()
    transfers.end()
    with pytest.raises(asyncio.CancelledError):
        await task
