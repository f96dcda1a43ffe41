"""add, swiglu, geglu and select_logit_rows on a GPU against their references."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ftd.kernels.add_ref import add as add_reference
from ftd.kernels.add_triton import add, add_into
from ftd.kernels.geglu_ref import geglu as geglu_reference
from ftd.kernels.geglu_triton import geglu
from ftd.kernels.select_logit_rows_triton import select_logit_rows
from ftd.kernels.swiglu_ref import swiglu as swiglu_reference
from ftd.kernels.swiglu_triton import gated_into, swiglu

AssertClose = Callable[..., None]
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # NumPy's, in the interpreter
SHAPES = [(1, 1), (2, 7), (3, 1024), (2, 1025)]


@pytest.mark.parametrize("shape", SHAPES)
def test_add_equals_the_reference(
    shape: tuple[int, int], rng: np.random.Generator, assert_close: AssertClose, device: str
) -> None:
    x, y = rng.standard_normal((2, *shape), np.float32)
    terms = [torch.tensor(each, device=device) for each in (x, y)]
    assert_close(add(*terms, 0.3).cpu().numpy(), add_reference(x, y, 0.3), "elementwise")
    assert torch.equal(terms[0].cpu(), torch.from_numpy(x))


def test_add_of_bf16_columns_to_f32_columns(device: str) -> None:
    wide, y = torch.zeros((3, 50), device=device), torch.ones((3, 90), dtype=torch.bfloat16, device=device)
    add_into(y[:, 5:35], 2.0, out=wide[:, 10:40])
    assert (wide[:, 10:40] == 2).all() and wide.sum() == 2 * 90


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("op", "reference"), [(swiglu, swiglu_reference), (geglu, geglu_reference)])
def test_gated_activations_equal_the_reference(
    op: Callable[..., torch.Tensor],
    reference: Callable[..., Any],
    shape: tuple[int, int],
    rng: np.random.Generator,
    assert_close: AssertClose,
    device: str,
) -> None:
    gate, up = rng.standard_normal((2, *shape), np.float32) * np.float32(3)
    actual = op(torch.from_numpy(gate).to(device), torch.from_numpy(up).to(device))
    assert_close(actual.cpu().numpy(), reference(gate, up), "sum")


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_gated_activations_of_large_numbers_in_place(activation: str, device: str) -> None:
    gate = torch.tensor([[-1e4, -100.0, 100.0, 1e4]], device=device)
    gated_into(gate, torch.full_like(gate, 2.0), activation, out=gate)
    assert gate.tolist() == [[0, 0, 200, 2e4]]


def test_select_logit_rows_of_columns(rng: np.random.Generator, device: str) -> None:
    x = torch.from_numpy(rng.standard_normal((5, 1200), np.float32)).to(device)
    rows = torch.tensor([4, 0, 4, -1], dtype=torch.int32, device=device)
    actual = select_logit_rows(x[:, 3:1150], rows)
    assert torch.equal(actual, x[[4, 0, 4, 0], 3:1150])


def test_nothing_to_do(device: str) -> None:
    none = torch.zeros((0, 4), device=device)
    assert add(none, none).shape == swiglu(none, none).shape == geglu(none, none).shape == (0, 4)
    assert select_logit_rows(none, torch.zeros(0, dtype=torch.int32, device=device)).shape == (0, 4)


def test_refuse_shapes_that_differ() -> None:
    x, y = torch.zeros(2, 4), torch.zeros(2, 5)
    for op in (add, swiglu, geglu):
        with pytest.raises(ValueError, match="must be float32"):
            op(x, y)
    with pytest.raises(ValueError, match=r"y must be float32 .* \[2, 4\]"):
        add(x, y)
    with pytest.raises(ValueError, match="rows must be int32"):
        select_logit_rows(x, torch.zeros(2))
