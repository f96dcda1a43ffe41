"""Where Triton's interpreter was wrong, against torch: bfloat16, loops whose ends are tensors, products."""

import pytest
import torch
import triton
import triton.language as tl

from ftd.kernels import interpreter  # noqa: F401  the repairs

N = 64


@triton.jit
def _arithmetic(a_ptr, b_ptr, out_ptr, KIND: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.arange(0, N)
    a, b = tl.load(a_ptr + places), tl.load(b_ptr + places)
    if KIND == "add":
        out = a + b
    elif KIND == "subtract":
        out = a - b
    elif KIND == "multiply":
        out = a * b
    else:
        out = a * 0.5 + 3.0
    tl.store(out_ptr + places, out)


@triton.jit
def _numbers(a_ptr, out_ptr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.arange(0, N)
    a, first = tl.load(a_ptr + places), tl.load(a_ptr + 2)
    tl.store(out_ptr + places, a + 100)
    tl.store(out_ptr + N + places, (3 - a) * 2)
    tl.store(out_ptr + 2 * N + places, a // 7)
    tl.store(out_ptr + 3 * N + places, a % 7)
    tl.store(out_ptr + 4 * N + places, tl.where(a > 5, a, 0) + (first - 1))


@triton.jit
def _cast(a_ptr, out_ptr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.arange(0, N)
    tl.store(out_ptr + places, tl.load(a_ptr + places).to(out_ptr.dtype.element_ty))


@triton.jit
def _loop(ends_ptr, out_ptr):  # type: ignore[no-untyped-def]
    total = 0
    first, last = tl.load(ends_ptr), tl.load(ends_ptr + 1)
    for number in range(first, last):
        total += number
    tl.store(out_ptr, total)


@triton.jit
def _product(a_ptr, b_ptr, out_ptr, PRECISION: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.arange(0, N)
    square = places[:, None] * N + places[None, :]
    a, b = tl.load(a_ptr + square), tl.load(b_ptr + square)
    tl.store(out_ptr + square, tl.dot(a, b, input_precision=PRECISION))


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(shape, generator=generator).to(dtype).to(device())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("kind", ["add", "subtract", "multiply", "constants"])
def test_arithmetic_is_that_of_torch(kind: str, dtype: torch.dtype) -> None:
    """Of bfloat16 its bits were added and multiplied. torch rounds once, as a card does."""
    a, b = values(dtype, N), values(dtype, 2, N)[1]
    out = torch.empty_like(a)
    _arithmetic[(1,)](a, b, out, kind, N)
    if kind == "constants":
        halved = (a.float() * 0.5).to(dtype)
        wanted = (halved.float() + 3.0).to(dtype)
    else:
        wanted = {"add": a + b, "subtract": a - b, "multiply": a * b}[kind]
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64], ids=str)
def test_numbers_take_the_type_of_what_is_beside_them(dtype: torch.dtype) -> None:
    a = (torch.arange(N) * 5 - (0 if dtype == torch.uint8 else 128)).to(dtype).to(device())
    out = torch.empty((5, N), dtype=dtype, device=device())
    _numbers[(1,)](a, out, N)
    wide = a.long()
    wanted = [
        wide + 100,
        (3 - wide) * 2,
        torch.div(wide, 7, rounding_mode="trunc"),
        torch.fmod(wide, 7),
        torch.where(wide > 5, wide, 0) + (wide[2] - 1),
    ]
    assert torch.equal(out, torch.stack(wanted).to(dtype))


def test_float32_is_rounded_to_the_nearest_bfloat16_the_even_one_of_two() -> None:
    ties = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 1 + 2**-8 + 2**-20, 0.0, -0.0, 3e38, 1e-40])
    a = torch.cat([ties, torch.randn(N - len(ties), generator=torch.Generator().manual_seed(3))]).to(device())
    out = torch.empty(N, dtype=torch.bfloat16, device=device())
    _cast[(1,)](a, out, N)
    assert torch.equal(out.view(torch.int16), a.to(torch.bfloat16).view(torch.int16))
    back = torch.empty(N, dtype=torch.float32, device=device())
    _cast[(1,)](out, back, N)
    assert torch.equal(back, out.float())


@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 1), (3, 11), (5, 2)])
def test_loops_end_where_a_tensor_says(first: int, last: int) -> None:
    ends = torch.tensor([first, last], dtype=torch.int32, device=device())
    out = torch.full((1,), -1, dtype=torch.int32, device=device())
    _loop[(1,)](ends, out)
    assert out.item() == sum(range(first, last))


@pytest.mark.parametrize("precision", ["ieee", "tf32", "tf32x3", "bf16x3", "bf16x6"])
def test_products_of_float32_in_every_way_that_a_card_knows(precision: str) -> None:
    a, b = values(torch.float32, N, N), values(torch.float32, 2, N, N)[1].contiguous()
    out = torch.empty_like(a)
    _product[(1,)](a, b, out, precision, N)
    wanted = a.double() @ b.double()
    bound = 2e-3 if precision == "tf32" else 1e-4 if precision == "bf16x3" else 1e-5
    assert (out.double() - wanted).abs().max() <= bound * wanted.abs().max()


def test_products_of_bfloat16_have_sums_of_float32() -> None:
    a, b = values(torch.bfloat16, N, N), values(torch.bfloat16, 2, N, N)[1].contiguous()
    out = torch.empty((N, N), dtype=torch.float32, device=device())
    _product[(1,)](a, b, out, "ieee", N)
    wanted = a.double() @ b.double()
    assert (out.double() - wanted).abs().max() <= 1e-6 * wanted.abs().max()
