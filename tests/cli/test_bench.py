"""``ftd bench``: which model it measures and what it prints; the measuring is the engine's own test."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ftd.chat.tokenizer import Tokenizer
from ftd.cli import bench
from ftd.engine.bench import Result
from ftd.engine.routing import Trace
from ftd.ftw.format import Tokens

# A tokenizer of two words
WORDS = json.dumps(
    {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
    }
).encode()

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
    monkeypatch.setattr(bench.modelinfo, "read_model", lambda store, name: info)
    monkeypatch.setattr(bench.bench, "run", run)
    return called


def test_flags_become_counts(cli, measured: dict[str, object], tmp_path: Path) -> None:
    words = ("--prompt-tokens", "7", "--decode-tokens", "5", "--threads", "2", "--precision", "f32", "--json")
    words += ("--device", "cuda")
    result = cli("bench", "m", *words, env={"FTD_MODELS": str(tmp_path / "models")})
    assert json.loads(result.stdout)["decode_tokens_per_s"] == 50.0
    assert measured == {
        "config_path": Path("/c"),
        "blob_paths": {"sha256:a": Path("/a")},
        "prompt_tokens": 7,
        "decode_tokens": 5,
        "num_threads": 2,
        "precision": "f32",
        "device": "cuda",
    }


def test_the_device_is_that_of_the_setting(cli, measured: dict[str, object], tmp_path: Path) -> None:
    for setting, device in (("cpu", "cpu"), ("", "auto")):
        cli("bench", "m", env={"FTD_MODELS": str(tmp_path / "models"), "FTD_DEVICE": setting})
        assert measured["device"] == device


@pytest.mark.usefixtures("measured")
def test_the_table_names_the_rates(cli, tmp_path: Path) -> None:
    shown = cli("bench", "m", env={"FTD_MODELS": str(tmp_path / "models")}).stdout
    assert "50.0 tok/s" in shown and "100.0 tok/s" in shown


def test_a_missing_model_says_how_to_get_it(cli, tmp_path: Path) -> None:
    result = cli("bench", "nosuch", env={"FTD_MODELS": str(tmp_path / "models")})
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "error: model 'nosuch:latest' not found\nhint: ftd pull nosuch:latest\n"


@pytest.fixture
def routed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], int]]:
    """The texts recorded, and how much the model is to write; every token chooses experts 0 and 1."""
    calls: list[tuple[list[int], int]] = []

    def record_ids(config_path: Path, blob_paths: object, ids: list[int], **counts: int) -> Trace:
        calls.append((list(ids), counts["decode_tokens"]))
        length = len(ids) + counts["decode_tokens"]
        tokens = np.array([*ids, *[7] * counts["decode_tokens"]])
        return Trace(np.tile(np.array([0, 1]), (3, length, 1)), tokens, 8)

    tokens = Tokens(bos_id=5)
    info = SimpleNamespace(
        config_path=Path("/c"),
        blob_paths={},
        config=SimpleNamespace(tokens=tokens),
        context_length=10,
    )
    monkeypatch.setattr(bench.modelinfo, "read_model", lambda store, name: info)
    words = Tokenizer.from_json(WORDS, tokens)
    monkeypatch.setattr(bench.modelinfo, "read_tokenizer", lambda store, info: words)
    monkeypatch.setattr(bench.record, "record", record_ids)
    return calls


def test_routing_is_recorded_then_replayed(cli, routed: list[tuple[list[int], int]], tmp_path: Path) -> None:
    path, env = str(tmp_path / "trace.npz"), {"FTD_MODELS": str(tmp_path / "models")}
    shown = cli("bench", "m", "--routing", path, "--decode-tokens", "9", env=env).stdout
    assert routed == [([5], 9)] and "10 tokens, 3 layers of 8 experts, 2 a token" in shown
    replayed = json.loads(cli("bench", "--routing", path, "--slots", "6,0.5", "--json", env=env).stdout)
    assert [row["num_slots"] for row in replayed["capacities"]] == [6, 3]
    assert replayed["capacities"][0]["belady"] == 6 / 60 and "same_experts" not in replayed
    compared = cli("bench", "m", "--routing", path, env=env).stdout
    # The window of 10 has place for the nine first of the ten tokens and one more.
    assert routed[1] == ([5, *[7] * 8], 0) and "m chooses 100.0% of the recorded experts" in compared


def test_routing_of_a_text(cli, routed: list[tuple[list[int], int]], tmp_path: Path) -> None:
    text, env = tmp_path / "text", {"FTD_MODELS": str(tmp_path / "models")}
    text.write_text("b a b")
    words = ("bench", "m", "--routing", str(tmp_path / "t.npz"), "--text", str(text), "--prompt-tokens", "2")
    assert cli(*words, env=env).returncode == 0
    assert routed == [([1, 0], 0)]
    again = cli(*words, env=env)
    assert again.returncode == 2 and "a trace is there already" in again.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bench",), "no model is named"),
        (("bench", "--routing", "nosuch.npz"), "no trace to replay: nosuch.npz"),
        (("bench", "--routing", "nosuch.npz", "--slots", "many"), "slots are not numbers: many"),
        (("bench", "--routing", "nosuch.npz", "--slots=-1"), "slots are not numbers from 0 on: -1"),
    ],
)
def test_impossible_replays_are_refused(cli, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    result = cli(*words, env={"FTD_MODELS": str(tmp_path / "models")})
    assert result.returncode == 2 and said in result.stderr
