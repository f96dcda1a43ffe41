"""The control line to scripted engines, as a fixture."""

import pytest
from fake_engine import controlling


@pytest.fixture
async def control(tmp_path):
    """A Control on the loop of the test."""
    async with controlling(tmp_path) as control:
        yield control
