"""The workspace counted before anything is allocated, against what a recorded graph then has."""

from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the GPU engine needs triton")

from ftd.engine import card_memory, devices, model_config
from ftd.engine.loader import Files
from ftd.engine.model import Model
from ftd.kernels import cuda_runner
from tests.engine import hybrid, tiny
from tests.engine.serving import write_ftw


@pytest.mark.parametrize(
    ("architecture", "precision"),
    [
        ("llama", "f32"),
        ("llama", "fast"),
        ("mixtral", "fast"),
        ("qwen3_moe", "f32"),
        ("deepseek_v2", "fast"),
        ("deepseek_v32", "f32"),
        ("qwen3_next", "fast"),
    ],
)
def test_the_count_is_what_a_graph_has(tmp_path: Path, architecture: str, precision: str) -> None:
    oracle = (hybrid if architecture in hybrid.CASES else tiny).make(architecture)
    load = write_ftw(oracle, tmp_path)
    source = Files(Path(load.config_path), {d: Path(path) for d, path in load.blob_paths.items()})
    config = model_config.make(source.config.architecture, source.config.hyperparameters)
    device = devices.cuda() if devices.missing_for_cuda() is None else devices.interpreter()
    workspace = device.workspace(config, source.outline, precision, 32)
    assert workspace is not None
    model = Model(
        config,
        source.read(lambda done, total: None).weights,
        device.make_graph,
        None,
        num_pages=256,
        page_size=32,
        max_pages_per_sequence=8,
        max_tokens=64,
        max_sequences=4,
        max_logits=4,
        precision=precision,
        make_pages=device.make_pages,
        num_state_slots=4,
    )
    assert workspace(64, 4, 256) == model.workspace_bytes
    assert workspace(60, 4, 100) == model.workspace_bytes
    assert workspace(65, 4, 256) > model.workspace_bytes


def test_overhead_grows_with_graphs_and_experts_elsewhere() -> None:
    assert card_memory.GRAPH_ROWS == cuda_runner.BUCKETS
    assert len(cuda_runner.PROMPT_BUCKETS) == card_memory.NUM_PROMPT_GRAPHS
    one, two, most = (card_memory.overhead(1000, rows, False) for rows in (1, 2, 99))
    assert two - one == card_memory.GRAPH_BYTES and most - one == 4 * card_memory.GRAPH_BYTES
    assert card_memory.overhead(1000, 1, True) - one == card_memory.POOL_BYTES
    assert card_memory.overhead(2000, 1, False) - one == 1000
