"""ftd.ftw.safetensors: files by the ``safetensors`` package are read, headers that lie are refused."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import checkpoint_bytes
import numpy as np
import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from ftd.errors import FtdError, InvalidCheckpoint
from ftd.ftw.safetensors import SafetensorsFile

header_of = checkpoint_bytes.header_of


def entry(shape: list[Any], begin: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8, np.int64])
def test_tensors_of_the_safetensors_package(tmp_path: Path, dtype: Any) -> None:
    random = np.random.default_rng(0)
    wanted = {
        "a": random.integers(0, 100, (3, 5)).astype(dtype),
        "b.weight": random.integers(0, 100, (7,)).astype(dtype),
        "scalar": np.array(3, dtype),
        "empty": np.zeros((0, 4), dtype),
    }
    save_file(wanted, tmp_path / "m.safetensors", {"format": "np"})
    file = SafetensorsFile(tmp_path / "m.safetensors", "m.safetensors")
    try:
        assert {tensor.name for tensor in file.tensors} == set(wanted)
        for tensor in file.tensors:
            assert tensor.shape == wanted[tensor.name].shape
            assert tensor.read(0, tensor.num_bytes).tobytes() == wanted[tensor.name].tobytes()
    finally:
        file.close()
        file.close()


def test_a_part_of_a_tensor(tmp_path: Path) -> None:
    save_file({"a": np.arange(10, dtype=np.uint8), "b": np.arange(10, 20, dtype=np.uint8)}, tmp_path / "m")
    file = SafetensorsFile(tmp_path / "m", "m")
    last = next(tensor for tensor in file.tensors if tensor.name == "b")
    assert last.read(7, 3).tolist() == [17, 18, 19]
    file.close()


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it has 0 bytes"),
    "seven bytes": (b"\0" * 7, "it has 7 bytes"),
    "header longer than the file": (struct.pack("<Q", 100) + b"{}", "impossible header of 100"),
    "header of 2^64 - 1": (b"\xff" * 8 + b"{}", "impossible header"),
    "header above the limit": (struct.pack("<Q", 1 << 40), "impossible header"),
    "not JSON": (header_of(b"{"), "broken header"),
    "a list": (header_of([]), "broken header"),
    "not UTF-8": (header_of(b'{"\xff": {"dtype":"F32","shape":[],"data_offsets":[0,4]}}', b"1234"), "header"),
    "nested": (header_of(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "broken header"),
    "no tensors": (header_of({}), "1 to 1048576 tensors: 0"),
    "only metadata": (header_of({"__metadata__": {}}), "1 to 1048576 tensors: 0"),
    "entry is no object": (header_of({"a": 3}), "broken header"),
    "no offsets": (header_of({"a": {"dtype": "F32", "shape": [1]}}), "broken header"),
    "three offsets": (
        header_of({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}, b"1234"),
        "broken header",
    ),
    "float offset": (header_of({"a": entry([1], 0.5, 4)}, b"1234"), "broken header"),
    "huge offset": (header_of({"a": entry([1], 0, 1 << 200)}, b"1234"), "m"),
    "unknown dtype": (header_of({"a": entry([1], 0, 4, "F4")}, b"1234"), "unknown dtype: 'F4'"),
    "negative dim": (header_of({"a": entry([-1, -1], 0, 4)}, b"1234"), "impossible shape"),
    "too many dims": (header_of({"a": entry([1] * 9, 0, 4)}, b"1234"), "impossible shape"),
    "dims that overflow": (header_of({"a": entry([1 << 32, 1 << 32, 4], 0, 0)}), "lies between 0 and 0"),
    "wrong size": (header_of({"a": entry([2], 0, 4)}, b"1234"), "of 8 bytes lies between 0 and 4"),
    "negative begin": (header_of({"a": entry([2], -4, 4)}, b"1234"), "lies between -4 and 4"),
    "end before begin": (header_of({"a": entry([1], 4, 0)}, b"1234"), "lies between 4 and 0"),
    "gap": (header_of({"a": entry([1], 4, 8)}, b"12345678"), "4 instead of 0"),
    "overlap": (
        header_of({"a": entry([2], 0, 8), "b": entry([1], 4, 8)}, b"12345678"),
        "'b' of m does not begin where 'a' ends",
    ),
    "behind the file": (header_of({"a": entry([2], 0, 8)}, b"1234"), "bytes instead of the"),
    "rest": (header_of({"a": entry([1], 0, 4)}, b"12345678"), "bytes instead of the"),
    "a name twice": (
        header_of(
            b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
            b'"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
            b"12345678",
        ),
        "does not begin where",
    ),
    "no name": (header_of({"": entry([1], 0, 4)}, b"1234"), "name of 0 characters"),
    "long name": (header_of({"a" * 513: entry([1], 0, 4)}, b"1234"), "name of 513 characters"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_header_that_lies_is_refused(case: str, tmp_path: Path) -> None:
    data, message = HOSTILE[case]
    (tmp_path / "m").write_bytes(data)
    with pytest.raises(InvalidCheckpoint, match=message):
        SafetensorsFile(tmp_path / "m", "m")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "absent"):
        with pytest.raises(InvalidCheckpoint):
            SafetensorsFile(tmp_path / name, name)


def test_a_file_that_shrinks_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(header_of({"a": entry([2], 0, 8)}, b"12345678"))
    file = SafetensorsFile(path, "m")
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(InvalidCheckpoint, match="m became shorter while a was read"):
        file.tensors[0].read(0, 8)
    file.close()


VALID = json.dumps({"a": entry([2], 0, 8), "b": entry([1, 2], 8, 12, "F16")}).encode()


@given(position=st.integers(0, len(VALID) + 7), value=st.integers(0, 255), cut=st.integers(0, 8))
@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_changed_byte_is_refused_or_harmless(tmp_path: Path, position: int, value: int, cut: int) -> None:
    data = bytearray(header_of(VALID, b"0123456789ab"))
    data[position] = value
    path = tmp_path / "m"
    path.write_bytes(data[: len(data) - cut])
    try:
        file = SafetensorsFile(path, "m")
    except FtdError:
        return
    assert sum(tensor.num_bytes for tensor in file.tensors) <= 12
    for tensor in file.tensors:
        assert len(tensor.read(0, tensor.num_bytes)) == tensor.num_bytes
    file.close()
