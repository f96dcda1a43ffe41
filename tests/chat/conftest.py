"""A render worker shared by the tests of a module."""

from collections.abc import AsyncIterator

import pytest_asyncio

from ftd.chat.renderer import Renderer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def renderer() -> AsyncIterator[Renderer]:
    """A render worker for the tests of one module."""
    async with Renderer() as renderer:
        yield renderer
