"""What bench-experts makes of its rows, and the misses that it says LRU would have."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from script_module import load_script

from ftd.engine import routing
from ftd.engine.locality import Locality
from ftd.engine.synthetic import SHAPES

pytest.importorskip("torch", reason="the script measures cards with it")
LOCALITY = Locality(topics=8, tokens=16)


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module of the script."""
    return load_script(monkeypatch, "experts_report.py")


def test_ratios_and_ablation_take_the_best_of_each_program(report: Any, tmp_path: Path) -> None:
    made = report.Report(tmp_path / "rows.json")

    def add(
        program: str, run: str, split: str, rate: float, case: str = "decode x1", first: float = 0.0
    ) -> None:
        row = report.Row(
            program=program,
            model="m",
            run=run,
            split=split,
            slots=0.3699,
            case=case,
            tokens_per_s=rate,
            first_token_ms=first,
        )
        made.add(row)

    add("ftd", "ftd", "auto", 300.0)
    add("ftd", "ftd", "cpu", 900.0)  # forced: not what a user gets
    add("ftd", "paper", "auto", 200.0)
    add("ftd", "serial", "auto", 100.0)
    add("FreeToken", "hybrid", "", 120.0)
    add("FreeToken", "offload", "", 150.0)
    add("ftd", "ftd", "auto", 0.0, "30 after 8192", 20.0)
    add("FreeToken", "offload", "", 0.0, "30 after 8192", 200.0)
    found = json.loads((tmp_path / "rows.json").read_text())
    common = {"model": "m", "slots": 0.37, "case": "decode x1"}
    assert found["ratios"][0] == {**common, "FreeToken": 2.0}
    assert found["ratios"][1]["FreeToken"] == pytest.approx(10.0)
    ablation = {"no overlap": 100.0, "LRU and q*": 200.0, "ours": 300.0}
    assert found["ablation"] == [{**common, **ablation}]
    assert len(found["rows"]) == 8


def test_misses_of_lru_are_those_of_the_replay(report: Any) -> None:
    ids, layers, begin = LOCALITY.text(120, 3), 2, 40
    its = SHAPES["tiny-moe"][1]
    experts, chosen = its["num_experts"], its["num_experts_per_tok"]
    routes = LOCALITY.routes(ids, layers, experts, chosen, its["hidden_size"])
    traces = [routing.Trace(routes[:, :end], np.array(ids[:end]), experts) for end in (begin, len(ids))]
    before, after = (routing.replay(trace, 5, "lru") for trace in traces)
    wanted = 1 - (after.hits - before.hits) / (after.uses - before.uses)
    assert 0.05 < wanted < 0.9
    lru, belady = report.bounds(LOCALITY, "tiny-moe", layers, 5 / 16, ids, begin)
    # Of a step the replay uses experts in ascending order, which may change which one leaves
    assert lru == pytest.approx(wanted, abs=0.05)
    flat = [use for uses in traces[1].steps() for layer in uses for use in layer.tolist()]
    first = begin * layers * chosen
    assert belady == pytest.approx(
        routing.belady_misses(flat, 5, begin=first) / (len(flat) - first), abs=0.05
    )
    assert 0 < belady < lru


def test_auto_is_compared_with_the_fastest_forced_split_round_by_round(report: Any) -> None:
    made = report.Report(None)

    def add(run: str, split: str, *rates: float) -> None:
        common = {"program": "ftd", "model": "m", "run": run, "slots": 0.3699, "case": "decode x1"}
        made.add(report.Row(**common, split=split, rates=rates, tokens_per_s=sorted(rates)[len(rates) // 2]))

    add("ftd", "auto", 90.0, 80.0, 77.0)  # the machine gets slower
    add("ftd", "fill", 100.0, 80.0, 70.0)
    add("ftd", "cpu", 60.0, 50.0, 90.0)
    add("paper", "auto", 50.0)  # nothing is forced there
    (found,) = made.forced()
    assert (found["run"], found["slots"], found["best"]) == ("ftd", 0.37, "fill")
    assert found["auto"] == pytest.approx(1.0)
