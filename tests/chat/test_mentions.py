"""What Go templates say of their models: capabilities, thinking, and what stands before a call."""

import pytest

from ftd.chat.mentions import Mentions, of_go


@pytest.mark.parametrize(
    ("source", "mentions"),
    [
        ("", Mentions()),
        ("{{ .Prompt }}", Mentions()),
        ("{{ .Prompt }}{{ .Suffix }}", Mentions(("insert",))),
        ("{{ if .Tools }}{{ .Tools }}{{ end }}{{ .Prompt }}", Mentions(("tools",), None, "{")),
        ("{{ .Prompt", Mentions()),
        ("{{ Prompt }}{{ .Tools }}", Mentions()),
    ],
)
def test_capabilities(source: str, mentions: Mentions) -> None:
    found = of_go(source)
    assert found.capabilities == mentions.capabilities
    assert found.thinking_tags == mentions.thinking_tags


def test_tags_of_thinking_stand_around_it() -> None:
    thought = "{{ if .Thinking }}<think>{{ .Thinking }}</think>{{ end }}"
    found = of_go(f"{{{{ range .Messages }}}}{thought}{{{{ .Content }}}}{{{{ end }}}}")
    assert found.thinking_tags == ("<think>", "</think>") and "thinking" in found.capabilities


def test_the_tag_of_calls_is_what_stands_before_their_list() -> None:
    calls = "{{ range .ToolCalls }}<call>{{ .Function.Name }}{{ .Function.Arguments }}</call>{{ end }}"
    source = (
        f"{{{{ .Tools }}}}{{{{ range .Messages }}}}{{{{ if .ToolCalls }}}}{calls}{{{{ end }}}}{{{{ end }}}}"
    )
    assert of_go(source).call_tag == "<call>"
    assert of_go("{{ .Tools }}").call_tag is not None, "bare JSON needs no tag"


def test_a_template_is_read_once() -> None:
    source = "{{ .Prompt }}{{ .Suffix }} once"
    before = of_go.cache_info().misses
    assert of_go(source) is of_go(source)
    assert of_go.cache_info().misses == before + 1
