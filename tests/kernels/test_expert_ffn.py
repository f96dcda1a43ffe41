"""expert_ffn against torch in float64 on dequantised weights, its invariants, each implementation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from banks import make_bank, random_bank
from numpy.typing import NDArray
from weights import random_matrix

from ftd.kernels import cpu
from ftd.kernels._expert_ffn_cy import expert_ffn
from ftd.kernels._pool import Pool, set_isa
from ftd.kernels.dequantize_ref import dequantize
from ftd.kernels.matmul_ref import quantize_activations, uses_quantized_activations
from ftd.kernels.quant import ExpertBank

Get = Callable[[str], Callable[..., Any]]
E, D, F, K = 7, 96, 64, 3

FORMATS = ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "mxfp4", "nvfp4"]


def expected(
    x: NDArray[np.float32],
    ids: NDArray[np.int32],
    weights: NDArray[np.float32],
    bank: ExpertBank,
    clamped: bool = False,
    limit: float = 7.0,
) -> NDArray[np.float64]:
    """Return what transformers' GptOssExperts and Qwen3MoeExperts compute, in float64, token by token."""

    def linear(role: str, expert: int, row: torch.Tensor) -> torch.Tensor:
        out = torch.from_numpy(dequantize(bank.matrices[role].expert(expert))).double() @ row
        if f"{role}_bias" in bank.matrices:
            out = out + torch.from_numpy(
                bank.matrices[f"{role}_bias"].expert(expert).planes[0][0].astype(np.float64)
            )
        return out

    out = torch.zeros(x.shape, dtype=torch.float64)
    for t, k in np.ndindex(*ids.shape):
        e, row = int(ids[t, k]), torch.from_numpy(x[t]).double()
        if "gate_up" in bank.matrices:
            gate, up = linear("gate_up", e, row).chunk(2)
        else:
            gate, up = linear("gate", e, row), linear("up", e, row)
        if clamped:
            gate = gate.clamp(max=limit)
            hidden = (up.clamp(-limit, limit) + 1) * gate * torch.sigmoid(1.702 * gate)
        else:
            hidden = torch.nn.functional.silu(gate) * up
        out[t] += float(weights[t, k]) * linear("down", e, hidden)
    return out.numpy()


def inputs(rng: np.random.Generator, tokens: int, experts: int = E) -> tuple[Any, Any, Any]:
    """Return random x, distinct ids and weights."""
    x = rng.standard_normal((tokens, D), np.float32) * np.float32(0.3)
    ids = np.stack([rng.permutation(experts)[:K] for _ in range(tokens)]).astype(np.int32)
    return x, ids, rng.random((tokens, K), np.float32)


def close(actual: NDArray[np.float32], wanted: NDArray[np.float64], tolerance: float) -> None:
    """Compare relative to the largest value."""
    assert actual.shape == wanted.shape and actual.dtype == np.float32
    assert np.abs(actual - wanted).max() <= tolerance * np.abs(wanted).max()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("clamped", [True, False])
@pytest.mark.parametrize("tokens", [1, 2, 33])
def test_equals_torch(
    get: Get, pools: tuple[Any, ...], rng: np.random.Generator, fused: bool, clamped: bool, tokens: int
) -> None:
    bank = random_bank(rng, E, D, F, ("f32", "f32"), fused, biased=clamped)
    x, ids, weights = inputs(rng, tokens)
    wanted = expected(x, ids, weights, bank, clamped, 1.5)
    for pool in pools:
        ours = get("expert_ffn")(
            x, ids, weights, bank, "clamped" if clamped else "silu", 1.5, "f32", pool=pool
        )
        close(ours, wanted, 3e-6)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_exactly(get: Get, rng: np.random.Generator, name: str) -> None:
    bank = random_bank(rng, E, D, F, (name, name))
    x, ids, weights = inputs(rng, 9)
    close(get("expert_ffn")(x, ids, weights, bank, precision="f32"), expected(x, ids, weights, bank), 5e-6)


@pytest.mark.parametrize("name", FORMATS)
def test_fast_rounds_activations_as_matmul_does(get: Get, rng: np.random.Generator, name: str) -> None:
    bank = random_bank(rng, E, D, F, (name, "f32"))
    x, ids, weights = inputs(rng, 5)
    rounded = x
    if uses_quantized_activations(bank.matrices["gate_up"].expert(0), "fast"):
        rounded = quantize_activations(x).astype(np.float32)
    close(get("expert_ffn")(x, ids, weights, bank), expected(rounded, ids, weights, bank), 1e-5)


def test_formats_of_super_blocks(get: Get, rng: np.random.Generator) -> None:
    roles = [
        {"gate_up": random_matrix("q4_k", 2 * 256, 256, rng), "down": random_matrix("q6_k", 256, 256, rng)}
        for _ in range(3)
    ]
    bank = make_bank(0, roles)
    x = rng.standard_normal((4, 256), np.float32)
    ids = np.array([[0, 2], [2, 1], [1, 0], [2, 0]], np.int32)
    weights = rng.random((4, 2), np.float32)
    close(get("expert_ffn")(x, ids, weights, bank, precision="f32"), expected(x, ids, weights, bank), 5e-6)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("tokens", [19, 40, 1300])
def test_bfloats_of_many_rows_by_tiles_of_amx(
    pools: tuple[Any, ...], rng: np.random.Generator, tokens: int, fused: bool
) -> None:
    """Experts of fewer than 8 rows, of up to 16, of more than a range of tiles."""
    if cpu.detected_isa() != "amx":
        pytest.skip(f"this machine has {cpu.detected_isa()}")
    bank = random_bank(rng, E, D, F, ("bf16", "bf16"), fused)
    x, ids, weights = inputs(rng, tokens)
    before = set_isa("amx")
    try:
        found = [expert_ffn(x, ids, weights, bank, pool=pool) for pool in pools]
    finally:
        set_isa(before)
    close(found[0], expected(x, ids, weights, bank), 2.0**-16)  # twice x is two bfloat16 of 8 bits each
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("precision", ["f32", "fast"])
@pytest.mark.parametrize("name", ["f32", "q8_0", "q4_0", "mxfp4"])
def test_no_bit_depends_on_other_tokens_or_threads(
    isa: str, rng: np.random.Generator, name: str, precision: str
) -> None:
    bank = random_bank(rng, E, D, F, (name, name))
    x, ids, weights = inputs(rng, 21)
    whole = expert_ffn(x, ids, weights, bank, precision=precision)
    rows = [
        expert_ffn(x[t : t + 1], ids[t : t + 1], weights[t : t + 1], bank, precision=precision)
        for t in range(21)
    ]
    np.testing.assert_array_equal(np.concatenate(rows), whole)
    with Pool(3) as pool:
        np.testing.assert_array_equal(
            expert_ffn(x, ids, weights, bank, precision=precision, pool=pool), whole
        )


def test_all_tokens_of_one_expert_and_experts_of_none(get: Get, rng: np.random.Generator) -> None:
    bank = random_bank(rng, 40, D, F)
    x, _, weights = inputs(rng, 50)
    ids = np.tile(np.array([39, 0, 17], np.int32), (50, 1))
    close(get("expert_ffn")(x, ids, weights, bank, precision="f32"), expected(x, ids, weights, bank), 3e-6)


def test_a_bank_of_one_expert_lies_anywhere(get: Get, rng: np.random.Generator) -> None:
    matrices = {
        "gate": random_matrix("f32", F, D, rng),
        "up": random_matrix("q8_0", F, D, rng),
        "down": random_matrix("f32", D, F, rng),
    }
    bank = ExpertBank.of_one(0, matrices)
    x, ids, weights = (
        rng.standard_normal((4, D), np.float32),
        np.zeros((4, 1), np.int32),
        rng.random((4, 1), np.float32),
    )
    close(get("expert_ffn")(x, ids, weights, bank, precision="f32"), expected(x, ids, weights, bank), 3e-6)


def test_refuses_what_does_not_fit(get: Get, rng: np.random.Generator) -> None:
    bank = random_bank(rng, E, D, F)
    x, ids, weights = inputs(rng, 3)
    op = get("expert_ffn")
    with pytest.raises(ValueError, match=f"ids must lie in 0 to {E - 1}, got {E}"):
        op(x, ids + np.int32(E) * (ids == ids[0, 0]) - ids * (ids == ids[0, 0]), weights, bank)
    with pytest.raises(ValueError, match="ids must lie in 0 to 6, got -1"):
        op(x, ids - np.int32(1) - ids, weights, bank)
    with pytest.raises(ValueError, match=r"x must be float32 \[T, 96\]"):
        op(x[:, :64], ids, weights, bank)
    with pytest.raises(ValueError, match=r"weights must be float32 \[3, 3\]"):
        op(x, ids, weights[:, :2], bank)
    with pytest.raises(ValueError, match="silu clamped, got relu"):
        op(x, ids, weights, bank, "relu")
    with pytest.raises(ValueError, match="fast f32, got f16"):
        op(x, ids, weights, bank, precision="f16")
    half = ExpertBank(0, bank.records, {"down": bank.matrices["down"]})
    with pytest.raises(ValueError, match="a bank needs down gate up"):
        op(x, ids, weights, half)
    crossed = ExpertBank(0, bank.records, bank.matrices | {"gate_up": bank.matrices["down"]})
    with pytest.raises(ValueError, match=r"gate_up must be \[128, 96\], got \[96, 64\]"):
        op(x, ids, weights, crossed)


def test_no_tokens(get: Get, rng: np.random.Generator) -> None:
    bank = random_bank(rng, E, D, F)
    out = get("expert_ffn")(
        np.zeros((0, D), np.float32), np.zeros((0, K), np.int32), np.zeros((0, K), np.float32), bank
    )
    assert out.shape == (0, D)
