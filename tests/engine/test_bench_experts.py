"""scripts/bench-experts from end to end on the processor, beside programs that answer, are missing or die."""

import json
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from script_module import load_script

pytest.importorskip("torch", reason="the script measures cards with it")
SCRIPTS = Path(__file__).parents[2] / "scripts"
PARTS = ("gpu_timing", "experts_peers", "experts_files", "experts_run", "experts_replay", "experts_report")
OPTIONS = """--models tiny-moe:bf16 --device cpu --locality {"topics":8,"tokens":16} --batches 1,2 --prompts 8
--follow 16 --context 8 --decode 6 --warm 2 --greedy 4 --slots 0.5 --runs ftd,paper"""
# As llama-bench, which writes rows of what it measured
LLAMA_BENCH = """#!/bin/sh
echo '[{"n_prompt": 8, "avg_ts": 50.0}, {"n_prompt": 0, "avg_ts": 5.0}]'
"""
# As FreeToken's command: a health check and streamed words; it dies after so many requests
FREETOKEN = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

left = [{requests}]

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(b'{"status": "ok"}')

    def do_POST(self):
        left[0] -= 1
        if left[0] < 0:
            os._exit(7)
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["max_tokens"]
        chunks = [json.dumps({"choices": [{"text": f"w{i % 128} "}]}) for i in range(wanted)]
        self.answer("".join(f"data: {each}\\n\\n" for each in chunks).encode())

    def answer(self, body):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

def main():
    if "serve" in sys.argv:
        port = int(sys.argv[sys.argv.index("--port") + 1])
        ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """Return what runs the script with more options and returns what it wrote."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    module = load_script(monkeypatch, "bench-experts")
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)  # of this process
    monkeypatch.setenv("FTD_PEER_SPACE", str(tmp_path))

    def run(*more: str) -> dict[str, Any]:
        written = tmp_path / "rows.json"
        monkeypatch.setattr(sys, "argv", ["bench-experts", *OPTIONS.split(), "--json", str(written), *more])
        module.main()
        found: dict[str, Any] = json.loads(written.read_text())
        return found

    yield run
    for name in PARTS:
        sys.modules.pop(name, None)


def give_peers(monkeypatch: pytest.MonkeyPatch, folder: Path, requests: int) -> None:
    """Make a llama-bench, and a FreeToken that answers so many requests."""
    import experts_peers  # type: ignore[import-not-found]

    program, package = folder / "llama" / "llama-bench", folder / "packages" / "freetoken" / "cli.py"
    for path, text in ((program, LLAMA_BENCH), (package, FREETOKEN.replace("{requests}", str(requests)))):
        path.parent.mkdir(parents=True)
        path.write_text(text)
        path.chmod(0o755)
    monkeypatch.setenv("FTD_PEER", str(program.parent))
    monkeypatch.setenv("FTD_PEER_FREETOKEN", str(package.parent.parent))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(experts_peers, "PORT", free.getsockname()[1])
    monkeypatch.setattr(experts_peers, "WARM_TOKENS", 2)


def cases(found: dict[str, Any], program: str) -> set[tuple[str, str]]:
    """Return run and case of a program's rows."""
    return {(row["run"], row["case"]) for row in found["rows"] if row["program"] == program}


def test_all_runs_decode_the_text_of_the_first(bench: Callable[..., dict[str, Any]]) -> None:
    found = bench()
    decoded = {(run, f"decode x{batch}") for run in ("resident", "ftd", "paper") for batch in (1, 2)}
    assert decoded < cases(found, "ftd")
    assert {("ftd", "prompt 8"), ("ftd", "30 after 16")} < cases(found, "ftd")
    assert all(row["tokens_per_s"] or row["first_token_ms"] for row in found["rows"])
    assert found["ratios"] == [] and [row["case"] for row in found["ablation"]][:2] == [
        "decode x1",
        "decode x2",
    ]


@pytest.mark.slow
def test_peers_have_their_rows_and_ratios(
    bench: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    give_peers(monkeypatch, tmp_path, 1000)
    found = bench("--peers")
    assert cases(found, "llama.cpp") == {("-1", "decode x1"), ("-1", "prompt 8")}
    assert {("offload", "decode x2"), ("hybrid", "30 after 16")} < cases(found, "FreeToken")
    assert not list(tmp_path.glob("ftd-bench-experts"))


@pytest.mark.slow
@pytest.mark.parametrize("requests", [0, 3], ids=["at first", "later"])
def test_peers_that_are_missing_or_die_leave_what_was_measured(
    bench: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    requests: int,
) -> None:
    give_peers(monkeypatch, tmp_path, requests)
    (tmp_path / "llama" / "llama-bench").unlink()
    found = bench("--peers")
    assert cases(found, "llama.cpp") == set() and ("ftd", "decode x1") in cases(found, "ftd")
    died = capsys.readouterr().out
    assert "# llama.cpp tiny-moe:bf16: FileNotFoundError" in died
    assert "# FreeToken offload 50%" in died and "# FreeToken hybrid 50%" in died
    assert not list(tmp_path.glob("ftd-bench-experts"))


def test_a_model_with_fewer_ids_than_the_locality_is_refused(
    bench: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        bench("--locality", "{}")
    assert caught.value.code == 2 and "has 512 ids, 8192 take part" in capsys.readouterr().err
