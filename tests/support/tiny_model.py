"""Models with a vocabulary of bytes and no weights to speak of: enough for everything but the engine.

Token ids 0..255 are the bytes, so texts and ids say the same; 256.. are the control tokens below.
"""

import json

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ftd.daemon import modelinfo
from ftd.ftw.format import BlobEntry, FtwConfig, Tokens
from ftd.names import parse_name
from ftd.registry.manifest import Descriptor, build_manifest
from ftd.registry.store import Store

CONTROL = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
EOS = 257
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = CHATML + "{# <think> </think> #}"


def ids_of(text):
    """Ids of a text without control tokens."""
    return list(text.encode())


def byte_chars():
    """The characters that stand for the bytes 0..255 in a byte-level vocabulary."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(other)) for byte in range(256)]


def tokenizer_json():
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(byte_chars())}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(CONTROL))
    return tokenizer.to_str().encode()


def add_model(
    store: Store,
    name="tiny",
    template=CHATML,
    system="",
    parameters=None,
    context_length=4096,
    seed=0,
    **more,
):
    """Put a model into the store; ``seed`` makes its weights, and so its identity, differ."""
    weights, size = store.blobs.put(bytes([seed]) * 4096)
    config = FtwConfig(
        architecture="llama",
        hyperparameters={
            "max_position_embeddings": context_length,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 256 + len(CONTROL),
        },
        quantization="Q4_1",
        parameter_count=134_515_008,
        tokens=Tokens(eos_ids=[EOS]),
        tensors=[],
        blobs=[
            BlobEntry(
                digest=weights,
                size=size,
                media_type="application/vnd.ftd.weights.dense.v1",
                chunk_bytes=64 << 20,
                chunks=[weights.removeprefix("sha256:")],
            )
        ],
        metadata={"general.architecture": "llama", **more},
    )
    layers = [
        Descriptor("application/vnd.ftd.weights.dense.v1", weights, size),
        _layer(store, modelinfo.MEDIA_TOKENIZER, tokenizer_json()),
    ]
    if template:
        layers.append(_layer(store, modelinfo.MEDIA_JINJA, template.encode()))
    if system:
        layers.append(_layer(store, modelinfo.MEDIA_SYSTEM, system.encode()))
    if parameters:
        layers.append(_layer(store, modelinfo.MEDIA_PARAMS, json.dumps(parameters).encode()))
    manifest = build_manifest(_layer(store, modelinfo.MEDIA_CONFIG, msgspec.json.encode(config)), layers)
    store.write(parse_name(name), manifest)
    return manifest


def _layer(store, media_type, data):
    return Descriptor(media_type, *store.blobs.put(data))


TOOLS = (
    CHATML
    + "{% if tools %}{{ tools }}{% endif %}{% if m is defined and m.tool_calls %}"
    + "<tool_call>{{ m.tool_calls }}</tool_call>{% endif %}"
)
HERMES = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
