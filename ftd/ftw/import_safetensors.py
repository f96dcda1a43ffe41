"""Hugging Face checkpoints to FTW: bits are kept, names become one spelling, quantisation only where asked.

Tensors stream one after the other in slabs of rows, experts one by one. What can be refused is refused before
the first byte is written: every tensor of the checkpoint must belong to its family. Blobs appear when all
succeeded.
"""

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ftd.errors import InvalidCheckpoint, Unsupported
from ftd.ftw import expert_records, freetoken_banks, hf_experts, recurrent
from ftd.ftw.checkpoint import Checkpoint
from ftd.ftw.format import FtwConfig, Json
from ftd.ftw.freetoken import FreeTokenCheckpoint
from ftd.ftw.fused_rows import rows_of
from ftd.ftw.gguf_parts import Family, Part, expert_layers, sizes
from ftd.ftw.hf_config import family_of, hyperparameters
from ftd.ftw.hf_packed import IGNORED, Packed, take
from ftd.ftw.hf_packed import find as find_packed
from ftd.ftw.hf_pooling import Pooling, pooling_of
from ftd.ftw.hf_tensors import Dense, check
from ftd.ftw.hf_tokens import SpecialTokens
from ftd.ftw.imported import ImportedModel, Progress, imported, no_progress, write_tokenizer
from ftd.ftw.recipes import Recipe, check_name, recipe, target
from ftd.ftw.safetensors import StoredTensor
from ftd.ftw.sink import BlobSink
from ftd.ftw.writer import FtwWriter
from ftd.log import fields

log = logging.getLogger(__name__)

# Ending in FTW -> endings in checkpoints; a number says which part of the rows of a fused tensor it is, a
# word which one as in fused_rows
_SPELLINGS: dict[str, tuple[tuple[str, int | str], ...]] = {
    "self_attn.gate_proj.weight": (("self_attn.q_proj.weight", "gate"),),
    "linear_attn.in_proj_qkv.weight": (("linear_attn.in_proj_qkvz.weight", "qkv"),),
    "linear_attn.in_proj_z.weight": (("linear_attn.in_proj_qkvz.weight", "z"),),
    "linear_attn.in_proj_b.weight": (("linear_attn.in_proj_ba.weight", "b"),),
    "linear_attn.in_proj_a.weight": (("linear_attn.in_proj_ba.weight", "a"),),
    "linear_attn.A": (("linear_attn.A_log", 0),),
    "mlp.gate.weight": (
        ("block_sparse_moe.gate.weight", 0),
        ("block_sparse_moe.router.layer.weight", 0),
        ("block_sparse_moe.router.weight", 0),
        ("mlp.router.weight", 0),
    ),
    "mlp.gate.bias": (("mlp.router.bias", 0),),
    "mlp.shared_expert.gate_proj.weight": (
        ("mlp.shared_experts.gate_proj.weight", 0),
        ("shared_mlp.input_linear.weight", 0),
    ),
    "mlp.shared_expert.up_proj.weight": (
        ("mlp.shared_experts.up_proj.weight", 0),
        ("shared_mlp.input_linear.weight", 1),
    ),
    "mlp.shared_expert.down_proj.weight": (
        ("mlp.shared_experts.down_proj.weight", 0),
        ("shared_mlp.output_linear.weight", 0),
    ),
}
# Families whose norms multiply by 1 + weight, but for those of gated delta nets
_ZERO_CENTRED = ("gemma3_text", *recurrent.MODEL_TYPES)
_FUSED_SHARED = "shared_mlp.input_linear.weight"
_IGNORED = (r"rotary_emb\.inv_freq$",)  # constants that older files carry
DRAFTING, MAX_DRAFTING = "num_nextn_predict_layers", 16


def import_safetensors(
    files: Mapping[str, Path],
    sink: BlobSink,
    progress: Progress = no_progress,
    quantization: str | None = None,
    key: str | None = None,
) -> ImportedModel:
    """Convert a Hugging Face checkpoint to FTW blobs in ``sink``.

    files: names in the checkpoint's folder -> where the files lie; config.json, tokenizer.json, the weights
    (safetensors, or FreeToken's ftw), their index, and what there is of generation_config.json,
    tokenizer_config.json, chat_template.jinja.
    quantization: None keeps what the checkpoint has; else what ``ftd.ftw.recipes`` makes of it.
    progress(done_bytes, total_bytes) counts bytes of weights. key: as in FtwWriter.
    Raises InvalidCheckpoint or Unsupported.
    """
    check_name(quantization)
    started = time.monotonic()
    with _open(files) as checkpoint:
        family = family_of(checkpoint)
        hyper = hyperparameters(family, checkpoint)
        special = SpecialTokens(checkpoint)
        pooling = pooling_of(checkpoint)
        dense, experts = _plan(family, checkpoint, hyper, quantization)
        num_experts = int(str(hyper.get("num_experts", 0)))
        parameter_count = _parameter_count(dense, experts, num_experts)
        draft = FtwConfig(
            architecture=family.model_type,
            hyperparameters=hyper,
            quantization=(quantization or _quantization(checkpoint)).upper(),
            parameter_count=parameter_count,
            tokens=special.tokens(int(str(hyper["vocab_size"]))),
            tensors=[],
            blobs=[],
            metadata=_metadata(family, hyper, parameter_count, pooling),
            provenance={"source": checkpoint.suffix[1:], "files": [*checkpoint.shard_names]},
        )
        with FtwWriter(sink, key=key) as writer:
            total = _write_weights(writer, dense, experts, num_experts, progress)
            tokenizer = write_tokenizer(sink, special.data)
            written = writer.finish(draft)
        template = special.chat_template()
    seconds = time.monotonic() - started
    log.info(fields("import done", bytes=total, seconds=seconds, mbps=total / max(seconds, 1e-9) / 1e6))
    parameters: dict[str, Json] = {}
    if pooling is not None and pooling.max_tokens:
        parameters["num_ctx"] = pooling.max_tokens
    return replace(imported(written, tokenizer, template), parameters=parameters)


def _write_weights(
    writer: FtwWriter,
    dense: list[Dense | Packed],
    experts: dict[int, list[hf_experts.Share]],
    num_experts: int,
    progress: Progress,
) -> int:
    """Write all weights; return the bytes that they take in the checkpoint."""
    total = sum(tensor.source_bytes for tensor in dense)
    total += sum(hf_experts.source_bytes(layer) for layer in experts.values())
    done = 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        progress(done, total)

    for tensor in dense:
        writer.add(tensor.name, tensor.format, tensor.shape, tensor.planes())
        advance(tensor.source_bytes)
    if experts:
        expert_records.write(
            writer,
            experts,
            num_experts,
            read=hf_experts.read,
            source_bytes=hf_experts.source_bytes,
            done=advance,
        )
    return total


def _open(files: Mapping[str, Path]) -> Checkpoint:
    if any(name.endswith(FreeTokenCheckpoint.suffix) for name in files):
        return FreeTokenCheckpoint(files)
    return Checkpoint(files)


def _plan(
    family: Family, checkpoint: Checkpoint, hyper: dict[str, Json], quantization: str | None
) -> tuple[list[Dense | Packed], dict[int, list[hf_experts.Share]]]:
    """Match the checkpoint's tensors with the family's, in the order in which a step uses them."""
    size, tensors = sizes(family, hyper), checkpoint.tensors
    tied = hyper["tie_word_embeddings"] is True
    num_layers = int(str(hyper["num_hidden_layers"]))
    dense: list[Dense | Packed] = []
    known: set[str] = set()
    for number, part in family.wanted(hyper):
        name = part.name if number is None else f"model.layers.{number}.{part.name}"
        head = part.name == "lm_head.weight"
        packed = _packed(tensors, name, part, size)
        if packed is not None and not (head and tied):
            _refuse_requantising(packed, quantization)
            dense.append(packed)
        if packed is not None:
            known |= {source.name for source in packed.sources}
            continue
        found = _find(tensors, name, part)
        if found is None:
            if part.required or (head and not tied):
                raise InvalidCheckpoint(f"tensor {name} is missing")
            continue
        known.add(found[0].name)
        if not (head and tied):  # some checkpoints carry a copy of the embedding
            plus_one = family.model_type in _ZERO_CENTRED and name.endswith("norm.weight")
            plus_one = plus_one and not name.endswith("linear_attn.norm.weight")
            made = recipe(quantization, number, num_layers, size["E"], tied)
            dense.append(_dense(*found, name, part, size, made, plus_one))
    layers = expert_layers(family, hyper)
    experts = {}
    if isinstance(checkpoint, FreeTokenCheckpoint) and layers:
        checkpoint.split_banks(len(layers))
        for number, layer in enumerate(layers):
            made = recipe(quantization, layer, num_layers, size["E"], tied)
            experts[layer] = freetoken_banks.plan_layer(checkpoint, number, size, made)
        tensors = tensors | {bank.name: bank for bank in checkpoint.banks.values()}
    else:
        for layer in layers:
            made = recipe(quantization, layer, num_layers, size["E"], tied)
            experts[layer] = hf_experts.plan_layer(tensors, family.model_type, layer, size, made)
    known |= {source.name for shares in experts.values() for share in shares for source in share.sources}
    ignored = _ignored(checkpoint, hyper)
    unknown = [
        tensor.name
        for name, tensor in tensors.items()
        if tensor.name not in known and not ignored.search(name) and not IGNORED.search(name)
    ]
    if unknown:
        raise InvalidCheckpoint(
            f"{len(unknown)} tensors do not belong to a {family.model_type} model: {' '.join(unknown[:5])}"
        )
    return dense, experts


def _ignored(checkpoint: Checkpoint, hyper: dict[str, Json]) -> re.Pattern[str]:
    """Return what finds the names of tensors without use: constants, and layers that only draft tokens."""
    patterns = list(_IGNORED)
    num_layers, drafting = int(str(hyper["num_hidden_layers"])), checkpoint.config.get(DRAFTING)
    if isinstance(drafting, int) and 0 < drafting <= MAX_DRAFTING:
        behind = "|".join(str(layer) for layer in range(num_layers, num_layers + drafting))
        patterns.append(rf"^model\.layers\.(?:{behind})\.")
    return re.compile("|".join(patterns))


def _packed(
    tensors: Mapping[str, StoredTensor], name: str, part: Part, size: dict[str, int]
) -> Packed | None:
    """Return the matrix called ``name`` if the checkpoint keeps it quantised, by itself or fused by heads."""
    if len(part.shape) != 2:
        return None
    stem, shape = name.removesuffix(part.name), (size[part.shape[0]], size[part.shape[1]])
    for spelling, half in ((part.name, part.fused or 0), *_SPELLINGS.get(part.name, ())):
        if isinstance(half, str):
            rows = rows_of(half, size)
            fused = find_packed(tensors, stem + spelling, (rows.stored, shape[1]))
            if fused is not None:
                return replace(take(fused, rows.runs), name=name)
        elif half == 0 and (found := find_packed(tensors, stem + spelling, shape)) is not None:
            return replace(found, name=name)
    return None


def _refuse_requantising(packed: Packed, quantization: str | None) -> None:
    if quantization is not None:
        raise Unsupported(
            f"a model that is quantised already keeps its quantization: {packed.name} is {packed.format}",
            "create from a checkpoint of f32, f16 or bf16",
        )


def _find(
    tensors: Mapping[str, StoredTensor], name: str, part: Part
) -> tuple[StoredTensor, int | str] | None:
    """Return the tensor that holds ``name``, and which part of its rows."""
    stem = name.removesuffix(part.name)
    for spelling, half in ((part.name, part.fused or 0), *_SPELLINGS.get(part.name, ())):
        if stem + spelling in tensors:
            return tensors[stem + spelling], half
    return None


def _dense(
    source: StoredTensor,
    half: int | str,
    name: str,
    part: Part,
    size: dict[str, int],
    recipe: Recipe | None,
    plus_one: bool,
) -> Dense:
    shape = tuple(size[letter] for letter in part.shape)
    if len(shape) == 1:
        check(source, shape, (1, *shape))
        power = source.name.endswith("A_log")
        return Dense(source, name, "f32", (1, shape[0]), vector=True, plus_one=plus_one, negated_power=power)
    rows, columns = shape
    if isinstance(half, str):
        fused = rows_of(half, size)
        format = target(name, check(source, (fused.stored, columns)), columns, recipe)
        return Dense(source, name, format, (rows, columns), runs=fused.runs)
    if name.endswith("conv1d.weight"):
        return Dense(source, name, check(source, (rows, 1, columns), (rows, columns)), (rows, columns))
    format = check(source, (2 * rows, columns) if source.name.endswith(_FUSED_SHARED) else (rows, columns))
    format = target(name, format, columns, recipe)
    return Dense(source, name, format, (rows, columns), first=half * rows)


def _parameter_count(
    dense: Sequence[Dense | Packed], experts: Mapping[int, Sequence[hf_experts.Share]], num_experts: int
) -> int:
    shapes = [tensor.shape for tensor in dense]
    shapes += [share.shape for shares in experts.values() for share in shares for _ in range(num_experts)]
    return sum(rows * columns for rows, columns in shapes)


def _quantization(checkpoint: Checkpoint) -> str:
    """Return the dtype of most bytes, as people call it."""
    bytes_by_dtype: dict[str, int] = {}
    for tensor in checkpoint.tensors.values():
        bytes_by_dtype[tensor.dtype] = bytes_by_dtype.get(tensor.dtype, 0) + tensor.num_bytes
    dtype = max(bytes_by_dtype, key=lambda name: bytes_by_dtype[name])
    if dtype == "U8":
        return "nvfp4" if "F8_E4M3" in bytes_by_dtype else "mxfp4"
    return "fp8" if dtype == "F8_E4M3" else dtype


def _metadata(
    family: Family, hyper: dict[str, Json], parameter_count: int, pooling: Pooling | None
) -> dict[str, Json]:
    """Return what ``/api/show`` says of a model, under the keys of GGUF that clients know."""
    name = family.model_type
    names = {
        "block_count": "num_hidden_layers",
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.layer_norm_rms_epsilon": "rms_norm_eps",
        "attention.layer_norm_epsilon": "layer_norm_eps",
        "expert_count": "num_experts",
        "expert_used_count": "num_experts_per_tok",
        "vocab_size": "vocab_size",
    }
    shown: dict[str, Json] = {
        "general.architecture": name,
        "general.parameter_count": parameter_count,
    }
    if pooling is not None:
        shown[f"{name}.pooling_type"] = pooling.pooling
        shown[f"{name}.normalize_embeddings"] = pooling.normalise
    return shown | {f"{name}.{key}": hyper[value] for key, value in names.items() if value in hyper}
