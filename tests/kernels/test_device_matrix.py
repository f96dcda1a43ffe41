"""Weights on a device, which torch's processor plays, byte for byte against their planes."""

import numpy as np
import pytest
import torch
from banks import random_bank
from weights import random_matrix

from ftd.kernels.device_matrix import DeviceBank, DeviceMatrix
from ftd.kernels.quant import FORMATS, ExpertBank, QuantMatrix

RNG = np.random.default_rng(11)
STACKED = sorted(set(FORMATS) - {"nvfp4", "fp8_b128"})


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("format_name", STACKED)
def test_stacked_matrices_lie_one_below_the_other(format_name: str) -> None:
    parts = [random_matrix(format_name, rows, 256, RNG) for rows in (3, 1, 8)]
    made = DeviceMatrix.upload(parts, "cpu")
    assert (made.format, made.shape, made.num_slots) == (format_name, (12, 256), 1)
    assert made.num_bytes == sum(part.num_bytes for part in parts)
    for index, plane in enumerate(made.planes):
        assert plane.shape[:2] == (1, 12)
        assert bytes_of(plane) == b"".join(part.planes[index].tobytes() for part in parts)


@pytest.mark.parametrize("format_name", ["nvfp4", "fp8_b128"])
def test_formats_whose_rows_share_scales_stand_alone(format_name: str) -> None:
    one = random_matrix(format_name, 128, 256, RNG)
    made = DeviceMatrix.upload([one], "cpu")
    assert [bytes_of(plane) for plane in made.planes] == [plane.tobytes() for plane in one.planes]
    with pytest.raises(ValueError, match=f"{format_name} matrices share scales between rows"):
        DeviceMatrix.upload([one, one], "cpu")


@pytest.mark.parametrize("other", [("q4_0", 64), ("f16", 32)])
def test_only_what_agrees_is_stacked(other: tuple[str, int]) -> None:
    first, second = random_matrix("q4_0", 2, 32, RNG), random_matrix(other[0], 2, other[1], RNG)
    with pytest.raises(ValueError, match="must agree in format and columns"):
        DeviceMatrix.upload([first, second], "cpu")


def test_whoever_places_gets_all_parts_of_a_plane_at_once() -> None:
    parts = [random_matrix("q8_0", rows, 64, RNG) for rows in (2, 5)]
    asked: list[list[tuple[int, ...]]] = []

    def place(arrays: list[np.ndarray]) -> torch.Tensor:
        asked.append([array.shape for array in arrays])
        return torch.from_numpy(np.concatenate(arrays))

    made = DeviceMatrix.upload(parts, "cpu", place)
    assert asked == [[(2, 64), (5, 64)], [(2, 4), (5, 4)]]  # codes, then a half for each 32 of them
    assert bytes_of(made.planes[0]) == parts[0].planes[0].tobytes() + parts[1].planes[0].tobytes()


@pytest.mark.parametrize("formats", [("q4_0", "q8_0"), ("bf16", "bf16"), ("mxfp4", "q6_k")])
def test_expert_e_lies_in_slot_e(formats: tuple[str, str]) -> None:
    bank = random_bank(RNG, 3, 256, 256, formats, biased=True)
    made = DeviceBank.upload(bank, "cpu")
    assert made.num_experts == 3 and made.slot_of.tolist() == [0, 1, 2]
    for role, matrix in bank.matrices.items():
        placed = made.matrices[role]
        assert placed.num_slots == 3 and placed.shape == matrix.shape
        for expert in range(3):
            wanted = [plane.tobytes() for plane in matrix.expert(expert).planes]
            assert [bytes_of(plane[expert]) for plane in placed.planes] == wanted


def test_an_expert_of_another_slot_is_read_there() -> None:
    """Planes are views: what is copied into a slot later is the weight."""
    bank = random_bank(RNG, 2, 64, 32, ("q4_0", "q4_0"))
    slots = torch.zeros((5, bank.records.shape[1]), dtype=torch.uint8)
    down = bank.matrices["down"]
    placed = DeviceMatrix.in_slots(slots, down.format, down.shape, down.offsets)
    slots[4] = torch.from_numpy(bank.records[1])
    assert [bytes_of(plane[4]) for plane in placed.planes] == [
        plane.tobytes() for plane in down.expert(1).planes
    ]
    assert not any(plane[:4].any() for plane in placed.planes)


@pytest.mark.parametrize("offsets", [(0, 4096 - 2), (8, 1024), (-16, 1024), (0, 4096)])
def test_planes_that_do_not_fit_their_slots_are_refused(offsets: tuple[int, int]) -> None:
    slots = torch.zeros((2, 4096), dtype=torch.uint8)
    DeviceMatrix.in_slots(slots, "q8_0", (8, 64), (0, 4096 - 32))
    with pytest.raises(ValueError, match="does not fit slots of 4096 bytes"):
        DeviceMatrix.in_slots(slots, "q8_0", (8, 64), offsets)


def test_a_shared_expert_needs_no_record() -> None:
    matrices = {
        "gate_up": random_matrix("q4_0", 64, 32, RNG),
        "down": random_matrix("f32", 32, 32, RNG),
    }
    bank = ExpertBank.of_one(5, matrices)
    made = DeviceBank.upload(bank, "cpu")
    assert (made.layer, made.num_experts) == (5, 1)
    for role, matrix in matrices.items():
        assert isinstance(matrix, QuantMatrix)
        assert [bytes_of(p) for p in made.matrices[role].planes] == [p.tobytes() for p in matrix.planes]
