"""Walking a tree: every node once, parents before children, in the order of the source."""

import pytest

from ftd.chat.gotemplate import nodes as n
from ftd.chat.gotemplate import parse

SOURCE = """{{ define "part" }}<{{ .Name | printf "%q" }}>{{ end -}}
{{ $x := len .Items }}{{ if and .A (not .B.C) }}one{{ else if .D }}two{{ else }}three{{ end }}
{{ range $i, $each := .Items }}{{ $each.Name }}{{ if eq $i 3 }}{{ break }}{{ end }}{{ else }}none{{ end }}
{{ with (index .List 0).Field }}{{ . }}{{ $x }}{{ end }}{{ template "part" .Last }}"""


def test_every_node_comes_once_and_after_its_parent() -> None:
    tree = parse(SOURCE)
    seen: list[n.Node] = []
    for node in n.walk(tree.root):
        assert all(node is not other for other in seen)
        seen.append(node)
        for child in n.children(node):
            assert all(child is not other for other in seen), "a child before its parent"
    kinds = {type(node) for node in seen}
    assert kinds == {
        *(n.Block, n.Text, n.Action, n.Pipe, n.Command, n.If, n.Range, n.Jump, n.Call),
        *(n.Dot, n.Field, n.Variable, n.Function, n.Literal, n.Chain),
    }


def test_the_order_is_that_of_the_source() -> None:
    root = parse(SOURCE).root
    texts = [node.text for node in n.walk(root) if isinstance(node, n.Text)]
    assert [text for text in texts if text.strip()] == ["one", "two", "three", "none"]
    fields = [node.names for node in n.walk(root) if isinstance(node, n.Field)]
    assert fields == [["Items"], ["A"], ["B", "C"], ["D"], ["Items"], ["List"], ["Last"]]
    lines = [node.line for node in n.walk(root) if node.line]
    assert lines == sorted(lines) and set(lines) == {2, 3, 4}


def test_templates_that_are_defined_stand_beside_the_tree() -> None:
    tree = parse(SOURCE)
    assert list(tree.defined) == ["part"]
    inside = [node.names for node in n.walk(tree.defined["part"]) if isinstance(node, n.Field)]
    assert inside == [["Name"]]
    assert ["Name"] not in [node.names for node in n.walk(tree.root) if isinstance(node, n.Field)]


@pytest.mark.parametrize(
    ("source", "sets_dot", "has_otherwise"),
    [
        ("{{ if .A }}x{{ end }}", False, False),
        ("{{ with .A }}x{{ else }}y{{ end }}", True, True),
    ],
)
def test_with_is_an_if_that_sets_the_dot(source: str, sets_dot: bool, has_otherwise: bool) -> None:
    (node,) = parse(source).root.nodes
    assert isinstance(node, n.If)
    assert (node.sets_dot, node.otherwise is not None) == (sets_dot, has_otherwise)
    parts = list(n.children(node))
    assert parts[:2] == [node.pipe, node.body] and len(parts) == 2 + has_otherwise


def test_a_leaf_has_no_children() -> None:
    for leaf in (n.Literal("x"), n.Literal(["not", "nodes"]), n.Dot(), n.Field(["A"]), n.Jump("break")):
        assert list(n.children(leaf)) == [] and list(n.walk(leaf)) == [leaf]


def test_an_error_says_whether_it_is_the_templates() -> None:
    assert n.GoTemplateError("x").status == "invalid" and n.GoTemplateError("x", "failed").status == "failed"
