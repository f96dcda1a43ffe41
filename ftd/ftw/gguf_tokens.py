"""Special token ids of a GGUF vocabulary: where a generation begins, ends, and what pads.

GGUF names one eos and sometimes an eot and eom; chat models end a turn with others, known by their text
alone. An id ends a generation if the metadata says so or if its text is in ``END_TEXTS``; such a token is a
control token whatever type the file gives it.
"""

import logging
from collections.abc import Iterable, Mapping

import numpy as np

from ftd.errors import InvalidGguf, Unsupported
from ftd.ftw.format import Tokens
from ftd.ftw.gguf import Value
from ftd.ftw.pretokenizers import PRE_TOKENIZERS, by_merges
from ftd.log import fields

log = logging.getLogger(__name__)

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

END_TEXTS = frozenset(
    """<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|>
    <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <turn|> [e~[ <end_of_utterance> <|tool_response>
    <｜end▁of▁sentence｜> <|fim_pad|> <|fim_repo|> <|repo_name|> <|file_sep|>""".split()  # noqa: SIM905
)
# Two of these mean "harmony": there <|end|> closes one message of several, not the generation.
_HARMONY_TEXTS = (frozenset({"<|return|>", "<|call|>"}), frozenset({"<|calls|>", "<|flush|>"}))
_ADD_BOS_PRE = frozenset(
    """llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano
    tekken chameleon""".split()  # noqa: SIM905
)
_ALWAYS_CONTROL = ("bos", "eos", "eot", "eom")


def token_texts(metadata: dict[str, Value]) -> list[str]:
    """Return the texts of all tokens; raise InvalidGguf if they are not there or one is there twice."""
    texts = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(texts, list) or not texts:
        raise InvalidGguf("tokenizer.ggml.tokens is not an array of strings")
    texts = [text or f"[EMPTY_{index}]" for index, text in enumerate(texts)]
    if len(set(texts)) != len(texts):
        raise InvalidGguf("tokenizer.ggml.tokens has a token twice")
    return texts


def token_types(metadata: dict[str, Value], texts: list[str]) -> list[int]:
    """Return the type of each token.

    In a byte-level vocabulary without types, tokens that no merge makes were added: control tokens if they
    stand in brackets. Raises Unsupported for another vocabulary without types, where this cannot be told.
    """
    types = metadata.get("tokenizer.ggml.token_type")
    if types is None and metadata.get("tokenizer.ggml.model") == "gpt2":
        made = {left + right for left, right in merge_pairs(metadata)}
        added = [CONTROL if text[0] + text[-1] in ("<>", "[]") else USER_DEFINED for text in texts]
        return [
            NORMAL if len(text) == 1 or text in made else kind
            for text, kind in zip(texts, added, strict=True)
        ]
    if types is None:
        raise Unsupported(
            "the file does not say which tokens are special: tokenizer.ggml.token_type is missing",
            "convert the model anew with a recent converter",
        )
    if not isinstance(types, np.ndarray) or types.dtype.kind not in "iu" or len(types) != len(texts):
        raise InvalidGguf(f"tokenizer.ggml.token_type is not an array of {len(texts)} integers")
    kinds: list[int] = types.tolist()
    return kinds


def merge_pairs(metadata: dict[str, Value]) -> list[tuple[str, str]]:
    """Return the file's merges in their order; raise InvalidGguf if they are not there or one is none."""
    lines = metadata.get("tokenizer.ggml.merges")
    if not isinstance(lines, list):
        raise InvalidGguf("tokenizer.ggml.merges is not an array of strings")
    merges = []
    for line in lines:
        blank = line.find(" ", 1)
        left, right = line[:blank], line[blank + 1 :]
        if blank < 0 or not right:
            raise InvalidGguf(f"a merge is not two texts with a blank between them: {line!r:.100}")
        merges.append((left, right))
    return merges


def names_pre_tokenizer(metadata: Mapping[str, Value]) -> bool:
    """Say whether the file names its pre-tokenizer; Ollama's converter says "default" for want of a name."""
    name = metadata.get("tokenizer.ggml.pre", "")
    return not (isinstance(name, str) and name in ("", "default"))


def pre_tokenizer_name(metadata: dict[str, Value]) -> str:
    """Return which pre-tokenizer a byte-level vocabulary has: the one named, or the one of its merges.

    Raises Unsupported if that is not known: text that is cut by other expressions has other ids.
    """
    if not names_pre_tokenizer(metadata):
        lines = metadata.get("tokenizer.ggml.merges")
        known = by_merges(lines) if isinstance(lines, list) else None
        if known is None:
            said = "is 'default'" if metadata.get("tokenizer.ggml.pre") else "is missing"
            raise Unsupported(
                f"the file does not say how its tokenizer cuts text: tokenizer.ggml.pre {said}",
                "convert the model anew with a recent converter",
            )
        return known
    name = metadata["tokenizer.ggml.pre"]
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        raise Unsupported(
            f"pre-tokenizer is not supported: {name!r:.50}", f"use one of {' '.join(PRE_TOKENIZERS)}"
        )
    return name


def control_types(metadata: dict[str, Value], texts: list[str], types: list[int]) -> list[int]:
    """Return ``types`` with every token that begins or ends a generation as a control token."""
    named = {token_id(metadata, name, len(texts)) for name in _ALWAYS_CONTROL}
    return [
        CONTROL if text in END_TEXTS or (kind == NORMAL and index in named) else kind
        for index, (text, kind) in enumerate(zip(texts, types, strict=True))
    ]


def token_id(metadata: dict[str, Value], name: str, count: int) -> int | None:
    """Return ``tokenizer.ggml.NAME_token_id``, None if it is not set; raise InvalidGguf for a non-token."""
    value = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidGguf(f"tokenizer.ggml.{name}_token_id is not an integer: {value!r:.50}")
    if value in (-1, 0xFFFFFFFF):
        return None
    if not 0 <= value < count:
        raise InvalidGguf(f"tokenizer.ggml.{name}_token_id is not between 0 and {count - 1}: {value}")
    return value


def flag(metadata: dict[str, Value], name: str, default: bool) -> bool:
    """Return the bool ``tokenizer.ggml.NAME``."""
    value = metadata.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, bool):
        raise InvalidGguf(f"tokenizer.ggml.{name} is not a bool: {value!r:.50}")
    return value


def special_tokens(metadata: dict[str, Value], vocab_size: int) -> Tokens:
    """Return the special ids of a model; all are below ``vocab_size``."""
    texts = token_texts(metadata)
    count = min(len(texts), vocab_size)
    bos, eos = token_id(metadata, "bos", count), token_id(metadata, "eos", count)
    model = metadata.get("tokenizer.ggml.model")
    if isinstance(model, str) and model == "llama" and texts[1:3] == ["<s>", "</s>"] and count > 2:
        bos, eos = 1 if bos is None else bos, 2 if eos is None else eos  # SentencePiece's own places
    framed = model == "bert"  # always, whatever the file says
    if framed:
        bos = _named(metadata, "cls", "[CLS]", texts[:count]) if bos is None else bos
        eos = _named(metadata, "seperator", "[SEP]", texts[:count]) if eos is None else eos
    add_bos = flag(metadata, "add_bos_token", _adds_bos(metadata)) or framed
    named = [
        eos,
        token_id(metadata, "eot", count),
        token_id(metadata, "eom", count),
        *_more_ends(metadata, count),
    ]
    ends = ends_by_text(enumerate(texts[:count]))
    return Tokens(
        bos_id=bos,
        eos_ids=list(dict.fromkeys([*(token for token in named if token is not None), *ends])),
        pad_id=_pad_id(metadata, count),
        add_bos=add_bos and bos is not None,
        add_eos=(flag(metadata, "add_eos_token", False) or framed) and eos is not None,
    )


def _named(metadata: dict[str, Value], name: str, text: str, texts: list[str]) -> int | None:
    """Return the id of the special token ``name``, else of the token with the text that it always has."""
    index = token_id(metadata, name, len(texts))
    return texts.index(text) if index is None and text in texts else index


def _more_ends(metadata: dict[str, Value], count: int) -> list[int]:
    """Return the tokens that ``tokenizer.ggml.eos_token_ids`` lists: Ollama's files name all ends there."""
    ids = metadata.get("tokenizer.ggml.eos_token_ids")
    if ids is None:
        return []
    if not isinstance(ids, np.ndarray) or ids.dtype.kind not in "iu":
        raise InvalidGguf(f"tokenizer.ggml.eos_token_ids is not an array of integers: {ids!r:.50}")
    return [int(token) for token in ids if 0 <= token < count]


def _pad_id(metadata: dict[str, Value], count: int) -> int | None:
    """Return the padding id; one behind the vocabulary, which files do have, is dropped: nothing needs it."""
    try:
        return token_id(metadata, "padding", count)
    except InvalidGguf as exc:
        log.warning(fields("padding token ignored", reason=exc.message))
        return None


def _adds_bos(metadata: dict[str, Value]) -> bool:
    """Say whether a bos is added where the file does not say."""
    model = metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        return pre_tokenizer_name(metadata) in _ADD_BOS_PRE
    return isinstance(model, str) and model in ("llama", "gemma4", "bert")


def ends_by_text(texts: Iterable[tuple[int, str]]) -> list[int]:
    """Return the ids of the tokens, given as (id, text), whose text says that a generation ends."""
    found = {text: index for index, text in texts if text in END_TEXTS}
    if any(pair <= found.keys() for pair in _HARMONY_TEXTS):
        found.pop("<|end|>", None)
    return list(found.values())
