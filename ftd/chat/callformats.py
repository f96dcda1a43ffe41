"""How the families mark tool calls in what they write, found out from the template.

    opening tag … closer tag … closer ending        tag and closer stand around each call,
                                                    opening and ending around all of them
    <tool_call>{…}</tool_call>                      Hermes, Qwen, Granite 4; SEED, MiniMax, DeepSeek alike
    [TOOL_CALLS]f[ARGS]{…}   [TOOL_CALLS][{…}]      Mistral; without a closer the call ends with its JSON
    {…}                                             Llama 3, anything else: an answer that begins with it
    <|channel|>commentary to=functions.f …          gpt-oss; ``ftd.chat.harmony`` reads it

``ftd.chat.callbodies`` reads what stands between the marks, ``ftd.chat.callgrammar`` writes grammars of it.
"""

import re

import msgspec

from ftd.chat import mentions
from ftd.chat.callbodies import Body

_GO_KEY = re.compile(r'"(arguments|parameters)":\s*\{\{')
_SUFFIXED = re.compile(r"'(:\w{1,40})'")


class CallFormat(msgspec.Struct, frozen=True):
    """``tag`` opens a call (``{``: a bare object that begins the answer), ``closer`` ends it if known.

    opening, ending: what stands around all calls of an answer. separator: between name and arguments
    (``named``). key: what the arguments are called (``json``). is_list: calls are items of a JSON list.
    """

    tag: str = "{"
    closer: str = ""
    body: Body = "json"
    opening: str = ""
    ending: str = ""
    separator: str = ""
    key: str = "arguments"
    is_list: bool = False

    @property
    def is_bare(self) -> bool:
        """True when nothing but the JSON itself tells a call from text."""
        return self.tag in ("{", "[")

    @property
    def is_harmony(self) -> bool:
        """True when calls, thinking and content are channels of one format."""
        return self.body == "harmony"

    @property
    def marks(self) -> str:
        """All texts that a parser looks for, one after the other: tokens among them must not be hidden."""
        if self.is_harmony:
            return "<|start|><|channel|><|message|><|constrain|><|end|><|call|><|return|>"
        inner = {
            "named": self.separator,
            "gemma": '<|"|>',
            "pairs": "<arg_key></arg_key><arg_value></arg_value>",
            "xml": "<function=</function><parameter=</parameter>",
        }
        extra = "<|python_tag|>" if self.is_bare else "[ARGS][CALL_ID]" if self.tag == "[TOOL_CALLS]" else ""
        return "".join((self.opening, self.tag, self.closer, self.ending, extra, inner.get(self.body, "")))


HARMONY = CallFormat("<|channel|>", body="harmony")
_XML = "<tool_call>", "</tool_call>", "xml"
_DEEPSEEK = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "named"
_DEEPSEEK_SECTION = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_KIMI_SECTION = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"

# Texts that a template mentions, all of them -> the format; the first row that fits counts
_ROWS: tuple[tuple[tuple[str, ...], CallFormat], ...] = (
    (("<|channel|>", "<|message|>"), HARMONY),
    (
        ("｜DSML｜", "function_calls>"),
        CallFormat(
            "<｜DSML｜invoke name=",
            "</｜DSML｜invoke>",
            "xml",
            "<｜DSML｜function_calls>",
            "</｜DSML｜function_calls>",
        ),
    ),
    (
        ("｜DSML｜",),
        CallFormat(
            "<｜DSML｜invoke name=",
            "</｜DSML｜invoke>",
            "xml",
            "<｜DSML｜tool_calls>",
            "</｜DSML｜tool_calls>",
        ),
    ),
    (
        ("<minimax:tool_call>",),
        CallFormat("<invoke name=", "</invoke>", "xml", "<minimax:tool_call>", "</minimax:tool_call>"),
    ),
    (
        ("<atem:invoke",),
        CallFormat(
            "<atem:invoke name=",
            "</atem:invoke>",
            "xml",
            "<atem:function_calls>",
            "</atem:function_calls>",
        ),
    ),
    (
        ("<｜tool▁call▁begin｜>", "```json"),
        CallFormat(*_DEEPSEEK, *_DEEPSEEK_SECTION, separator="function<｜tool▁sep｜>"),  # type: ignore[arg-type]
    ),
    (
        ("<｜tool▁call▁begin｜>",),
        CallFormat(*_DEEPSEEK, *_DEEPSEEK_SECTION, separator="<｜tool▁sep｜>"),  # type: ignore[arg-type]
    ),
    (
        ("<|tool_call_begin|>",),
        CallFormat(
            "<|tool_call_begin|>",
            "<|tool_call_end|>",
            "named",
            *_KIMI_SECTION,
            separator="<|tool_call_argument_begin|>",
        ),
    ),
    (
        ("<|tool_call:begin|>",),
        CallFormat(
            "<|tool_call:begin|>",
            "<|tool_call:end|>",
            "named",
            "<|tool_calls|>",
            separator="<|tool_call:args|>",
        ),
    ),
    (("<seed:tool_call>",), CallFormat("<seed:tool_call>", "</seed:tool_call>", "xml")),
    (("<tool_call>", "<function="), CallFormat(*_XML)),  # type: ignore[arg-type]
    (("<tool_call>", "<arg_key>"), CallFormat("<tool_call>", "</tool_call>", "pairs")),
    (("<|tool_call_start|>",), CallFormat("<|tool_call_start|>", "<|tool_call_end|>", "python")),
    (("<|tool_list_start|>",), CallFormat("<|tool_call_start|>", "<|tool_call_end|>", "python")),
    (("<|tool_call>", "<tool_call|>"), CallFormat("<|tool_call>", "<tool_call|>", "gemma")),
    (("<|START_ACTION|>",), CallFormat("<|START_ACTION|>", "<|END_ACTION|>", key="parameters", is_list=True)),
    (("<|tools_prefix|>",), CallFormat("<|tools_prefix|>", "<|tools_suffix|>", key="", is_list=True)),
    (("<TOOLCALL>",), CallFormat("<TOOLCALL>", "</TOOLCALL>", is_list=True)),
    (("<tool_calls>[",), CallFormat("<tool_calls>", "</tool_calls>", is_list=True)),
    (("<tool_call>",), CallFormat("<tool_call>", "</tool_call>")),
    (("<tool_calls>",), CallFormat("<tool_calls>", "</tool_calls>")),
    (("[TOOL_CALLS]", "[ARGS]"), CallFormat("[TOOL_CALLS]", separator="[ARGS]")),
    (("[TOOL_CALLS]",), CallFormat("[TOOL_CALLS]", is_list=True)),
    (("<|tool_call|>",), CallFormat("<|tool_call|>", is_list=True)),
    (("<|function_call|>",), CallFormat("<|function_call|>")),
    (("function call<|role_sep|>",), CallFormat("function call<|role_sep|>")),
    (("functools[",), CallFormat("functools", is_list=True)),
    (("<function name=",), CallFormat("<function name=", "</function>", "xml")),
    (("<function=",), CallFormat("<function=", "</function>", "xml", separator=">")),
    (('"parameters": ',), CallFormat(key="parameters")),
)


def call_format(kind: str, source: str) -> CallFormat:
    """Return the format that a template (``jinja`` or ``go``) writes calls in, so its model will too."""
    if kind == "go":
        return _go_format(source)
    if "arg_key" in source and "tool_sep" in source and (suffix := _SUFFIXED.search(source)):
        # Hunyuan: a suffix in all marks
        return CallFormat(
            f"<tool_call{suffix[1]}>",
            f"</tool_call{suffix[1]}>",
            "pairs",
            f"<tool_calls{suffix[1]}>",
            f"</tool_calls{suffix[1]}>",
        )
    for texts, found in _ROWS:
        if all(text in source for text in texts):
            return found
    return CallFormat()


def _go_format(source: str) -> CallFormat:
    if "<|channel|>" in source and "<|message|>" in source:
        return HARMONY
    tag = mentions.of_go(source).call_tag
    if tag is None:
        return CallFormat()
    key = _GO_KEY.search(source)
    is_list = tag.endswith("[") or tag in ("[TOOL_CALLS]", "<|tool_call|>")
    closer = "" if tag == "[TOOL_CALLS]" else _closer(tag)
    return CallFormat(tag, closer, key=key[1] if key else "arguments", is_list=is_list)


def _closer(tag: str) -> str:
    """Guess what ends a call that ``tag`` begins: ``</x>`` for ``<x>``, ``[/X]`` for ``[X]``."""
    if re.fullmatch(r"<\w+>", tag):
        return f"</{tag[1:]}"
    return f"[/{tag[1:]}" if re.fullmatch(r"\[\w+\]", tag) else ""
