"""The special tokens and the chat template of a Hugging Face checkpoint.

Ids that end a generation come from generation_config.json, config.json and the tokenizer's own eos token, and
from added tokens whose text says so. A bos is added where tokenizer_config.json says so or, if it is silent,
where the post-processor of tokenizer.json would add one; an eos is added to texts to embed where that does.
"""

from typing import Any

import msgspec

from ftd.errors import InvalidCheckpoint
from ftd.ftw.checkpoint import Checkpoint
from ftd.ftw.format import ENCODER_TYPES, Tokens
from ftd.ftw.gguf_tokens import ends_by_text

MAX_DEPTH = 4


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _TokenizerJson(msgspec.Struct):
    """The parts of tokenizer.json that are looked at here."""

    model: msgspec.Raw
    added_tokens: list[_AddedToken] = []
    post_processor: dict[str, Any] | None = None


class SpecialTokens:
    """What the side files say about special tokens; ``data`` is tokenizer.json as it was."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        data = checkpoint.side("tokenizer.json")
        if data is None:
            raise InvalidCheckpoint("tokenizer.json is missing", "save the tokenizer as tokenizer.json")
        try:
            layout = msgspec.json.decode(data, type=_TokenizerJson)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
            raise InvalidCheckpoint(f"tokenizer.json cannot be read: {exc}"[:300]) from exc
        self.data = data
        self._layout = layout
        self._id_by_text = {token.content: token.id for token in layout.added_tokens}
        self._checkpoint = checkpoint
        self._settings = checkpoint.json("tokenizer_config.json")

    def tokens(self, vocab_size: int) -> Tokens:
        """Return the special ids; all are below ``vocab_size``."""
        config = self._checkpoint.config
        generation = self._checkpoint.json("generation_config.json") or {}
        bos = self._named("bos", config)
        eos = [*_ids(generation.get("eos_token_id")), *_ids(config.get("eos_token_id"))]
        own = self._named("eos", {})
        first, last = _framing(self._layout.post_processor, self._id_by_text)
        if config.get("model_type") in ENCODER_TYPES and bos is None:
            bos = first
        eos += [] if last is None else [last]
        ends = ends_by_text((token.id, token.content) for token in self._layout.added_tokens)
        wanted = dict.fromkeys([*eos, *([] if own is None else [own]), *ends])
        pads = [token for token in _ids(config.get("pad_token_id")) if token < vocab_size]
        for token in (*wanted, *([] if bos is None else [bos])):
            if token >= vocab_size:
                raise InvalidCheckpoint(f"special token is not between 0 and {vocab_size - 1}: {token}")
        return Tokens(
            bos_id=bos,
            eos_ids=list(wanted),
            pad_id=next(iter(pads), None),
            add_bos=bos is not None and self._adds_bos(),
            add_eos=last is not None,
        )

    def chat_template(self) -> str | None:
        """Return the chat template: chat_template.jinja, else the one of tokenizer_config.json."""
        data = self._checkpoint.side("chat_template.jinja")
        if data is not None:
            try:
                return data.decode("utf-8")
            except UnicodeDecodeError as exc:
                raise InvalidCheckpoint("chat_template.jinja is not UTF-8") from exc
        template = (self._settings or {}).get("chat_template")
        if isinstance(template, list):
            named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
            template = named.get("default")
        return template if isinstance(template, str) else None

    def _named(self, name: str, config: dict[str, Any]) -> int | None:
        """Return the id of the tokenizer's ``NAME_token``, else of ``config``'s ``NAME_token_id``."""
        if self._settings is not None and f"{name}_token" in self._settings:
            text = self._settings[f"{name}_token"]
            text = text.get("content") if isinstance(text, dict) else text
            return self._id_by_text.get(text) if isinstance(text, str) else None
        return next(iter(_ids(config.get(f"{name}_token_id"))), None)

    def _adds_bos(self) -> bool:
        flag = (self._settings or {}).get("add_bos_token")
        return (
            flag
            if isinstance(flag, bool)
            else _framing(self._layout.post_processor, self._id_by_text)[0] is not None
        )


def _ids(value: Any) -> list[int]:
    """Return token ids that a config gives as null, one integer or a list of them."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    for item in values:
        if not isinstance(item, int) or isinstance(item, bool):
            raise InvalidCheckpoint(f"token id is not an integer: {item!r:.50}")
    return [item for item in values if item >= 0]


def _framing(
    processor: dict[str, Any] | None, id_by_text: dict[str, int], depth: int = 0
) -> tuple[int | None, int | None]:
    """Return the special tokens that a post-processor puts before and behind a single text."""
    if not isinstance(processor, dict):
        return None, None
    single, parts = processor.get("single"), processor.get("processors")
    match processor.get("type"):
        case "TemplateProcessing" if isinstance(single, list) and single:
            return _special_id(single[0], id_by_text), _special_id(single[-1], id_by_text)
        case "BertProcessing" | "RobertaProcessing":
            texts = [_text(processor.get(name)) for name in ("cls", "sep")]
            return id_by_text.get(texts[0]), id_by_text.get(texts[1])
        case "Sequence" if isinstance(parts, list) and depth < MAX_DEPTH:
            found = [_framing(part, id_by_text, depth + 1) for part in parts]
            first = next((before for before, _ in found if before is not None), None)
            return first, next((behind for _, behind in found if behind is not None), None)
    return None, None


def _special_id(piece: Any, id_by_text: dict[str, int]) -> int | None:
    """Return the id of a template's piece if it is a special token."""
    special = piece.get("SpecialToken") if isinstance(piece, dict) else None
    name = special.get("id") if isinstance(special, dict) else None
    return id_by_text.get(name) if isinstance(name, str) else None


def _text(pair: Any) -> str:
    """Return the text of a (text, id) pair; empty if it is none."""
    return pair[0] if isinstance(pair, list) and pair and isinstance(pair[0], str) else ""
