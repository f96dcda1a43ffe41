"""Layouts of FreeToken's expert banks against the values that they stand for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_bytes import FP8, bf16
from freetoken_bytes import Folder
from numpy.typing import NDArray

from ftd.errors import InvalidCheckpoint, Unsupported
from ftd.ftw.freetoken import FreeTokenCheckpoint
from ftd.ftw.freetoken_banks import plan_layer
from ftd.ftw.quantize import as_f32
from ftd.kernels.dequantize_ref import dequantize
from tests.ftw.test_hf_packed import e2m1, e4m3, finite_fp8

E, F, D = 3, 128, 256
SIZE = {"E": E, "F": F, "D": D}
Arrays = dict[str, NDArray[Any]]
Values = dict[str, NDArray[np.float32]]


def shares_of(folder: Path, kind: str | None, banks: Arrays, quantization: str | None = None) -> Values:
    """Return every role's values [E, N, K] as the planned shares read them."""
    source = Folder({}, {f"{name}#L00000": array for name, array in banks.items()})
    source.index["quant_format"] = kind
    with FreeTokenCheckpoint(source.save(folder, {})) as checkpoint:
        checkpoint.split_banks(1)
        shares = plan_layer(checkpoint, 0, SIZE, quantization)
        return {
            share.role: np.stack([dequantize(share.read(expert)) for expert in range(E)]) for share in shares
        }


def roles(gate_up: NDArray[np.float32], down: NDArray[np.float32]) -> Values:
    """Return the values of each role of concatenated rows."""
    return {"gate": gate_up[:, :F], "up": gate_up[:, F:], "down": down}


def same(ours: Values, wanted: Values) -> None:
    assert ours.keys() == wanted.keys()
    for role, values in wanted.items():
        np.testing.assert_array_equal(ours[role], values)


def test_fp8_scales_may_be_padded(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    gate_up, down = finite_fp8(random, E, 2 * F, D), finite_fp8(random, E, D, F)
    scales = bf16(random, E, 2, 8), bf16(random, E, 2, 8)
    wide = [np.repeat(np.repeat(as_f32(scale), 128, axis=1), 128, axis=2) for scale in scales]
    banks = {
        "gate_up": gate_up.view(FP8),
        "gate_up_scale": scales[0],
        "down": down.view(FP8),
        "down_scale": scales[1],
    }
    wanted = roles(e4m3(gate_up) * wide[0][:, : 2 * F, :D], e4m3(down) * wide[1][:, :D, :F])
    same(shares_of(tmp_path / "padded", "fp8_block", banks), wanted)
    banks |= {"gate_up_scale": scales[0][:, :, :2].copy(), "down_scale": scales[1][:, :, :1].copy()}
    same(shares_of(tmp_path / "exact", "fp8_block", banks), wanted)
    banks["down_scale"] = scales[1][:, :1].copy()
    with pytest.raises(InvalidCheckpoint, match=r"bank down_scale#L00000 is BF16 \[3, 1, 8\] instead"):
        shares_of(tmp_path / "short", "fp8_block", banks)


def packed(random: np.random.Generator, rows: int, columns: int) -> tuple[NDArray[np.uint8], Any]:
    codes = random.integers(0, 256, (E, rows, columns // 2), np.uint8)
    return codes, np.stack([e2m1(part) for part in codes])


def nvfp4_banks(random: np.random.Generator) -> tuple[Arrays, Values]:
    banks: Arrays = {}
    both = []
    for source, rows, columns in (("gate_up", 2 * F, D), ("down", D, F)):
        codes, values = packed(random, rows, columns)
        scales = finite_fp8(random, E, rows, columns // 16) & 0x7F
        factors = np.repeat(random.normal(size=(E, rows // F)).astype(np.float16), F, axis=1)
        if source == "down":
            factors[:] = factors[:, :1]
        banks |= {f"{source}_packed": codes, f"{source}_scale": scales.view(FP8), f"{source}_global": factors}
        both.append(values * (np.repeat(e4m3(scales), 16, axis=2) * factors.astype(np.float32)[:, :, None]))
    return banks, roles(*both)


def test_nvfp4_has_one_global_for_gate_and_one_for_up(tmp_path: Path) -> None:
    banks, wanted = nvfp4_banks(np.random.default_rng(1))
    same(shares_of(tmp_path / "a", "nvfp4", banks), wanted)
    banks["gate_up_global"] = banks["gate_up_global"].copy()
    banks["gate_up_global"][1, 3] *= 2
    with pytest.raises(InvalidCheckpoint, match="differs between the rows of gate of expert 1"):
        shares_of(tmp_path / "b", "nvfp4", banks)


def mxfp4(random: np.random.Generator, rows: int, columns: int) -> tuple[Any, Any, Any]:
    codes, values = packed(random, rows, columns)
    scales = random.integers(110, 140, (E, rows, columns // 32), np.uint8)
    return codes, scales, np.ldexp(values, np.repeat(scales, 32, axis=2).astype(int) - 127)


def test_ds_fp4(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    gate_up, down = mxfp4(random, 2 * F, D), mxfp4(random, D, F)
    banks = {
        "gate_up_packed": gate_up[0],
        "gate_up_scale": gate_up[1],
        "down_packed": down[0],
        "down_scale": down[1],
    }
    same(shares_of(tmp_path / "a", "ds_fp4", banks), roles(gate_up[2], down[2]))
    with pytest.raises(Unsupported, match="its experts are ds_fp4"):
        shares_of(tmp_path / "b", "ds_fp4", banks, "q8_0")


def test_mxfp4_of_gpt_oss_is_transposed_and_alternates(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    gate_up, down = mxfp4(random, 2 * F, D), mxfp4(random, D, F)
    biases = bf16(random, E, 2 * F), bf16(random, E, D)
    banks: Arrays = {"gate_up_bias": biases[0], "down_bias": biases[1]}
    for source, (codes, scales, _) in (("gate_up", gate_up), ("down", down)):
        banks[f"{source}_blocks"] = np.ascontiguousarray(codes.swapaxes(1, 2))
        banks[f"{source}_scales"] = np.ascontiguousarray(scales.swapaxes(1, 2))
    bias = as_f32(biases[0])
    wanted = {"gate": gate_up[2][:, ::2], "up": gate_up[2][:, 1::2], "down": down[2]}
    wanted |= {"gate_bias": bias[:, None, ::2], "up_bias": bias[:, None, 1::2]}
    same(shares_of(tmp_path / "a", "mxfp4_triton", banks), wanted | {"down_bias": as_f32(biases[1])[:, None]})
