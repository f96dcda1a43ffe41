"""A GGUF vocabulary as Hugging Face's ``tokenizer.json``, token for token what llama.cpp does with it.

    tokenizer.ggml.model   becomes
    gpt2                   byte-level BPE with the file's merges and the expressions of tokenizer.ggml.pre
    llama                  BPE over ``▁``-escaped text with byte fallback; merges rebuilt from the scores
    gemma4                 BPE over ``▁``-escaped text with byte fallback and the file's merges
    bert                   WordPiece

Every token of the file is in the model's vocabulary under its own id. Control and unknown tokens become
special added tokens, user-defined ones plain added tokens. No post-processor: whoever encodes adds bos and
eos.
"""

from typing import Any

import msgspec
import numpy as np

from ftd.errors import InvalidGguf, Unsupported
from ftd.ftw.format import Json
from ftd.ftw.gguf import Value
from ftd.ftw.gguf_tokens import (
    CONTROL,
    UNKNOWN,
    USER_DEFINED,
    control_types,
    flag,
    merge_pairs,
    pre_tokenizer_name,
    token_id,
    token_texts,
    token_types,
)
from ftd.ftw.pretokenizers import PRE_TOKENIZERS

MAX_TOKEN_CHARACTERS = 1024
_SPACE = "▁"
_BYTE_FALLBACK: list[Json] = [
    {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
Merges = list[tuple[str, str]]


class _Vocabulary:
    """The arrays of one vocabulary, checked: texts, types and ids by text."""

    def __init__(self, metadata: dict[str, Value]) -> None:
        self.metadata = metadata
        self.texts = token_texts(metadata)
        self.types = control_types(metadata, self.texts, token_types(metadata, self.texts))
        self.id_by_text = {text: index for index, text in enumerate(self.texts)}

    def text_of(self, name: str) -> str | None:
        """Return the text of the special token ``name``, if the file has one."""
        index = token_id(self.metadata, name, len(self.texts))
        return None if index is None else self.texts[index]

    def first_unknown(self) -> str | None:
        """Return the text of the first token of the type unknown, if there is one."""
        return self.texts[self.types.index(UNKNOWN)] if UNKNOWN in self.types else None

    def merges(self) -> Merges:
        """Return the file's merges whose three tokens are in the vocabulary, in their order."""
        return [
            (left, right)
            for left, right in merge_pairs(self.metadata)
            if left in self.id_by_text and right in self.id_by_text and left + right in self.id_by_text
        ]

    def merges_by_score(self) -> Merges:
        """Return all ways to make a token of two others; the best score first, as SPM merges."""
        scores = self.metadata.get("tokenizer.ggml.scores")
        if (
            not isinstance(scores, np.ndarray)
            or len(scores) != len(self.texts)
            or scores.dtype.kind not in "fi"
        ):
            raise InvalidGguf(f"tokenizer.ggml.scores is not an array of {len(self.texts)} numbers")
        values = scores.astype(np.float64)
        if not np.all(np.isfinite(values)):
            raise InvalidGguf("tokenizer.ggml.scores has a number that is not finite")
        order = np.lexsort((np.arange(len(values)), -values)).tolist()
        known, merges = self.id_by_text, []
        for index in order:
            text = self.texts[index]
            if self.types[index] in (CONTROL, UNKNOWN) or not 2 <= len(text) <= MAX_TOKEN_CHARACTERS:
                continue
            for cut in range(1, len(text)):
                left, right = text[:cut], text[cut:]
                if left in known and right in known:
                    merges.append((left, right))
        return merges

    def added_tokens(self, strip_right: frozenset[str] = frozenset()) -> list[Json]:
        """Return control, unknown and user-defined tokens; ``strip_right`` ones eat blanks behind them."""
        return [
            {
                "id": index,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": text in strip_right,
                "normalized": False,
                "special": kind != USER_DEFINED,
            }
            for index, (text, kind) in enumerate(zip(self.texts, self.types, strict=True))
            if kind in (CONTROL, UNKNOWN, USER_DEFINED)
        ]


def tokenizer_json(metadata: dict[str, Value], vocab_size: int | None = None) -> str:
    """Return the text of ``tokenizer.json`` for a GGUF file's metadata.

    vocab_size: rows of the embedding; a larger vocabulary is refused. Raises InvalidGguf or Unsupported.
    """
    model = metadata.get("tokenizer.ggml.model")
    makers = {"gpt2": _byte_level, "llama": _sentencepiece, "gemma4": _gemma4, "bert": _word_piece}
    if not isinstance(model, str) or model not in makers:
        raise Unsupported(f"tokenizer is not supported: {model!r:.50}", f"use one of {' '.join(makers)}")
    vocabulary = _Vocabulary(metadata)
    if vocab_size is not None and len(vocabulary.texts) > vocab_size:
        raise InvalidGguf(
            f"the vocabulary has {len(vocabulary.texts)} tokens, the embedding {vocab_size} rows"
        )
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        **makers[model](vocabulary),
    }
    return msgspec.json.encode(document).decode()


def _bpe(vocabulary: _Vocabulary, merges: Merges, **options: Json) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **options,
        "vocab": vocabulary.id_by_text,
        "merges": merges,
    }


def _split(pattern: str) -> dict[str, Json]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(vocabulary: _Vocabulary) -> dict[str, Any]:
    pre = PRE_TOKENIZERS[pre_tokenizer_name(vocabulary.metadata)]
    byte_level: dict[str, Json] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    steps: list[Json] = [*(_split(pattern) for pattern in pre.patterns), byte_level]
    return {
        "added_tokens": vocabulary.added_tokens(),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": byte_level,
        "model": _bpe(vocabulary, vocabulary.merges(), ignore_merges=pre.ignore_merges),
    }


def _sentencepiece(vocabulary: _Vocabulary) -> dict[str, Any]:
    prefix = flag(vocabulary.metadata, "add_space_prefix", True)
    escape: list[Json] = [{"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}]
    prepend: list[Json] = [{"type": "Prepend", "prepend": _SPACE}]
    strip: list[Json] = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    return {
        "added_tokens": vocabulary.added_tokens(_strips_right(vocabulary)),
        "normalizer": {"type": "Sequence", "normalizers": [*(prepend if prefix else []), *escape]},
        "decoder": {"type": "Sequence", "decoders": [*_BYTE_FALLBACK, *(strip if prefix else [])]},
        "model": _bpe(
            vocabulary,
            vocabulary.merges_by_score(),
            unk_token=vocabulary.text_of("unknown") or vocabulary.first_unknown(),
            fuse_unk=True,
            byte_fallback=True,
        ),
    }


def _strips_right(vocabulary: _Vocabulary) -> frozenset[str]:
    """Return the texts that swallow the blanks behind them: the file does not say, Phi-3's tokenizer does."""
    name = vocabulary.metadata.get("general.name")
    if not isinstance(name, str) or not any(mark in name.lower() for mark in ("phi-3", "phi3")):
        return frozenset()
    texts = {
        text
        for text, kind in zip(vocabulary.texts, vocabulary.types, strict=True)
        if kind in (CONTROL, USER_DEFINED)
    }
    return frozenset(texts | {"</s>"}) - {"<unk>", "<s>", "<|endoftext|>"}


def _gemma4(vocabulary: _Vocabulary) -> dict[str, Any]:
    # The file's merges have no newlines; a run of newlines becomes the token of its length.
    runs = sorted((text for text in vocabulary.texts if len(text) > 1 and not text.strip("\n")), key=len)
    newlines = [(text[:cut], text[cut:]) for text in runs for cut in range(1, len(text))]
    merges = vocabulary.merges() + [
        (left, right)
        for left, right in newlines
        if left in vocabulary.id_by_text and right in vocabulary.id_by_text
    ]
    return {
        "added_tokens": vocabulary.added_tokens(),
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
        "pre_tokenizer": _split(r"[^\n]+|\n+"),
        "decoder": {"type": "Sequence", "decoders": _BYTE_FALLBACK},
        "model": _bpe(
            vocabulary, merges, unk_token=vocabulary.text_of("unknown"), fuse_unk=True, byte_fallback=True
        ),
    }


def _word_piece(vocabulary: _Vocabulary) -> dict[str, Any]:
    """GGUF marks the first piece of a word with ``▁``; WordPiece marks the later ones with ``##``."""
    vocab: dict[str, int] = {}
    for index, (text, kind) in enumerate(zip(vocabulary.texts, vocabulary.types, strict=True)):
        if kind in (CONTROL, UNKNOWN, USER_DEFINED):
            vocab[text] = index
        else:
            vocab[text[1:] if text.startswith(_SPACE) else f"##{text}"] = index
    if len(vocab) != len(vocabulary.texts):
        raise InvalidGguf("tokenizer.ggml.tokens has a word piece twice")
    unknown = vocabulary.text_of("unknown") or "[UNK]"
    if unknown not in vocab:
        raise InvalidGguf(f"the vocabulary has no unknown token: {unknown!r:.50}")
    lowercase = flag(vocabulary.metadata, "normalizer.lowercase", True)
    return {
        "added_tokens": vocabulary.added_tokens(),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": flag(vocabulary.metadata, "normalizer.strip_accents", lowercase),
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    }
