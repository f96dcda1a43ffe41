"""Experts of transformers' models as banks: their stacked parameters by layer, expert and role."""

import re
from typing import Any

import numpy as np
from banks import make_bank
from numpy.typing import NDArray

from ftd.kernels.quant import ExpertBank, QuantMatrix

_EXPERTS = re.compile(r"model\.layers\.(\d+)\.(?:mlp|block_sparse_moe)\.experts\.(\w+)")
_SPELLINGS = (
    ("block_sparse_moe.router.", "mlp.gate."),
    ("mlp.router.", "mlp.gate."),
    ("mlp.shared_experts.", "mlp.shared_expert."),
)


def our_name(name: str) -> str:
    """Return the name of a tensor outside the experts as ftd spells it."""
    for theirs, ours in _SPELLINGS:
        name = name.replace(theirs, ours)
    return name


def f32(values: NDArray[np.float32]) -> QuantMatrix:
    """Return ``values`` as an f32 matrix."""
    codes = np.ascontiguousarray(np.atleast_2d(values), dtype="<f4")
    return QuantMatrix("f32", codes.shape, (codes,))


def roles_of(
    architecture: str, stacked: dict[str, NDArray[np.float32]], expert: int
) -> dict[str, QuantMatrix]:
    """Return one expert's matrices by role; mixtral's gate and up apart, the others' in one."""
    gate_up, down = stacked["gate_up_proj"][expert], stacked["down_proj"][expert]
    if architecture == "gpt_oss":  # inputs are rows there, and gate and up alternate
        rows, bias = gate_up.T, stacked["gate_up_proj_bias"][expert]
        return {
            "gate_up": f32(np.concatenate([rows[::2], rows[1::2]])),
            "down": f32(down.T),
            "gate_up_bias": f32(np.concatenate([bias[::2], bias[1::2]])),
            "down_bias": f32(stacked["down_proj_bias"][expert]),
        }
    if architecture == "mixtral":
        gate, up = np.split(gate_up, 2)
        return {"gate": f32(gate), "up": f32(up), "down": f32(down)}
    return {"gate_up": f32(gate_up), "down": f32(down)}


def take_banks(architecture: str, state: dict[str, Any]) -> tuple[ExpertBank, ...]:
    """Take the experts out of ``state`` (transformers' parameters by name); return each layer's bank."""
    layers: dict[int, dict[str, NDArray[np.float32]]] = {}
    for name in list(state):
        if match := _EXPERTS.fullmatch(name):
            layers.setdefault(int(match[1]), {})[match[2]] = state.pop(name).numpy()
    return tuple(
        make_bank(layer, [roles_of(architecture, stacked, e) for e in range(len(stacked["down_proj"]))])
        for layer, stacked in layers.items()
    )
