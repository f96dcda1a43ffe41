"""The weights of a model on a device, which torch's processor plays: once each, and close together."""

from typing import Any

import numpy as np
import pytest
import torch
from banks import random_bank
from numpy.typing import NDArray
from weights import random_matrix

from ftd.errors import OutOfMemory
from ftd.kernels.device_weights import DeviceWeights, allocate
from ftd.kernels.quant import ExpertBank, QuantMatrix

RNG = np.random.default_rng(12)


class Late:
    """Brings bytes when it is told to finish; refuses arrays of ``refused`` bytes."""

    def __init__(self, refused: int = -1) -> None:
        self.refused = refused
        self.promised: list[tuple[NDArray[np.uint8], torch.Tensor]] = []

    def put(self, source: NDArray[np.uint8], target: torch.Tensor) -> bool:
        if source.nbytes == self.refused:
            return False
        self.promised.append((source, target))
        return True

    def finish(self) -> None:
        for source, target in self.promised:
            target.copy_(torch.from_numpy(source))


def content(matrix: Any) -> bytes:
    return b"".join(plane.contiguous().view(torch.uint8).numpy().tobytes() for plane in matrix.planes)


def planes_of(*matrices: QuantMatrix) -> bytes:
    """Return the bytes of stacked matrices, plane by plane."""
    return b"".join(matrix.planes[i].tobytes() for i in range(len(matrices[0].planes)) for matrix in matrices)


def test_a_weight_is_uploaded_once_and_found_by_where_it_lies() -> None:
    store = DeviceWeights("cpu", Late())
    first, second = (random_matrix("q4_0", 4, 64, RNG) for _ in range(2))
    assert store.matrix([first]) is store.matrix([QuantMatrix("q4_0", first.shape, first.planes)])
    stacked = store.matrix([first, second])
    assert store.matrix([second, first]) is not stacked is store.matrix([first, second])
    assert store.num_bytes == 5 * first.num_bytes
    store.finish()
    assert content(stacked) == planes_of(first, second)
    assert content(store.matrix([second, first])) == planes_of(second, first)
    assert store.matrix([first, second]) is stacked, "files stay where they are after they were read"


def test_without_an_upload_everything_is_there_at_once_and_addresses_are_forgotten() -> None:
    """Memory of weights that nobody holds any more may be that of others later."""
    store = DeviceWeights("cpu")
    matrix, bank = random_matrix("bf16", 3, 40, RNG), random_bank(RNG, 2, 32, 32)
    placed, experts = store.matrix([matrix]), store.bank(bank)
    assert content(placed) == planes_of(matrix)
    assert store.matrix([matrix]) is placed and store.bank(bank) is experts
    store.finish()
    assert store.matrix([matrix]) is not placed and store.bank(bank) is not experts


def test_what_the_upload_refuses_is_copied() -> None:
    matrix = random_matrix("q8_0", 2, 64, RNG)
    upload = Late(refused=matrix.planes[1].nbytes)
    placed = DeviceWeights("cpu", upload).matrix([matrix])
    codes, scales = placed.planes
    assert len(upload.promised) == 1
    assert scales.view(torch.uint8).numpy().tobytes() == matrix.planes[1].tobytes()
    upload.finish()
    assert content(placed) == planes_of(matrix) and codes.any()


@pytest.mark.parametrize("room", ["none", "all", "half"])
def test_memory_is_one_run_as_far_as_it_reaches(room: str) -> None:
    matrices = [random_matrix("f16", rows, 48, RNG) for rows in (1, 3, 2, 5)]
    aligned = sum(-(-matrix.num_bytes // 256) * 256 for matrix in matrices)
    size = {"none": 0, "all": aligned, "half": aligned // 2}[room]
    store = DeviceWeights("cpu", dense_bytes=size)
    placed = [store.matrix([matrix]) for matrix in matrices]
    addresses = [each.planes[0].data_ptr() for each in placed]
    base = store._dense._memory.data_ptr()
    inside = [address - base for address in addresses if 0 <= address - base < size]
    assert len(inside) == {"none": 0, "all": 4}.get(room, len(inside)) and (
        room != "half" or 0 < len(inside) < 4
    )
    assert inside == sorted(inside) and all(offset % 256 == 0 for offset in inside)
    for each, matrix in zip(placed, matrices, strict=True):
        assert content(each) == planes_of(matrix)


def test_experts_have_memory_of_their_own_and_shared_ones_do_not() -> None:
    bank = random_bank(RNG, 2, 64, 32)
    shared = ExpertBank.of_one(0, {"down": random_matrix("f32", 4, 8, RNG)})
    store = DeviceWeights("cpu", dense_bytes=1 << 16, expert_bytes=1 << 16)
    assert not store.has_experts
    alone = store.bank(shared)
    assert not store.has_experts and store.bank(shared) is alone
    placed = store.bank(bank)
    assert store.has_experts and store.bank(bank) is placed
    assert store.bank(ExpertBank(7, bank.records, bank.matrices)) is not placed, "another layer of one array"

    def lies_in(tensor: torch.Tensor, memory: torch.Tensor) -> bool:
        return 0 <= tensor.data_ptr() - memory.data_ptr() < memory.nbytes

    assert lies_in(alone.matrices["down"].planes[0], store._dense._memory)
    assert lies_in(placed.matrices["down"].planes[0], store._experts._memory)
    assert store.num_bytes == 2 * bank.records.nbytes + 4 * 8 * 4


def test_arrays_that_may_not_be_written_are_read() -> None:
    matrix = random_matrix("f32", 2, 8, RNG)
    for plane in matrix.planes:
        plane.setflags(write=False)
    assert content(DeviceWeights("cpu").matrix([matrix])) == planes_of(matrix)


def test_memory_that_the_device_refuses_is_an_error_that_helps() -> None:
    def refuse() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")

    with pytest.raises(OutOfMemory, match=r"the device refused memory: CUDA out of memory$") as caught:
        allocate(refuse)
    assert "FTD_DEVICE=cpu" in (caught.value.hint or "")
