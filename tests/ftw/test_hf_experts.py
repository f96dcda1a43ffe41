"""ftd.ftw.hf_experts: layouts that transformers reads but does not write, and malformed banks, by NumPy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint_bytes
import numpy as np
import pytest
from checkpoint_bytes import D, E, F

from ftd.errors import FtdError
from ftd.ftw.checkpoint import Checkpoint
from ftd.ftw.hf_experts import Share, plan_layer, source_bytes

SIZE = {"E": E, "D": D, "F": F}
STEM = "model.layers.0.mlp.experts."


def shares(
    folder: Path, tensors: dict[str, Any], model_type: str, read: Callable[[dict[str, Share]], None]
) -> None:
    """Plan the experts of a layer and hand them over while the files are open."""
    files = checkpoint_bytes.save(folder / "hf", {}, tensors)
    with Checkpoint(files) as checkpoint:
        read({share.role: share for share in plan_layer(checkpoint.tensors, model_type, 0, SIZE, None)})


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint16])
def test_fused_banks_have_gate_rows_before_up_rows(tmp_path: Path, dtype: Any) -> None:
    random = np.random.default_rng(0)
    gate_up = random.integers(0, 1000, (E, 2 * F, D)).astype(dtype)
    down = random.integers(0, 1000, (E, D, F)).astype(dtype)

    def check(found: dict[str, Share]) -> None:
        for expert in range(E):
            for role, wanted in (("gate", gate_up[:, :F]), ("up", gate_up[:, F:]), ("down", down)):
                np.testing.assert_array_equal(found[role].read(expert).planes[0], wanted[expert])
        assert source_bytes(list(found.values())) == gate_up.nbytes + down.nbytes

    shares(tmp_path, {f"{STEM}gate_up_proj": gate_up, f"{STEM}down_proj": down}, "qwen3_moe", check)


def test_float_experts_of_gpt_oss_are_transposed_and_alternate(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    gate_up = random.normal(size=(E, D, 2 * F)).astype(np.float32)
    down = random.normal(size=(E, F, D)).astype(np.float32)
    biases = random.normal(size=(E, 2 * F)).astype(np.float32)
    tensors = {
        f"{STEM}gate_up_proj": gate_up,
        f"{STEM}gate_up_proj_bias": biases,
        f"{STEM}down_proj": down,
        f"{STEM}down_proj_bias": down[:, 0],
    }

    def check(found: dict[str, Share]) -> None:
        token = random.normal(size=D).astype(np.float32)
        for expert in range(E):
            both = token @ gate_up[expert] + biases[expert]
            for role, wanted in (("gate", both[::2]), ("up", both[1::2])):
                weight, bias = found[role].read(expert), found[f"{role}_bias"].read(expert)
                got = weight.planes[0] @ token + bias.planes[0][0]
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
            np.testing.assert_array_equal(found["down"].read(expert).planes[0], down[expert].T)
            np.testing.assert_array_equal(found["down_bias"].read(expert).planes[0][0], down[expert, 0])

    shares(tmp_path, tensors, "gpt_oss", check)


def mxfp4(**changes: Any) -> dict[str, Any]:
    tensors = checkpoint_bytes.gpt_oss()[1]
    return tensors | {f"{STEM}{name}": value for name, value in changes.items()}


@pytest.mark.parametrize(
    ("tensors", "model_type", "message"),
    [
        ({"x": np.zeros(1, np.float32)}, "qwen3_moe", "layer 0 has no experts"),
        ({f"{STEM}gate_up_proj": np.zeros((E, 2 * F, D), np.float32)}, "qwen3_moe", "down_proj is missing"),
        (
            {
                f"{STEM}gate_up_proj": np.zeros((E, F, D), np.float32),
                f"{STEM}down_proj": np.zeros((E, D, F), np.float32),
            },
            "qwen3_moe",
            r"gate_up_proj has shape \[4, 32, 64\] instead of \[4, 64, 64\]",
        ),
        (
            mxfp4(down_proj_scales=np.zeros((E, D, 2), np.uint8)),
            "gpt_oss",
            r"down_proj_scales is U8 \[4, 64, 2\]",
        ),
        (
            mxfp4(gate_up_proj_blocks=np.zeros((E, 2 * F, 2, 16), np.float16)),
            "gpt_oss",
            "gate_up_proj_blocks is F16",
        ),
        (mxfp4(down_proj_bias=np.zeros((E, D + 1), np.float32)), "gpt_oss", "down_proj_bias has shape"),
    ],
)
def test_malformed_banks_are_refused_by_name(
    tmp_path: Path, tensors: dict[str, Any], model_type: str, message: str
) -> None:
    with pytest.raises(FtdError, match=message):
        shares(tmp_path, tensors, model_type, lambda found: None)
