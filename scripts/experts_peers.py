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
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from experts_files import GGML, Kept, weights_of, write_folder, write_gguf

from ftd.engine import routing
from ftd.engine.locality import Locality
from ftd.engine.synthetic import SHAPES, Synthetic

PORT = 18433


# ---- llama.cpp


def run_llama(options, report, row, source: Synthetic, shape: str, format_name: str, folder: Path) -> None:
    """Run llama-bench with the fewest layers on the processor that fit the budget."""
    peer, locality = Path(os.environ["FTD_PEER"]), Locality(**json.loads(options.locality))
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
        command = [peer / "llama-bench", "-m", path, "-ngl", "99", "-ncmoe", str(max(moved, 0)), "-fa", "on"]
        command += ["-t", "15", "-r", "2", "-n", "64", "-o", "json"]
        command += ["-p", ",".join(str(length) for length in options.prompts)]
        environment = {**os.environ, "LD_LIBRARY_PATH": f"{peer}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
        done = subprocess.run(command, capture_output=True, env=environment, check=False)
        if done.returncode:
            print(f"# llama-bench failed: {done.stderr.decode()[-600:]}", flush=True)
            continue
        for each in json.loads(done.stdout):
            prompt = each["n_prompt"]
            report.add(
                row(
                    program="llama.cpp",
                    model=f"{shape}:{format_name}",
                    run=f"-{moved}",
                    split="layers",
                    slots=1 - moved / layers,
                    case=f"prompt {prompt}" if prompt else "decode x1",
                    tokens_per_s=each["avg_ts"],
                    first_token_ms=prompt / each["avg_ts"] * 1e3 if prompt else 0.0,
                )
            )
    path.unlink()


def fitting(kept: Kept, layers: int, gpu_memory: float) -> int:
    """Return how many layers' experts fit beside what is dense, with 1.5 GB for KV and work."""
    dense = sum(matrix.num_bytes for matrix in kept.matrices.values())
    return max(0, min(layers, int((gpu_memory * 1e9 - 1.5e9 - dense) / kept.banks[0].records.nbytes)))


# ---- FreeToken


@contextlib.contextmanager
def served(folder: Path, slots: float, strategy: str, its: list[str]) -> Iterator[None]:
    """Serve a folder; ends the server."""
    packages = os.environ["FTD_PEER_FREETOKEN"]
    paths = os.pathsep.join(part for part in (packages, os.environ.get("PYTHONPATH", "")) if part)
    command = [sys.executable, "-c", "from freetoken.cli import main; import sys; sys.exit(main())", "serve"]
    command += ["--model-path", str(folder), "--port", str(PORT), "--moe-cache-rate", f"{slots:.4f}"]
    command += ["--moe-cpu-threads", "15", "--expert-load", "parallel", "--moe-strategy", strategy, *its]
    environment = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    log = folder.with_suffix(f".{strategy}.log").open("wb")
    server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 150
        while True:
            url = f"http://127.0.0.1:{PORT}/health"
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
                if json.load(answer)["status"] == "ok":
                    break
            if server.poll() is not None or time.monotonic() > deadline:
                log.flush()
                tail = Path(log.name).read_text(errors="replace")[-1500:]
                raise RuntimeError(f"FreeToken does not serve: {tail}")
            time.sleep(0.5)
        yield
    finally:
        os.killpg(server.pid, 15)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, 9)
        log.close()


def ask(ids: list[int], max_tokens: int) -> tuple[float, float, int, str]:
    """Return seconds to the first token, of the tokens after it, how many these are, and the text."""
    words = " ".join(f"w{each}" for each in ids)
    body = {
        "model": "m", "prompt": words, "max_tokens": max_tokens, "stream": True, "ignore_eos": True,
        "temperature": 1.0, "top_k": 256, "top_p": 1.0, "stream_options": {"include_usage": True},
    }  # fmt: skip
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    begin, first, last, count, found = time.monotonic(), 0.0, 0.0, 0, []
    with urllib.request.urlopen(request, timeout=120) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if chunk.get("usage"):
                count = chunk["usage"]["completion_tokens"]
            part = chunk["choices"][0].get("text", "") if chunk.get("choices") else ""
            if part:
                last = time.monotonic()
                first = first or last
                found.append(part)
    return first - begin, last - first, max(count - 1, 1), "".join(found)


def run_freetoken(options, report, row, shape: str, layers: int, folder: Path, locality: Locality) -> None:
    """Measure FreeToken as it serves ``folder``."""
    for slots, strategy in [(slots, how) for slots in options.slots for how in ("hybrid", "offload")]:
        common = {
            "program": "FreeToken",
            "model": f"{shape}:bf16",
            "run": strategy,
            "split": "",
            "slots": slots,
        }
        try:
            with served(folder, slots, strategy, []):
                ask(locality.text(64, 1), 32)
                for batch in options.batches:
                    rate, texts = together(batch, options, locality)
                    part = missed(texts, shape, layers, slots, locality) if batch == 1 else 0.0
                    report.add(row(**common, case=f"decode x{batch}", tokens_per_s=rate, missed=part))
                for length in options.prompts:
                    firsts = [ask(locality.text(length, 100 + turn), 1)[0] for turn in range(3)]
                    first = statistics.median(firsts[1:])
                    report.add(
                        row(
                            **common,
                            case=f"prompt {length}",
                            tokens_per_s=length / first,
                            first_token_ms=first * 1e3,
                        )
                    )
                if options.follow:
                    ids = locality.text(options.follow, 100)
                    ask(ids, 1)
                    first = ask(ids + locality.text(30, 200), 1)[0]
                    report.add(row(**common, case=f"30 after {options.follow}", first_token_ms=first * 1e3))
        except (RuntimeError, OSError) as exc:
            print(f"# FreeToken {strategy} {slots:.0%}: {exc}", flush=True)


def together(batch: int, options, locality: Locality) -> tuple[float, list[list[int]]]:
    """Return the tokens a second that ``batch`` requests get together, and their ids."""
    found: list[tuple[float, float, int, str]] = []

    def one(index: int) -> None:
        found.append(ask(locality.text(options.context, 300 + index), options.decode))

    threads = [threading.Thread(target=one, args=(index,)) for index in range(batch)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = sum(count for _, _, count, _ in found) / max(spent for _, spent, _, _ in found)
    return rate, [[int(word[1:]) for word in text.split() if word[1:].isdigit()] for *_, text in found]


def missed(texts: list[list[int]], shape: str, layers: int, slots: float, locality: Locality) -> float:
    """Return what LRU misses of a text after its first third, routed by embeddings alone."""
    its = SHAPES[shape][1]
    experts, chosen, length = its["num_experts"], its["num_experts_per_tok"], min(map(len, texts))
    if length < 8:
        return 0.0
    ids = np.array([each[:length] for each in texts]).reshape(-1)
    hidden = locality.embedding(its["hidden_size"])[ids % locality.num_ids] / np.float32(locality.size)
    found = [
        np.argpartition(-(hidden @ locality.router(layer, experts, its["hidden_size"]).T), chosen)[:, :chosen]
        for layer in range(layers)
    ]
    trace = routing.Trace(np.array(found, np.int64), ids, experts)
    cold = routing.Trace(trace.routing[:, : len(ids) // 3], ids[: len(ids) // 3], experts)
    whole, start = (routing.replay(each, int(slots * layers * experts), "lru") for each in (trace, cold))
    return 1 - (whole.hits - start.hits) / max(1, whole.uses - start.uses)


def run(options, report, row, sources: dict[str, Synthetic]) -> None:
    """Run the peers that are there."""
    locality = Locality(**json.loads(options.locality))
    space = Path(os.environ.get("FTD_PEER_SPACE", tempfile.gettempdir())) / "ftd-bench-experts"
    space.mkdir(exist_ok=True)
    try:
        for model, source in sources.items():
            shape, format_name = model.split(":")
            layers = options.layers or SHAPES[shape][1]["num_hidden_layers"]
            if os.environ.get("FTD_PEER") and format_name in GGML:
                run_llama(options, report, row, source, shape, format_name, space)
            if os.environ.get("FTD_PEER_FREETOKEN") and format_name == "bf16":
                folder = space / "model"
                begin = time.monotonic()
                write_folder(folder, shape, layers, weights_of(shape, format_name, layers, locality, source))
                source._own_banks.clear()
                print(f"# {folder.name} written in {time.monotonic() - begin:.1f} s", flush=True)
                run_freetoken(options, report, row, shape, layers, folder, locality)
    finally:
        shutil.rmtree(space)
