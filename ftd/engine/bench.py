"""Measures one model here: load, prefill and decode rates, and how near decode comes to memory speed.

    python -m ftd.engine.bench CONFIG BLOB… [--prompt-tokens N --decode-tokens N --threads N --json]
    python -m ftd.engine.bench CONFIG BLOB… --prompts 32,512 --contexts 0,2048 [--decode-tokens N --threads N]

Drives the engine itself, without daemon or socket, on random token ids at temperature 0: one warm-up, then
``repetitions`` runs, of which the median counts. Each run has its own prefix cache salt, so none is warm. The
second form runs many lengths once each and prints JSON, for programs that repeat it.

    bytes of a decode token   every weight that a step reads (the embedding counts where it is also the output
                              matrix, else one row of it) + K and V of the mean context
    bandwidth fraction        bytes of a decode token × decode tokens/s / bandwidth measured in this run: how
                              fast the processor reads, or a card copies (read and written)
    outside share             part of a decode step not spent in the graph: scheduling, sampling, messages;
                              none on a card, where the host does these while the graph runs
"""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, cast

import numpy as np

from ftd.choices import DEVICES, PRECISIONS
from ftd.engine.engine import Engine
from ftd.engine.messages import Finished, Generate, Load, SamplingParams, Up
from ftd.errors import FtdError, InvalidOption
from ftd.ftw import reader
from ftd.kernels import bandwidth, cpu
from ftd.kernels.quant import FORMATS

REPETITIONS = 3
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one bench measured; rates are medians over the repetitions."""

    architecture: str
    quantization: str
    parameter_count: int
    precision: str
    num_threads: int
    isa: str
    prompt_tokens: int
    decode_tokens: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    load_s: float
    read_bytes_per_s: float
    weight_bytes: int
    bytes_per_decode_token: int
    bandwidth_bytes_per_s: float
    bandwidth_fraction: float
    outside_share: float | None
    repetitions: int
    device: str = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """The rate of one prompt."""

    prompt_tokens: int
    tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """The rate of one answer that begins at ``context_tokens``, and what each of its tokens reads."""

    context_tokens: int
    tokens_per_s: float
    bytes_per_token: int
    outside_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Many lengths of one model, each once."""

    num_threads: int
    isa: str
    load_s: float
    bandwidth_bytes_per_s: float
    prefills: list[Prefill]
    decodes: list[Decode]


@dataclass(frozen=True, slots=True)
class _Run:
    """One repetition in nanoseconds."""

    prefill_ns: int
    decode_ns: int
    decode_graph_ns: int

    @property
    def outside_share(self) -> float:
        """Part of the decode steps that was not spent in the graph."""
        return 1 - self.decode_graph_ns / self.decode_ns


def run(
    config_path: Path,
    blob_paths: Mapping[str, Path],
    *,
    prompt_tokens: int = 512,
    decode_tokens: int = 128,
    num_threads: int = 0,
    precision: str = "fast",
    device: str = "cpu",
    repetitions: int = REPETITIONS,
) -> Result:
    """Measure the model whose FTW config lies at ``config_path``.

    Raises InvalidOption for impossible counts, KernelUnavailable if ``device`` cannot be used.
    """
    for name, value in (("prompt", prompt_tokens), ("decode", decode_tokens), ("repetition", repetitions)):
        if value < 1:
            raise InvalidOption(f"number of {name} tokens or runs must be at least 1: {value}")
    sent: list[Up] = []
    load = _load(config_path, blob_paths, prompt_tokens + decode_tokens, num_threads, precision, device)
    with Engine(load, sent.append) as engine:
        _measure(engine, sent, min(prompt_tokens, 32), min(decode_tokens, 2), "warm-up")
        runs = [
            _measure(engine, sent, prompt_tokens, decode_tokens, f"run {index}")
            for index in range(repetitions)
        ]
        return _result(engine, load, config_path, runs, prompt_tokens, decode_tokens)


def sweep(
    config_path: Path,
    blob_paths: Mapping[str, Path],
    *,
    prompts: Sequence[int] = (),
    contexts: Sequence[int] = (),
    decode_tokens: int = 128,
    num_threads: int = 0,
    precision: str = "fast",
) -> Sweep:
    """Measure each length of ``prompts`` and decoding after each of ``contexts``, in one engine.

    A context that is also a prompt is measured in one run, since its prompt has to be computed anyway.
    """
    if min((*prompts, decode_tokens), default=1) < 1 or min(contexts, default=0) < 0:
        raise InvalidOption(f"lengths must be at least 1, contexts 0: {[*prompts]}, {[*contexts]}")
    # A context of 0 begins with one token, as every sequence does
    decoded = {max(context, 1): context for context in contexts}
    longest = max((*prompts, *decoded), default=1)
    sent: list[Up] = []
    load = _load(config_path, blob_paths, longest + decode_tokens, num_threads, precision)
    prefills, decodes = [], []
    with Engine(load, sent.append) as engine:
        _measure(engine, sent, min(longest, 32), min(decode_tokens, 2), "warm-up")
        for length in sorted({*prompts, *decoded}):
            steps = decode_tokens if length in decoded else 1
            found = _measure(engine, sent, length, steps, f"prompt {length}")
            if length in prompts:
                rate = length / found.prefill_ns * 1e9
                prefills.append(Prefill(prompt_tokens=length, tokens_per_s=rate))
            if length in decoded:
                decodes.append(
                    Decode(
                        context_tokens=decoded[length],
                        tokens_per_s=steps / found.decode_ns * 1e9,
                        bytes_per_token=decode_bytes(engine, load, length + steps // 2),
                        outside_share=found.outside_share,
                    )
                )
        threads, load_s = engine.threads.num_threads, engine.load_ns / 1e9
    return Sweep(
        num_threads=threads,
        isa=cpu.isa(),
        load_s=load_s,
        bandwidth_bytes_per_s=bandwidth.measure(threads),
        prefills=prefills,
        decodes=decodes,
    )


def _load(
    config_path: Path,
    blob_paths: Mapping[str, Path],
    longest_tokens: int,
    num_threads: int,
    precision: str,
    device: str = "cpu",
) -> Load:
    """Return the Load of a model for one sequence; InvalidOption for a precision or device that is none."""
    if precision not in PRECISIONS:
        raise InvalidOption(f"precision must be fast or f32: {precision}")
    if device not in DEVICES:
        raise InvalidOption(f"device must be auto, cpu or cuda: {device}")
    return Load(
        config_path=str(config_path),
        blob_paths={digest: str(path) for digest, path in blob_paths.items()},
        context_tokens=longest_tokens + 1,
        max_sequences=1,
        num_threads=num_threads,
        precision="f32" if precision == "f32" else "fast",
        device=cast(Literal["auto", "cpu", "cuda"], device),
    )


def _measure(engine: Engine, sent: list[Up], prompt_tokens: int, decode_tokens: int, salt: str) -> _Run:
    """Run one request of ``prompt_tokens`` and then ``decode_tokens`` steps of one token."""
    ids = np.random.default_rng(1).integers(0, engine.config.vocab_size, prompt_tokens).tolist()
    # The first token comes out of the prefill; the others are one decode step each.
    message = Generate(
        request_id=1, ids=ids, max_tokens=decode_tokens + 1, sampling=GREEDY, cache_salt=f"bench {salt}"
    )
    sent.clear()
    engine.generate(message)
    before = engine.stats()
    while not sent:
        engine.step()
    middle, graph_ns = engine.stats(), engine.graph_ns
    while engine.has_work:
        engine.step()
    after = engine.stats()
    assert isinstance(sent[-1], Finished) and sent[-1].output_tokens == decode_tokens + 1
    return _Run(
        middle.prefill_ns - before.prefill_ns,
        after.decode_ns - middle.decode_ns,
        engine.graph_ns - graph_ns,
    )


def _result(
    engine: Engine, load: Load, config_path: Path, runs: list[_Run], prompt_tokens: int, decode_tokens: int
) -> Result:
    config = reader.read_config(config_path)
    decode_rate = decode_tokens / statistics.median(each.decode_ns for each in runs) * 1e9
    token_bytes = decode_bytes(engine, load, prompt_tokens + decode_tokens // 2)
    read_rate = _bandwidth(engine)
    outside = statistics.median(each.outside_share for each in runs)
    return Result(
        architecture=config.architecture,
        quantization=config.quantization,
        parameter_count=config.parameter_count,
        precision=load.precision,
        num_threads=engine.threads.num_threads,
        isa=cpu.isa(),
        prompt_tokens=prompt_tokens,
        decode_tokens=decode_tokens,
        prefill_tokens_per_s=prompt_tokens / statistics.median(each.prefill_ns for each in runs) * 1e9,
        decode_tokens_per_s=decode_rate,
        load_s=engine.load_ns / 1e9,
        read_bytes_per_s=engine.read_bytes / engine.read_ns * 1e9,
        weight_bytes=engine.weights.num_bytes,
        bytes_per_decode_token=token_bytes,
        bandwidth_bytes_per_s=read_rate,
        bandwidth_fraction=token_bytes * decode_rate / read_rate,
        outside_share=outside if engine.device.name == "cpu" else None,
        repetitions=len(runs),
        device=engine.device.label,
    )


def _bandwidth(engine: Engine) -> float:
    """Return bytes a second of the memory that weights are read from."""
    if engine.device.name != "cuda":
        return bandwidth.measure(engine.threads.num_threads)
    assert engine.device.rates is not None
    return engine.device.rates.device_copy()


def decode_bytes(engine: Engine, load: Load, context_tokens: int) -> int:
    """Return the bytes that one decode step of one sequence with ``context_tokens`` of context reads.

    Of a layer's experts those that one token chooses. Sizes are those of the files: a card's engine has
    forgotten its tensors.
    """
    file_config = reader.read_config(Path(load.config_path))
    weight_bytes = engine.weights.num_bytes
    if not engine.config.tie_word_embeddings:
        (entry,) = (each for each in file_config.tensors if each.name == "model.embed_tokens.weight")
        rows, columns = entry.shape
        weight_bytes -= FORMATS[entry.format].num_bytes((rows - 1, columns))
    if engine.config.experts is not None:
        assert file_config.experts is not None
        experts, banks = engine.config.experts, file_config.experts
        idle = len(banks.layers) * (experts.num_experts - experts.num_chosen)
        weight_bytes -= idle * banks.record_bytes
    kv_bytes = engine.config.kv_bytes_per_token(4 if load.precision == "f32" else 2)
    return weight_bytes + context_tokens * kv_bytes


def format_table(result: Result) -> str:
    """Return ``result`` for people, one row a figure."""
    reads = result.bytes_per_decode_token * result.decode_tokens_per_s
    rows = [
        (
            "model",
            f"{result.architecture} {result.quantization}, {result.parameter_count / 1e6:.1f} M parameters",
        ),
        ("machine", f"{_where(result)}, precision {result.precision}"),
        ("load", f"{result.load_s:.2f} s, read at {result.read_bytes_per_s / 1e9:.2f} GB/s"),
        ("prefill", f"{result.prefill_tokens_per_s:.1f} tok/s over {result.prompt_tokens} tokens"),
        ("decode", f"{result.decode_tokens_per_s:.1f} tok/s over {result.decode_tokens} tokens"),
        ("decode reads", f"{result.bytes_per_decode_token / 1e6:.1f} MB a token, {reads / 1e9:.2f} GB/s"),
        (
            "bandwidth",
            f"{result.bandwidth_fraction:.0%} of {result.bandwidth_bytes_per_s / 1e9:.1f} GB/s measured here",
        ),
    ]
    if result.outside_share is not None:
        rows.append(("outside kernels", f"{result.outside_share:.1%} of a decode step"))
    return "\n".join(f"{name:<16} {value}" for name, value in rows)


def _where(result: Result) -> str:
    """Name what computed."""
    return f"{result.num_threads} threads, {result.isa}" if result.device == "cpu" else result.device


def _lengths(text: str) -> list[int]:
    """Return the numbers of a list like ``32,512``."""
    return [int(part) for part in text.split(",")]


def main(arguments: list[str]) -> int:
    """Run from the command line: a config and its blobs, which must be named sha256-<hex> as in the store."""
    parser = argparse.ArgumentParser(prog="python -m ftd.engine.bench", description="Measure a model.")
    parser.add_argument("config", type=Path)
    parser.add_argument("blobs", type=Path, nargs="+")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--decode-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--precision", choices=PRECISIONS, default="fast")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--prompts", type=_lengths, default=[], help="lengths to run once each")
    parser.add_argument("--contexts", type=_lengths, default=[], help="contexts to decode after, once each")
    options = parser.parse_args(arguments)
    blob_paths = {path.name.replace("-", ":", 1): path for path in options.blobs}
    try:
        if options.prompts or options.contexts:
            swept = sweep(
                options.config,
                blob_paths,
                prompts=options.prompts,
                contexts=options.contexts,
                decode_tokens=options.decode_tokens,
                num_threads=options.threads,
                precision=options.precision,
            )
            print(json.dumps(asdict(swept)))
            return 0
        result = run(
            options.config,
            blob_paths,
            prompt_tokens=options.prompt_tokens,
            decode_tokens=options.decode_tokens,
            num_threads=options.threads,
            precision=options.precision,
            repetitions=options.repetitions,
        )
    except FtdError as exc:
        print(f"error: {exc.message}", file=sys.stderr)
        if exc.hint:
            print(f"hint: {exc.hint}", file=sys.stderr)
        return 2 if isinstance(exc, InvalidOption) else 1
    print(json.dumps(asdict(result)) if options.json else format_table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
