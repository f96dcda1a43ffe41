"""Expert banks of any formats, from matrices of each expert."""

import numpy as np
from weights import random_matrix

from ftd.kernels.quant import FORMATS, BankMatrix, ExpertBank, QuantMatrix


def make_bank(layer: int, experts: list[dict[str, QuantMatrix]]) -> ExpertBank:
    """Return the bank whose record e holds the matrices ``experts[e]`` by role, planes at multiples of 64."""
    places: dict[str, tuple[int, ...]] = {}
    size = 0
    for role, matrix in experts[0].items():
        offsets = []
        for plane in matrix.planes:
            offsets.append(size)
            size += -(-plane.nbytes // 64) * 64
        places[role] = tuple(offsets)
    records = np.zeros((len(experts), -(-size // 4096) * 4096), np.uint8)
    matrices = {
        role: BankMatrix(records, matrix.format, matrix.shape, places[role])
        for role, matrix in experts[0].items()
    }
    for index, roles in enumerate(experts):
        for role, matrix in roles.items():
            for target, plane in zip(matrices[role].expert(index).planes, matrix.planes, strict=True):
                target[...] = plane
    return ExpertBank(layer, records, matrices)


def random_bank(
    rng: np.random.Generator,
    num_experts: int,
    width: int,
    inner: int,
    formats: tuple[str, str] = ("f32", "f32"),
    fused: bool = True,
    biased: bool = False,
) -> ExpertBank:
    """Return a bank of random weights; formats: of gate and up, and of down."""
    shapes = {"gate_up": (2 * inner, width)} if fused else {"gate": (inner, width), "up": (inner, width)}
    shapes["down"] = (width, inner)
    experts = []
    for _ in range(num_experts):
        roles = {role: random_matrix(formats[role == "down"], *shape, rng) for role, shape in shapes.items()}
        if biased:
            for role, shape in shapes.items():
                values = rng.standard_normal((1, shape[0]), np.float32)
                roles[f"{role}_bias"] = QuantMatrix("f32", values.shape, (values,))
        experts.append(roles)
    assert set(formats) <= set(FORMATS)
    return make_bank(0, experts)
