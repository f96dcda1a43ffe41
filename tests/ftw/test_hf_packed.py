"""Quantised checkpoints: what FTW's planes hold against the schemes' arithmetic, e4m3 as torch reads it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint_bytes
import numpy as np
import pytest
from checkpoint_bytes import FP8, E
from numpy.typing import NDArray

from ftd.errors import FtdError, InvalidCheckpoint, Unsupported
from ftd.ftw import reader
from ftd.ftw.checkpoint import Checkpoint
from ftd.ftw.fused_rows import rows_of
from ftd.ftw.hf_packed import check_config, find, take
from ftd.ftw.import_safetensors import import_safetensors
from ftd.ftw.quantize import as_f32
from ftd.ftw.sink import DirectorySink
from ftd.kernels.dequantize_ref import dequantize
from ftd.kernels.quant import QuantMatrix

Arrays = dict[str, NDArray[Any]]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def e4m3(codes: NDArray[Any]) -> NDArray[np.float32]:
    """Return the values of e4m3 codes as torch has them."""
    import torch

    return torch.from_numpy(codes.view(np.uint8).copy()).view(torch.float8_e4m3fn).float().numpy()


def e2m1(packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the values of packed codes: byte j has value 2j in its low half, 2j + 1 in its high half."""
    return E2M1[np.stack((packed & 15, packed >> 4), axis=2).reshape(len(packed), -1)]


def finite_fp8(random: np.random.Generator, *shape: int) -> NDArray[np.uint8]:
    """Return random e4m3 codes that are no NaN."""
    codes = random.integers(0, 256, shape, np.uint8)
    codes[codes & 0x7F == 0x7F] = 0x38
    return codes


def fp8(random: np.random.Generator, rows: int, columns: int) -> tuple[Arrays, NDArray[np.float32]]:
    codes = finite_fp8(random, rows, columns)
    scales = checkpoint_bytes.bf16(random, -(-rows // 128), -(-columns // 128))
    wide = np.repeat(np.repeat(as_f32(scales), 128, axis=0), 128, axis=1)[:rows, :columns]
    return {"weight": codes.view(FP8), "weight_scale_inv": scales}, e4m3(codes) * wide


def modelopt(random: np.random.Generator, rows: int, columns: int) -> tuple[Arrays, NDArray[np.float32]]:
    packed = random.integers(0, 256, (rows, columns // 2), np.uint8)
    scales = finite_fp8(random, rows, columns // 16) & 0x7F
    factor = np.float32(0.0123)
    values = e2m1(packed) * (np.repeat(e4m3(scales), 16, axis=1) * factor)
    arrays = {"weight": packed, "weight_scale": scales.view(FP8), "weight_scale_2": np.array(factor)}
    return arrays, values


def compressed_nvfp4(
    random: np.random.Generator, rows: int, columns: int
) -> tuple[Arrays, NDArray[np.float32]]:
    arrays, _ = modelopt(random, rows, columns)
    packed, scales = arrays["weight"], arrays["weight_scale"]
    values = e2m1(packed) * np.repeat(e4m3(scales), 16, axis=1) / np.float32(384.0)
    return {
        "weight_packed": packed,
        "weight_scale": scales,
        "weight_global_scale": np.array([384.0], np.float32),
    }, values


def compressed_mxfp4(
    random: np.random.Generator, rows: int, columns: int
) -> tuple[Arrays, NDArray[np.float32]]:
    packed = random.integers(0, 256, (rows, columns // 2), np.uint8)
    scales = random.integers(110, 140, (rows, columns // 32), np.uint8)
    values = np.ldexp(e2m1(packed), np.repeat(scales, 32, axis=1).astype(int) - 127)
    return {"weight_packed": packed, "weight_scale": scales}, values


SCHEMES: dict[str, tuple[Callable[..., tuple[Arrays, NDArray[np.float32]]], str, list[tuple[int, int]]]] = {
    "fp8": (fp8, "fp8_b128", [(1, 1), (128, 128), (130, 96), (257, 300)]),
    "modelopt": (modelopt, "nvfp4", [(1, 16), (3, 48), (5, 64), (2, 80)]),
    "compressed-nvfp4": (compressed_nvfp4, "nvfp4", [(3, 48), (7, 128)]),
    "compressed-mxfp4": (compressed_mxfp4, "mxfp4", [(1, 32), (5, 96)]),
}


def found(folder: Path, arrays: Arrays, shape: tuple[int, int]) -> QuantMatrix | None:
    """Return the matrix called x.weight of a checkpoint that holds ``arrays``."""
    files = checkpoint_bytes.save(folder, {}, {f"x.{name}": array for name, array in arrays.items()})
    with Checkpoint(files) as checkpoint:
        packed = find(checkpoint.tensors, "x.weight", shape)
        return None if packed is None else packed.matrix()


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_values_are_those_of_the_scheme(scheme: str, tmp_path: Path) -> None:
    make, format, shapes = SCHEMES[scheme]
    random = np.random.default_rng(3)
    for index, shape in enumerate(shapes):
        arrays, wanted = make(random, *shape)
        matrix = found(tmp_path / str(index), arrays, shape)
        assert matrix is not None and matrix.format == format
        exact = scheme != "compressed-nvfp4"  # 1 / 384 is rounded there
        np.testing.assert_allclose(dequantize(matrix), wanted, rtol=0 if exact else 3e-7, atol=0)


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_matrices_fused_by_heads_keep_their_codes_and_scales(scheme: str, tmp_path: Path) -> None:
    make, format, _ = SCHEMES[scheme]
    arrays, values = make(np.random.default_rng(4), 3 * 2 * 128, 96)
    files = checkpoint_bytes.save(tmp_path, {}, {f"x.{name}": array for name, array in arrays.items()})
    size = {"H": 3, "C": 128, "G": 1, "L": 1, "N": 1, "B": 1}
    with Checkpoint(files) as checkpoint:
        fused = find(checkpoint.tensors, "x.weight", values.shape)
        assert fused is not None
        for half, kind in enumerate(("query", "gate")):
            matrix = take(fused, rows_of(kind, size).runs).matrix()
            assert (matrix.format, matrix.shape) == (format, (3 * 128, 96))
            expected = values.reshape(3, 2, 128, 96)[:, half].reshape(-1, 96)
            np.testing.assert_allclose(dequantize(matrix), expected, rtol=1e-6)


def test_fused_matrices_that_share_a_block_are_refused(tmp_path: Path) -> None:
    arrays, values = fp8(np.random.default_rng(4), 256, 128)
    files = checkpoint_bytes.save(tmp_path, {}, {f"x.{name}": array for name, array in arrays.items()})
    with Checkpoint(files) as checkpoint:
        fused = find(checkpoint.tensors, "x.weight", values.shape)
        assert fused is not None
        with pytest.raises(Unsupported, match=r"x\.weight holds matrices that share blocks of 128 rows"):
            take(fused, [(0, 64), (128, 64)])


def test_floats_are_not_packed(tmp_path: Path) -> None:
    assert found(tmp_path, {"weight": np.zeros((2, 32), np.float32)}, (2, 32)) is None


@pytest.mark.parametrize(
    ("scheme", "change", "said"),
    [
        ("fp8", lambda a: a.pop("weight_scale_inv"), "x.weight_scale_inv is missing"),
        ("fp8", lambda a: a.update(weight=a["weight"][:, :-1]), r"x.weight is F8_E4M3 \[64, 31\] instead"),
        (
            "fp8",
            lambda a: a.update(weight_scale_inv=a["weight"][:1, :1].view(np.uint8)),
            "x.weight_scale_inv is U8",
        ),
        ("modelopt", lambda a: a.pop("weight_scale"), "x.weight_scale is missing"),
        ("modelopt", lambda a: a.pop("weight_scale_2"), "x.weight_scale_2 is missing"),
        ("modelopt", lambda a: a.update(weight_scale_2=np.array(np.nan, np.float32)), "is no scale: nan"),
        ("modelopt", lambda a: a.update(weight_scale_2=np.zeros(2, np.float32)), "weight_scale_2 is F32"),
        (
            "compressed-nvfp4",
            lambda a: a.update(weight_global_scale=np.zeros(1, np.float32)),
            "is no scale: 0",
        ),
        (
            "compressed-mxfp4",
            lambda a: a.update(weight_scale=a["weight_scale"][:-1]),
            r"is U8 \[63, 1\] instead",
        ),
        ("compressed-mxfp4", lambda a: a.update(weight_packed=a["weight_packed"][:, :8]), r"is U8 \[64, 8\]"),
    ],
)
def test_what_is_incomplete_is_refused_by_name(
    scheme: str, change: Callable[[Arrays], object], said: str, tmp_path: Path
) -> None:
    arrays, _ = SCHEMES[scheme][0](np.random.default_rng(0), 64, 32)
    change(arrays)
    with pytest.raises(InvalidCheckpoint, match=said):
        found(tmp_path, arrays, (64, 32))


CONFIGS: dict[str, dict[str, Any]] = {
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "modelopt": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "compressed-nvfp4": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
    "compressed-mxfp4": {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"},
}


@pytest.mark.parametrize("scheme", sorted(CONFIGS))
def test_a_model_keeps_its_quantised_matrices(scheme: str, sink: DirectorySink, tmp_path: Path) -> None:
    make, format, _ = SCHEMES[scheme]
    random = np.random.default_rng(4)
    config, floats = checkpoint_bytes.mixtral()
    arrays: Arrays = {}
    wanted: dict[str, NDArray[np.float32]] = {}
    for name, array in floats.items():
        if array.ndim == 2 and "embed" not in name and "moe.gate" not in name:
            parts, wanted[name] = make(random, *array.shape)
            arrays |= {name.removesuffix("weight") + part: values for part, values in parts.items()}
            arrays[name.removesuffix("weight") + "input_scale"] = np.array(1.0, np.float32)
        else:
            arrays[name] = array
    config["quantization_config"] = CONFIGS[scheme]
    files = checkpoint_bytes.save(tmp_path / "hf", config, arrays, shards=2)
    imported = import_safetensors(files, sink)
    paths = {blob.digest: sink.path(blob.digest) for blob in imported.config.blobs}
    blobs = reader.load_blobs(imported.config, paths, verify=True)
    tensors, banks = reader.tensors(imported.config, blobs), reader.expert_banks(imported.config, blobs)
    rtol = 3e-7 if scheme == "compressed-nvfp4" else 0
    for name in ("q_proj", "o_proj"):
        matrix = tensors[f"model.layers.0.self_attn.{name}.weight"]
        assert matrix.format == format
        np.testing.assert_allclose(
            dequantize(matrix), wanted[f"model.layers.0.self_attn.{name}.weight"], rtol=rtol
        )
    for role, name in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
        for expert in range(E):
            source = wanted[f"model.layers.0.block_sparse_moe.experts.{expert}.{name}.weight"]
            np.testing.assert_allclose(dequantize(banks[0].matrix(role, expert)), source, rtol=rtol)
    assert imported.config.quantization == {"fp8_b128": "FP8"}.get(format, format.upper())
    with pytest.raises(Unsupported, match="quantised already keeps its quantization"):
        import_safetensors(files, sink, quantization="q8_0")


@pytest.mark.parametrize("missing", ["weight", "weight_scale_inv"])
def test_an_expert_unlike_the_others_is_refused_by_name(
    missing: str, sink: DirectorySink, tmp_path: Path
) -> None:
    random = np.random.default_rng(4)
    config, arrays = checkpoint_bytes.mixtral()
    stem = "model.layers.0.block_sparse_moe.experts"
    for expert in range(E):
        name = f"{stem}.{expert}.w1."
        parts, _ = fp8(random, *arrays.pop(f"{name}weight").shape)
        arrays |= {name + part: values for part, values in parts.items()}
    del arrays[f"{stem}.2.w1.{missing}"]
    config["quantization_config"] = CONFIGS["fp8"]
    with pytest.raises(InvalidCheckpoint, match=rf"experts.2.w1.{missing} is missing"):
        import_safetensors(checkpoint_bytes.save(tmp_path / "hf", config, arrays), sink)
    assert list(sink.directory.iterdir()) == []


@pytest.mark.parametrize(
    ("quantization", "error"),
    [
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, Unsupported),
        ({"quant_method": "fp8"}, Unsupported),
        ({"quant_method": "gptq", "bits": 4}, Unsupported),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, Unsupported),
        ({"quant_method": ["fp8"]}, Unsupported),
        ({"quant_method": "mxfp4"}, Unsupported),
        ("fp8", InvalidCheckpoint),
    ],
)
def test_other_ways_of_quantising_are_refused(quantization: Any, error: type[FtdError]) -> None:
    with pytest.raises(error, match=r"quantised by|no object"):
        check_config({"quantization_config": quantization}, "mixtral")


def test_what_is_not_quantised_passes() -> None:
    check_config({}, "mixtral")
    check_config({"quantization_config": {"quant_method": "mxfp4"}}, "gpt_oss")
