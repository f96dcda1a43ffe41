"""Every row has a test that names it."""

import pytest
from rows import CLIENTS, ROWS, named_rows


@pytest.mark.slow
def test_every_row_has_a_test() -> None:
    named = named_rows()
    assert [row for row in ROWS | CLIENTS if row not in named] == []
