"""ftd.ftw.gguf against bytes typed by hand and against files that the ``gguf`` package wrote."""

import hashlib
from pathlib import Path

import gguf
import numpy as np
import pytest

from ftd.errors import InvalidGguf
from ftd.ftw.gguf import TYPES, GgufFile

GOLDEN = bytes.fromhex(
    "47475546" "03000000" "0100000000000000" "0300000000000000"  # GGUF, version 3, 1 tensor, 3 pairs
    "0100000000000000" "61" "08000000" "0200000000000000" "c3a4"  # a = "ä"
    "0100000000000000" "62" "09000000" "05000000" "0200000000000000" "ffffffff" "07000000"  # b = i32 [-1, 7]
    "1100000000000000" "67656e6572616c2e616c69676e6d656e74" "04000000" "10000000"  # general.alignment = 16
    "0100000000000000" "77" "02000000" "0400000000000000" "0200000000000000"  # w [2, 4]
    "00000000" "0000000000000000"  # f32 at 0
    "000000000000"  # zeros to a multiple of 16
    + "0000803f" * 8  # data: eight ones
)  # fmt: skip


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    path = tmp_path / "golden.gguf"
    path.write_bytes(GOLDEN)
    return path


def test_golden_bytes_parse_to_their_values(golden: Path) -> None:
    with GgufFile.open(golden) as file:
        assert file.version == 3
        assert file.metadata["a"] == "ä"
        assert np.array_equal(np.asarray(file.metadata["b"]), np.array([-1, 7], np.int32))
        assert file.metadata["general.alignment"] == 16
        (tensor,) = file.tensors
        assert (tensor.name, tensor.type, tensor.dims, tensor.num_bytes) == ("w", "F32", (4, 2), 32)
        assert tensor.offset % 16 == 0 and tensor.offset + 32 == len(GOLDEN)
        assert np.array_equal(file.read(tensor).view("<f4"), np.ones(8, np.float32))


def test_smallest_gguf_of_ollamas_own_tests_is_a_container(tmp_path: Path) -> None:
    data = (
        b"GGUF\x03\0\0\0" + bytes(8) + b"\x01" + bytes(7)
        + b"\x14" + bytes(7) + b"general.architecture" + b"\x08\0\0\0" + b"\x04" + bytes(7) + b"test"
    )  # fmt: skip
    assert (
        hashlib.sha256(data).hexdigest() == "89a2116c3a82d6a97f59f748d86ed4417214353fd178ee54df418fde32495fad"
    )
    path = tmp_path / "smallest.gguf"
    path.write_bytes(data)
    with GgufFile.open(path) as file:
        assert file.metadata == {"general.architecture": "test"}
        assert file.tensors == []


def test_every_value_type_reads_as_the_gguf_package_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "types.gguf"
    writer = gguf.GGUFWriter(path, "test")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -(2**31))
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.1)
    writer.add_float64("f64", 0.1)
    writer.add_bool("true", True)
    writer.add_array("strings", ["x", "", "ü"])
    writer.add_array("bools", [True, False])
    writer.add_array("floats", [0.5, -1.5])
    writer.add_tensor("t", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("h", np.arange(3, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GgufFile.open(path) as file:
        scalars = {key: item for key, item in file.metadata.items() if not isinstance(item, np.ndarray)}
        assert scalars == {
            **{"general.architecture": "test", "u8": 255, "i8": -128, "u16": 65535, "i16": -32768},
            **{"u32": 2**32 - 1, "i32": -(2**31), "u64": 2**64 - 1, "i64": -(2**63)},
            **{"f32": float(np.float32(0.1)), "f64": 0.1, "true": True, "strings": ["x", "", "ü"]},
        }
        assert np.asarray(file.metadata["bools"]).tolist() == [True, False]
        assert np.asarray(file.metadata["floats"]).tolist() == [0.5, -1.5]
        first, second = file.tensors
        assert np.array_equal(file.read(first).view("<f4"), np.arange(6, dtype=np.float32))
        assert np.array_equal(file.read(second).view("<f2"), np.arange(3, dtype=np.float16))


def test_block_sizes_are_those_of_the_gguf_package() -> None:
    theirs = {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items() if int(kind) in TYPES}
    theirs[4] = theirs[39]  # Ollama's number of MXFP4, which the package does not know
    theirs[9] = (32, 36)  # Q8_1 has had two f16 fields since 2024; the package still counts two f32
    assert {kind: (block, size) for kind, (_, block, size) in TYPES.items()} == theirs


def test_a_closed_file_is_not_read_again(golden: Path) -> None:
    file = GgufFile.open(golden)
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read(file.tensors[0])


def test_a_file_that_shrinks_while_open_is_noticed(golden: Path) -> None:
    with GgufFile.open(golden) as file:
        golden.write_bytes(GOLDEN[:-1])
        with pytest.raises(InvalidGguf, match="became shorter"):
            file.read(file.tensors[0])


@pytest.mark.slow
def test_real_models_have_the_tensors_that_the_gguf_package_sees(smollm2_gguf: Path) -> None:
    theirs = gguf.GGUFReader(smollm2_gguf)
    with GgufFile.open(smollm2_gguf) as ours:
        assert [(t.name, t.type, t.offset, t.num_bytes) for t in ours.tensors] == [
            (t.name, t.tensor_type.name, int(t.data_offset), int(t.n_bytes)) for t in theirs.tensors
        ]
        assert ours.metadata.keys() == {key for key in theirs.fields if not key.startswith("GGUF.")}
