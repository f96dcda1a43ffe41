"""The control line to scripted engines, as a fixture."""

import pytest
from fake_engine import Control


@pytest.fixture
async def control(tmp_path):
    """A Control; its workers come out of ``control.next_worker()`` in the order they start."""
    control = Control(tmp_path / "control.sock")
    await control.serve()
    yield control
    await control.close()
