"""From a request to the ids that the engine gets: messages put together, rendered, encoded, made to fit.

A prompt that does not fit the window is cut only where the request allows it, and the answer says how much.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ftd.api.request import CompletionRequest, Message
from ftd.chat.beside import beside
from ftd.chat.guard import Rendered
from ftd.chat.options import Options
from ftd.chat.templates import ChatTemplate
from ftd.chat.tokenizer import Tokenizer
from ftd.daemon.catalog import Catalog, Model
from ftd.errors import InvalidRequest, PromptTooLong, Unsupported

# Encoding this much takes less than the way to a thread and back
_SHORT_CHARS = 2048


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine continues. ``text`` is what people see of it.

    template: the one it was rendered with, None for a raw prompt. is_thinking: it ends inside of thinking.
    """

    ids: Sequence[int]
    text: str
    template: ChatTemplate | None = None
    is_thinking: bool = False
    truncated_messages: int = 0
    truncated_tokens: int = 0


async def build(
    catalog: Catalog, model: Model, request: CompletionRequest, options: Options, window_tokens: int
) -> Prompt:
    """Return the prompt of a request; at least one token of the window stays free for the answer."""
    if request.is_chat:
        return await _chat(model, request, window_tokens)
    prompt = await _generate(catalog, model, request)
    if len(prompt.ids) < window_tokens:
        return prompt
    if not request.truncate or request.shift is False:
        raise too_long(len(prompt.ids), window_tokens)
    return _cut_middle(prompt, options.num_keep + model.tokenizer.add_bos, window_tokens)


async def _generate(catalog: Catalog, model: Model, request: CompletionRequest) -> Prompt:
    tokenizer = model.tokenizer
    if request.raw:
        ids = await _encode(model, request.prompt)
        return Prompt(ids=ids, text=request.prompt)
    template = model.template
    if request.template:
        template = catalog.template(model.info, tokenizer, "go", request.template)
    if request.suffix:
        if "insert" not in template.capabilities:
            raise Unsupported(f"{model.info.name.full} does not support insert", "leave suffix out")
        rendered = await template.render_suffix(request.prompt, request.suffix)
    else:
        system = request.system or model.info.system
        messages: list[Message] = [{"role": "system", "content": system}] if system else []
        if not request.context:
            messages += model.info.messages
        messages.append({"role": "user", "content": request.prompt})
        rendered = await template.render(messages, think=request.think)
    if request.context:
        await asyncio.to_thread(_check_ids, tokenizer, request.context)
    ids = await _encode(model, rendered, False if request.context else None)
    return _of(rendered, [*request.context, *ids], template)


def _check_ids(tokenizer: Tokenizer, ids: Sequence[int]) -> None:
    if max(ids) >= tokenizer.vocab_size:
        raise InvalidRequest(f"context has an id outside of the vocabulary: {max(ids)}")


async def _chat(model: Model, request: CompletionRequest, window_tokens: int) -> Prompt:
    messages = _with_system(model, request.messages or ())
    tools = _shown(request.tools) or None

    async def from_message(first: int) -> Prompt:
        """The prompt without the messages before ``first``, except the system's."""
        kept = await beside(100 * first, _systems, messages[:first])
        rendered = await model.template.render([*kept, *messages[first:]], tools=tools, think=request.think)
        ids = await _encode(model, rendered)
        return replace(_of(rendered, ids, model.template), truncated_messages=first - len(kept))

    prompt = await from_message(0)
    whole_tokens = len(prompt.ids)
    if whole_tokens < window_tokens:
        return prompt
    last = len(messages) - 1
    if not request.truncate or last < 1:
        raise too_long(whole_tokens, window_tokens)
    prompt = await from_message(last)
    if len(prompt.ids) >= window_tokens:
        raise too_long(len(prompt.ids), window_tokens)
    # The smallest ``first`` that fits: fewer messages never make a longer prompt. A chat may be many times as
    # long as the window, so the search comes from the end, in steps that double, and then halves.
    low, high, step = 1, last, 1
    while low < high:
        middle = max((low + high) // 2, high - step)
        longer = await from_message(middle)
        if len(longer.ids) < window_tokens:
            prompt, high, step = longer, middle, 2 * step
        else:
            low = middle + 1
    return replace(prompt, truncated_tokens=whole_tokens - len(prompt.ids))


def _systems(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message["role"] == "system"]


def _shown(tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the tools as a model is shown them: whether one is strict is our concern, not its."""
    shown: list[Mapping[str, Any]] = []
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and "strict" in function:
            kept = {key: value for key, value in function.items() if key != "strict"}
            shown.append({**tool, "function": kept})
        else:
            shown.append(tool)
    return shown


async def _encode(model: Model, rendered: Rendered | str, add_bos: bool | None = None) -> list[int]:
    """Return the ids of a prompt; a long one is encoded beside the event loop."""
    text_len = len(rendered) if isinstance(rendered, str) else len(rendered.sealed)
    if text_len <= _SHORT_CHARS:
        return model.tokenizer.encode_rendered(rendered, add_bos)
    return await asyncio.to_thread(model.tokenizer.encode_rendered, rendered, add_bos)


def _with_system(model: Model, messages: Sequence[Message]) -> list[Message]:
    """Put the model's own messages in front, and its system text if the client brings none."""
    effective = [*model.info.messages, *messages]
    if model.info.system and messages and messages[0]["role"] != "system":
        return [{"role": "system", "content": model.info.system}, *effective]
    return effective


def _of(rendered: Rendered, ids: Sequence[int], template: ChatTemplate) -> Prompt:
    tags = template.thinking_tags
    is_thinking = tags is not None and rendered.ends_with(tags[0])
    return Prompt(ids=ids, text=rendered.text, template=template, is_thinking=is_thinking)


def _cut_middle(prompt: Prompt, num_keep: int, window_tokens: int) -> Prompt:
    """Keep the first ``num_keep`` ids and as many of the last that half of the rest stays free."""
    keep = min(max(num_keep, 0), window_tokens - 1)
    left = window_tokens - max((window_tokens - keep) // 2, 1)
    ids = [*prompt.ids[:keep], *prompt.ids[len(prompt.ids) - (left - keep) :]]
    return replace(prompt, ids=ids, truncated_tokens=len(prompt.ids) - len(ids))


def too_long(prompt_tokens: int, window_tokens: int) -> PromptTooLong:
    """Return the error for a prompt that leaves no room in the window."""
    return PromptTooLong(
        "the prompt is longer than the context length currently available to the model: "
        f"{prompt_tokens} tokens, the context length is {window_tokens}",
        "shorten the prompt, raise num_ctx, or use a model with a longer context length",
    )
