"""Two tool calls as each family writes them, in the form that its own chat template prints them.

``FAMILIES``: name -> (texts of the template that tell the family, the answer). Every answer calls
``get_weather(city='Oslo, "N"', days=3)`` and, unless the family writes one call only, ``ping()``.
"""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "d",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "ping", "description": "d", "parameters": {"type": "object"}}},
]
CALLS = [("get_weather", {"city": 'Oslo, "N"', "days": 3}), ("ping", {})]
_ARGUMENTS = r'{"city": "Oslo, \"N\"", "days": 3}'
_CALL = f'{{"name": "get_weather", "arguments": {_ARGUMENTS}}}'
_PING = '{"name": "ping", "arguments": {}}'
_TWO = f"[{_CALL}, {_PING}]"


def _tagged(begin: str, end: str) -> str:
    return f"{begin}{_CALL}{end}\n{begin}{_PING}{end}"


def _xml(begin: str, end: str, blank: str = "\n") -> str:
    city, days = f'{blank}Oslo, "N"{blank}', f"{blank}3{blank}"
    return (
        f"{begin}\n<function=get_weather>\n<parameter=city>{city}</parameter>\n"
        f"<parameter=days>{days}</parameter>\n</function>\n{end}\n"
        f"{begin}\n<function=ping>\n</function>\n{end}"
    )


def _invoke(section: str, p: str, kinds: tuple[str, str] = ("", "")) -> str:
    return (
        f"<{section}>\n"
        f'<{p}invoke name="get_weather">\n<{p}parameter name="city"{kinds[0]}>Oslo, "N"</{p}parameter>\n'
        f'<{p}parameter name="days"{kinds[1]}>3</{p}parameter>\n</{p}invoke>\n'
        f'<{p}invoke name="ping">\n</{p}invoke>\n'
        f"</{section}>"
    )


def _pairs(suffix: str, sep: str, blank: str) -> str:
    return (
        f"<tool_call{suffix}>get_weather{sep}{blank}<arg_key{suffix}>city</arg_key{suffix}>{blank}"
        f'<arg_value{suffix}>Oslo, "N"</arg_value{suffix}>{blank}'
        f"<arg_key{suffix}>days</arg_key{suffix}>{blank}"
        f"<arg_value{suffix}>3</arg_value{suffix}>{blank}</tool_call{suffix}>\n"
        f"<tool_call{suffix}>ping{sep}{blank}</tool_call{suffix}>"
    )


def _deepseek(*calls: str) -> str:
    inner = "".join(f"<｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>" for call in calls)
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


_COHERE = (
    '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": '
    f'{_ARGUMENTS}}},\n    {{"tool_call_id": "1", "tool_name": "ping", "parameters": {{}}}}\n]<|END_ACTION|>'
)
_KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    f"{_ARGUMENTS}<|tool_call_end|><|tool_call_begin|>functions.ping:1<|tool_call_argument_begin|>{{}}"
    "<|tool_call_end|><|tool_calls_section_end|>"
)
_SOLAR = (
    "<|tool_calls|><|tool_call:begin|>call0<|tool_call:name|>get_weather<|tool_call:args|>"
    f"{_ARGUMENTS}<|tool_call:end|><|tool_call:begin|>call1<|tool_call:name|>ping<|tool_call:args|>{{}}"
    "<|tool_call:end|>"
)
_HUNYUAN = (
    "<tool_calls:opensource>\n"
    + _pairs(":opensource", "<tool_sep:opensource>", "\n")
    + "\n</tool_calls:opensource>"
)

FAMILIES: dict[str, tuple[str, str]] = {
    "hermes, qwen": ("<tool_call>", _tagged("<tool_call>\n", "\n</tool_call>")),
    "qwen3-coder": ("<tool_call> <function=", _xml("<tool_call>", "</tool_call>")),
    "seed": ("<seed:tool_call> <function=", _xml("<seed:tool_call>", "</seed:tool_call>", "")),
    "glm-4.6": ("<tool_call> <arg_key>", _pairs("", "", "\n")),
    "glm-4.7": ("<tool_call> <arg_key>", _pairs("", "", "")),
    "hunyuan": ("':opensource' arg_key tool_sep", _HUNYUAN),
    "mistral, old": ("[TOOL_CALLS]", f"[TOOL_CALLS]{_TWO}"),
    "mistral": (
        "[TOOL_CALLS] [ARGS]",
        f"[TOOL_CALLS]get_weather[ARGS]{_ARGUMENTS}[TOOL_CALLS]ping[ARGS]{{}}",
    ),
    "granite 3": ("<|tool_call|>", f"<|tool_call|>{_TWO}"),
    "llama 3": ('"parameters": ', _CALL.replace("arguments", "parameters")),
    "deepseek r1": (
        "<｜tool▁call▁begin｜> ```json",
        _deepseek(
            f"function<｜tool▁sep｜>get_weather\n```json\n{_ARGUMENTS}\n```",
            "function<｜tool▁sep｜>ping\n```json\n{}\n```",
        ),
    ),
    "deepseek v3.1": (
        "<｜tool▁call▁begin｜>",
        _deepseek(f"get_weather<｜tool▁sep｜>{_ARGUMENTS}", "ping<｜tool▁sep｜>{}"),
    ),
    "deepseek v3.2": (
        "｜DSML｜ function_calls>",
        _invoke("｜DSML｜function_calls", "｜DSML｜", (' string="true"', ' string="false"')),
    ),
    "deepseek v4": (
        "｜DSML｜ tool_calls>",
        _invoke("｜DSML｜tool_calls", "｜DSML｜", (' string="true"', ' string="false"')),
    ),
    "minimax m1": ("<tool_calls>", f"<tool_calls>\n{_CALL}\n{_PING}\n</tool_calls>"),
    "minimax m2": ("<minimax:tool_call>", _invoke("minimax:tool_call", "")),
    "apriel": ("<tool_calls>[", f"<tool_calls>{_TWO}</tool_calls>"),
    "nemotron": ("<TOOLCALL>", f"<TOOLCALL>{_TWO}</TOOLCALL>"),
    "cohere": ("<|START_ACTION|>", _COHERE),
    "apertus": (
        "<|tools_prefix|>",
        f'<|tools_prefix|>[{{"get_weather": {_ARGUMENTS}}}, {{"ping": {{}}}}]<|tools_suffix|>',
    ),
    "kimi k2": ("<|tool_call_begin|>", _KIMI),
    "solar": ("<|tool_call:begin|>", _SOLAR),
    "lfm2": (
        "<|tool_call_start|>",
        "<|tool_call_start|>[get_weather(city='Oslo, \"N\"', days=3), ping()]<|tool_call_end|>",
    ),
    "gemma 4": (
        "<|tool_call> <tool_call|>",
        '<|tool_call>call:get_weather{city:<|"|>Oslo, "N"<|"|>,days:3}<tool_call|>'
        "<|tool_call>call:ping{}<tool_call|>",
    ),
    "gigachat": ("<|function_call|>", f"<|function_call|>{_CALL}"),
    "firefunction": ("functools[", f"functools{_TWO}"),
    "functionary": (
        "<function=",
        f"<function=get_weather>{_ARGUMENTS}</function><function=ping>{{}}</function>",
    ),
    "minicpm": (
        "<function name=",
        '<function name="get_weather"><param name="city">Oslo, "N"</param><param name="days">3</param>'
        '</function>\n<function name="ping"></function>',
    ),
}
ONE_CALL = ("llama 3", "gigachat")


def expected(family: str) -> list[tuple[str, dict[str, object]]]:
    """Return the calls in the answer of a family."""
    return CALLS[:1] if family in ONE_CALL else CALLS
