"""Look-ups by name: views without copies, refusals that name the tensor and both shapes."""

import numpy as np
import pytest
from banks import random_bank

from ftd.engine.weights import Weights
from ftd.errors import InvalidFtw
from ftd.kernels.quant import BankMatrix, ExpertBank, QuantMatrix
from tests.engine.tiny import matrix


def q8_row(scale: float) -> QuantMatrix:
    """One row of 32 codes 0 .. 31 in q8_0."""
    codes = np.arange(32, dtype=np.int8)[None]
    return QuantMatrix("q8_0", (1, 32), (codes, np.array([[scale]], "<f2")))


def test_a_float_vector_is_a_view() -> None:
    source = matrix(np.arange(5, dtype=np.float32))
    vector = Weights({"norm": source}).vector("norm", 5)
    assert np.shares_memory(vector, source.planes[0])
    np.testing.assert_array_equal(vector, [0, 1, 2, 3, 4])


def test_a_quantised_vector_is_dequantised() -> None:
    np.testing.assert_array_equal(Weights({"norm": q8_row(0.5)}).vector("norm", 32), np.arange(32) / 2)


def test_unused_tensors_and_bytes_are_counted() -> None:
    weights = Weights({"a": matrix(np.zeros((2, 3), np.float32)), "b": q8_row(1.0)})
    assert weights.num_bytes == 24 + 34
    weights.matrix("a", 2, 3)
    assert weights.unused() == ["b"]
    assert "b" in weights and "c" not in weights


@pytest.mark.parametrize(
    ("name", "rows", "words"),
    [("b", 2, "no tensor b"), ("a", 3, r"tensor a must be \[3, 3\]: \[2, 3\]")],
)
def test_refusals_name_the_tensor(name: str, rows: int, words: str) -> None:
    weights = Weights({"a": matrix(np.zeros((2, 3), np.float32))})
    with pytest.raises(InvalidFtw, match=words):
        weights.matrix(name, rows, 3)
    assert weights.used == set()


def test_banks_are_checked_and_counted() -> None:
    rng = np.random.default_rng(4)
    bank = random_bank(rng, 4, 64, 32)
    tensors = {"a": QuantMatrix("f32", (1, 2), (np.zeros((1, 2), np.float32),))}
    weights = Weights(tensors, [bank])
    assert weights.num_bytes == 8 + bank.records.nbytes
    assert weights.unused() == ["a", "experts of layer 0"]
    assert weights.bank(0, 4, 64, 32) is bank
    assert weights.unused() == ["a"]
    lacking = ExpertBank(0, bank.records, {"down": bank.matrices["down"]})
    with pytest.raises(InvalidFtw, match="experts of layer 0: a bank needs down gate up"):
        Weights(tensors, [lacking]).bank(0, 4, 64, 32)
    outside = BankMatrix(bank.records, "f32", (64, 32), (bank.records.shape[1] - 4096,))
    with pytest.raises(InvalidFtw, match="codes ends behind its record"):
        outside.expert(0)
