"""``ftd bench``: which model it measures and what it prints; the measuring is the engine's own test."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from ftd.cli import bench
from ftd.engine.bench import Result

RESULT = Result(
    architecture="llama",
    quantization="Q4_1",
    parameter_count=134_515_008,
    precision="fast",
    num_threads=2,
    isa="avx2",
    prompt_tokens=7,
    decode_tokens=5,
    prefill_tokens_per_s=100.0,
    decode_tokens_per_s=50.0,
    load_s=0.5,
    read_bytes_per_s=1e9,
    weight_bytes=10**8,
    bytes_per_decode_token=10**8,
    bandwidth_bytes_per_s=1e10,
    bandwidth_fraction=0.5,
    outside_share=0.01,
    repetitions=3,
)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The arguments that the engine's bench is called with; it answers RESULT."""
    called: dict[str, object] = {}

    def run(config_path: Path, blob_paths: dict[str, Path], **counts: object) -> Result:
        called.update(counts, config_path=config_path, blob_paths=blob_paths)
        return RESULT

    info = SimpleNamespace(config_path=Path("/c"), blob_paths={"sha256:a": Path("/a")})
    monkeypatch.setattr(bench.modelinfo, "read_model", lambda store, name, tokenizer: info)
    monkeypatch.setattr(bench.bench, "run", run)
    return called


def test_flags_become_counts(cli, measured: dict[str, object], tmp_path: Path) -> None:
    words = ("--prompt-tokens", "7", "--decode-tokens", "5", "--threads", "2", "--precision", "f32", "--json")
    result = cli("bench", "m", *words, env={"FTD_MODELS": str(tmp_path / "models")})
    assert json.loads(result.stdout)["decode_tokens_per_s"] == 50.0
    assert measured == {
        "config_path": Path("/c"),
        "blob_paths": {"sha256:a": Path("/a")},
        "prompt_tokens": 7,
        "decode_tokens": 5,
        "num_threads": 2,
        "precision": "f32",
    }


def test_the_table_names_the_rates(cli, measured: dict[str, object], tmp_path: Path) -> None:
    shown = cli("bench", "m", env={"FTD_MODELS": str(tmp_path / "models")}).stdout
    assert "50.0 tok/s" in shown and "100.0 tok/s" in shown


def test_a_missing_model_says_how_to_get_it(cli, tmp_path: Path) -> None:
    result = cli("bench", "nosuch", env={"FTD_MODELS": str(tmp_path / "models")})
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "error: model 'nosuch:latest' not found\nhint: ftd pull nosuch:latest\n"
