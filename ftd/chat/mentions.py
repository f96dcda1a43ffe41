"""What the text of a Go template says about its model, read once a template."""

from functools import lru_cache
from typing import NamedTuple


class Mentions(NamedTuple):
    """Capabilities (tools, insert, thinking), the texts around thinking, and what stands before a call."""

    capabilities: tuple[str, ...] = ()
    thinking_tags: tuple[str, str] | None = None
    call_tag: str | None = None


@lru_cache(maxsize=64)
def of_go(source: str) -> Mentions:
    """Return what a Go template mentions: nothing if it does not parse."""
    # A daemon starts without it, since most models bring Jinja templates
    from ftd.chat.gotemplate import GoTemplateError, discovery, parse

    try:
        tree = parse(source)
    except GoTemplateError:
        return Mentions()
    return Mentions(
        discovery.capabilities(tree), discovery.thinking_tags(tree), discovery.tool_call_tag(tree)
    )
