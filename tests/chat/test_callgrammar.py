"""Grammars of calls: each takes what its family's template prints, and all it allows reads back as calls."""

import random
import re
from typing import Any

import llguidance
import pytest
from call_texts import FAMILIES, TOOLS, expected
from examples import examples

from ftd.chat.callformats import HARMONY, CallFormat, call_format
from ftd.chat.callgrammar import ToolChoice, needs_grammar, tool_grammar
from ftd.chat.harmony import HarmonyParser
from ftd.chat.toolcalls import ToolCallParser
from ftd.errors import InvalidOption

STRICT = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
SPECIAL = re.compile(r"<\|[^|<>]*\|>|<｜[^｜<>]*｜>|｜DSML｜|\[[A-Z_]+\]|<\|tool_call>|<tool_call\|>")
HARMONY_TEXTS = (
    '<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{"extra": 1}',
    "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.ping"
    " <|constrain|>json<|message|>{}",
    " to=functions.ping<|channel|>commentary json<|message|>{}",
)
ENUM = {
    "type": "function",
    "function": {
        "name": "set_unit",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"unit": {"enum": ["kelvin"]}, "on": {"type": "boolean"}},
            "required": ["unit", "on"],
            "additionalProperties": False,
        },
    },
}


class Vocabulary:
    """The bytes, the special tokens that a format writes, and an end."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, marks: str) -> None:
        self.special = {text: 256 + idx for idx, text in enumerate(dict.fromkeys(SPECIAL.findall(marks)))}
        self.tokens = [*(bytes([byte]) for byte in range(256)), *map(str.encode, self.special), b"<eos>"]
        self.eos_token_id = len(self.tokens) - 1
        self.special_token_ids = list(range(256, len(self.tokens)))
        self._pattern = re.compile("(" + "|".join(map(re.escape, [*self.special, "\0"])) + ")")
        self.library = llguidance.LLTokenizer(self, n_vocab=len(self.tokens), eos_token=[self.eos_token_id])  # type: ignore[arg-type]

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text, special tokens in it being such."""
        parts = filter(None, self._pattern.split(text))
        return [
            i for part in parts for i in ([self.special[part]] if part in self.special else part.encode())
        ]


def walker(
    form: CallFormat, choice: ToolChoice, tools: list[dict[str, Any]] | None = None
) -> tuple[Vocabulary, llguidance.LLMatcher]:
    vocabulary = Vocabulary(form.marks)
    grammar = tool_grammar(form, tools or STRICT, choice, vocabulary.special)
    matcher = llguidance.LLMatcher(vocabulary.library, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return vocabulary, matcher


def allowed(matcher: llguidance.LLMatcher, count: int) -> list[int]:
    mask = matcher.compute_bitmask()
    assert not matcher.is_error(), matcher.get_error()
    return [token for token in range(count) if mask[token // 8] >> (token % 8) & 1]


def takes(vocabulary: Vocabulary, matcher: llguidance.LLMatcher, text: str) -> bool:
    """Feed a text; return whether all of it is allowed and it may end there."""
    for token in vocabulary.ids(text):
        if token not in allowed(matcher, len(vocabulary.tokens)):
            return False
        matcher.consume_token(token)
    return matcher.is_stopped() or vocabulary.eos_token_id in allowed(matcher, len(vocabulary.tokens))


CLOSERS = (
    *("</parameter>", "</param>", "</arg_value>", "</arg_value:opensource>", "</｜DSML｜parameter>", '<|"|>'),
    *('"', "'", "}", "]", ")", "<|end|>"),
)


def random_text(vocabulary: Vocabulary, matcher: llguidance.LLMatcher, source: random.Random) -> str:
    """Return a text of the grammar; what grows long is closed."""
    ids: list[int] = []
    while not matcher.is_stopped():
        choices = allowed(matcher, len(vocabulary.tokens))
        if vocabulary.eos_token_id in choices and source.random() < 0.5:
            break
        closers = [
            tokens
            for tokens in map(vocabulary.ids, CLOSERS)
            if matcher.validate_tokens(tokens) == len(tokens)
        ]
        if closers and len(ids) > 150:
            chosen = source.choice(closers)
        else:
            usual = [token for token in choices if 32 <= token < 127 or 255 < token < vocabulary.eos_token_id]
            chosen = [source.choice(usual or choices)]
        ids += chosen
        assert matcher.consume_tokens(chosen) and len(ids) < 3000
    return b"".join(vocabulary.tokens[token] for token in ids).decode("utf-8", "replace")


def calls_of(form: CallFormat, text: str) -> tuple[list[tuple[str, dict[str, Any]]], str]:
    parser = HarmonyParser(TOOLS) if form.is_harmony else ToolCallParser(form, [*TOOLS, ENUM])
    first, last = parser.push(text), parser.flush()
    calls = [(call.name, call.arguments) for call in [*first.calls, *last.calls]]
    return calls, first.content + last.content


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("is_forced", [True, False])
def test_what_templates_print_is_allowed(family: str, is_forced: bool) -> None:
    source, text = FAMILIES[family]
    form = call_format("jinja", source)
    before = "" if is_forced or form.is_bare else "Let me see. "
    assert takes(*walker(form, ToolChoice(is_forced=is_forced)), before + text)


@pytest.mark.parametrize("text", HARMONY_TEXTS)
def test_channels_are_allowed(text: str) -> None:
    loose = [
        TOOLS[0],
        {"type": "function", "function": {"name": "ping", "parameters": {"additionalProperties": True}}},
    ]
    assert takes(*walker(HARMONY, ToolChoice(is_forced=True), loose), text)
    assert calls_of(HARMONY, text)[0][0][0] == "ping"


@pytest.mark.parametrize("family", [*FAMILIES, "harmony"])
def test_all_that_is_allowed_is_calls(family: str) -> None:
    """TOOL-6: names are declared ones, arguments are of their types, wherever chance leads."""
    form = HARMONY if family == "harmony" else call_format("jinja", FAMILIES[family][0])
    for seed in range(examples(10)):
        source = random.Random(seed)
        choice = ToolChoice(is_forced=True, is_parallel=seed % 2 == 0)
        text = random_text(*walker(form, choice), source)
        calls, content = calls_of(form, text)
        assert calls and not content.strip(), (seed, text)
        assert choice.is_parallel or len(calls) == 1
        for name, arguments in calls:
            assert (name, arguments) == ("ping", {}) or (
                name == "get_weather"
                and isinstance(arguments["city"], str)
                and type(arguments.get("days", 1)) is int
            ), text


@pytest.mark.parametrize("family", [*FAMILIES, "harmony"])
def test_tool_6_an_enum_is_enforced(family: str) -> None:
    form = HARMONY if family == "harmony" else call_format("jinja", FAMILIES[family][0])
    for seed in range(2):
        text = random_text(
            *walker(form, ToolChoice(is_forced=True, is_parallel=False), [ENUM]), random.Random(seed)
        )
        parser = HarmonyParser([ENUM]) if form.is_harmony else ToolCallParser(form, [ENUM])
        (call,) = parser.push(text).calls + parser.flush().calls
        assert call.name == "set_unit" and call.arguments["unit"] == "kelvin"
        assert type(call.arguments["on"]) is bool and call.arguments.keys() == {"unit", "on"}


@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_call_the_answer_is_free(family: str) -> None:
    form = call_format("jinja", FAMILIES[family][0])
    assert takes(*walker(form, ToolChoice()), "Just text: <b>, [1], `x` and so on.\n")
    vocabulary, matcher = walker(form, ToolChoice(is_forced=True))
    assert not takes(vocabulary, matcher, "Just text")


def test_a_named_tool_is_the_only_one() -> None:
    form = call_format("jinja", "<tool_call>")
    choice = ToolChoice(is_forced=True, names=("ping",), is_parallel=False)
    assert takes(*walker(form, choice), '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>')
    assert not takes(*walker(form, choice), '<tool_call>\n{"name": "get')


def test_loose_tools_are_bound_in_forced_calls_only() -> None:
    form = call_format("jinja", "<tool_call>")
    wrong = '<tool_call>\n{"name": "get_weather", "arguments": {"city": 7}}\n</tool_call>'
    assert not takes(*walker(form, ToolChoice(is_forced=True), TOOLS), wrong)
    mixed = [TOOLS[0], STRICT[1]]
    assert takes(*walker(form, ToolChoice(), mixed), wrong)


def test_when_a_grammar_is_needed() -> None:
    assert not needs_grammar(TOOLS, ToolChoice())
    assert needs_grammar(STRICT, ToolChoice())
    assert needs_grammar(TOOLS, ToolChoice(is_forced=True))
    assert not needs_grammar([], ToolChoice())


def test_a_schema_that_cannot_be_used() -> None:
    """A strict tool is refused; a loose one takes any object."""
    bad = {"name": "bad", "parameters": {"type": "object", "properties": {"a": {"type": "nonsense"}}}}
    form = call_format("jinja", "<tool_call>")
    with pytest.raises(InvalidOption, match="schema of tool bad"):
        tool_grammar(form, [{"type": "function", "function": bad | {"strict": True}}], ToolChoice(), {})
    text = '<tool_call>\n{"name": "bad", "arguments": {"a": [1]}}\n</tool_call>'
    tools = [{"type": "function", "function": bad}]
    assert takes(*walker(form, ToolChoice(is_forced=True), tools), text)


def test_schemas_that_are_too_long_together() -> None:
    long = {"type": "object", "properties": {"a": {"type": "string", "description": "x" * 40_000}}}
    tools = [{"type": "function", "function": {"name": f"t{n}", "parameters": long}} for n in range(3)]
    grammar = tool_grammar(call_format("jinja", "<tool_call>"), tools, ToolChoice(is_forced=True), {})
    assert len(grammar) < 100_000


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_read_back_for_every_cut(family: str) -> None:
    """TOOL-3: the stream is the whole; text before and after, types, a call without arguments."""
    source, text = FAMILIES[family]
    form = call_format("jinja", source)
    before = "" if form.is_bare else "One moment. "
    whole = f"{before}{text}\nDone."
    wanted = (before + "Done.", expected(family))

    def read(pieces: list[str]) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
        parser = ToolCallParser(form, TOOLS)
        parts = [*map(parser.push, pieces), parser.flush()]
        calls = [(call.name, call.arguments) for part in parts for call in part.calls]
        return "".join(part.content for part in parts), calls

    assert read([whole]) == wanted
    assert read(list(whole)) == wanted
    for cut in range(len(whole)):
        assert read([whole[:cut], whole[cut:]]) == wanted


def _strict(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}]


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_refer_to_the_whole_schema(family: str) -> None:
    """A tree is a schema whose parts name the root: arguments that are written alone know it too."""
    tree = {
        "type": "object",
        "properties": {
            "leaf": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
            "twin": {"$ref": "#/properties/leaf"},
            "kids": {"type": "array", "items": {"$ref": "#"}},
        },
        "required": ["leaf", "twin"],
        "additionalProperties": False,
    }
    form = call_format("jinja", FAMILIES[family][0])
    vocabulary, matcher = walker(form, ToolChoice(is_forced=True), _strict(tree))
    for seed in range(3):
        assert matcher.reset()
        text = random_text(vocabulary, matcher, random.Random(seed))
        assert "twin" in text, text


@pytest.mark.parametrize("family", ["hermes, qwen", "qwen3-coder"])
def test_tools_nested_too_deeply_are_refused(family: str) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(900):
        schema = {"type": "object", "properties": {"a": schema}}
    form = call_format("jinja", FAMILIES[family][0])
    with pytest.raises(InvalidOption, match="too deeply"):
        tool_grammar(form, _strict(schema), ToolChoice(is_forced=True), {})


def test_an_argument_that_can_have_no_value_is_refused_where_it_is_written_alone() -> None:
    empty = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 2, "maximum": 1}}}
    tag = call_format("jinja", FAMILIES["qwen3-coder"][0])
    with pytest.raises(InvalidOption, match=r"tools f: no value satisfies it: minimum \(2\).*\(1\)$"):
        tool_grammar(tag, _strict(empty), ToolChoice(is_forced=True), {})
    walker(
        call_format("jinja", FAMILIES["hermes, qwen"][0]), ToolChoice(is_forced=True), _strict(empty)
    )  # there it can be left out
