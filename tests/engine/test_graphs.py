"""Every graph class has the methods of the Graph protocol, with its parameters in its order."""

import inspect
from typing import Any

import pytest

from ftd.engine.graphs import Graph
from ftd.kernels.reference_graph import ReferenceGraph

METHODS = [name for name, member in vars(Graph).items() if inspect.isfunction(member) and name[0] != "_"]


@pytest.mark.parametrize("name", METHODS)
def test_the_reference_graph_fits_the_protocol(name: str) -> None:
    assert parameters(ReferenceGraph, name) == parameters(Graph, name)


def test_the_list_of_methods_is_not_empty() -> None:
    assert {"linear", "attention", "run", "view"} <= set(METHODS)


def parameters(owner: Any, name: str) -> list[tuple[str, Any]]:
    """Return names and defaults of a method's parameters."""
    values = inspect.signature(getattr(owner, name)).parameters.values()
    return [(value.name, value.default) for value in values]
