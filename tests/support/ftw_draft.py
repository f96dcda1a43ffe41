"""The config that a writer of FTW is given: everything but weights."""

from typing import Any

from ftd.ftw.format import FtwConfig, Tokens


def draft(**fields: Any) -> FtwConfig:
    """Return the config of a model without anything, but for ``fields``."""
    empty: dict[str, Any] = {
        "architecture": "llama",
        "hyperparameters": {},
        "quantization": "F32",
        "parameter_count": 0,
        "tokens": Tokens(),
        "tensors": [],
        "blobs": [],
    }
    return FtwConfig(**(empty | fields))
