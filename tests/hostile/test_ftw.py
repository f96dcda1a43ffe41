"""FTW configs that lie: each either means something that fits its blobs, or is refused with an FtdError."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ftw_draft import draft

from ftd.errors import FtdError
from ftd.ftw import reader
from ftd.ftw.format import Tokens, encode_config, parse_config
from ftd.ftw.sink import DirectorySink
from ftd.ftw.writer import FtwWriter
from ftd.kernels.quant import FORMATS, QuantMatrix

VALUES: list[Any] = [
    *(0, 1, -1, 2, 31, 64, 4096, 8192, 2**31, 2**32, 2**53, 2**63, 2**64, 2**200, -(2**63), 1e308, 0.5),
    *("", "x", "codes", "q4_0", "f32", "..", "sha256:" + "0" * 64, "\u0000", None, True, False),
    *([], {}, [0], [64, 64], [2**63, 2**63], {"name": "codes", "offset": 0}, [[[[[]]]]]),
]


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in a JSON document."""
    items: list[tuple[Any, Any]] = []
    if isinstance(document, dict):
        items = list(document.items())
    elif isinstance(document, list):
        items = list(enumerate(document))
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


@pytest.fixture
def model(tmp_path: Path) -> tuple[bytes, dict[str, np.ndarray]]:
    """A small valid config and its blob's bytes by digest."""
    config = draft(
        hyperparameters={"vocab_size": 8, "rope_scaling": None},
        quantization="Q4_K_M",
        parameter_count=1,
        tokens=Tokens(bos_id=1, eos_ids=[2]),
        metadata={"a": [1, "b"]},
    )
    sink = DirectorySink(tmp_path)
    with FtwWriter(sink, chunk_bytes=4096) as writer:
        for name in ("q4_k", "q6_k", "f32", "nvfp4", "fp8_b128"):
            spec, shape = FORMATS[name], (3, 256)
            planes = tuple(np.zeros(spec.plane_shape(plane, shape), plane.dtype) for plane in spec.planes)
            writer.add_matrix(f"model.{name}", QuantMatrix(name, shape, planes))
        written = writer.finish(config)
    (blob,) = written.config.blobs
    return encode_config(written.config), {blob.digest: np.fromfile(sink.path(blob.digest), np.uint8)}


def use(data: bytes, blobs: dict[str, np.ndarray]) -> bool:
    """Parse a config and make its tensors as a loader would; say whether it was accepted."""
    try:
        config = parse_config(data)
        if any(blob.digest not in blobs or blob.size != len(blobs[blob.digest]) for blob in config.blobs):
            return False
        arrays = [blobs[blob.digest] for blob in config.blobs]
        for matrix in reader.tensors(config, arrays).values():
            assert all(np.shares_memory(plane, arrays[0]) for plane in matrix.planes)
    except FtdError as exc:
        assert exc.message
        return False
    return True


def test_every_value_replaced_by_every_other(model: tuple[bytes, dict[str, np.ndarray]]) -> None:
    data, blobs = model
    assert use(data, blobs)
    started, accepted, cases = time.process_time(), 0, 0
    for place in places(json.loads(data))[1:]:
        for value in VALUES:
            document = json.loads(data)
            parent = document
            for key in place[:-1]:
                parent = parent[key]
            parent[place[-1]] = value
            accepted += use(json.dumps(document).encode(), blobs)
            cases += 1
    assert cases > 3000 and 0 < accepted < cases // 2
    assert time.process_time() - started < 30


@pytest.mark.parametrize("seed", range(3))
def test_bytes_changed_cut_and_repeated(seed: int, model: tuple[bytes, dict[str, np.ndarray]]) -> None:
    data, blobs = model
    random = np.random.default_rng(seed)
    accepted = 0
    for _ in range(1000):
        changed = bytearray(data)
        for _ in range(random.integers(1, 4)):
            place = int(random.integers(len(changed)))
            match random.integers(4):
                case 0:
                    changed[place] = random.integers(256)
                case 1:
                    del changed[place : place + int(random.integers(1, 30))]
                case 2:
                    changed[place:place] = changed[place : place + int(random.integers(1, 30))]
                case _:
                    changed[place:place] = b"9" * int(random.integers(1, 25))
        accepted += use(bytes(changed), blobs)
    assert accepted < 800


def test_every_truncation_is_refused(model: tuple[bytes, dict[str, np.ndarray]]) -> None:
    data, blobs = model
    assert not any(use(data[:end], blobs) for end in range(len(data) - 1))
