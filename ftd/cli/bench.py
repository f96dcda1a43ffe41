"""``ftd bench``: measure this machine, a model on it, or what caches make of its routing; no daemon."""

import argparse
from dataclasses import asdict
from pathlib import Path

from ftd import config
from ftd.cli import bench_bandwidth, output
from ftd.daemon import modelinfo
from ftd.engine import bench, record, routing
from ftd.errors import InvalidOption
from ftd.names import parse_name
from ftd.registry.store import Store

MAX_TEXT_BYTES = 64 << 20


def run(options: argparse.Namespace) -> int:
    """Print what ``ftd.engine.bench`` measures of ``options.model``, or the report on a routing trace."""
    if options.routing is not None:
        return _routing(options)
    if options.model == bench_bandwidth.NAME:
        return bench_bandwidth.run(options)
    if options.model is None:
        raise InvalidOption(
            "no model is named", "ftd bench MODEL, ftd bench bandwidth, or ftd bench --routing FILE"
        )
    info = modelinfo.read_model(_store(), parse_name(options.model))
    result = bench.run(
        info.config_path,
        info.blob_paths,
        prompt_tokens=options.prompt_tokens,
        decode_tokens=options.decode_tokens,
        num_threads=options.threads,
        precision=options.precision,
        device=options.device or config.load().engine.device,
    )
    if options.json:
        output.print_json(asdict(result))
    else:
        print(bench.format_table(result))
    return 0


def _store() -> Store:
    return Store(config.load().registry.models_dir)


def _routing(options: argparse.Namespace) -> int:
    """Replay the trace if the file is there, else record it first; with a model, compare its choices."""
    path = Path(options.routing)
    capacities = _capacities(options.slots)
    same: float | None = None
    if path.exists():
        if options.text is not None:
            raise InvalidOption(f"a trace is there already: {path}", "leave out --text, or name a new file")
        trace = routing.read_trace(path)
        if options.model is not None:
            again = _record(options, [int(token) for token in trace.tokens], 0)
            trace = routing.read_trace(path, again.num_experts)
            same = record.agreement(trace.head(again.num_tokens), again)
    elif options.model is None:
        raise InvalidOption(f"no trace to replay: {path}", f"ftd bench MODEL --routing {path}")
    else:
        trace = _record(options, None, options.decode_tokens)
        routing.write_trace(path, trace)
    result = routing.report(trace, capacities, options.batch)
    if options.json:
        output.print_json(asdict(result) | ({} if same is None else {"same_experts": same}))
        return 0
    print(routing.format_report(result))
    if same is not None:
        print(f"{options.model} chooses {same:.1%} of the recorded experts")
    return 0


def _record(options: argparse.Namespace, ids: list[int] | None, decode_tokens: int) -> routing.Trace:
    info = modelinfo.read_model(_store(), parse_name(options.model))
    if ids is None and options.text is None:
        bos_id = info.config.tokens.bos_id
        ids = [next(iter(info.config.tokens.eos_ids), 0) if bos_id is None else bos_id]
    elif ids is None:
        ids = _encode(Path(options.text), info)[: options.prompt_tokens]
        decode_tokens = 0
    ids = ids[: max(info.context_length - 1, 1)]  # the window holds one more, which is not recorded
    return record.record(
        info.config_path,
        info.blob_paths,
        ids,
        decode_tokens=decode_tokens,
        num_threads=options.threads,
        precision=options.precision,
    )


def _encode(path: Path, info: modelinfo.ModelInfo) -> list[int]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_TEXT_BYTES).decode("utf-8", "replace")
    except OSError as exc:
        raise InvalidOption(f"cannot read the text: {exc.strerror}: {path}") from exc
    return modelinfo.read_tokenizer(_store(), info).encode_document(text)


def _capacities(text: str | None) -> list[float]:
    if text is None:
        return list(routing.CAPACITIES)
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError as exc:
        raise InvalidOption(f"slots are not numbers: {text:.100}", "--slots 0.25,512") from exc
    if not all(0 <= value < float("inf") for value in values):
        raise InvalidOption(f"slots are not numbers from 0 on: {text:.100}")
    return values
