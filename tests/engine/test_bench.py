"""The bench on a tiny model: its counts against the formula in its docstring, its output against JSON."""

import functools
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from ftd.engine import bench
from ftd.engine.messages import Load
from ftd.errors import InvalidOption
from ftd.kernels import bandwidth
from tests.engine import tiny
from tests.engine.serving import write_ftw

SIZES = {"prompt_tokens": 40, "decode_tokens": 8, "num_threads": 1, "repetitions": 2}


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def written(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[tiny.Tiny, Load]:
    """A model with tied and one with separate embeddings."""
    model = tiny.make(request.param)
    return model, write_ftw(model, tmp_path_factory.mktemp("ftw"))


@pytest.fixture(autouse=True)
def small_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the bandwidth over a megabyte: the machine's memory is not what is tested."""
    monkeypatch.setattr(
        bandwidth, "measure", functools.partial(bandwidth.measure, num_bytes=1 << 20, passes=1)
    )


def paths(load: Load) -> dict[str, Path]:
    """Return the blobs of ``load``."""
    return {digest: Path(path) for digest, path in load.blob_paths.items()}


def test_figures_fit_together(written: tuple[tiny.Tiny, Load]) -> None:
    model, load = written
    result = bench.run(Path(load.config_path), paths(load), precision="f32", **SIZES)
    all_bytes = sum(tensor.num_bytes for tensor in model.tensors.values())
    read_bytes = all_bytes if model.hyperparameters["tie_word_embeddings"] else all_bytes - 159 * 64 * 4
    head_dim = model.hyperparameters.get("head_dim", 16)
    assert result.weight_bytes == all_bytes
    assert result.bytes_per_decode_token == read_bytes + 44 * 2 * 3 * 2 * head_dim * 4
    assert min(result.prefill_tokens_per_s, result.decode_tokens_per_s, result.load_s) > 0
    assert 0 < result.outside_share < 1
    assert result.bandwidth_fraction == pytest.approx(
        result.bytes_per_decode_token * result.decode_tokens_per_s / result.bandwidth_bytes_per_s
    )


def test_the_table_has_a_row_for_each_figure(written: tuple[tiny.Tiny, Load]) -> None:
    result = bench.run(Path(written[1].config_path), paths(written[1]), **SIZES)
    names = [line.split("  ")[0] for line in bench.format_table(result).splitlines()]
    assert names == [
        "model",
        "machine",
        "load",
        "prefill",
        "decode",
        "decode reads",
        "bandwidth",
        "outside kernels",
    ]


def test_the_command_prints_json(written: tuple[tiny.Tiny, Load], capsys: pytest.CaptureFixture[str]) -> None:
    load = written[1]
    arguments = ["--prompt-tokens", "9", "--decode-tokens", "3", "--threads", "1", "--json"]
    assert bench.main([load.config_path, *load.blob_paths.values(), *arguments]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == set(asdict(bench.run(Path(load.config_path), paths(load), **SIZES)))
    assert (printed["prompt_tokens"], printed["decode_tokens"]) == (9, 3)


@pytest.mark.parametrize("change", [{"prompt_tokens": 0}, {"decode_tokens": -1}, {"precision": "fp4"}])
def test_impossible_options_are_refused(
    written: tuple[tiny.Tiny, Load], change: dict[str, int | str]
) -> None:
    with pytest.raises(InvalidOption, match=str(next(iter(change.values())))):
        bench.run(Path(written[1].config_path), paths(written[1]), **change)  # type: ignore[arg-type]


def test_a_missing_model_ends_with_an_error_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([str(tmp_path / "none"), str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_a_sweep_runs_each_length_once(written: tuple[tiny.Tiny, Load]) -> None:
    """Of its figures those that follow from lengths, against ``run`` of the same length."""
    config_path, blob_paths = Path(written[1].config_path), paths(written[1])
    found = bench.sweep(
        config_path, blob_paths, prompts=[40, 9], contexts=[0, 40], decode_tokens=8, num_threads=1
    )
    assert [each.prompt_tokens for each in found.prefills] == [9, 40]
    assert [each.context_tokens for each in found.decodes] == [0, 40]
    alone = bench.run(config_path, blob_paths, **SIZES)
    assert found.decodes[1].bytes_per_token == alone.bytes_per_decode_token
    assert all(each.tokens_per_s > 0 for each in (*found.prefills, *found.decodes))
    assert all(0 < each.outside_share < 1 for each in found.decodes)
    assert (found.num_threads, found.isa) == (1, alone.isa)


def test_the_command_sweeps(written: tuple[tiny.Tiny, Load], capsys: pytest.CaptureFixture[str]) -> None:
    load = written[1]
    arguments = ["--prompts", "9,33", "--contexts", "2", "--decode-tokens", "3", "--threads", "1"]
    assert bench.main([load.config_path, *load.blob_paths.values(), *arguments]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [each["prompt_tokens"] for each in printed["prefills"]] == [9, 33]
    assert [each["context_tokens"] for each in printed["decodes"]] == [2]
    assert printed["bandwidth_bytes_per_s"] > 0


@pytest.mark.parametrize("change", [{"prompts": [0]}, {"contexts": [-1]}, {"decode_tokens": 0}])
def test_impossible_lengths_are_refused(
    written: tuple[tiny.Tiny, Load], change: dict[str, int | list[int]]
) -> None:
    with pytest.raises(InvalidOption, match="lengths must be at least 1"):
        bench.sweep(Path(written[1].config_path), paths(written[1]), **change)  # type: ignore[arg-type]
