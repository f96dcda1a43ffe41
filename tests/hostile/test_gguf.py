"""GGUF headers that lie: each is refused with a clear error, quickly and without taking memory."""

import resource
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf_bytes
import numpy as np
import pytest
from examples import first_quick
from memory_sink import MemorySink
from tokenizers import Tokenizer

from ftd.errors import FtdError, InvalidGguf
from ftd.ftw.gguf import GgufFile
from ftd.ftw.import_gguf import import_gguf

NUMBERS = (
    0,
    1,
    2,
    7,
    8,
    9,
    31,
    32,
    255,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**60,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
Refuse = Callable[[bytes, str], None]


@pytest.fixture
def refuse(tmp_path: Path) -> Refuse:
    """Assert that a file is refused with InvalidGguf and a message."""

    def check(data: bytes, message: str) -> None:
        path = tmp_path / "hostile.gguf"
        path.write_bytes(data)
        with pytest.raises(InvalidGguf, match=message):
            GgufFile.open(path)

    return check


def header(tensors: int, pairs: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs) + rest


def info(name: str = "t", dims: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    parts = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return gguf_bytes.string(name) + parts + struct.pack("<IQ", kind, offset)


def array(kind: int, length: int, rest: bytes = b"") -> bytes:
    return gguf_bytes.string("k") + struct.pack("<IIQ", 9, kind, length) + rest


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a GGUF file"),
        (b"GGU", "not a GGUF file"),
        (b"GGUF", "file ends inside the version"),
        (b"GGML" + bytes(100), "not a GGUF file"),
        (header(0, 0, version=1), "GGUF version 1"),
        (header(0, 0, version=4), "GGUF version 4"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(2**60, 0), "too many tensors"),
        (header(0, 2**60), "too many tensors or metadata pairs"),
        (header(0, 2**64 - 1), "too many tensors or metadata pairs"),
        (header(0, 1), "file ends inside key 0"),
        (header(0, 1, struct.pack("<Q", 2**63)), "key 0 is longer than 65535"),
        (header(0, 1, struct.pack("<Q", 60000) + b"k"), "file ends inside key 0"),
        (header(0, 1, gguf_bytes.string("") + gguf_bytes.value(1)), "key is empty"),
        (header(0, 2, (gguf_bytes.string("k") + gguf_bytes.value(1)) * 2), "there twice: 'k'"),
        (header(0, 1, gguf_bytes.string(b"\xff") + gguf_bytes.value(1)), "key 0 is not UTF-8"),
        (
            header(0, 1, gguf_bytes.string("k") + struct.pack("<I", 8) + gguf_bytes.string(b"a\xc3")),
            "k is not UTF-8",
        ),
        (header(0, 1, gguf_bytes.string("k") + struct.pack("<IQ", 8, 2**62)), "longer than"),
        (header(0, 1, gguf_bytes.string("k") + struct.pack("<I", 13)), "unknown value type 13 of k"),
        (header(0, 1, gguf_bytes.string("k") + struct.pack("<IB", 7, 2)), "neither 0 nor 1: 2"),
        (header(0, 1, array(0, 2**63)), "more than 8388608 elements"),
        (header(0, 1, array(8, 2**20)), "1048576 strings, 0 bytes left"),
        (header(0, 1, array(10, 2**20)), "file ends inside k"),
        (header(0, 1, array(9, 1, bytes(64))), "unknown element type 9"),
        (header(0, 1, array(99, 0)), "unknown element type 99"),
        (header(0, 1, array(7, 2, b"\x01\x02")), "neither 0 nor 1 in k"),
        (header(0, 1, array(8, 1, gguf_bytes.string(b"\x80"))), "k is not UTF-8"),
        (gguf_bytes.gguf({"general.alignment": 0}), "alignment is not between"),
        (gguf_bytes.gguf({"general.alignment": 24}), "not a power of two: 24"),
        (gguf_bytes.gguf({"general.alignment": 2**31}), "alignment is not between"),
        (gguf_bytes.gguf({"general.alignment": "32"}), "alignment is not between"),
        (gguf_bytes.gguf({"general.alignment": True}), "alignment is not between"),
        (gguf_bytes.gguf({"general.alignment": [32]}), "alignment is not between"),
        (header(1, 0), "file ends inside the name of tensor 0"),
        (header(1, 0, gguf_bytes.string("x" * 257)), "longer than 256 bytes"),
        (header(1, 0, info(dims=())), "1 to 4 dims: 0"),
        (header(1, 0, info(dims=(1,) * 5)), "1 to 4 dims: 5"),
        (header(1, 0, gguf_bytes.string("t") + struct.pack("<I", 2**32 - 1)), "1 to 4 dims"),
        (header(1, 0, info(dims=(0,))), "impossible dims"),
        (header(1, 0, info(dims=(32, 0))), "impossible dims"),
        (header(1, 0, info(dims=(33,), kind=2)), "impossible dims for blocks of 32"),
        (header(1, 0, info(dims=(2**63,))), "ends behind the file"),
        (header(1, 0, info(dims=(2**63, 2**63, 2**63, 2**63))), "ends behind the file"),
        (header(1, 0, info(dims=(2**32, 2**32))), "ends behind the file"),
        (header(1, 0, info(kind=5) + bytes(256)), "unknown type: 5"),
        (header(1, 0, info(kind=2**32 - 1)), "unknown type"),
        (header(1, 0, info(offset=1) + bytes(256)), "not at a multiple of 32: offset 1"),
        (header(1, 0, info(offset=2**63) + bytes(256)), "ends behind the file"),
        (header(1, 0, info() + bytes(64)), "ends behind the file"),
        (header(2, 0, info("a") + info("b") + bytes(400)), "tensors overlap: 'a' and 'b'"),
        (header(2, 0, info("a") + info("b", offset=96) + bytes(400)), "tensors overlap"),
        (header(2, 0, info("a") + info("a", offset=128) + bytes(400)), "two tensors have the same name"),
    ],
)
def test_one_lie_in_the_header_is_refused(data: bytes, message: str, refuse: Refuse) -> None:
    refuse(data, message)


def test_every_truncation_is_refused(refuse: Refuse) -> None:
    tensor = gguf_bytes.tensor("t", "Q8_0", (2, 32), np.random.default_rng(0))
    data = gguf_bytes.gguf({"general.alignment": 32, "s": "text", "a": [1, 2], "l": ["x", "y"]}, [tensor])
    for end in range(len(data)):
        refuse(data[:end], ".")


def test_a_file_that_is_cut_short_is_to_be_fetched_again(tmp_path: Path) -> None:
    tensor = gguf_bytes.tensor("t", "Q8_0", (2, 32), np.random.default_rng(0))
    data = gguf_bytes.gguf({"s": "text"}, [tensor])
    (tmp_path / "m.gguf").write_bytes(data[:-1])
    with pytest.raises(InvalidGguf) as caught:
        GgufFile.open(tmp_path / "m.gguf")
    assert caught.value.hint == "the file is cut short or damaged: fetch it again"


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone", Path("/dev/zero")):
        with pytest.raises(InvalidGguf):
            GgufFile.open(path)


def mutate(base: bytes, header_bytes: int, random: np.random.Generator) -> bytes:
    """Return ``base`` with one to three faults, most of them in its header."""
    data = bytearray(base)
    for _ in range(random.integers(1, 4)):
        place = int(random.integers(min(4, len(data)), min(header_bytes, len(data)) + 1))
        number = NUMBERS[random.integers(len(NUMBERS))]
        match random.integers(6):
            case 0:
                data[place : place + 1] = bytes([random.integers(256)])
            case 1:
                data[place : place + 8] = struct.pack("<Q", number)
            case 2:
                data[place : place + 4] = struct.pack("<I", number & 0xFFFFFFFF)
            case 3:
                del data[place : place + int(random.integers(1, 20))]
            case 4:
                data[place:place] = data[place : place + int(random.integers(1, 20))]
            case _:
                del data[int(random.integers(len(data) + 1)) :]
    return bytes(data)


VALUES: list[Any] = [
    *(0, 1, -1, 2, 7, 2**31, 2**32 - 1, 2**60, -(2**62), 0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf")),
    *(
        True,
        False,
        "",
        "x",
        "llama",
        "a b",
        "▁▁",
        [0, 1],
        [1.5],
        ["a"],
        ["a", "a"],
        ["", ""],
        [True],
        ["x y"] * 3,
    ),
    *([1] * 10, [3] * 10, [-5] * 10, [float("nan")] * 10, [float(index) for index in range(10)]),
]
MORE_KEYS = [
    *(
        "general.alignment",
        "general.name",
        "general.file_type",
        "split.count",
        "split.no",
        "split.tensors.count",
    ),
    *("tokenizer.chat_template", "tokenizer.ggml.add_space_prefix", "tokenizer.ggml.add_bos_token"),
    *("gemma3.rope.scaling.type", "gemma3.rope.scaling.factor", "gemma3.attention.sliding_window_pattern"),
    *(
        "gemma3.expert_count",
        "gemma3.rope.freq_base",
        "tokenizer.ggml.padding_token_id",
        "tokenizer.ggml.scores",
    ),
]


@pytest.mark.parametrize("tokenizer", first_quick("bert", "gpt2", "gemma4", "llama"))
def test_metadata_of_the_wrong_kind_imports_or_is_refused(tokenizer: str, tmp_path: Path) -> None:
    """Replace each metadata value by each of many others; whatever is imported has a tokenizer that loads."""
    scores = [float(-index) for index in range(10)]
    more = {
        "tokenizer.ggml.model": tokenizer,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    metadata, tensors = gguf_bytes.model("gemma3", unit=8, **more)
    path = tmp_path / "m.gguf"
    imported = 0
    keys = [*metadata, *MORE_KEYS] if tokenizer == "gpt2" else [key for key in metadata if "tokenizer" in key]
    for key in keys:
        for value in VALUES:
            path.write_bytes(gguf_bytes.gguf(metadata | {key: value}, tensors))
            sink = MemorySink()
            try:
                model = import_gguf([path], sink)
            except FtdError as exc:
                assert exc.message
            else:
                Tokenizer.from_str(sink.blobs[model.blobs[1].digest].decode()).encode("ab <s> é😀")
                imported += 1
    assert imported > 50


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3"])
@pytest.mark.parametrize("seed", first_quick(0, 1))
def test_mutated_models_import_or_are_refused(architecture: str, seed: int, tmp_path: Path) -> None:
    """Mutate a whole model; all but a result or an FtdError fails, as do slow cases and large allocations."""
    random = np.random.default_rng(seed)
    metadata, tensors = gguf_bytes.model(architecture, unit=8)
    base = gguf_bytes.gguf(metadata, tensors)
    header_bytes = len(gguf_bytes.gguf(metadata)) + 60 * len(tensors)
    path, sink = tmp_path / "m.gguf", MemorySink()
    path.write_bytes(base)
    import_gguf([path], sink)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    slowest, refused = 0.0, 0
    for _ in range(400):
        path.write_bytes(mutate(base, header_bytes, random))
        started = time.process_time()
        try:
            import_gguf([path], sink)
        except FtdError as exc:
            refused += 1
            assert exc.message
        slowest = max(slowest, time.process_time() - started)
    assert refused > 200
    assert slowest < 1.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10
    assert sink.open_writers == 0
