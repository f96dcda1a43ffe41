"""A card's ops refuse what their references refuse, in the same words but for types that they also take."""

import importlib
import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the GPU engine needs triton")

import torch
from weights import random_matrix

from ftd.kernels.device_matrix import DeviceMatrix
from ftd.kernels.quant import QuantMatrix

WEIGHT = random_matrix("q8_0", 6, 32, np.random.default_rng(1))


def floats(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


LATENTS = {
    "q": floats(2, 2, 5),
    "pages": floats(3, 2, 5),
    "page_table": ints(0, 1).reshape(1, 2),
    "q_start": ints(0, 2),
    "kv_len": ints(2),
    "positions": ints(0, 1),
}
# Arguments that fit, by op; then those that do not, one at a time
CASES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "add": ({"x": floats(2, 3), "y": floats(2, 3)}, [{"x": floats(3)}, {"y": floats(2, 4)}, {"x": ints(1)}]),
    "swiglu": ({"gate": floats(2, 3), "up": floats(2, 3)}, [{"gate": floats(3)}, {"up": floats(1, 3)}]),
    "geglu": ({"gate": floats(2, 3), "up": floats(2, 3)}, [{"gate": floats(3)}, {"up": floats(1, 3)}]),
    "gelu": ({"x": floats(2, 3)}, [{"x": floats(3)}, {"x": ints(1)}]),
    "sigmoid_gate": ({"x": floats(2, 3), "gate": floats(2, 3)}, [{"x": floats(3)}, {"gate": floats(2, 4)}]),
    "rms_norm": (
        {"x": floats(2, 3), "weight": floats(3)},
        [{"x": floats(3)}, {"weight": floats(4)}, {"weight": ints(1, 2, 3)}, {"eps": -1.0}, {"eps": np.nan}],
    ),
    "layer_norm": (
        {"x": floats(2, 3), "weight": floats(3), "bias": floats(3)},
        [{"x": floats(3)}, {"weight": floats(4)}, {"bias": floats(2)}, {"eps": -1.0}],
    ),
    "latent_norm": (
        {"x": floats(2, 8), "weight": floats(5)},
        [{"x": floats(8)}, {"weight": floats(9)}, {"weight": ints(1)}, {"eps": -1.0}, {"interleaved": True}],
    ),
    "rope": (
        {"x": floats(2, 1, 8), "positions": ints(0, 1), "inv_freq": floats(4)},
        [
            {"x": floats(2, 8)},
            {"positions": ints(0)},
            {"inv_freq": floats(5)},
            {"inv_freq": floats(1, 4)},
            {"scale": np.inf},
        ],
    ),
    "position_embedding": (
        {"x": floats(2, 3), "positions": ints(0, 1), "table": floats(4, 3)},
        [{"x": floats(3)}, {"positions": ints(0)}, {"table": floats(4, 2)}],
    ),
    "select_logit_rows": (
        {"x": floats(2, 3), "rows": ints(0)},
        [{"x": floats(3)}, {"rows": floats(1)}, {"rows": ints(0).reshape(1, 1)}],
    ),
    "embedding": ({"ids": ints(0), "weight": WEIGHT}, [{"ids": floats(1)}, {"ids": ints(0).reshape(1, 1)}]),
    "kv_store": (
        {
            "k": floats(2, 1, 4),
            "v": floats(2, 1, 4),
            "k_pages": floats(3, 1, 4, 2),
            "v_pages": floats(3, 1, 2, 4),
            "kv_index": ints(0, 1),
        },
        [
            {"k": floats(2, 4)},
            {"v": floats(2, 1, 5)},
            {"k_pages": floats(3, 1, 5, 2)},
            {"v_pages": floats(3, 1, 4, 4)},
            {"v_pages": floats(3, 1, 2, 4).astype(np.float16)},
            {"kv_index": ints(0)},
        ],
    ),
    "latent_store": (
        {"x": floats(2, 4), "pages": floats(3, 2, 4), "kv_index": ints(0, 1)},
        [{"x": floats(4)}, {"pages": floats(3, 2, 5)}, {"pages": floats(3, 0, 4)}, {"kv_index": ints(0)}],
    ),
    "matmul": (
        {"x": floats(2, 32), "weight": WEIGHT},
        [{"x": floats(2, 31)}, {"x": floats(32)}, {"bias": floats(5)}, {"precision": "f16"}],
    ),
    "head_linear": (
        {"x": floats(2, 2, 34), "weight": WEIGHT, "tail": 2},
        [
            {"x": floats(2, 68)},
            {"x": floats(2, 2, 33)},
            {"x": floats(2, 4, 34)},
            {"tail": -1},
            {"first": 3},
            {"rows": 4},
        ],
    ),
    "route_topk": (
        {"logits": floats(2, 8), "num_chosen": 2},
        [
            {"logits": floats(8)},
            {"num_chosen": 9},
            {"num_chosen": 0},
            {"scoring": "tanh"},
            {"bias": floats(7)},
            {"num_groups": 3},
            {"num_groups": 4, "top_groups": 5},
            {"num_groups": 4, "top_groups": 2, "group_top": 3},
        ],
    ),
    "causal_conv": (
        {
            "x": floats(2, 3),
            "weight": floats(3, 4),
            "state": floats(2, 3, 3),
            "q_start": ints(0, 2),
            "positions": ints(0, 1),
            "state_index": ints(1),
        },
        [
            {"x": floats(3)},
            {"weight": floats(2, 4)},
            {"weight": floats(3, 17)},
            {"state": floats(2, 2, 3)},
            {"q_start": ints(0)},
            {"positions": ints(0)},
        ],
    ),
    "gated_delta": (
        {
            "qkv": floats(2, 8),
            "a": floats(2, 1),
            "b": floats(2, 1),
            "decay": -floats(1),
            "bias": floats(1),
            "state": floats(2, 1, 2, 4),
            "key_heads": 1,
            "q_start": ints(0, 2),
            "positions": ints(0, 1),
            "state_index": ints(1),
        },
        [
            {"qkv": floats(8)},
            {"qkv": floats(2, 9)},
            {"a": floats(2, 2)},
            {"b": floats(1, 1)},
            {"decay": floats(2)},
            {"key_heads": 2},
            {"positions": ints(0)},
        ],
    ),
    "attention": (
        {
            "q": floats(2, 2, 4),
            "k_pages": floats(3, 1, 4, 2),
            "v_pages": floats(3, 1, 2, 4),
            "page_table": ints(0, 1).reshape(1, 2),
            "q_start": ints(0, 2),
            "kv_len": ints(2),
            "positions": ints(0, 1),
            "scale": 0.5,
        },
        [
            {"q": floats(2, 8)},
            {"k_pages": floats(3, 1, 5, 2)},
            {"v_pages": floats(3, 1, 2, 5)},
            {"q": floats(2, 3, 4), "k_pages": floats(3, 2, 4, 2), "v_pages": floats(3, 2, 2, 4)},
            {"sinks": floats(3)},
            {"window": -1},
            {"window": 2, "causal": False},
            {"positions": ints(0)},
            {"page_table": ints(0, 1)},
        ],
    ),
    "latent_attention": (
        LATENTS | {"latent": 3, "scale": 0.5},
        [
            {"q": floats(2, 10)},
            {"pages": floats(3, 2, 6)},
            {"pages": floats(3, 0, 5)},
            {"latent": 0},
            {"latent": 6},
            {"positions": ints(0)},
        ],
    ),
    "index_select": (
        LATENTS | {"weights": floats(2, 2), "count": 2},
        [
            {"q": floats(2, 10)},
            {"pages": floats(3, 2, 6)},
            {"weights": floats(2, 3)},
            {"count": 0},
            {"positions": ints(0)},
        ],
    ),
    "sample": (
        {
            "logits": floats(5),
            "params": None,
            "history": ints(1),
            "uniform": 0.5,
        },
        [{"logits": floats(1, 5)}, {"logits": floats(0)}, {"history": floats(1)}, {"uniform": 1.0}],
    ),
}


class Params:
    """What a sampler takes, all switched off."""

    temperature, top_k, top_p, min_p, typical_p = 1.0, 3, 1.0, 0.0, 1.0
    repeat_last_n, repeat_penalty, presence_penalty, frequency_penalty = 0, 1.0, 0.0, 0.0


def placed(op: str, name: str, value: Any) -> Any:
    """Return an argument as a card's op takes it."""
    if isinstance(value, QuantMatrix):
        return DeviceMatrix.upload([value], "cpu")
    if isinstance(value, np.ndarray) and (op, name) != ("sample", "history"):
        return torch.tensor(value)
    return value


def message(call: Any, arguments: dict[str, Any]) -> str:
    """Return what ``call`` says, without the types that it would have taken."""
    with pytest.raises(ValueError) as raised:
        call(**arguments)
    return re.sub(r"float(32|16)( or b?float\d\d)*", "float", str(raised.value))


@pytest.mark.parametrize(
    ("op", "wrong"),
    [
        pytest.param(op, wrong, id=f"{op}-{'-'.join(wrong)}-{i}")
        for op, (_, cases) in CASES.items()
        for i, wrong in enumerate(cases)
    ],
)
def test_the_same_words(op: str, wrong: dict[str, Any]) -> None:
    arguments = CASES[op][0] | wrong
    if "params" in arguments:
        arguments["params"] = Params()
    here, there = (
        getattr(importlib.import_module(f"ftd.kernels.{op}_{kind}"), op) for kind in ("ref", "triton")
    )
    expected = message(here, arguments)
    assert message(there, {name: placed(op, name, value) for name, value in arguments.items()}) == expected
