"""expert_ffn: the definition."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.matmul_ref import PRECISIONS, matmul
from ftd.kernels.quant import BankMatrix, ExpertBank, OnlyMatrix
from ftd.kernels.shapes import ArrayLike, expect, expect_range

ACTIVATIONS: tuple[str, ...] = ("silu", "clamped")
ALPHA = 1.702  # of gpt-oss: gelu is close to x * sigmoid(1.702 x)


def check_bank(bank: ExpertBank, activation: str) -> tuple[int, int]:
    """Return (D, F) of a bank; ValueError unless its matrices fit each other and the activation is known."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {' '.join(ACTIVATIONS)}, got {activation}")
    roles = set(bank.matrices)
    weights = {"gate_up", "down"} if "gate_up" in roles else {"gate", "up", "down"}
    biases = {f"{role}_bias" for role in weights}
    if not weights <= roles or roles - weights not in (set(), biases):
        raise ValueError(
            f"a bank needs {' '.join(sorted(weights))} and all or none of their biases: {sorted(roles)}"
        )
    width, inner = bank.matrices["down"].shape
    shapes = {
        "gate_up": (2 * inner, width),
        "gate": (inner, width),
        "up": (inner, width),
        "down": (width, inner),
    }
    for role in weights:
        _expect_matrix(bank.matrices[role], role, shapes[role])
        if biases <= roles:
            bias = bank.matrices[f"{role}_bias"]
            _expect_matrix(bias, f"{role}_bias", (1, shapes[role][0]))
            if bias.format != "f32":
                raise ValueError(f"{role}_bias must be f32, got {bias.format}")
    return width, inner


def _expect_matrix(matrix: BankMatrix | OnlyMatrix, role: str, shape: tuple[int, int]) -> None:
    if matrix.shape != shape:
        raise ValueError(f"{role} must be {list(shape)}, got {list(matrix.shape)}")


def check(
    x: ArrayLike,
    ids: NDArray[np.int32],
    weights: ArrayLike,
    bank: ExpertBank,
    activation: str,
    precision: str,
) -> None:
    """Raise ValueError unless the arguments fit the contract of ``expert_ffn``."""
    width, _ = check_bank(bank, activation)
    expect("x", x, "float32", ("T", width))
    expect("ids", ids, "int32", (x.shape[0], "K"))
    expect("weights", weights, "float32", tuple(ids.shape))
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {' '.join(PRECISIONS)}, got {precision}")
    if ids.size:
        expect_range("ids", int(ids.min()), int(ids.max()), 0, bank.num_experts - 1)


def activate(
    gate: NDArray[np.float32], up: NDArray[np.float32], activation: str, limit: float
) -> NDArray[np.float32]:
    """Return what of gate and up [T, F] goes to down, as ``expert_ffn`` says."""
    wide, other = gate.astype(np.float64), up.astype(np.float64)
    alpha = 1.0
    if activation == "clamped":
        wide, other = np.minimum(wide, limit), np.clip(other, -limit, limit) + 1.0
        alpha = ALPHA
    decay = np.exp(-np.abs(alpha * wide))
    sigmoid = np.where(wide >= 0.0, 1.0, decay) / (1.0 + decay)
    return (wide * sigmoid * other).astype(np.float32)


def expert_ffn(
    x: NDArray[np.float32],
    ids: NDArray[np.int32],
    weights: NDArray[np.float32],
    bank: ExpertBank,
    activation: str = "silu",
    limit: float = 7.0,
    precision: str = "fast",
    pool: object = None,
) -> NDArray[np.float32]:
    """Return the weighted sum of what each token's experts make of it.

    x        [T, D] f32
    ids      [T, K] i32   0 .. E - 1, as route_topk gives them
    weights  [T, K] f32
    returns  [T, D] f32   sum over k of weights[t, k] * (down_e act(gate_e x_t, up_e x_t)), e = ids[t, k]

    act      "silu": silu(g) * u;  "clamped": h * sigmoid(1.702 h) * (c + 1), h = min(g, limit),
             c = u cut to -limit .. limit. Biases of the bank are added to each product.
    precision as for ``matmul``; a row of the result depends on its own row of x, ids and weights alone.

    Bytes moved: the weights of each expert that ``ids`` names, once; about 8*T*K*(D + F).
    Raises ValueError if a shape or dtype differs, an id is no expert or the bank's matrices do not fit.
    """
    check(x, ids, weights, bank, activation, precision)
    out = np.zeros(x.shape, np.float64)
    results = np.empty((*ids.shape, x.shape[1]), np.float32)
    for expert in np.unique(ids):
        tokens, choices = np.nonzero(ids == expert)
        results[tokens, choices] = _one_expert(x[tokens], bank, int(expert), activation, limit, precision)
    for choice in range(ids.shape[1]):
        out += weights[:, choice, None].astype(np.float64) * results[:, choice]
    return out.astype(np.float32)


def _one_expert(
    x: NDArray[np.float32], bank: ExpertBank, expert: int, activation: str, limit: float, precision: str
) -> NDArray[np.float32]:
    def product(role: str, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        bias = None
        if f"{role}_bias" in bank.matrices:
            bias = bank.matrices[f"{role}_bias"].expert(expert).planes[0][0].astype(np.float32)
        return matmul(rows, bank.matrices[role].expert(expert), bias, precision)

    if "gate_up" in bank.matrices:
        gate, up = np.split(product("gate_up", x), 2, axis=1)
    else:
        gate, up = product("gate", x), product("up", x)
    return product("down", activate(gate, up, activation, limit))
