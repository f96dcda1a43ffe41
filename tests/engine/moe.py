"""Experts of transformers' models as banks: their stacked parameters by layer, expert and role."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from banks import make_bank
from numpy.typing import NDArray

from ftd.kernels.dequantize_ref import dequantize
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


def mxfp4(values: NDArray[np.float32]) -> QuantMatrix:
    """Return ``values`` [N, K] with each block of 32 rounded to 4-bit floats times a power of two."""
    rows, columns = values.shape
    blocks = values.reshape(rows, -1, 32)
    power = np.floor(np.log2(np.abs(blocks).max(axis=2) + 1e-30)) - 2
    levels = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    scaled = blocks / 2.0 ** power[:, :, None]
    codes = np.abs(np.abs(scaled)[..., None] - levels).argmin(axis=3) + 8 * (scaled < 0)
    packed = (codes[:, :, :16] | codes[:, :, 16:] << 4).astype(np.uint8).reshape(rows, columns // 2)
    return QuantMatrix("mxfp4", (rows, columns), (packed, (power + 127).astype(np.uint8)))


def requantized(
    architecture: str,
    oracle: Any,
    banks: tuple[ExpertBank, ...],
    quantize: Callable[[NDArray[np.float32]], QuantMatrix],
) -> tuple[ExpertBank, ...]:
    """Return ``banks`` with every matrix quantised, and give ``oracle`` the values that they then have."""
    import torch

    parameters = {
        (int(match[1]), match[2]): parameter
        for name, parameter in oracle.named_parameters()
        if (match := _EXPERTS.fullmatch(name))
    }
    result = []
    for bank in banks:
        experts = []
        for expert in range(bank.num_experts):
            roles = {role: matrix.expert(expert) for role, matrix in bank.matrices.items()}
            for role in roles.keys() & {"gate_up", "gate", "up", "down"}:
                roles[role] = quantize(roles[role].planes[0].astype(np.float32))
            experts.append(roles)
            exact = {role: dequantize(matrix) for role, matrix in roles.items()}
            rows, down = exact.get("gate_up"), exact["down"]
            rows = np.concatenate([exact["gate"], exact["up"]]) if rows is None else rows
            if architecture == "gpt_oss":
                rows, down = np.stack(np.split(rows, 2), axis=1).reshape(rows.shape).T, down.T
            with torch.no_grad():
                parameters[bank.layer, "gate_up_proj"][expert] = torch.from_numpy(rows.copy())
                parameters[bank.layer, "down_proj"][expert] = torch.from_numpy(down.copy())
        result.append(make_bank(bank.layer, experts))
    return tuple(result)
