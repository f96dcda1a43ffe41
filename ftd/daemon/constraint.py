"""What binds an answer to a format or to its tools, in the terms of the engine: bytes and ids, not tags."""

from ftd.api.request import CompletionRequest
from ftd.chat.callformats import CallFormat, call_format
from ftd.chat.callgrammar import needs_grammar, tool_grammar
from ftd.chat.schema import grammar_of
from ftd.chat.templates import ChatTemplate
from ftd.chat.tokenizer import Tokenizer
from ftd.daemon.catalog import Model
from ftd.daemon.prompt import Prompt
from ftd.engine.messages import Grammar, Vocabulary

_FINAL = b"<|channel|>final<|message|>"


def text_of(model: Model, request: CompletionRequest) -> str:
    """Return the grammar of a request's answer, empty if it is free; raise InvalidOption for a bad schema.

    A call that is forced comes before a format; otherwise a format comes before the schemas of tools.
    """
    if request.format is not None and not request.tool_choice.is_forced:
        return grammar_of(request.format)
    if not needs_grammar(request.tools, request.tool_choice):
        return ""
    calls = call_format(model.template.kind, model.template.source)
    return tool_grammar(calls, request.tools, request.tool_choice, model.tokenizer.special_texts())


def grammar(text: str, request: CompletionRequest, prompt: Prompt, tokenizer: Tokenizer) -> Grammar:
    """Return the grammar ``text`` for the answer to ``prompt``.

    Thinking comes first, and is free. An answer that has a format may be a tool call instead, if the calls of
    this template begin with a tag; a call that is bare JSON cannot be told from the answer, and loses.
    """
    template = prompt.template
    if template is None:
        return Grammar(text=text)
    calls = call_format(template.kind, template.source)
    is_format = request.format is not None and not request.tool_choice.is_forced
    if calls.is_harmony:
        return Grammar(text=text, free_until=_FINAL if is_format else b"")
    free_until, detours = _thinking(template, request, prompt, tokenizer)
    if is_format and request.tools and not calls.is_bare:
        detours[_first_id(calls, tokenizer)] = b""
    return Grammar(text=text, free_until=free_until, detours=detours)


def _thinking(
    template: ChatTemplate, request: CompletionRequest, prompt: Prompt, tokenizer: Tokenizer
) -> tuple[bytes, dict[int, bytes]]:
    if template.thinking_tags is None or not request.think:
        return b"", {}
    opening, closing = template.thinking_tags
    if prompt.is_thinking:
        return closing.encode(), {}
    return b"", {tokenizer.encode(opening, special=True)[0]: closing.encode()}


def _first_id(calls: CallFormat, tokenizer: Tokenizer) -> int:
    return tokenizer.encode(calls.opening or calls.tag, special=True)[0]


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Return the bytes of every id of a tokenizer; takes up to seconds: call it in a thread."""
    return Vocabulary(
        tokens=[tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)],
        special_ids=sorted(tokenizer.special_ids),
        eos_ids=sorted(tokenizer.eos_ids),
    )
