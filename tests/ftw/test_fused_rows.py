"""Rows of fused tensors, each checked against reshaping a numbered tensor as its definition does."""

import numpy as np
import pytest

from ftd.ftw.fused_rows import Rows, rows_of, slabs

# H heads of C; G key heads of L; N value heads; B value channels in all
SIZE = {"H": 3, "C": 4, "G": 2, "L": 3, "N": 6, "B": 6 * 5}


def taken(rows: Rows) -> list[int]:
    return [first + i for first, count in rows.runs for i in range(count)]


@pytest.mark.parametrize(("kind", "half"), [("query", 0), ("gate", 1)])
def test_queries_and_gates_alternate_by_head(kind: str, half: int) -> None:
    rows = rows_of(kind, SIZE)
    numbered = np.arange(rows.stored).reshape(3, 2, 4)
    assert rows.stored == 24
    assert taken(rows) == numbered[:, half].reshape(-1).tolist()


@pytest.mark.parametrize(("kind", "rows"), [("q", range(12)), ("k", range(12, 20)), ("v", range(20, 28))])
def test_queries_keys_and_values_lie_one_after_the_other(kind: str, rows: range) -> None:
    found = rows_of(kind, SIZE | {"Q": 12, "W": 8})
    assert found.stored == 28 and taken(found) == list(rows)


def test_queries_keys_values_and_z_lie_by_key_head() -> None:
    qkv, z = rows_of("qkv", SIZE), rows_of("z", SIZE)
    assert qkv.stored == z.stored == 2 * (3 + 3 + 15 + 15)
    q, k, v, gate = np.split(np.arange(72).reshape(2, 36), [3, 6, 21], axis=1)
    assert taken(qkv) == [*q.reshape(-1), *k.reshape(-1), *v.reshape(-1)]
    assert taken(z) == gate.reshape(-1).tolist()


@pytest.mark.parametrize(("kind", "half"), [("b", 0), ("a", 1)])
def test_rates_lie_by_key_head(kind: str, half: int) -> None:
    rows = rows_of(kind, SIZE)
    assert rows.stored == 12
    assert taken(rows) == np.arange(12).reshape(2, 2, 3)[:, half].reshape(-1).tolist()


def test_sizes_that_no_file_has_cost_nothing() -> None:
    assert rows_of("query", SIZE | {"H": 1 << 24, "C": 1 << 24}).stored == 1 << 49


def test_slabs_cut_runs_and_keep_their_order() -> None:
    assert list(slabs([(10, 5), (0, 2), (7, 0)], 2)) == [(10, 2), (12, 2), (14, 1), (0, 2)]
