"""Text to token ids and back, on top of the Hugging Face ``tokenizers`` library.

Three rules are kept here. Control tokens are recognised only where the caller says that the text is trusted.
A prompt has exactly one BOS. The bytes of every token are exact, so a stream decodes to what the whole would.
"""

import codecs
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

import msgspec
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as HfTokenizer

from ftd.chat.beside import matches
from ftd.chat.guard import MARKUP_TEXTS, Rendered
from ftd.errors import DamagedBlob

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Added tokens that frame messages though not flagged special: <|fim_prefix|>, <｜tool▁sep｜>, [INST]
_FRAMING = re.compile(r"<[|｜].*[|｜]>|\[/?[A-Z][A-Z_]+\]", re.DOTALL)
# Marks that no parser looks for: they stand around the whole answer
_SHOWN = MARKUP_TEXTS - {"<|START_RESPONSE|>", "<|END_RESPONSE|>"}
_SPACE = re.compile(r"\s*")
_LAST_ID = 2**32 - 1
_NO_MODEL = msgspec.Raw(b'{"type":"BPE","vocab":{},"merges":[]}')
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class TokenIds(Protocol):
    """What the FTW config says about special tokens."""

    @property
    def bos_id(self) -> int | None: ...
    @property
    def eos_ids(self) -> Sequence[int]: ...
    @property
    def add_bos(self) -> bool: ...
    @property
    def add_eos(self) -> bool: ...


class _BytePairs(msgspec.Struct, tag_field="type", tag="BPE"):
    """A model of byte pairs. A merge is two texts, or one with a blank between the two."""

    vocab: dict[str, int]
    merges: list[tuple[str, str] | str]
    dropout: float | None = None
    unk_token: str | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None
    fuse_unk: bool = False
    byte_fallback: bool = False
    ignore_merges: bool = False


_BPE_OPTIONS = _BytePairs.__struct_fields__[2:]


class _OtherModel(msgspec.Struct):
    byte_fallback: bool | None = None


class _Layout(msgspec.Struct):
    """The parts of ``tokenizer.json`` that count.

    Not the length to which embedding models come cut and padded: it is no business of a tokenizer.
    """

    model: msgspec.Raw
    added_tokens: list[dict[str, Any]] = []
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    post_processor: dict[str, Any] | None = None
    decoder: dict[str, Any] | None = None


class Tokenizer:
    """The vocabulary of one model. Safe to call from several threads; holds one copy of the vocabulary."""

    def __init__(self, data: bytes, tokens: TokenIds) -> None:
        try:
            layout = msgspec.json.decode(data, type=_Layout)
            model, has_byte_tokens = _model(layout)
            self._library = _library(layout, model)
            self._rest = _without_prefix(layout, model)
        except Exception as exc:  # the library raises bare Exception for every fault of the file
            raise DamagedBlob(f"tokenizer does not load: {exc}", "create or pull the model again") from exc
        self._lock = threading.Lock()
        self._added: dict[str, dict[str, Any]] = {t["content"]: t for t in layout.added_tokens}
        self._bytes_of = _spelling(layout, has_byte_tokens, self._added)
        self._bytes: dict[int, bytes] = {}
        self.bos_id = tokens.bos_id
        self.eos_ids = frozenset(tokens.eos_ids)
        self.add_bos = tokens.add_bos and tokens.bos_id is not None
        self.add_eos = tokens.add_eos
        self._control = {text for text, token in self._added.items() if token.get("special")}
        self.special_ids = frozenset(self._added[text]["id"] for text in self._control)
        self._patterns: dict[frozenset[str], re.Pattern[str] | None] = {}
        self._protect({text for text in self._added if _FRAMING.fullmatch(text)})

    @classmethod
    def from_json(cls, data: bytes, tokens: TokenIds) -> "Tokenizer":
        """Build from the bytes of ``tokenizer.json``; raise DamagedBlob if the library refuses them."""
        return cls(data, tokens)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id; ids below it may stand for nothing."""
        return max(self._library.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def _protect(self, texts: Iterable[str]) -> None:
        fresh = sorted(set(texts) - self._control)
        if fresh:
            with self._lock:
                for library in filter(None, (self._library, self._rest)):
                    library.add_special_tokens(fresh)
                self._control.update(fresh)

    def control_texts(self, template: str = "") -> frozenset[str]:
        """Return the texts that users must not turn into tokens: special ones, and markup of the template."""
        markup = {t for t in self._added if t.strip() and not t.isalnum() and t in template}
        self._protect(markup)
        return frozenset(self._control)

    def special_texts(self) -> dict[str, int]:
        """Return the ids of special tokens by their texts."""
        return {self.token_text(token): token for token in self.special_ids}

    def token_text(self, token_id: int | None) -> str:
        """Return the text of a token as templates write it (``<s>``); empty for None."""
        return "" if token_id is None else self._library.id_to_token(token_id) or ""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return the ids of ``text`` without BOS or EOS; ``special``: texts of control tokens become them."""
        return self._encode(self._library, text, special)

    def _encode(self, library: HfTokenizer, text: str, special: bool) -> list[int]:
        if not text:
            return []
        with self._lock:
            library.encode_special_tokens = not special
            # Unlike encode, the batch call lets other threads (the event loop) run meanwhile
            ids: list[int] = library.encode_batch_fast([_whole(text)], add_special_tokens=False)[0].ids
        return ids

    def encode_rendered(self, rendered: Rendered | str, add_bos: bool | None = None) -> list[int]:
        """Return the ids of a prompt, with one BOS at most (``add_bos`` None: as the model says).

        A plain string is taken as trusted (raw mode): control tokens in it are recognised.
        """
        if isinstance(rendered, str):
            ids = self.encode(rendered, special=True)
        else:
            ids = list(self._encode_sealed(rendered))
        if (self.add_bos if add_bos is None else add_bos) and self.bos_id is not None:
            start = next((i for i, token in enumerate(ids) if token != self.bos_id), len(ids))
            return [self.bos_id, *ids[start:]]
        return ids

    def encode_document(self, text: str) -> list[int]:
        """Return the ids of text to embed: no control tokens but the BOS and EOS that the model wants."""
        ids = self.encode_rendered(Rendered(text, "", frozenset()))
        return [*ids, min(self.eos_ids)] if self.add_eos and self.eos_ids else ids

    def _encode_sealed(self, rendered: Rendered) -> Iterator[int]:
        pattern, sealed, done = self._pattern(rendered.control), rendered.sealed, 0
        longest = max(map(len, rendered.control), default=0)
        for match in matches(pattern, sealed, longest) if pattern else ():
            token = self._added[match[0]]
            start, end = match.span()
            if start < done:
                continue
            plain = sealed[done:start]
            yield from self._encode_plain(
                plain.rstrip() if token.get("lstrip") else plain, rendered, done == 0
            )
            yield token["id"]
            done = _SPACE.match(sealed, end).end() if token.get("rstrip") else end  # type: ignore[union-attr]
        yield from self._encode_plain(sealed[done:], rendered, done == 0)

    def _encode_plain(self, text: str, rendered: Rendered, first: bool) -> list[int]:
        plain = text.replace(rendered.seal, "") if rendered.seal else text
        library = self._library if first or self._rest is None else self._rest
        return self._encode(library, plain, special=False)

    def _pattern(self, control: frozenset[str]) -> re.Pattern[str] | None:
        if control not in self._patterns:
            texts = sorted((t for t in control if t in self._added), key=len, reverse=True)
            self._patterns[control] = re.compile("|".join(map(re.escape, texts))) if texts else None
        return self._patterns[control]

    def token_bytes(self, token_id: int) -> bytes:
        """Return the exact bytes that a token stands for; empty for an id outside of the vocabulary."""
        found = self._bytes.get(token_id)
        if found is None:
            text = self._library.id_to_token(token_id) if 0 <= token_id <= _LAST_ID else None
            found = b"" if text is None else self._bytes_of(text)
            if text is not None:
                self._bytes[token_id] = found
        return found

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ``ids``, control tokens too; U+FFFD where the bytes are not UTF-8."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")


class StreamDecoder:
    """Decodes ids as they come, holding bytes back until they are whole characters.

    Special tokens are silent unless their text is markup that parsers look for (those of any model, and what
    is part of ``marks``), or ``show_special``.
    """

    def __init__(self, tokenizer: Tokenizer, show_special: bool = False, marks: str = "") -> None:
        self._tokenizer = tokenizer
        self._show_special = show_special
        self._marks = marks
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        """Return the text that ``ids`` complete."""
        return self._decoder.decode(b"".join(self._visible(token) for token in ids))

    def flush(self) -> str:
        """Return U+FFFD for bytes that never became a character, else nothing."""
        return self._decoder.decode(b"", final=True)

    def _visible(self, token: int) -> bytes:
        data = self._tokenizer.token_bytes(token)
        if token not in self._tokenizer.special_ids or self._show_special:
            return data
        text = data.decode("utf-8", "replace")
        return data if text in _SHOWN or text in self._marks else b""


def _whole(text: str) -> str:
    """Replace lone surrogates (legal in JSON, without UTF-8 form) by U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _types(part: Any) -> Iterator[dict[str, Any]]:
    """Yield a part of ``tokenizer.json`` and, if it is a sequence, its members."""
    if isinstance(part, dict):
        yield part
        for members in ("pretokenizers", "normalizers", "decoders"):
            for member in part.get(members) or ():
                yield from _types(member)


def _model(layout: _Layout) -> tuple[models.Model, bool]:
    """Return the library's model, and whether single bytes may have tokens.

    The library would make a tree of the file before it looks at it. Byte pairs, which nearly all vocabularies
    are, are handed over instead, which takes two thirds of the time; a cold start waits for it.
    """
    try:
        pairs = msgspec.json.decode(layout.model, type=_BytePairs)
    except msgspec.ValidationError:  # a model of another kind
        other = msgspec.json.decode(layout.model, type=_OtherModel)
        read = HfTokenizer.from_str(msgspec.json.encode(_Layout(layout.model)).decode("utf-8"))
        return read.model, bool(other.byte_fallback)
    merges = [_pair(merge) if isinstance(merge, str) else merge for merge in pairs.merges]
    options = {name: value for name in _BPE_OPTIONS if (value := getattr(pairs, name)) is not None}
    return models.BPE(pairs.vocab, merges, **options), pairs.byte_fallback


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _library(layout: _Layout, model: models.Model) -> HfTokenizer:
    """Return the library's tokenizer of a file around ``model``."""
    frame = msgspec.structs.replace(layout, model=_NO_MODEL, added_tokens=[])
    library = HfTokenizer.from_str(msgspec.json.encode(frame).decode("utf-8"))
    library.model = model
    library.add_tokens(
        [
            AddedToken(token["content"], **{flag: token[flag] for flag in _FLAGS})
            for token in layout.added_tokens
        ]
    )
    return library


def _without_prefix(layout: _Layout, model: models.Model) -> HfTokenizer | None:
    """Return the tokenizer for text after the start of a prompt, if it differs (Metaspace ``first``)."""
    parts = [p for p in _types(layout.pre_tokenizer) if p.get("prepend_scheme") == "first"]
    if not parts:
        return None
    for part in parts:
        part["prepend_scheme"] = "never"
    rest = _library(layout, model)
    for part in parts:
        part["prepend_scheme"] = "first"
    return rest


def _byte_of_char() -> dict[str, int]:
    """Return GPT-2's map from the characters of byte-level vocabularies to bytes."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


def _spelling(layout: _Layout, has_byte_tokens: bool, added: Collection[str]) -> Callable[[str], bytes]:
    """Return what tells the bytes of a token's text, by the kind of vocabulary that ``layout`` describes."""
    parts = (layout.pre_tokenizer, layout.decoder, layout.normalizer)
    kinds = {member.get("type") for part in parts for member in _types(part)}
    byte_of_char = _byte_of_char() if "ByteLevel" in kinds else None
    has_byte_tokens = has_byte_tokens or "ByteFallback" in kinds

    def bytes_of(text: str) -> bytes:
        if text in added:
            return text.encode("utf-8")
        if byte_of_char is not None:
            return _byte_level(text, byte_of_char)
        if has_byte_tokens and (match := _BYTE_TOKEN.fullmatch(text)):
            return bytes([int(match[1], 16)])
        if "WordPiece" in kinds:
            return (text[2:] if text.startswith("##") else f" {text}").encode("utf-8")
        return text.replace("\u2581", " ").encode("utf-8")

    return bytes_of


def _byte_level(text: str, byte_of_char: dict[str, int]) -> bytes:
    try:
        return bytes([byte_of_char[char] for char in text])
    except KeyError:
        return text.encode("utf-8")
