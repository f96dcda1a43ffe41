"""Records which experts a model's tokens choose, on the model itself, as a trace for ``ftd.engine.routing``.

The text is given, or the model writes it: sampled at temperature 1, because text at temperature 0 runs into
loops, and loops miss nothing.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ftd.engine.engine import Engine
from ftd.engine.messages import Generate, Load, SamplingParams, Tokens, Up
from ftd.engine.routing import Trace
from ftd.errors import InvalidOption

SAMPLED = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, seed=1)


def record(
    config_path: Path,
    blob_paths: Mapping[str, Path],
    ids: Sequence[int],
    *,
    decode_tokens: int = 0,
    num_threads: int = 0,
    precision: str = "fast",
) -> Trace:
    """Return the routing of ``ids`` and of up to ``decode_tokens`` tokens that the model writes after them.

    Raises InvalidOption for a model without experts, and what loading and an impossible request raise.
    """
    if not ids or decode_tokens < 0:
        raise InvalidOption(f"nothing to record: {len(ids)} tokens of text, {decode_tokens} to write")
    sent: list[Up] = []
    load = Load(
        config_path=str(config_path),
        blob_paths={digest: str(path) for digest, path in blob_paths.items()},
        context_tokens=len(ids) + decode_tokens + 1,
        max_sequences=1,
        num_threads=num_threads,
        precision="f32" if precision == "f32" else "fast",
    )
    with Engine(load, sent.append) as engine:
        experts = engine.config.experts
        if experts is None or not engine.model.routed():
            raise InvalidOption(f"model has no experts to route to: {engine.config.architecture}")
        engine.generate(Generate(request_id=1, ids=list(ids), max_tokens=decode_tokens + 1, sampling=SAMPLED))
        steps: list[list[NDArray[np.int64]]] = []
        while engine.has_work:
            engine.step()
            steps.append([layer.astype(np.int64) for _, layer in sorted(engine.model.routed().items())])
        num_experts = experts.num_experts
    written = [token for message in sent if isinstance(message, Tokens) for token in message.ids]
    routing = np.stack([np.concatenate(parts) for parts in zip(*steps, strict=True)])
    tokens = np.array([*ids, *written][: routing.shape[1]], np.int64)
    assert len(tokens) == routing.shape[1], (len(tokens), routing.shape)
    return Trace(routing, tokens, num_experts)


def agreement(trace: Trace, other: Trace) -> float:
    """Return which share of the experts that ``trace`` chose ``other`` chose for the same token and layer."""
    if trace.routing.shape != other.routing.shape:
        raise InvalidOption(
            f"traces differ in shape: {list(trace.routing.shape)} and {list(other.routing.shape)}"
        )
    same = (trace.routing[..., :, None] == other.routing[..., None, :]).any(axis=-1)
    return float(same.mean())
