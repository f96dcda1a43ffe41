"""Go templates in the manner of the public library's families, checked against prompts typed by hand.

The templates are ours; they use what those of the families use: legacy turns, loops with an index, ``slice``
to find the last message, variables that outlive a block, trim markers, tools and calls.
"""

from typing import Any

import pytest

from ftd.chat.gotemplate import chat, parse
from ftd.chat.gotemplate.discovery import capabilities, thinking_tags, tool_call_tag

TALK = [("system", "S"), ("user", "U1"), ("assistant", "A1"), ("user", "U2")]
LAST = "{{ $last := eq (len (slice $.Messages $i)) 1 }}"

LEGACY = {
    "chatml": (
        "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}"
        "{{ if .Prompt }}<|im_start|>user\n{{ .Prompt }}<|im_end|>\n{{ end }}"
        "<|im_start|>assistant\n{{ .Response }}<|im_end|>\n",
        "<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU1<|im_end|>\n"
        "<|im_start|>assistant\nA1<|im_end|>\n"
        "<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n",
    ),
    "alpaca": (
        "{{ if .System }}{{ .System }}\n\n{{ end }}{{ if .Prompt }}### Instruction:\n"
        "{{ .Prompt }}\n\n{{ end }}"
        "### Response:\n{{ .Response }}\n\n",
        "### Instruction:\nU1\n\n### Response:\n",
        "S\n\n### Instruction:\nU1\n\n### Response:\nA1\n\n### Instruction:\nU2\n\n### Response:\n",
    ),
    "vicuna": (
        "{{ if .System }}{{ .System }} {{ end }}{{ if .Prompt }}USER: {{ .Prompt }} {{ end }}"
        "ASSISTANT: {{ .Response }}</s>",
        "USER: U1 ASSISTANT: ",
        "S USER: U1 ASSISTANT: A1</s>USER: U2 ASSISTANT: ",
    ),
    "llama 2": (
        "[INST] {{ if .System }}<<SYS>>\n{{ .System }}\n<</SYS>>\n\n{{ end }}{{ .Prompt }} [/INST] "
        "{{ .Response }}</s>",
        "[INST] U1 [/INST] ",
        "[INST] <<SYS>>\nS\n<</SYS>>\n\nU1 [/INST] A1</s>[INST] U2 [/INST] ",
    ),
    "zephyr": (
        "{{ with .System }}<|system|>\n{{ . }}</s>\n{{ end }}{{ with .Prompt }}<|user|>\n"
        "{{ . }}</s>\n{{ end }}"
        "<|assistant|>\n{{ .Response }}</s>\n",
        "<|user|>\nU1</s>\n<|assistant|>\n",
        "<|system|>\nS</s>\n<|user|>\nU1</s>\n<|assistant|>\nA1</s>\n<|user|>\nU2</s>\n<|assistant|>\n",
    ),
    "openchat": (
        "{{ .System }}{{ if .Prompt }}GPT4 Correct User: {{ .Prompt }}<|end_of_turn|>{{ end }}"
        "GPT4 Correct Assistant: {{ .Response }}<|end_of_turn|>",
        "GPT4 Correct User: U1<|end_of_turn|>GPT4 Correct Assistant: ",
        "SGPT4 Correct User: U1<|end_of_turn|>GPT4 Correct Assistant: A1<|end_of_turn|>"
        "GPT4 Correct User: U2<|end_of_turn|>GPT4 Correct Assistant: ",
    ),
}
MESSAGES = {
    "llama 3": (
        "{{- range .Messages }}<|start_header_id|>{{ .Role }}<|end_header_id|>\n\n{{ .Content }}<|eot_id|>"
        "{{- end }}<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|start_header_id|>user<|end_header_id|>\n\nU1<|eot_id|><|start_header_id|>assistant"
        "<|end_header_id|>\n\n",
        "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user"
        "<|end_header_id|>\n\nU1"
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nA1<|eot_id|><|start_header_id|>user"
        "<|end_header_id|>\n\nU2<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "mistral": (
        "{{- range $i, $_ := .Messages }}" + LAST + '{{- if eq .Role "user" }}[INST] '
        "{{ if and $last $.System }}{{ $.System }}\n\n{{ end }}{{ .Content }}[/INST]"
        '{{- else if eq .Role "assistant" }} {{ .Content }}{{ if not $last }}</s>{{ end }}'
        "{{- end }}{{- end }}",
        "[INST] U1[/INST]",
        "[INST] U1[/INST] A1</s>[INST] S\n\nU2[/INST]",
    ),
    "gemma": (
        "{{- $first := true }}{{- range $i, $_ := .Messages }}" + LAST + '{{- if eq .Role "user" }}'
        "<start_of_turn>user\n{{ if and $first $.System }}{{ $.System }}\n\n{{ end }}{{- $first = false }}"
        "{{- .Content }}<end_of_turn>\n{{ if $last }}<start_of_turn>model\n{{ end }}"
        '{{- else if eq .Role "assistant" }}<start_of_turn>model\n{{ .Content }}'
        "{{ if not $last }}<end_of_turn>\n{{ end }}{{- end }}{{- end }}",
        "<start_of_turn>user\nU1<end_of_turn>\n<start_of_turn>model\n",
        "<start_of_turn>user\nS\n\nU1<end_of_turn>\n<start_of_turn>model\nA1<end_of_turn>\n"
        "<start_of_turn>user\nU2<end_of_turn>\n<start_of_turn>model\n",
    ),
    "phi 3": (
        "{{- range .Messages }}{{- if or (eq .Role `user`) (eq .Role `system`) (eq .Role `assistant`) }}"
        "<|{{ .Role }}|>\n{{ .Content }}<|end|>\n{{- end }}{{ end }}<|assistant|>\n",
        "<|user|>\nU1<|end|><|assistant|>\n",
        "<|system|>\nS<|end|><|user|>\nU1<|end|><|assistant|>\nA1<|end|><|user|>\nU2<|end|><|assistant|>\n",
    ),
    "deepseek r1": (
        "{{- if .System }}{{ .System }}{{ end }}{{- range $i, $_ := .Messages }}"
        + LAST
        + "{{- if eq .Role `user` }}"
        '<｜User｜>{{ .Content }}{{- else if eq .Role "assistant" }}<｜Assistant｜>'
        "{{- if and $.IsThinkSet (and $last .Thinking) -}}<think>\n{{ .Thinking }}\n</think>\n{{- end }}"
        "{{ .Content }}{{- if not $last }}<｜end▁of▁sentence｜>{{- end }}{{- end }}"
        "{{- if and $last (ne .Role `assistant`) }}<｜Assistant｜>{{- if $.Think }}<think>\n"
        "{{- end }}{{- end }}{{- end }}",
        "<｜User｜>U1<｜Assistant｜>",
        "S<｜User｜>U1<｜Assistant｜>A1<｜end▁of▁sentence｜><｜User｜>U2<｜Assistant｜>",
    ),
    "granite": (
        "{{- range $index, $_ := .Messages }}{{- if eq .Role `system` }}System:\n{{ .Content }}\n\n"
        "{{- else if eq .Role `user` }}Question:\n{{ .Content }}\n\n"
        "{{- else }}Answer:\n{{ .Content }}\n\n{{- end }}{{ end }}Answer:\n",
        "Question:\nU1Answer:\n",
        "System:\nSQuestion:\nU1Answer:\nA1Question:\nU2Answer:\n",
    ),
    "command r": (
        '{{ range .Messages }}{{ if eq .Role "system" }}<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{{ .Content }}'
        '<|END_OF_TURN_TOKEN|>{{ else if eq .Role "user" }}<|START_OF_TURN_TOKEN|>'
        "<|USER_TOKEN|>{{ .Content }}"
        "<|END_OF_TURN_TOKEN|>{{ else }}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{{ .Content }}"
        "<|END_OF_TURN_TOKEN|>{{ end }}{{ end }}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>U1<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|>"
        "<|CHATBOT_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>S<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>U1"
        "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>A1<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>U2<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|>"
        "<|CHATBOT_TOKEN|>",
    ),
}
QWEN = (
    "{{- if or .System .Tools }}<|im_start|>system\n{{- if .System }}\n{{ .System }}{{- end }}\n"
    '{{- if .Tools }}\n\n# Tools\n{{- range .Tools }}\n{"type": "function", "function": {{ .Function }}}'
    "{{- end }}{{- end }}<|im_end|>\n{{ end }}{{- range $i, $_ := .Messages }}"
    + LAST
    + '{{- if eq .Role "user" }}'
    '<|im_start|>user\n{{ .Content }}<|im_end|>\n{{ else if eq .Role "assistant" }}<|im_start|>assistant\n'
    "{{ if .Content }}{{ .Content }}{{- else if .ToolCalls }}<tool_call>\n"
    '{{ range .ToolCalls }}{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}\n'
    "{{ end }}</tool_call>{{- end }}{{ if not $last }}<|im_end|>\n{{ end }}"
    '{{- else if eq .Role "tool" }}<|im_start|>user\n<tool_response>\n{{ .Content }}\n'
    "</tool_response><|im_end|>\n"
    '{{ end }}{{- if and (ne .Role "assistant") $last }}<|im_start|>assistant\n{{ end }}{{- end }}'
)
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "d",
        "parameters": {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]},
    },
}


def render(source: str, turns: list[Any], **values: Any) -> str:
    messages = [{"role": role, "content": content, **dict(*more)} for role, content, *more in turns]
    return "".join(chat.pieces(source, {"messages": messages, **values}))


@pytest.mark.parametrize("family", LEGACY | MESSAGES)
def test_prompts(family: str) -> None:
    source, short, long = (LEGACY | MESSAGES)[family]
    assert render(source, [("user", "U1")]) == short
    assert render(source, TALK) == long


def test_tools_calls_and_results() -> None:
    calls = [{"id": "c", "function": {"name": "f", "arguments": {"z": 1, "b": "x"}}}]
    turns = [("system", "S"), ("user", "U"), ("assistant", "", {"tool_calls": calls}), ("tool", "R")]
    assert render(QWEN, turns, tools=[TOOL]) == (
        "<|im_start|>system\nS\n\n# Tools\n"
        '{"type": "function", "function": {"name":"f","description":"d","parameters":{"type":"object",'
        '"required":["b"],"properties":{"b":{"type":"string"}}}}}<|im_end|>\n'
        "<|im_start|>user\nU<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "f", "arguments": {"b":"x","z":1}}\n'
        "</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nR\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    tree = parse(QWEN)
    assert capabilities(tree) == ("tools",) and tool_call_tag(tree) == "<tool_call>"


def test_thinking_is_asked_for_and_found() -> None:
    source = MESSAGES["deepseek r1"][0]
    assert render(source, [("user", "U1")], think=True) == "<｜User｜>U1<｜Assistant｜><think>"
    thought = ("assistant", "A1", {"thinking": "T"})
    assert render(source, [("user", "U1"), thought], think=False) == (
        "<｜User｜>U1<｜Assistant｜><think>\nT\n</think>A1"
    )
    assert thinking_tags(parse(source)) == ("<think>", "</think>")
