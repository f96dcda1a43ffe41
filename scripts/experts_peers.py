"""Other programs on the random models of bench-experts: weights as GGUF and safetensors, and what they do.

    FTD_PEER             folder with llama-bench (CUDA) and its libraries
    FTD_PEER_FREETOKEN   folder with FreeToken's packages, beside those of this Python
    FTD_PEER_SPACE       where models are written (default: the temporary folder)

llama.cpp keeps the experts of whole layers on the processor (-ncmoe), the fewest that fit the budget.
llama-bench decodes random tokens, which matters to no program that does not cache experts. FreeToken gets
BF16, words w0 w1 … that are ids, and temperature 1; its first streamed chunk carries no token.
"""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any

from experts_files import GGML, Kept, weights_of, write_folder, write_gguf
from experts_report import Report, Row, bounds
from experts_run import RECORDED_SEED

from ftd.engine.locality import Locality
from ftd.engine.synthetic import SHAPES, Synthetic

PORT = 18433
MAIN = "from freetoken.cli import main; import sys; sys.exit(main())"
# For measuring the machine, and for loading; for all that llama-bench does of one file
START_S, BENCH_S = 120, 400
# Decoded before a rate is measured; and where the first token is, whose text may come with the next one
WARM_TOKENS, FEW_TOKENS = 32, 3
# What a program that is missing, dies, hangs or says something else raises: the others are measured
FAILURES = (
    RuntimeError, OSError, HTTPException, KeyError, ValueError, IndexError, subprocess.SubprocessError,
)  # fmt: skip


# ---- llama.cpp


def llama_bench(path: Path, *arguments: str) -> list[dict[str, Any]]:
    """Return what llama-bench measures of a file on the card. Raises one of FAILURES."""
    peer = os.environ["FTD_PEER"]
    command = [
        f"{peer}/llama-bench",
        "-m",
        str(path),
        "-ngl",
        "99",
        "-fa",
        "on",
        "-r",
        "2",
        "-o",
        "json",
        *arguments,
    ]
    environment = {**os.environ, "LD_LIBRARY_PATH": f"{peer}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    done = subprocess.run(command, capture_output=True, env=environment, check=False, timeout=BENCH_S)
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode}: {done.stderr.decode(errors='replace')[-600:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def run_llama(
    options: Namespace, report: Report, source: Synthetic, shape: str, format_name: str, folder: Path
) -> None:
    """Run llama-bench with the fewest layers on the processor that fit the budget."""
    locality = Locality(**json.loads(options.locality))
    layers = options.layers or SHAPES[shape][1]["num_hidden_layers"]
    kept = weights_of(shape, format_name, layers, locality, source)
    path = folder / f"{shape}-{format_name}.gguf"
    begin = time.monotonic()
    write_gguf(path, shape, layers, kept)
    print(
        f"# {path.name}: {path.stat().st_size / 1e9:.1f} GB written in {time.monotonic() - begin:.1f} s",
        flush=True,
    )
    for slots in options.slots:
        moved = layers - int(slots * layers) if slots else layers - fitting(kept, layers, options.gpu_memory)
        lengths = ",".join(str(length) for length in options.prompts)
        for each in llama_bench(path, "-ncmoe", str(max(moved, 0)), "-t", "15", "-n", "64", "-p", lengths):
            prompt = each["n_prompt"]
            report.add(
                Row(
                    program="llama.cpp",
                    model=f"{shape}:{format_name}",
                    run=f"-{moved}",
                    split="layers",
                    slots=slots or 1 - moved / layers,
                    case=f"prompt {prompt}" if prompt else "decode x1",
                    tokens_per_s=each["avg_ts"],
                    first_token_ms=prompt / each["avg_ts"] * 1e3 if prompt else 0.0,
                    note=f"{layers - moved} of {layers} layers on the card",
                )
            )


def fitting(kept: Kept, layers: int, gpu_memory: float) -> int:
    """Return how many layers' experts fit beside what is dense, with 1.5 GB for KV and work."""
    dense = sum(matrix.num_bytes for matrix in kept.matrices.values())
    return max(0, min(layers, int((gpu_memory * 1e9 - 1.5e9 - dense) / kept.kept_banks[0].records.nbytes)))


# ---- FreeToken


def environment() -> dict[str, str]:
    """Return the environment of its processes."""
    packages = os.environ["FTD_PEER_FREETOKEN"]
    paths = os.pathsep.join(part for part in (packages, os.environ.get("PYTHONPATH", "")) if part)
    return {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}


@contextlib.contextmanager
def served(folder: Path, slots: float, strategy: str, batch: int) -> Iterator[None]:
    """Serve a folder; ends the server."""
    command = [sys.executable, "-c", MAIN, "serve"]
    command += ["--model-path", str(folder), "--port", str(PORT), "--moe-cache-rate", f"{slots:.4f}"]
    command += ["--moe-cpu-threads", "15", "--expert-load", "parallel", "--moe-strategy", strategy]
    command += ["--cuda-graph-max-bs", str(batch)]
    log = folder.with_suffix(f".{strategy}.log").open("wb")
    server = subprocess.Popen(command, env=environment(), stdout=log, stderr=log, start_new_session=True)
    begin = time.monotonic()
    try:
        while (state := health()) != "ok":
            if server.poll() is not None or state == "error" or time.monotonic() - begin > START_S:
                raise RuntimeError(f"does not serve: {state}")
            time.sleep(0.5)
        print(f"# FreeToken {strategy} serves after {time.monotonic() - begin:.1f} s", flush=True)
        yield
    except FAILURES as exc:
        tail = Path(log.name).read_text(errors="replace")[-4000:]
        print(f"# FreeToken {strategy} {slots:.0%}: {exc!r}; its log ends:\n{tail}", flush=True)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):  # it died by itself, and left nobody
            os.killpg(server.pid, 15)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, 9)
        log.close()


def health() -> str:
    """Return what the server says of itself, or what keeps it from saying anything."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5) as answer:
            return str(json.load(answer)["status"])
    except OSError as exc:
        return repr(exc)


def profile() -> None:
    """Let FreeToken measure this machine, for the share that its hybrid strategy fetches."""
    command = [sys.executable, "-c", MAIN, "bench", "bw", "--dtype", "bf16", "--cpu-threads", "15"]
    begin = time.monotonic()
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, env=environment(), timeout=START_S, check=False)
        tail = (done.stdout + done.stderr).decode(errors="replace")[-700:]
        print(f"# FreeToken measured in {time.monotonic() - begin:.1f} s: {tail}", flush=True)


def ask(ids: list[int], max_tokens: int) -> tuple[float, list[float], list[int]]:
    """Return the seconds to the first token, when each came, and the ids."""
    body = {
        "model": "m", "prompt": " ".join(f"w{each}" for each in ids), "max_tokens": max_tokens,
        "temperature": 1.0, "top_k": 256, "top_p": 1.0, "stream": True, "ignore_eos": True,
    }  # fmt: skip
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    begin, times, found = time.monotonic(), [], []
    with urllib.request.urlopen(request, timeout=120) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            words = chunk["choices"][0].get("text", "").split() if chunk.get("choices") else []
            times += [time.monotonic()] * len(words)
            found += [int(word[1:]) for word in words]
    if not found:
        raise RuntimeError(f"no token came of {max_tokens}")
    return times[0] - begin, times, found


def run_freetoken(
    options: Namespace, report: Report, shape: str, layers: int, folder: Path, locality: Locality
) -> None:
    """Measure FreeToken as it serves ``folder``."""
    for strategy in options.strategies:
        if strategy == "hybrid":
            profile()
        for slots in options.slots:
            with contextlib.suppress(*FAILURES), served(folder, slots, strategy, max(options.batches)):
                common = {"program": "FreeToken", "model": f"{shape}:bf16", "run": strategy, "split": ""}
                measure(options, report, common | {"slots": slots}, shape, layers, locality)


def measure(
    options: Namespace, report: Report, common: dict[str, Any], shape: str, layers: int, locality: Locality
) -> None:
    """Measure the server as it is."""

    def text(length: int, turn: int) -> list[int]:
        # No text begins as another does: what is cached of one says nothing of the next
        return locality.text(length, length * 100 + turn)

    ask(text(64, 1), 32)
    for batch in options.batches:
        rate, texts = together(batch, options, locality)
        lru = belady = 0.0
        if batch == 1:
            lru, belady = bounds(locality, shape, layers, common["slots"], texts[0], WARM_TOKENS)
        report.add(Row(**common, case=f"decode x{batch}", tokens_per_s=rate, lru=lru, belady=belady))
    for length in options.prompts:
        first = statistics.median([ask(text(length, turn), FEW_TOKENS)[0] for turn in range(4)][1:])
        rate = length / first
        report.add(Row(**common, case=f"prompt {length}", tokens_per_s=rate, first_token_ms=first * 1e3))
    if options.follow:
        times = []
        for turn in range(10, 13):
            ids = text(options.follow, turn)
            ask(ids, FEW_TOKENS)
            times.append(ask(ids + locality.text(30, turn, ids[-1]), FEW_TOKENS)[0])
        first = statistics.median(times)
        report.add(Row(**common, case=f"30 after {options.follow}", first_token_ms=first * 1e3))


def together(batch: int, options: Namespace, locality: Locality) -> tuple[float, list[list[int]]]:
    """Return the tokens a second that ``batch`` requests get together, and their ids."""
    count = options.decode + WARM_TOKENS

    def one(index: int) -> tuple[float, float, list[int]]:
        _, times, ids = ask(locality.text(options.context, RECORDED_SEED + index), count)
        return times[WARM_TOKENS - 1], times[-1], ids

    with ThreadPoolExecutor(batch) as threads:
        begins, ends, texts = zip(*threads.map(one, range(batch)), strict=True)
    count = sum(map(len, texts)) - batch * WARM_TOKENS
    return count / (max(ends) - min(begins)), list(texts)


def run(options: Namespace, report: Report, sources: dict[str, Synthetic]) -> None:
    """Run the peers that are there; one that fails is said, and the others go on."""
    locality = Locality(**json.loads(options.locality))
    space = Path(os.environ.get("FTD_PEER_SPACE", tempfile.gettempdir())) / "ftd-bench-experts"
    space.mkdir(exist_ok=True)
    try:
        for model, source in sources.items():
            shape, format_name = model.split(":")
            layers = options.layers or SHAPES[shape][1]["num_hidden_layers"]
            if os.environ.get("FTD_PEER") and format_name in GGML:
                try:
                    run_llama(options, report, source, shape, format_name, space)
                except FAILURES as exc:
                    print(f"# llama.cpp {model}: {exc!r}", flush=True)
                for path in space.glob("*.gguf"):
                    path.unlink()
            if os.environ.get("FTD_PEER_FREETOKEN") and format_name == "bf16":
                folder = space / "model"
                begin = time.monotonic()
                write_folder(folder, shape, layers, weights_of(shape, format_name, layers, locality, source))
                source._own_banks.clear()
                print(f"# {folder.name} written in {time.monotonic() - begin:.1f} s", flush=True)
                run_freetoken(options, report, shape, layers, folder, locality)
    finally:
        shutil.rmtree(space)
