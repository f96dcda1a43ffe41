"""A render worker with a short clock, so that endless templates end soon."""

from collections.abc import AsyncIterator

import pytest_asyncio

from ftd.chat.renderer import Renderer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def quick() -> AsyncIterator[Renderer]:
    """A worker whose templates get half a second."""
    async with Renderer(render_limit_s=0.5) as renderer:
        yield renderer
