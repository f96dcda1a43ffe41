"""FreeToken's FTW version 1 put together after its description, from tensors of a Hugging Face checkpoint."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import checkpoint_bytes
import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 4096
NAMES = {
    "float32": "float32",
    "float16": "float16",
    "uint16": "bfloat16",
    "uint8": "uint8",
    str(checkpoint_bytes.FP8): "float8_e4m3fn",
}
Arrays = dict[str, NDArray[Any]]
_EXPERT = re.compile(r"model\.layers\.(\d+)\.(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight")
_ROLES = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}


@dataclass
class Folder:
    """Tensors of a folder to be, in order, and what the index says beside them."""

    weights: Arrays
    banks: Arrays
    index: dict[str, Any] = field(default_factory=lambda: {"format": "freetoken_weight", "version": 1})

    def save(self, folder: Path, config: dict[str, Any], shard_bytes: int = 1 << 30) -> dict[str, Path]:
        """Write the folder in shards of at most ``shard_bytes`` and return its files by name."""
        folder.mkdir(parents=True)
        region, tensors = b"", []
        for kind, arrays in (("weight", self.weights), ("experts_bank", self.banks)):
            for name, array in arrays.items():
                raw = np.ascontiguousarray(array).tobytes()
                entry = {"name": name, "kind": kind, "dtype": NAMES[str(array.dtype)]}
                tensors.append(
                    entry | {"shape": list(array.shape), "global_off": len(region), "nbytes": len(raw)}
                )
                region += raw + bytes(-len(raw) % ALIGNMENT)
        shards = []
        for number, start in enumerate(range(0, len(region), shard_bytes)):
            name, part = f"freetoken-{number:05}.ftw", region[start : start + shard_bytes]
            (folder / name).write_bytes(part)
            shards.append({"file": name, "global_off": start, "nbytes": len(part)})
        index = {"align": ALIGNMENT, "tensors": tensors, "shards": shards} | self.index
        (folder / "freetoken_weight.json").write_text(json.dumps(index))
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "tokenizer.json").write_text(json.dumps(checkpoint_bytes.TOKENIZER))
        return {path.name: path for path in folder.iterdir()}


def converted(arrays: Arrays, flat: bool = False) -> Folder:
    """Return bf16 tensors as FreeToken keeps them: q, k, v in one, experts as banks of a layer or of all."""
    weights: Arrays = {}
    experts: dict[int, dict[str, dict[int, NDArray[Any]]]] = {}
    for name, array in arrays.items():
        if match := _EXPERT.fullmatch(name):
            layer = experts.setdefault(int(match[1]), {})
            layer.setdefault(_ROLES[match[3]], {})[int(match[2])] = array
        elif ".q_proj." in name:
            parts = [arrays[name.replace("q_proj", f"{letter}_proj")] for letter in "qkv"]
            weights[name.replace("q_proj", "qkv_proj")] = np.concatenate(parts)
        elif "gate_proj" in name:
            parts = [array, arrays[name.replace("gate_proj", "up_proj")]]
            weights[name.replace("gate_proj", "gate_up_proj")] = np.concatenate(parts)
        elif not re.search(r"\.(?:k|v|up)_proj\.", name):
            weights[name] = array
    banks: Arrays = {}
    for number, layer in enumerate(experts[layer] for layer in sorted(experts)):
        stacked = {role: np.stack([layer[role][e] for e in sorted(layer[role])]) for role in layer}
        banks[f"gate_up#L{number:05}"] = np.concatenate([stacked["gate"], stacked["up"]], axis=1)
        banks[f"down#L{number:05}"] = stacked["down"]
    if flat:
        banks = {
            name: np.concatenate([banks[f"{name}#L{layer:05}"] for layer in range(len(experts))])
            for name in ("gate_up", "down")
        }
    folder = Folder(weights, banks)
    folder.index["quant_format"] = "bf16" if experts else None
    return folder
