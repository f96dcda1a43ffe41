"""latent_attention's Triton kernels against the reference: decode and prefill, selections, padding."""

from typing import Any

import numpy as np
import pytest
import torch

from ftd.kernels.attention_triton import prefill_blocks
from ftd.kernels.latent_attention_ref import latent_attention as reference
from ftd.kernels.latent_attention_triton import (
    latent_attention,
    latent_attention_decode,
    latent_attention_prefill,
    latent_workspace,
    spread,
)
from tests.kernels.test_latent_attention import CASES, Case, arrays

# Queries and weights are rounded to the pages' type.
TOLERANCE = {"f2": 4e-3, "f4": 4e-6}


def inputs(case: Case, rng: np.random.Generator, device: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the reference's arguments and the same as tensors; rows of q lie in a wider buffer."""
    a = arrays(case, rng)
    tensors = {name: torch.from_numpy(value).to(device) for name, value in a.items() if name in PLACES}
    tokens, width = a["q"].shape[0], a["q"].shape[1] * a["q"].shape[2]
    wide = torch.zeros((tokens, width + 24), device=device)
    wide[:, :width] = torch.from_numpy(a["q"].reshape(tokens, width)).to(device)
    return a, tensors | {"q": wide[:, :width]}


PLACES = ("pages", "page_table", "q_start", "kv_len", "positions")


def run(case: Case, a: dict[str, Any], t: dict[str, Any], scale: float, selected: Any = None) -> Any:
    """Attend from the first sequences of one token by decode, from the others by prefill."""
    device, heads = t["q"].device, case.heads
    counts = np.diff(a["q_start"])
    num_decode = int(np.flatnonzero(counts != 1)[0]) if (counts != 1).any() else len(counts)
    out = torch.full((len(a["q"]), heads * case.latent), 77.0, device=device)
    keys = a["page_table"].shape[1] * case.page_size
    workspace = latent_workspace(len(counts), heads, case.latent, keys, device)
    n = num_decode
    if n:
        latent_attention_decode(
            t["q"][:n], t["pages"], t["page_table"][:n], t["kv_len"][:n], heads, case.latent, scale,
            None if selected is None else selected[:n], out=out[:n], workspace=workspace,
        )  # fmt: skip
    listed = prefill_blocks(a["q_start"], a["kv_len"], spread(heads, t["pages"]), n)
    padded = np.concatenate([listed, np.full((2, 4), -1, np.int32)])
    workspace.parts.fill_(torch.inf)  # nothing is read that was not written
    blocks = torch.from_numpy(padded).to(device)
    latent_attention_prefill(
        t["q"], t["pages"], t["page_table"], t["q_start"], t["positions"], blocks, heads, case.latent, scale,
        selected, out=out, parts=workspace.parts if (listed[:, 3] > 1).any() else None,
    )  # fmt: skip
    return out.cpu().numpy().reshape(len(a["q"]), heads, case.latent)


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(device: str, rng: np.random.Generator, name: str) -> None:
    case = CASES[name]
    a, tensors = inputs(case, rng, device)
    scale = 0.3 / case.channels**0.5
    wanted = reference(a["q"], *(a[each] for each in PLACES), latent=case.latent, scale=scale)
    actual = run(case, a, tensors, scale)
    assert np.abs(actual - wanted).max() <= TOLERANCE[case.dtype] * np.abs(wanted).max()


@pytest.mark.parametrize("name", ["decode beside prefill", "few rows, many keys"])
def test_takes_what_the_reference_takes(device: str, rng: np.random.Generator, name: str) -> None:
    case = CASES[name]
    a = arrays(case, rng)
    words = -(-a["page_table"].shape[1] * case.page_size // 64)
    bits = rng.random((len(a["q"]), words * 64)) < 0.5
    bits[np.arange(len(bits)), a["positions"]] = True
    selected = np.packbits(bits, axis=1, bitorder="little").view(np.uint64)
    tensors = {
        name: torch.from_numpy(value).to(device) if isinstance(value, np.ndarray) else value
        for name, value in (a | {"selected": selected.view(np.int64)}).items()
    }
    wanted = reference(**a, selected=selected)
    actual = latent_attention(**tensors).cpu().numpy()
    assert np.abs(actual - wanted).max() <= TOLERANCE[case.dtype] * np.abs(wanted).max()


@pytest.mark.parametrize("name", ["decode beside prefill", "float32 pages", "tile edges, decode"])
def test_attends_to_what_is_selected(device: str, rng: np.random.Generator, name: str) -> None:
    case = CASES[name]
    a, tensors = inputs(case, rng, device)
    words = -(-a["page_table"].shape[1] * case.page_size // 64)
    bits = rng.random((len(a["q"]), words * 64)) < 0.3
    bits[np.arange(len(bits)), a["positions"]] = True
    if len(a["kv_len"]) > 4:
        bits[4, :200] = False  # whole tiles that nobody sees
    selected = np.packbits(bits, axis=1, bitorder="little").view(np.uint64)
    places = tuple(a[each] for each in PLACES)
    wanted = reference(a["q"], *places, latent=case.latent, scale=0.1, selected=selected)
    actual = run(case, a, tensors, 0.1, torch.from_numpy(selected.view(np.int64)).to(device))
    assert np.abs(actual - wanted).max() <= TOLERANCE[case.dtype] * np.abs(wanted).max()


def test_padding_gives_zeros(device: str, rng: np.random.Generator) -> None:
    case = Case(4, 24, 16, 4, ((1, 9), (1, 5)))
    a, tensors = inputs(case, rng, device)
    a["kv_len"][1] = 0
    out = torch.full((2, 64), 77.0, device=device)
    kv_len = torch.from_numpy(a["kv_len"]).to(device)
    latent_attention_decode(
        tensors["q"], tensors["pages"], tensors["page_table"], kv_len, 4, 16, 0.2, out=out
    )  # fmt: skip
    assert not out[1].any() and torch.isfinite(out[0]).all()


def test_refuses_what_does_not_fit(device: str, rng: np.random.Generator) -> None:
    case = Case(4, 24, 16, 4, ((1, 9), (1, 5)))
    _, t = inputs(case, rng, device)
    out = torch.zeros((2, 64), device=device)
    with pytest.raises(ValueError, match=r"q must be .* \[T, 72\], got float32 \[2, 96\]"):
        latent_attention_decode(t["q"], t["pages"], t["page_table"], t["kv_len"], 3, 16, 0.2, out=out)
    with pytest.raises(ValueError, match="latent must lie in 1 to 24, got 25"):
        latent_attention_decode(t["q"], t["pages"], t["page_table"], t["kv_len"], 4, 25, 0.2, out=out)
