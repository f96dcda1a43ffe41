"""Chat templates: from messages to the text of a prompt, whatever the template's language and moods.

A template is probed once with a few tiny conversations (its *traits*), so that messages which it would drop
in silence or misprint are given to it in a shape that it prints. When it refuses a conversation (say, for the
order of its roles), the conversation is bent, step by step, until it is taken: a legal one never fails.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from ftd.chat import conversation, mentions
from ftd.chat.beside import beside
from ftd.chat.conversation import Message
from ftd.chat.guard import Guard, Rendered, choose_seal, glues
from ftd.chat.renderer import Renderer, TemplateRefused
from ftd.errors import InvalidTemplate

# Opening and closing texts of thinking, most common first
THINKING_TAGS = (
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<mm:think>", "</mm:think>"),
)
DEFAULT_GO = "{{ .Prompt }}"
_LEVELS = {"max": "high"}


class Traits(msgspec.Struct, frozen=True):
    """What probing found out about a template; True is the well-behaved answer."""

    plain_content: bool = True  # content may be a string; otherwise a list of parts
    system: bool = True  # a system message at the front is printed
    lone_system: bool = True  # one without any other message too
    late_system: bool = True  # one in the middle too
    developer: bool = True  # role developer is printed
    tool_calls: bool = True  # calls of assistant messages are printed
    tool_results: bool = True  # messages of role tool are printed
    no_tools: bool = True  # tools may be none; otherwise they are an empty list
    object_arguments: bool = True  # arguments as an object come out as JSON; otherwise they are given as text


class ChatTemplate:
    """One template of one model. ``kind`` is ``jinja``, ``go`` or ``none`` (the prompt as it is).

    control: texts that user text must not turn into tokens (``Tokenizer.control_texts(source)``).
    Owned by the model's entry in the daemon; the Renderer is shared by all and outlives it.
    """

    def __init__(
        self,
        source: str,
        renderer: Renderer,
        *,
        kind: str = "jinja",
        bos_token: str = "",
        eos_token: str = "",
        control: frozenset[str] = frozenset(),
    ) -> None:
        self.kind = "go" if kind == "none" else kind
        self.source = source if kind != "none" else DEFAULT_GO
        self._renderer = renderer
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._control = control
        self._traits: Traits | None = None
        self._guard: Guard | None = None

    @property
    def capabilities(self) -> frozenset[str]:
        """``tools``, ``thinking`` and ``insert`` as far as the template has them."""
        return frozenset(template_capabilities(self.kind, self.source))

    @property
    def thinking_tags(self) -> tuple[str, str] | None:
        """The texts around thinking, None if the template knows none."""
        return thinking_tags(self.kind, self.source)

    async def check(self) -> None:
        """Raise InvalidTemplate unless the template parses."""
        await check_template(self._renderer, self.kind, self.source)

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        think: bool | str | None = None,
        **extra: Any,
    ) -> Rendered:
        """Return the prompt of a conversation; raise InvalidTemplate, or InvalidRequest for bad messages.

        A last message of the assistant is continued. ``think`` False closes thinking that a template opens.
        ``extra`` are further variables of Jinja templates.
        """
        guard, traits = await self._learn()
        request = _Request(messages, tools, add_generation_prompt, think, extra)
        num_chars = num_chars_of(messages, tools or ())
        shaped = await beside(num_chars, self._shaped, request, guard, traits)
        text = await self._render_bent(shaped, traits, num_chars)
        rendered = Rendered(text, shaped.seal, self._control)
        return await beside(num_chars, self._finish, rendered, guard, shaped.start, think)

    def _shaped(self, request: "_Request", guard: Guard, traits: Traits) -> "_Shaped":
        prepared = conversation.prepare(request.messages)
        last = prepared[-1] if prepared else None
        start = None
        if (
            request.add_generation_prompt
            and last
            and last["role"] == "assistant"
            and not last.get("tool_calls")
        ):
            start = prepared.pop()
        seal = choose_seal(prepared, start, list(request.tools or ()), request.extra)
        no_tools: list[Any] | None = None if traits.no_tools else []
        tools = [guard.seal_value(dict(tool), seal) for tool in request.tools or ()] or no_tools
        variables = {
            "tools": tools,
            "documents": None,
            "add_generation_prompt": request.add_generation_prompt,
            **_think_variables(request.think),
            **self._tokens,
            **guard.seal_value(request.extra, seal),
        }
        if self.kind == "go":
            variables["think"] = request.think
        return _Shaped(
            [_sealed_message(message, guard, seal) for message in prepared], start, variables, seal
        )

    async def render_suffix(self, prompt: str, suffix: str) -> Rendered:
        """Return the prompt of a fill-in-the-middle request (Go templates with ``.Suffix``)."""
        if "insert" not in self.capabilities:
            raise InvalidTemplate("template has no place for a suffix")
        guard, _ = await self._learn()
        num_chars = len(prompt) + len(suffix)
        seal = choose_seal(prompt, suffix)
        variables = {"prompt": guard.seal(prompt, seal), "suffix": guard.seal(suffix, seal)}
        return Rendered(await self._run(variables, seal, num_chars), seal, self._control)

    def _finish(
        self, rendered: Rendered, guard: Guard, start: Message | None, think: bool | str | None
    ) -> Rendered:
        tags = self.thinking_tags
        is_open = tags is not None and rendered.ends_with(tags[0])
        if tags and is_open and start and start.get("thinking"):
            thinking = guard.seal_assistant(start["thinking"], rendered.seal)
            rendered, is_open = rendered.plus(f"\n{thinking.strip()}\n{tags[1]}\n\n"), False
        if tags and is_open and (think is False or (start and start["content"])):
            rendered = rendered.plus(f"\n{tags[1]}\n\n")
        return rendered.plus(guard.seal_assistant(start["content"], rendered.seal)) if start else rendered

    async def _render_bent(self, shaped: "_Shaped", traits: Traits, num_chars: int) -> str:
        """Render the first form of the conversation that the template takes."""
        first: TemplateRefused | None = None
        forms = _distinct(_forms(shaped.messages, traits))
        while bent := await beside(num_chars, next, forms, None):
            messages = await beside(num_chars, _shown, bent[0], traits)
            try:
                variables = shaped.variables | {"messages": messages}
                return await self._run(variables, shaped.seal, num_chars)
            except TemplateRefused as exc:
                first = first or exc
        assert first is not None
        raise first

    async def _run(self, variables: dict[str, Any], seal: str = "", num_chars: int = 0) -> str:
        return await self._renderer.render(self.kind, self.source, variables, seal, num_chars)

    async def _learn(self) -> tuple[Guard, Traits]:
        """Return guard and traits of the template, found out on first use."""
        if self._guard is None or self._traits is None:
            literals = await self._renderer.literals(self.kind, self.source)
            self._guard = Guard(self._control, glues(literals, self._control))
            self._traits = await self._probe() if self.kind == "jinja" else Traits()
        return self._guard, self._traits

    async def _probe(self) -> Traits:
        user: Message = {"role": "user", "content": "ndl-user"}
        system = {"role": "system", "content": "ndl-system"}
        call = {
            "id": "call00000",
            "type": "function",
            "function": {"name": "ndl_call", "arguments": {"ndl_key": "ndl_value"}},
        }
        calls: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
        result = {"role": "tool", "content": "ndl-result", "name": "ndl_call", "tool_call_id": "call00000"}
        answer = {"role": "assistant", "content": "ndl-answer"}
        traits = Traits()
        candidates = (
            traits,
            replace(traits, plain_content=False),
            replace(traits, no_tools=False),
            replace(traits, plain_content=False, no_tools=False),
        )
        for candidate in candidates:
            if "ndl-user" in await self._probed([user], candidate):
                traits = candidate
                break
        developer = {"role": "developer", "content": "ndl-developer"}
        late = {"role": "system", "content": "ndl-late"}
        several = await self._probed([system, user, answer, late, user], traits)
        traits = replace(
            traits,
            system="ndl-system" in await self._probed([system, user], traits),
            lone_system="ndl-system" in await self._probed([system], traits),
            late_system=all(text in several for text in ("ndl-system", "ndl-late")),
            developer="ndl-developer" in await self._probed([developer, user], traits),
        )
        turns = [user, calls, result, answer, user]
        text = await self._probed(turns, traits)
        if "ndl_value" not in text or "'ndl_key'" in text:
            as_text = replace(traits, object_arguments=False)
            other = await self._probed(turns, as_text)
            if "ndl_value" in other:
                traits, text = as_text, other
        return replace(traits, tool_calls="ndl_value" in text, tool_results="ndl-result" in text)

    async def _probed(self, messages: list[Message], traits: Traits) -> str:
        """Render a probe; nothing if the template fails on it."""
        variables: dict[str, Any] = {"documents": None, "add_generation_prompt": True, **self._tokens}
        variables["tools"] = None if traits.no_tools else []
        try:
            return await self._run(variables | {"messages": _shown(messages, traits)})
        except TemplateRefused:
            return ""


class _Request(NamedTuple):
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    add_generation_prompt: bool
    think: bool | str | None
    extra: dict[str, Any]


class _Shaped(NamedTuple):
    """What a template gets; ``start``: of an answer that is continued."""

    messages: list[Message]
    start: Message | None
    variables: dict[str, Any]
    seal: str


def num_chars_of(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = ()) -> int:
    """Return about how much text a conversation has, or what takes as long."""
    texts = (message.get("content") for message in messages)
    return sum(len(text) for text in texts if isinstance(text, str)) + 100 * len(messages) + 1000 * len(tools)


def _distinct(forms: Iterator[list[Message]]) -> Iterator[tuple[list[Message]]]:
    tried: list[list[Message]] = []
    for bent in forms:
        if bent not in tried:
            tried.append(bent)
            yield (bent,)


def _forms(messages: list[Message], traits: Traits) -> Iterator[list[Message]]:
    """Yield the conversation as it is (for these traits), then ever more bent."""
    steps: list[Callable[[Sequence[Message]], list[Message]]] = []
    if not traits.developer:
        steps.append(conversation.developer_as_system)
    if not (traits.tool_calls and traits.tool_results):
        steps.append(conversation.tools_as_text)
    is_lone = all(message["role"] in ("system", "developer") for message in messages)
    if not traits.system or (is_lone and not traits.lone_system):
        steps.append(conversation.system_into_user)
    elif not traits.late_system:
        steps.append(conversation.system_first)
    for step in steps:
        messages = step(messages)
    yield messages
    for step in (
        conversation.system_first,
        conversation.alternating,
        conversation.short_ids,
        conversation.system_into_user,
        conversation.alternating,
        conversation.tools_as_text,
        conversation.alternating,
    ):
        messages = step(messages)
        yield messages


def _shown(messages: list[Message], traits: Traits) -> list[Message]:
    """Return the messages with content and arguments in the types that the template wants."""
    shown = []
    for message in messages:
        copy = dict(message)
        if not traits.plain_content:
            copy["content"] = [{"type": "text", "text": message["content"]}]
        if "tool_calls" in copy and not traits.object_arguments:
            copy["tool_calls"] = [
                call | {"function": call["function"] | {"arguments": _json(call["function"]["arguments"])}}
                for call in copy["tool_calls"]
            ]
        shown.append(copy)
    return shown


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _sealed_message(message: Message, guard: Guard, seal: str) -> Message:
    sealed: Message = guard.seal_value(message, seal)
    if message["role"] == "assistant":
        for key in ("content", "thinking", "reasoning_content"):
            if key in message:
                sealed[key] = guard.seal_assistant(message[key], seal)
    if message["role"] in conversation.ROLES:
        sealed["role"] = message["role"]
    for call in sealed.get("tool_calls", ()):
        call["type"] = "function"
    return sealed


def _think_variables(think: bool | str | None) -> dict[str, Any]:
    """Return the variables by which the various templates are told to think or not."""
    if think is None:
        return {}
    variables: dict[str, Any] = {"enable_thinking": bool(think), "thinking": bool(think)}
    if isinstance(think, str):
        variables["reasoning_effort"] = _LEVELS.get(think, think)
    return variables


def template_capabilities(kind: str, source: str) -> tuple[str, ...]:
    """Return the capabilities that a template's text shows, in the order tools, insert, thinking."""
    if kind == "go":
        return mentions.of_go(source).capabilities
    if kind != "jinja":
        return ()
    tools = ("tools",) if "tools" in source or "tool_call" in source else ()
    return (*tools, "thinking") if thinking_tags(kind, source) or "reasoning_effort" in source else tools


def thinking_tags(kind: str, source: str) -> tuple[str, str] | None:
    """Return the opening and closing text of thinking that a template mentions, None if it mentions none."""
    if kind == "go":
        return mentions.of_go(source).thinking_tags
    return next((tags for tags in THINKING_TAGS if tags[0] in source and tags[1] in source), None)


async def check_template(renderer: Renderer, kind: str, source: str) -> None:
    """Raise InvalidTemplate unless ``source`` parses; the parsing is done in the worker."""
    if kind != "none":
        await renderer.literals(kind, source)
