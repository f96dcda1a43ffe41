"""Real models with experts out of a dense one, no weight requantised: the text stays the dense model's.

    permuted   every expert is the whole mlp with its blocks of 32 neurons in another order: other bytes, the
               same function, so any router and any top-k give the dense model
    split      expert e has the e-th part of the neurons, and its down is multiplied by the number of experts
               (a power of two: exact in the scales); a router of zeros and all experts give the dense model,
               and one wrong expert is heard at once

Both are written as GGUF of the llama architecture with experts, which llama.cpp reads too.
"""

from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from numpy.typing import NDArray

BLOCK = 32  # neurons that stay together: a block of scales of the quantised down
ROUTER_SPREAD = 0.05
_PARTS = ("ffn_gate", "ffn_up", "ffn_down")
_F16_FIELDS = {"Q4_0": 1, "Q8_0": 1, "Q4_1": 2, "F16": 0, "F32": 0}  # at the start of a block


def upcycle(
    source: Path,
    target: Path,
    num_experts: int,
    num_chosen: int,
    how: Literal["permuted", "split"],
    seed: int = 1,
) -> None:
    """Write ``target``, a model of ``num_experts`` experts of which a token uses ``num_chosen``."""
    assert how == "permuted" or num_experts & (num_experts - 1) == 0, num_experts
    reader = gguf.GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    inner = int(reader.fields[f"{architecture}.feed_forward_length"].contents())
    writer = gguf.GGUFWriter(target, architecture)
    size = inner // num_experts if how == "split" else inner
    _copy_metadata(reader, writer, {f"{architecture}.feed_forward_length": size})
    writer.add_expert_count(num_experts)
    writer.add_expert_used_count(num_chosen)
    random = np.random.default_rng(seed)
    jobs: list[tuple[Any, Any]] = []
    for tensor in reader.tensors:
        layer, part = ([*tensor.name.split("."), "", ""])[1:3]
        if part not in _PARTS:
            jobs.append((tensor, None))
            _announce(writer, tensor.name, tensor.data.shape, tensor.tensor_type)
            continue
        key = int(layer)
        orders = [_order(seed, key, expert, inner // BLOCK) for expert in range(num_experts)]
        rows, row_bytes = tensor.data.shape
        shape = (num_experts, rows, row_bytes)
        if how == "split":
            shape = (num_experts, rows // num_experts, row_bytes)
            if part == "ffn_down":
                shape = (num_experts, rows, row_bytes // num_experts)
        jobs.append((tensor, orders))
        _announce(writer, f"blk.{key}.{part}_exps.weight", shape, tensor.tensor_type)
        if part == "ffn_gate":
            spread = ROUTER_SPREAD if how == "permuted" else 0.0
            hidden = int(tensor.shape[0])
            router = (random.standard_normal((num_experts, hidden)) * spread).astype(np.float32)
            jobs.append((router, None))
            _announce(writer, f"blk.{key}.ffn_gate_inp.weight", router.shape, gguf.GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for job, orders in jobs:
        if isinstance(job, np.ndarray):
            writer.write_tensor_data(job)
        elif orders is None:
            writer.write_tensor_data(np.asarray(job.data))
        else:
            writer.write_tensor_data(_experts(job, orders, how))
    writer.close()


def _order(seed: int, layer: int, expert: int, num_blocks: int) -> NDArray[np.int64]:
    """Return the order of an expert's blocks; expert 0 has that of the dense model."""
    blocks = np.arange(num_blocks)
    return blocks if expert == 0 else np.random.default_rng([seed, layer, expert]).permutation(blocks)


def _copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter, changes: dict[str, int]) -> None:
    for name, item in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        if item.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(name, item.contents())
        else:
            writer.add_key_value(name, changes.get(name, item.contents()), item.types[0])


def _announce(writer: gguf.GGUFWriter, name: str, shape: Any, kind: gguf.GGMLQuantizationType) -> None:
    floats = {gguf.GGMLQuantizationType.F32: np.float32, gguf.GGMLQuantizationType.F16: np.float16}
    dtype = np.dtype(floats.get(kind, np.uint8))
    num_bytes = int(np.prod(shape)) * dtype.itemsize
    writer.add_tensor_info(name, tuple(shape), dtype, num_bytes, None if kind in floats else kind)


def _experts(tensor: Any, orders: list[NDArray[np.int64]], how: str) -> NDArray[Any]:
    """Return one weight of all experts, [E, rows, bytes of a row]."""
    data = np.asarray(tensor.data)
    is_down = ".ffn_down." in tensor.name
    num_experts = len(orders)
    if how == "permuted":
        if is_down:
            blocks = data.reshape(len(data), len(orders[0]), -1)
            return np.stack([blocks[:, order].reshape(data.shape) for order in orders])
        blocks = data.reshape(len(orders[0]), BLOCK, -1)
        return np.stack([blocks[order].reshape(data.shape) for order in orders])
    if not is_down:
        return data.reshape(num_experts, len(data) // num_experts, -1)
    parts = data.reshape(len(data), num_experts, -1).swapaxes(0, 1).copy()
    return _scaled(parts, tensor.tensor_type.name, num_experts)


def _scaled(parts: NDArray[Any], kind: str, factor: int) -> NDArray[Any]:
    """Multiply quantised rows by a power of two: in their scales, or in floats themselves."""
    if parts.dtype != np.uint8:
        return parts * parts.dtype.type(factor)
    _, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = parts.reshape(-1, block_bytes)
    halves = blocks[:, : 2 * _F16_FIELDS[kind]].copy().view(np.float16) * np.float16(factor)
    assert np.isfinite(halves).all()
    blocks[:, : 2 * _F16_FIELDS[kind]] = halves.view(np.uint8)
    return parts
