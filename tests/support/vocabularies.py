"""Small vocabularies made with the tokenizers library itself."""

import json
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|fim|>")
TEXT = [
    "hello world, what is this? user assistant system\n",
    "think tool call 東京 한국 👩‍👩‍👧 im_start im_end |>",
    "\n\n  x",
]


@dataclass(frozen=True)
class Ids:
    """Special ids as the FTW config states them."""

    bos_id: int | None = 0
    eos_ids: list[int] = field(default_factory=lambda: [1, 3])
    add_bos: bool = True
    add_eos: bool = False


def byte_level() -> Library:
    """Return a byte-level BPE vocabulary (ids 0 to 3 special, five markup tokens that are not)."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    library.train_from_iterator(TEXT * 3, trainer)
    library.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP])
    return library


def sentence_piece(prepend_scheme: str | None = None) -> Library:
    """Return a vocabulary with byte fallback, its blanks written by a normalizer or by Metaspace."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *"abcdehilnost",
        "▁t",
        "he",
        "▁the",
    ]
    vocab = {piece: idx for idx, piece in enumerate(pieces)}
    library = Library(
        models.BPE(
            vocab=vocab, merges=[("▁", "t"), ("h", "e"), ("▁t", "he")], unk_token="<unk>", byte_fallback=True
        )
    )
    if prepend_scheme is None:
        library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        library.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=prepend_scheme, split=False)
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    library.add_special_tokens(["<s>", "</s>"])
    return library


def with_flag(library: Library, text: str, **flags: bool) -> bytes:
    """Return tokenizer.json with flags of one added token changed."""
    layout: dict[str, Any] = json.loads(library.to_str())
    for token in layout["added_tokens"]:
        if token["content"] == text:
            token.update(flags)
    return json.dumps(layout).encode()
