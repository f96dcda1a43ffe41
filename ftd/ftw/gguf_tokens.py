"""Special token ids of a GGUF vocabulary: where a generation begins, ends, and what pads.

GGUF names one eos and sometimes an eot and eom; chat models end a turn with others, known by their text
alone. An id ends a generation if the metadata says so or if its text is in ``END_TEXTS``; such a token is a
control token whatever type the file gives it.
"""

import logging
from collections.abc import Iterable

import numpy as np

from ftd.errors import InvalidGguf
from ftd.ftw.format import Tokens
from ftd.ftw.gguf import Value
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


def token_texts(metadata: dict[str, Value]) -> list[str]:
    """Return the texts of all tokens; raise InvalidGguf if they are not there or one is there twice."""
    texts = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(texts, list) or not texts:
        raise InvalidGguf("tokenizer.ggml.tokens is not an array of strings")
    texts = [text or f"[EMPTY_{index}]" for index, text in enumerate(texts)]
    if len(set(texts)) != len(texts):
        raise InvalidGguf("tokenizer.ggml.tokens has a token twice")
    return texts


def token_types(metadata: dict[str, Value], count: int) -> list[int]:
    """Return the type of each token; all are normal if the file does not say."""
    types = metadata.get("tokenizer.ggml.token_type")
    if types is None:
        return [NORMAL] * count
    if not isinstance(types, np.ndarray) or types.dtype.kind not in "iu" or len(types) != count:
        raise InvalidGguf(f"tokenizer.ggml.token_type is not an array of {count} integers")
    kinds: list[int] = types.tolist()
    return kinds


def control_types(texts: list[str], types: list[int]) -> list[int]:
    """Return ``types`` with every token that ends a generation by its text as a control token."""
    return [CONTROL if text in END_TEXTS else kind for text, kind in zip(texts, types, strict=True)]


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
    if model == "bert":  # llama.cpp's own places, where the file is silent
        bos = token_id(metadata, "cls", count) if bos is None else bos
        eos = token_id(metadata, "seperator", count) if eos is None else eos
    add_bos = flag(metadata, "add_bos_token", _adds_bos(metadata))
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
        add_eos=flag(metadata, "add_eos_token", model == "bert") and eos is not None,
    )


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
    model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    return isinstance(model, str) and (
        model in ("llama", "gemma4", "bert") or (isinstance(pre, str) and pre in _ADD_BOS_PRE)
    )


def ends_by_text(texts: Iterable[tuple[int, str]]) -> list[int]:
    """Return the ids of the tokens, given as (id, text), whose text says that a generation ends."""
    found = {text: index for index, text in texts if text in END_TEXTS}
    if any(pair <= found.keys() for pair in _HARMONY_TEXTS):
        found.pop("<|end|>", None)
    return list(found.values())
