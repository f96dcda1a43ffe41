"""Every row has a test that names it."""

from rows import ROWS, named_rows


def test_every_row_has_a_test() -> None:
    named = named_rows()
    assert [row for row in ROWS if row not in named] == []
