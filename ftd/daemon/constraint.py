"""What binds an answer to a format, in the terms of the engine: bytes and ids instead of tags."""

from ftd.api.request import CompletionRequest
from ftd.chat.callformats import call_format
from ftd.chat.tokenizer import Tokenizer
from ftd.daemon.prompt import Prompt
from ftd.engine.messages import Grammar, Vocabulary


def grammar(text: str, request: CompletionRequest, prompt: Prompt, tokenizer: Tokenizer) -> Grammar:
    """Return the grammar ``text`` for the answer to ``prompt``.

    Thinking comes first, and is free. An answer may be a tool call instead, if the calls of this template
    begin with a tag; a call that is bare JSON cannot be told from the answer, and loses.
    """
    template = prompt.template
    if template is None:
        return Grammar(text=text)
    detours: dict[int, bytes] = {}
    free_until = b""
    if template.thinking_tags is not None and request.think:
        opening, closing = template.thinking_tags
        if prompt.is_thinking:
            free_until = closing.encode()
        else:
            detours[tokenizer.encode(opening, special=True)[0]] = closing.encode()
    if request.tools:
        calls = call_format(template.kind, template.source)
        if not calls.is_bare:
            detours[tokenizer.encode(calls.tag, special=True)[0]] = b""
    return Grammar(text=text, free_until=free_until, detours=detours)


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Return the bytes of every id of a tokenizer; takes milliseconds."""
    return Vocabulary(
        tokens=[tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)],
        special_ids=sorted(tokenizer.special_ids),
        eos_ids=sorted(tokenizer.eos_ids),
    )
