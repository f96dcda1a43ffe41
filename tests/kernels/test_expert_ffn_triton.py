"""expert_ffn's Triton kernels against the reference on exact weights, in both precisions and both phases."""

from typing import Any

import numpy as np
import pytest
import torch
from banks import make_bank, random_bank
from examples import first_quick
from numpy.typing import NDArray
from weights import random_matrix

from ftd.kernels import expert_ffn_ref, expert_ffn_triton
from ftd.kernels.device_matrix import DeviceBank
from ftd.kernels.expert_ffn_triton import expert_ffn, expert_ffn_into
from ftd.kernels.expert_workspace import Workspace
from ftd.kernels.quant import ExpertBank
from ftd.kernels.row_product_triton import ROW_FORMATS

E, D, F, K = 7, 96, 64, 3


def inputs(rng: np.random.Generator, tokens: int, experts: int = E, width: int = D) -> tuple[Any, Any, Any]:
    """Return random x, distinct ids and weights."""
    x = rng.standard_normal((tokens, width), np.float32) * np.float32(0.3)
    ids = np.stack([rng.permutation(experts)[:K] for _ in range(tokens)]).astype(np.int32)
    return x, ids, rng.random((tokens, K), np.float32)


def run(
    device: str, x: Any, ids: Any, weights: Any, bank: ExpertBank, *arguments: Any, **options: Any
) -> NDArray[np.float32]:
    """Run the kernels on ``device``, into ``out`` if it is given."""
    placed = DeviceBank.upload(bank, device)
    tensors = [torch.from_numpy(each).to(device) for each in (x, ids, weights)]
    run_it = expert_ffn_into if "out" in options else expert_ffn
    return run_it(*tensors, placed, *arguments, **options).float().cpu().numpy()


def close(actual: NDArray[np.float32], wanted: NDArray[np.float32], precision: str) -> None:
    """Compare: exactly but for the order of sums, or with bf16 operands."""
    assert actual.shape == wanted.shape
    scale = np.abs(wanted).max()
    if precision == "f32":
        assert np.abs(actual - wanted).max() <= 5e-6 * scale
        return
    cosine = (actual * wanted).sum() / np.linalg.norm(actual) / np.linalg.norm(wanted)
    assert cosine > 0.9999
    assert np.abs(actual - wanted).max() <= 0.02 * scale


@pytest.mark.parametrize(
    ("tokens", "fused", "precision"),
    [
        (1, True, "f32"),
        (2, False, "fast"),
        (16, True, "fast"),
        (19, True, "f32"),
        pytest.param(18, False, "fast", marks=pytest.mark.slow),
    ],
)
def test_equals_the_reference(
    device: str, rng: np.random.Generator, tokens: int, fused: bool, precision: str
) -> None:
    bank = random_bank(rng, E, D, F, ("bf16", "bf16"), fused)
    x, ids, weights = inputs(rng, tokens)
    wanted = expert_ffn_ref.expert_ffn(x, ids, weights, bank, precision="f32")
    close(run(device, x, ids, weights, bank, precision=precision), wanted, precision)


@pytest.mark.gpu
@pytest.mark.parametrize("formats", [("bf16", "bf16"), ("f32", "f32"), ("q8_0", "q8_0"), ("q8_0", "bf16")])
@pytest.mark.parametrize("tokens", [100, 333])
def test_experts_with_more_tokens_than_a_tile(
    device: str, rng: np.random.Generator, tokens: int, formats: tuple[str, str]
) -> None:
    """Three of four experts: each serves several blocks of tokens, whole and partly full ones."""
    bank = random_bank(rng, 4, D, F, formats)
    x, ids, weights = inputs(rng, tokens, 4)
    wanted = expert_ffn_ref.expert_ffn(x, ids, weights, bank, precision="f32")
    for precision in ("fast", "f32"):
        close(run(device, x, ids, weights, bank, precision=precision), wanted, precision)


def test_down_takes_the_blocks_of_gate_and_up(
    device: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs are grouped once, for tiles of gate and up; what suits down may be another size."""
    launch = expert_ffn_triton._Step.launch

    def larger(step: Any, kernel: str, *weights: Any) -> Any:
        found = launch(step, kernel, *weights)
        return found._replace(bt=2 * found.bt) if kernel == "gate_up" else found

    monkeypatch.setattr(expert_ffn_triton._Step, "launch", larger)
    bank = random_bank(rng, 4, D, F)
    x, ids, weights = inputs(rng, 50, 4)
    wanted = expert_ffn_ref.expert_ffn(x, ids, weights, bank, precision="f32")
    close(run(device, x, ids, weights, bank, precision="f32"), wanted, "f32")


@pytest.mark.parametrize(
    ("tokens", "fused"), [(1, False), (17, True), pytest.param(2, False, marks=pytest.mark.slow)]
)
def test_clamped_experts_with_biases(device: str, rng: np.random.Generator, fused: bool, tokens: int) -> None:
    bank = random_bank(rng, E, D, F, ("mxfp4", "mxfp4"), fused, biased=True)
    x, ids, weights = inputs(rng, tokens)
    wanted = expert_ffn_ref.expert_ffn(x, ids, weights, bank, "clamped", 1.5, "f32")
    close(run(device, x, ids, weights, bank, "clamped", 1.5, "f32"), wanted, "f32")


@pytest.mark.parametrize(
    "name",
    [
        "q4_0",
        "mxfp4",
        "fp8_b128",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("f32", "f16", "q8_0", "q4_1", "q5_0", "q5_1", "nvfp4")
        ),
    ],
)
def test_every_format(device: str, rng: np.random.Generator, name: str) -> None:
    bank = random_bank(rng, 3, D, F, (name, name))
    x, ids, weights = inputs(rng, 2, 3)
    wanted = expert_ffn_ref.expert_ffn(x, ids, weights, bank, precision="f32")
    close(run(device, x, ids, weights, bank, precision="f32"), wanted, "f32")
    if device != "cpu":
        close(run(device, x, ids, weights, bank), wanted, "fast")


@pytest.mark.parametrize(
    ("first", "second"), first_quick(("q4_0", "q8_0"), ("q8_0", "q4_1"), ("q4_0", "mxfp4"))
)
def test_a_single_token(device: str, rng: np.random.Generator, first: str, second: str) -> None:
    bank = random_bank(rng, 4, D, F, (first, second), fused=second == "q8_0")
    x, ids, weights = inputs(rng, 1, 4)
    wanted = expert_ffn_ref.expert_ffn(x, ids, weights, bank, precision="f32")
    close(run(device, x, ids, weights, bank), wanted, "fast")
    ids[:] = -1
    assert not run(device, x, ids, weights, bank).any()


@pytest.mark.parametrize("name", first_quick("q6_k", *sorted(ROW_FORMATS - {"q6_k"})))
def test_a_single_token_in_bfloat16_of_any_format(device: str, rng: np.random.Generator, name: str) -> None:
    width, inner = 512, 256
    roles = [
        {
            "gate_up": random_matrix(name, 2 * inner, width, rng),
            "down": random_matrix(name, width, inner, rng),
        }
        for _ in range(4)
    ]
    bank = make_bank(0, roles)
    x, ids, weights = inputs(rng, 1, 4, width)
    x = torch.from_numpy(x).to(torch.bfloat16)
    wanted = expert_ffn_ref.expert_ffn(x.float().numpy(), ids, weights, bank, precision="f32")
    places = [torch.from_numpy(each).to(device) for each in (ids, weights)]
    made = expert_ffn(x.to(device), *places, DeviceBank.upload(bank, device))
    close(made.float().cpu().numpy(), wanted, "fast")


@pytest.mark.parametrize("name", ["bf16", "q4_0"])
def test_a_single_token_some_of_whose_experts_are_elsewhere(
    device: str, rng: np.random.Generator, name: str
) -> None:
    bank = random_bank(rng, 4, D, F, (name, name), fused=name == "bf16")
    x, ids, weights = inputs(rng, 1, 4)
    first = expert_ffn_ref.expert_ffn(x, ids[:, :1], weights[:, :1], bank, precision="f32")
    last = expert_ffn_ref.expert_ffn(x, ids[:, 2:], weights[:, 2:], bank, precision="f32")
    ids[0, 1] = -1
    close(run(device, x, ids, weights, bank), first + last, "fast")


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [("q4_k", "q6_k"), ("q5_k", "q8_0")])
def test_formats_of_super_blocks(device: str, rng: np.random.Generator, first: str, second: str) -> None:
    roles = [
        {"gate_up": random_matrix(first, 2 * 256, 256, rng), "down": random_matrix(second, 256, 256, rng)}
        for _ in range(3)
    ]
    x, ids, weights = inputs(rng, 1, 3, 256)
    bank = make_bank(0, roles)
    wanted = expert_ffn_ref.expert_ffn(x, ids, weights, bank, precision="f32")
    close(run(device, x, ids, weights, bank, precision="f32"), wanted, "f32")


@pytest.mark.slow
def test_columns_that_are_no_whole_tile(device: str, rng: np.random.Generator) -> None:
    bank = random_bank(rng, 5, 80, 48, ("nvfp4", "bf16"))
    for tokens in (4, 21):
        x, ids, weights = inputs(rng, tokens, 5, 80)
        wanted = expert_ffn_ref.expert_ffn(x, ids, weights, bank, precision="f32")
        close(run(device, x, ids, weights, bank, precision="f32"), wanted, "f32")


def test_a_bank_of_one_expert_with_mixed_formats(device: str, rng: np.random.Generator) -> None:
    bank = ExpertBank.of_one(
        0,
        {
            "gate": random_matrix("f32", F, D, rng),
            "up": random_matrix("q4_0", F, D, rng),
            "down": random_matrix("q8_0", D, F, rng),
        },
    )
    for tokens in (1, 5, 20):
        x = rng.standard_normal((tokens, D), np.float32)
        ids, weights = np.zeros((tokens, 1), np.int32), rng.random((tokens, 1), np.float32)
        wanted = expert_ffn_ref.expert_ffn(x, ids, weights, bank, precision="f32")
        close(run(device, x, ids, weights, bank, precision="f32"), wanted, "f32")


def test_experts_lie_where_the_table_says(device: str, rng: np.random.Generator) -> None:
    bank = random_bank(rng, E, D, F)
    x, ids, weights = inputs(rng, 3)
    placed = DeviceBank.upload(bank, device)
    order = rng.permutation(E)
    moved = torch.from_numpy(bank.records[order]).to(device)
    matrices = {
        role: type(each).in_slots(moved, each.format, each.shape, bank.matrices[role].offsets)
        for role, each in placed.matrices.items()
    }
    table = torch.from_numpy(np.argsort(order).astype(np.int32)).to(device)
    tensors = [torch.from_numpy(each).to(device) for each in (x, ids, weights)]
    wanted = expert_ffn(*tensors, placed)
    assert torch.equal(expert_ffn(*tensors, DeviceBank(0, matrices, table)), wanted)


@pytest.mark.parametrize("tokens", first_quick(9, 25))
def test_padding_is_inert_and_the_workspace_serves_again(
    device: str, rng: np.random.Generator, tokens: int
) -> None:
    bank = random_bank(rng, E, D, F)
    x, ids, weights = inputs(rng, tokens)
    wanted = expert_ffn_ref.expert_ffn(x, ids, weights, bank, precision="f32")
    padding = np.arange(tokens) % 4 == 1
    ids[padding], x[padding] = -1, np.nan
    wanted[padding] = 0
    workspace = Workspace.make(32, K, E, D, F, "f32", device)
    for memory in (workspace.inner, workspace.parts):
        memory.fill_(255)  # NaN
    uses = torch.zeros(E + 1, dtype=torch.int64, device=device)
    out = torch.ones((tokens, D + 5), device=device)[:, 3 : D + 3]
    for _ in range(2):
        run(
            device, x, ids, weights, bank, precision="f32", out=out, add=True, add_scale=0.5,
            workspace=workspace, uses=uses,
        )  # fmt: skip
    close(out.cpu().numpy(), 1 + wanted, "f32")
    counts = np.bincount(ids[ids >= 0], minlength=E)
    assert uses.tolist() == [*(2 * counts), 2 * np.count_nonzero(counts)]
    assert not workspace.zeros.any()


def test_a_token_does_not_depend_on_others(device: str, rng: np.random.Generator) -> None:
    bank = random_bank(rng, E, D, F)
    x, ids, weights = inputs(rng, 4)
    whole = run(device, x, ids, weights, bank, precision="f32")
    for size in (1, 2):
        rows = [
            run(device, x[t : t + size], ids[t : t + size], weights[t : t + size], bank, precision="f32")
            for t in range(0, 4, size)
        ]
        np.testing.assert_array_equal(np.concatenate(rows), whole)


@pytest.mark.slow
def test_more_experts_than_pairs_and_fewer(device: str, rng: np.random.Generator) -> None:
    bank = random_bank(rng, 40, D, F)
    for tokens in (1, 14):
        x, ids, weights = inputs(rng, tokens, 40)
        wanted = expert_ffn_ref.expert_ffn(x, ids, weights, bank, precision="f32")
        close(run(device, x, ids, weights, bank, precision="f32"), wanted, "f32")


def test_refuses_what_does_not_fit(device: str, rng: np.random.Generator) -> None:
    bank = random_bank(rng, E, D, F)
    x, ids, weights = inputs(rng, 3)
    with pytest.raises(ValueError, match=r"x must be float32 or bfloat16 \[3, 96\]"):
        run(device, x[:, :64].copy(), ids, weights, bank)
    with pytest.raises(ValueError, match="silu clamped, got relu"):
        run(device, x, ids, weights, bank, "relu")
    with pytest.raises(ValueError, match="fast f32, got f16"):
        run(device, x, ids, weights, bank, precision="f16")
    small = Workspace.make(1, K, E, D, F, "f32", device)
    with pytest.raises(ValueError, match="too small for 9 pairs"):
        out = torch.zeros((3, D), device=device)
        run(device, x, ids, weights, bank, precision="f32", out=out, workspace=small)
    assert run(device, x[:0], ids[:0], weights[:0], bank).shape == (0, D)
