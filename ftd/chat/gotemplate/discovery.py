"""What a Go template says about its model: variables mentioned, tags around thinking and tool calls."""

from collections.abc import Iterator

from ftd.chat.gotemplate import nodes as n


def variables(tree: n.Tree) -> frozenset[str]:
    """Return the lower-cased names of all fields and variables, those of nested templates included."""
    names: set[str] = set()
    for block in (tree.root, *tree.defined.values()):
        for node in n.walk(block):
            if isinstance(node, n.Field | n.Chain):
                names.update(node.names)
            elif isinstance(node, n.Variable):
                names.update((node.name, *node.names))
    return frozenset(name.lower() for name in names)


def literals(tree: n.Tree) -> list[str]:
    """Return the texts that the template writes by itself: text between actions, and string constants."""
    texts: set[str] = set()
    for block in (tree.root, *tree.defined.values()):
        for node in n.walk(block):
            if isinstance(node, n.Text):
                texts.add(node.text)
            elif isinstance(node, n.Literal) and isinstance(node.value, str):
                texts.add(node.value)
    return sorted(texts - {""})


def mentions(node: n.Node, name: str) -> bool:
    """Say whether a field called ``name`` is used in ``node`` or below it."""
    return any(
        isinstance(item, n.Field | n.Variable | n.Chain) and name in item.names for item in n.walk(node)
    )


def capabilities(tree: n.Tree) -> tuple[str, ...]:
    """Return ``tools``, ``insert`` and ``thinking`` as far as the template has them."""
    names = variables(tree)
    found = []
    if "tools" in names:
        found.append("tools")
    if "suffix" in names:
        found.append("insert")
    if thinking_tags(tree):
        found.append("thinking")
    return tuple(found)


def thinking_tags(tree: n.Tree) -> tuple[str, str] | None:
    """Return the texts written around ``.Thinking`` in the loop over messages."""
    found = None
    for node, ancestors in _with_ancestors(tree.root, ()):
        if not (isinstance(node, n.Field | n.Variable) and node.names[:1] == ["Thinking"]):
            continue
        loop = next((item for item in reversed(ancestors) if isinstance(item, n.Range)), None)
        block = next((item for item in reversed(ancestors) if isinstance(item, n.Block)), None)
        if loop is None or block is None or not mentions(loop.pipe, "Messages"):
            continue
        first, last = block.nodes[0], block.nodes[-1]
        if isinstance(first, n.Text) and isinstance(last, n.Text) and first is not last:
            opening, closing = first.text.strip(), last.text.strip()
            found = (opening, closing) if opening and closing else found
    return found


def tool_call_tag(tree: n.Tree) -> str:
    """Return the text that the template writes before a tool call; ``{`` if it writes none."""
    for node in n.walk(tree.root):
        if isinstance(node, n.If) and mentions(node.pipe, "ToolCalls"):
            for item in n.walk(node.body):
                if isinstance(item, n.Text) and item.text.strip():
                    return item.text.replace("\r\n", "\n").partition("{")[0].strip() or "{"
            return "{"
    return "{"


def _with_ancestors(
    node: n.Node, ancestors: tuple[n.Node, ...]
) -> Iterator[tuple[n.Node, tuple[n.Node, ...]]]:
    yield node, ancestors
    for child in n.children(node):
        yield from _with_ancestors(child, (*ancestors, node))
