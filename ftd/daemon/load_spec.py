"""What an engine must be to serve a request, and the ``Load`` that makes one.

The window is the only number a request may choose: asked for, or configured, or what memory allows.
"""

from typing import Literal, cast

import msgspec

from ftd import machine
from ftd.config import EngineConfig
from ftd.daemon.modelinfo import ModelInfo
from ftd.engine.messages import Load

MIN_CONTEXT_TOKENS = 4
DEFAULT_MAX_SEQUENCES = 8
# With no setting the window starts here and doubles while its KV is a small part of free memory.
_FIRST_WINDOW_TOKENS = 4096
_LAST_WINDOW_TOKENS = 32768
_WINDOW_MEMORY_SHARE = 1 / 16


class LoadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One model and the window that a request needs; ``num_ctx`` None takes whatever is loaded.

    ``device`` empty or auto takes it wherever it is loaded.
    """

    info: ModelInfo
    num_ctx: int | None = None
    num_threads: int = 0
    device: str = ""

    @property
    def key(self) -> str:
        """Identity of the weights: names with the same FTW config share an engine."""
        return self.info.manifest.config.digest

    @property
    def needed_tokens(self) -> int:
        """Window the engine must have at least, at most the trained one; 0 when any will do."""
        if self.num_ctx is None:
            return 0
        wanted = max(self.num_ctx, MIN_CONTEXT_TOKENS)
        return min(wanted, self.info.context_length) if self.info.context_length else wanted


def default_window(info: ModelInfo, config: EngineConfig, free_bytes: int) -> int:
    """Return the window, in tokens, of a model loaded by a request that names none."""
    trained = info.context_length or _FIRST_WINDOW_TOKENS
    if config.context_tokens:
        return min(max(config.context_tokens, MIN_CONTEXT_TOKENS), trained)
    window = _FIRST_WINDOW_TOKENS
    budget_bytes = free_bytes * _WINDOW_MEMORY_SHARE
    while window < _LAST_WINDOW_TOKENS and kv_bytes_per_token(info) * window * 2 <= budget_bytes:
        window *= 2
    return min(window, trained)


def kv_bytes_per_token(info: ModelInfo) -> int:
    """Return the bytes of K and V, in half precision, that one token takes over all layers."""
    heads = _number(info, "num_attention_heads") or 1
    head_dim = _number(info, "head_dim") or _number(info, "hidden_size") // heads
    kinds = info.config.hyperparameters.get("layer_types")
    recurrent = kinds.count("linear_attention") if isinstance(kinds, list) else 0
    layers = _number(info, "num_hidden_layers") - recurrent
    return 4 * layers * (_number(info, "num_key_value_heads") or heads) * head_dim


def _number(info: ModelInfo, key: str) -> int:
    value = info.config.hyperparameters.get(key)
    return value if isinstance(value, int) else 0


def load_message(spec: LoadSpec, config: EngineConfig, needed_tokens: int) -> Load:
    """Return the Load for ``spec`` with a window of ``needed_tokens`` (0: the default window)."""
    window = needed_tokens or default_window(spec.info, config, machine.available_bytes())
    return Load(
        config_path=str(spec.info.config_path),
        blob_paths={digest: str(path) for digest, path in spec.info.blob_paths.items()},
        context_tokens=window,
        max_sequences=config.num_parallel or DEFAULT_MAX_SEQUENCES,
        num_threads=spec.num_threads or config.num_threads,
        precision=cast(Literal["fast", "f32"], config.precision),
        prefill_chunk_tokens=config.prefill_chunk_tokens,
        device=cast(Literal["auto", "cpu", "cuda"], spec.device or config.device),
        device_memory_bytes=config.gpu_memory_bytes,
        host_memory_bytes=config.host_memory_bytes,
        experts=config.experts,
        experts_policy=config.experts_policy,
    )
