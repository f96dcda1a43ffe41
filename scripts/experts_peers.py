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
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ftd.engine import model_config
from ftd.engine.kv_pool import KvPool
from ftd.engine.locality import Locality
from ftd.engine.models import families
from ftd.engine.models.blocks import Blocks
from ftd.engine.synthetic import SHAPES, Synthetic, SyntheticWeights, _Counter
from ftd.kernels.quant import ExpertBank, QuantMatrix

ALIGNMENT = 32
GGML = {"f32": 0, "q4_0": 2, "bf16": 30}
PORT = 18433
DENSE = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate": "ffn_gate_inp",
}


class Kept(SyntheticWeights):
    """The same weights as an engine gets, kept by name."""

    def __init__(self, format_name: str, locality: Locality) -> None:
        super().__init__(format_name, 0, locality=locality)
        self.matrices: dict[str, QuantMatrix] = {}
        self.banks: list[ExpertBank] = []

    def matrix(self, name: str, rows: int, columns: int) -> QuantMatrix:
        """Return and keep a matrix."""
        self.matrices[name] = super().matrix(name, rows, columns)
        return self.matrices[name]

    def bank(self, layer: int, num_experts: int, hidden_size: int, inner_size: int) -> ExpertBank:
        """Return and keep a bank."""
        self.banks.append(super().bank(layer, num_experts, hidden_size, inner_size))
        return self.banks[-1]


def weights_of(shape: str, format_name: str, layers: int, locality: Locality, source: Synthetic) -> Kept:
    """Return all weights of a model; its banks are those of ``source``."""
    architecture, hyperparameters = SHAPES[shape]
    model = model_config.make(architecture, {**hyperparameters, "num_hidden_layers": layers})
    kept = Kept(format_name, locality)
    kept.own_banks = source._own_banks
    families.get(architecture)(Blocks(model, _Counter(), kept, KvPool(model, 1, 1, "fast")))
    return kept


# ---- GGUF


def blocks_of(matrix: QuantMatrix) -> np.ndarray:
    """Return a matrix as ggml lays it out, as bytes."""
    if matrix.format != "q4_0":
        return np.ascontiguousarray(matrix.planes[0]).view(np.uint8).reshape(-1)
    codes, scales = matrix.planes
    rows, groups = scales.shape
    blocks = np.empty((rows, groups, 18), np.uint8)
    blocks[..., :2] = np.ascontiguousarray(scales).view(np.uint8).reshape(rows, groups, 2)
    blocks[..., 2:] = codes.reshape(rows, groups, 16)
    return blocks.reshape(-1)


def text(value: str) -> bytes:
    """Return a string of GGUF."""
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def field(key: str, value: Any) -> bytes:
    """Return a key and its value."""
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, float):
        return text(key) + struct.pack("<If", 6, value)
    return text(key) + struct.pack("<II", 4, value)


def gguf_fields(hyperparameters: dict[str, Any], layers: int) -> dict[str, Any]:
    """Return the metadata of a qwen3moe file without a vocabulary."""
    its = hyperparameters
    arch = {
        "block_count": layers,
        "context_length": its["max_position_embeddings"],
        "embedding_length": its["hidden_size"],
        "feed_forward_length": its["intermediate_size"],
        "expert_feed_forward_length": its["moe_intermediate_size"],
        "attention.head_count": its["num_attention_heads"],
        "attention.head_count_kv": its["num_key_value_heads"],
        "attention.key_length": its["head_dim"],
        "attention.value_length": its["head_dim"],
        "attention.layer_norm_rms_epsilon": float(its["rms_norm_eps"]),
        "rope.freq_base": float(its["rope_theta"]),
        "expert_count": its["num_experts"],
        "expert_used_count": its["num_experts_per_tok"],
        "vocab_size": its["vocab_size"],
    }
    named = {f"qwen3moe.{key}": value for key, value in arch.items()}
    return {"general.architecture": "qwen3moe", **named, "tokenizer.ggml.model": "none"}


def gguf_name(name: str) -> str:
    """Return ggml's name of a dense tensor."""
    special = {"model.embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm"}
    stem = name.removesuffix(".weight")
    if stem in special:
        return f"{special[stem]}.weight"
    layer, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{DENSE[part]}.weight"


def expert_parts(bank: ExpertBank) -> Iterator[tuple[str, tuple[int, int], list[np.ndarray]]]:
    """Yield name, shape and the blocks of every expert of a bank."""
    inner, hidden = bank.matrices["gate_up"].shape[0] // 2, bank.matrices["gate_up"].shape[1]
    found: dict[str, list[np.ndarray]] = {"gate": [], "up": [], "down": []}
    for expert in range(len(bank.records)):
        both = blocks_of(bank.matrices["gate_up"].expert(expert))
        found["gate"].append(both[: len(both) // 2])
        found["up"].append(both[len(both) // 2 :])
        found["down"].append(blocks_of(bank.matrices["down"].expert(expert)))
    yield "gate", (inner, hidden), found["gate"]
    yield "up", (inner, hidden), found["up"]
    yield "down", (hidden, inner), found["down"]


def write_gguf(path: Path, shape: str, layers: int, kept: Kept) -> None:
    """Write a model; every layer's experts are those of the first, rolled, so blocks are made once."""
    fields = gguf_fields(SHAPES[shape][1], layers)
    base = list(expert_parts(kept.banks[0]))
    num_experts = len(kept.banks[0].records)
    infos, place, parts = [], 0, []

    def add(name: str, dims: tuple[int, ...], kind: str, blocks: list[np.ndarray]) -> None:
        nonlocal place
        head = text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *reversed(dims))
        infos.append(head + struct.pack("<IQ", GGML[kind], place))
        size = sum(len(block) for block in blocks)
        parts.append((blocks, -size % ALIGNMENT))
        place += size + -size % ALIGNMENT

    for name, matrix in kept.matrices.items():
        dims = matrix.shape[1:] if matrix.shape[0] == 1 else matrix.shape
        add(gguf_name(name), dims, matrix.format, [blocks_of(matrix)])
    kind = kept.banks[0].matrices["down"].format
    for layer in range(layers):
        shift = 5 * layer % num_experts
        for role, dims, blocks in base:
            rolled = blocks[shift:] + blocks[:shift]
            add(f"blk.{layer}.ffn_{role}_exps.weight", (num_experts, *dims), kind, rolled)
    with path.open("wb", buffering=0) as file:
        head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(fields))
        head += b"".join(field(key, value) for key, value in fields.items()) + b"".join(infos)
        file.write(head + bytes(-len(head) % ALIGNMENT))
        for blocks, padding in parts:
            for block in blocks:
                file.write(block.data)
            file.write(bytes(padding))


# ---- safetensors


def write_safetensors(
    path: Path, tensors: list[tuple[str, tuple[int, ...], list[np.ndarray]]], kind: str
) -> None:
    """Write tensors one after the other."""
    head, place = {}, 0
    for name, dims, blocks in tensors:
        size = sum(block.nbytes for block in blocks)
        head[name] = {"dtype": kind, "shape": list(dims), "data_offsets": [place, place + size]}
        place += size
    data = json.dumps(head).encode()
    data += b" " * (-(len(data) + 8) % 4096)
    with path.open("wb", buffering=0) as file:
        file.write(struct.pack("<Q", len(data)) + data)
        for _, _, blocks in tensors:
            for block in blocks:
                file.write(memoryview(np.ascontiguousarray(block).reshape(-1).view(np.uint8)))


def bf16(matrix: QuantMatrix) -> np.ndarray:
    """Return a matrix of bf16 or f32 as bf16."""
    values = matrix.planes[0]
    if matrix.format == "bf16":
        return values
    return (np.ascontiguousarray(values).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def write_folder(folder: Path, shape: str, layers: int, kept: Kept) -> None:
    """Write a BF16 model as Hugging Face has it, with a tokenizer of words."""
    folder.mkdir(parents=True, exist_ok=True)
    dense = [
        (name, matrix.shape[1:] if matrix.shape[0] == 1 else matrix.shape, [bf16(matrix)])
        for name, matrix in kept.matrices.items()
    ]
    places = {name: "dense.safetensors" for name, _, _ in dense}
    write_safetensors(folder / "dense.safetensors", dense, "BF16")
    for layer, bank in enumerate(kept.banks):
        tensors = []
        for expert in range(len(bank.records)):
            gate_up, down = (bank.matrices[role].expert(expert).planes[0] for role in ("gate_up", "down"))
            for role, rows in zip(("gate", "up", "down"), (*np.split(gate_up, 2), down), strict=True):
                name = f"model.layers.{layer}.mlp.experts.{expert}.{role}_proj.weight"
                tensors.append((name, rows.shape, [rows]))
        file = f"experts-{layer:02}.safetensors"
        write_safetensors(folder / file, tensors, "BF16")
        places |= {name: file for name, _, _ in tensors}
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {
        **SHAPES[shape][1],
        "num_hidden_layers": layers,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "attention_bias": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, config["vocab_size"])


def write_tokenizer(folder: Path, vocab: int) -> None:
    """Write a tokenizer whose words w0, w1, … are ids; the last id ends a text."""
    end = f"w{vocab - 1}"
    model = {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(vocab)}, "unk_token": "w0"}
    special = {"id": vocab - 1, "content": end, "special": True}
    special |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": model,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    options = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "chat_template": "{{ '' }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(options))


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
            with contextlib.suppress(OSError):
                if (
                    b"ok"
                    in urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5).read().lower()
                ):
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


def run_freetoken(options, report, row, shape: str, folder: Path, locality: Locality) -> None:
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
                    report.add(
                        row(
                            **common, case=f"decode x{batch}", tokens_per_s=together(batch, options, locality)
                        )
                    )
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


def together(batch: int, options, locality: Locality) -> float:
    """Return the tokens a second that ``batch`` requests get together."""
    found: list[tuple[float, float, int, str]] = []

    def one(index: int) -> None:
        found.append(ask(locality.text(options.context, 300 + index), options.decode))

    threads = [threading.Thread(target=one, args=(index,)) for index in range(batch)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(count for _, _, count, _ in found) / max(spent for _, spent, _, _ in found)


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
                run_freetoken(options, report, row, shape, folder, locality)
    finally:
        shutil.rmtree(space)
