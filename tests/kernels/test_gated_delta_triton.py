"""gated_delta's Triton kernel against the reference: steps of several sequences, odd shapes, padding."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from examples import first_quick

from ftd.kernels import gated_delta_ref
from ftd.kernels.gated_chunk_triton import chunk_workspace
from ftd.kernels.gated_delta_triton import gated_delta, gated_delta_into


class Case:
    """Random inputs of a step whose sequences have ``lengths``; the first one is new."""

    def __init__(
        self, rng: np.random.Generator, shape: tuple[int, int, int, int], lengths: tuple[int, ...]
    ) -> None:
        self.key_heads, value_heads, key, value = shape
        count = sum(lengths)
        width = 2 * self.key_heads * key + value_heads * value
        self.qkv = rng.standard_normal((count, width), np.float32)
        self.a, self.b = (rng.standard_normal((count, value_heads), np.float32) * 3 for _ in range(2))
        self.decay = -np.exp(rng.uniform(-3, 1.5, value_heads)).astype(np.float32)
        self.bias = rng.standard_normal(value_heads, np.float32)
        self.state = rng.standard_normal((5, value_heads, key, value), np.float32)
        self.starts = np.cumsum([0, *lengths]).astype(np.int32)
        self.positions = np.concatenate([np.arange(n) + (i > 0) * 7 for i, n in enumerate(lengths)]).astype(
            np.int32
        )
        self.slots = np.array([3, 0, 4][: len(lengths)], np.int32)

    def tensors(self, device: str) -> tuple[Any, ...]:
        """Return the case's arguments on ``device``, those up to the step's places."""
        arrays = (self.qkv, self.a, self.b, self.decay, self.bias, self.state)
        places = (self.starts, self.positions, self.slots)
        values, indices = ([torch.tensor(each, device=device) for each in some] for some in (arrays, places))
        return *values, self.key_heads, *indices

    def run(self, device: str, tiled: bool = False) -> tuple[Any, Any]:
        """Return results and the state after the step."""
        tensors = self.tensors(device)
        out = gated_delta(*tensors, tiled)
        return out.float().cpu().numpy(), tensors[5].cpu().numpy()

    def run_bfloat16(self, device: str) -> tuple[Any, Any]:
        """Return what ``run`` does of rows in bfloat16, which the case's own become; results are f32."""
        rows = torch.from_numpy(self.qkv).to(torch.bfloat16)
        self.qkv = rows.float().numpy()
        tensors = self.tensors(device)
        out = torch.zeros((len(rows), self.a.shape[1] * self.state.shape[3]), device=device)
        workspace = chunk_workspace(len(rows), len(self.slots), self.state.shape, device)
        gated_delta_into(rows.to(device), *tensors[1:], out=out, workspace=workspace)
        return out.cpu().numpy(), tensors[5].cpu().numpy()

    def expected(self, tiled: bool = False) -> Any:
        """Return the reference's results; it writes to the case's state."""
        arrays = (self.qkv, self.a, self.b, self.decay, self.bias, self.state)
        return gated_delta_ref.gated_delta(
            *arrays, self.key_heads, self.starts, self.positions, self.slots, tiled
        )


def close(actual: Any, wanted: Any) -> None:
    """Compare relative to the largest value."""
    assert np.abs(actual - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("shape", "lengths", "tiled"),
    [
        ((2, 4, 24, 40), (1, 1, 1), False),
        ((2, 4, 24, 40), (5, 0, 3), True),
        ((1, 3, 7, 13), (12,), False),
        ((1, 1, 1, 1), (4, 1), False),
        ((1, 2, 128, 16), (9,), True),
        # many tokens, in chunks: keys in two parts
        ((1, 2, 128, 48), (64, 65, 17), True),
        pytest.param((1, 1, 7, 13), (200, 16), False, marks=pytest.mark.slow),
        # few tokens between many
        pytest.param((2, 4, 24, 40), (70, 3, 20), False, marks=pytest.mark.slow),
        # up to, over and far over the end of a first chunk
        pytest.param((1, 2, 16, 16), (57, 58, 130), True, marks=pytest.mark.slow),
    ],
)
def test_equals_the_reference(
    device: str,
    rng: np.random.Generator,
    shape: tuple[int, int, int, int],
    lengths: tuple[int, ...],
    tiled: bool,
) -> None:
    case = Case(rng, shape, lengths)
    out, kept = case.run(device, tiled)
    close(out, case.expected(tiled))
    close(kept, case.state)


@pytest.mark.parametrize("alike", first_quick(1.0, 0.999))
def test_keys_that_are_all_alike(device: str, rng: np.random.Generator, alike: float) -> None:
    """Nothing forgotten, all corrected: powers of the matrix that chunks invert would reach 1e18."""
    case = Case(rng, (1, 2, 32, 16), (150,))
    case.qkv[:] = alike * case.qkv[:1] + (1 - alike) * case.qkv
    case.a[:], case.b[:] = -20, 20
    out, kept = case.run(device)
    close(out, case.expected())
    close(kept, case.state)


@pytest.mark.parametrize("alike", first_quick(0.0, 0.9))
def test_little_forgotten_after_much(device: str, rng: np.random.Generator, alike: float) -> None:
    """Sums of what is forgotten reach 500 in a chunk; their differences count where they are near 0."""
    case = Case(rng, (1, 2, 16, 24), (130,))
    case.qkv[:] = alike * case.qkv[:1] + (1 - alike) * case.qkv
    case.decay[:] = -4.4
    case.a[:] = np.where(np.arange(130) % 16 < 4, 30, -12)[:, None] + case.a / 3
    out, kept = case.run(device)
    close(out, case.expected())
    close(kept, case.state)


@pytest.mark.parametrize(
    ("channels", "lengths"),
    [
        ((16, 24), (70, 3)),
        pytest.param((128, 128), (1000,), marks=pytest.mark.gpu),
        pytest.param((256, 128), (17, 600, 64), marks=pytest.mark.gpu),
    ],
)
def test_rows_of_bfloat16(
    device: str, rng: np.random.Generator, channels: tuple[int, int], lengths: tuple[int, ...]
) -> None:
    """As exact as rows of f32 of the same values."""
    case = Case(rng, (1, 2, *channels), lengths)
    out, kept = case.run_bfloat16(device)
    close(out, case.expected())
    close(kept, case.state)


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [(64, 64), (128, 128), (256, 128), (128, 192), (96, 80)])
@pytest.mark.parametrize("lengths", [(1000,), (17, 600, 64), (511, 1, 513)])
def test_many_tokens_of_real_heads(
    device: str, rng: np.random.Generator, channels: tuple[int, int], lengths: tuple[int, ...]
) -> None:
    case = Case(rng, (2, 4, *channels), lengths)
    out, kept = case.run(device)
    close(out, case.expected())
    close(kept, case.state)


def test_padding_is_inert(device: str, rng: np.random.Generator) -> None:
    case = Case(rng, (1, 2, 8, 8), (1, 2, 1))
    kv_len = torch.tensor([1, 0, 8], dtype=torch.int32, device=device)
    target, tensors = torch.full((4, 16), 77.0, device=device), case.tensors(device)
    workspace = chunk_workspace(4, 3, case.state.shape, device)
    gated_delta_into(*tensors, out=target, workspace=workspace, kv_len=kv_len)
    before = case.state.copy()
    wanted = case.expected()
    wanted[1:3], case.state[0] = 77, before[0]
    close(target.cpu().numpy(), wanted)
    close(tensors[5].cpu().numpy(), case.state)


@pytest.mark.parametrize("ends", [(3, 4, 7), (64, 128, 150)], ids=["token by token", "at the ends of chunks"])
def test_steps_give_the_bits_of_one(device: str, rng: np.random.Generator, ends: tuple[int, ...]) -> None:
    case = Case(rng, (1, 2, 16, 24), (ends[-1],))
    out, kept = case.run(device)
    whole = case.qkv, case.a, case.b
    parts = []
    for first, last in pairwise((0, *ends)):
        case.qkv, case.a, case.b = (each[first:last] for each in whole)
        case.starts = np.array([0, last - first], np.int32)
        case.positions = np.arange(first, last, dtype=np.int32)
        part, case.state = case.run(device)
        parts.append(part)
    np.testing.assert_array_equal(np.concatenate(parts), out)
    np.testing.assert_array_equal(case.state, kept)


def test_refuses_what_does_not_fit(device: str, rng: np.random.Generator) -> None:
    case = Case(rng, (2, 4, 8, 8), (2,))
    case.key_heads = 3
    with pytest.raises(ValueError, match="multiple of key heads, got 4 and 3"):
        case.run(device)
    case.key_heads, case.a = 2, case.a[:, :3]
    with pytest.raises(ValueError, match=r"a must be float32 or bfloat16 \[2, 4\]"):
        case.run(device)
