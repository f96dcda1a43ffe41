"""The syntax tree of a Go template."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any


class GoTemplateError(Exception):
    """A template does not parse (``invalid``) or failed while running (``failed``)."""

    def __init__(self, message: str, status: str = "invalid") -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class Node:
    """Base of all nodes; ``line`` is where it starts."""

    line: int = field(default=0, kw_only=True)


@dataclass(slots=True)
class Literal(Node):
    """A constant: string, number, true, false or nil."""

    value: Any


@dataclass(slots=True)
class Dot(Node):
    """``.``"""


@dataclass(slots=True)
class Field(Node):
    """``.A.B``"""

    names: list[str]


@dataclass(slots=True)
class Variable(Node):
    """``$x.A.B``; the name has its dollar sign."""

    name: str
    names: list[str]


@dataclass(slots=True)
class Chain(Node):
    """``(pipeline).A.B``"""

    node: Node
    names: list[str]


@dataclass(slots=True)
class Function(Node):
    """The name of a function."""

    name: str


@dataclass(slots=True)
class Command(Node):
    """Operand or function with arguments: one stage of a pipeline."""

    args: list[Node]


@dataclass(slots=True)
class Pipe(Node):
    """``$a, $b := command | command``"""

    commands: list[Command]
    names: list[str] = field(default_factory=list)
    declares: bool = True


@dataclass(slots=True)
class Text(Node):
    """Text between actions."""

    text: str


@dataclass(slots=True)
class Action(Node):
    """A pipeline whose value is printed unless it is stored in a variable."""

    pipe: Pipe


@dataclass(slots=True)
class Block(Node):
    """A list of nodes that run one after the other."""

    nodes: list[Node]


@dataclass(slots=True)
class If(Node):
    """``if``, and ``with`` when ``sets_dot``."""

    pipe: Pipe
    body: Block
    otherwise: Block | None
    sets_dot: bool = False


@dataclass(slots=True)
class Range(Node):
    """``range``"""

    pipe: Pipe
    body: Block
    otherwise: Block | None


@dataclass(slots=True)
class Jump(Node):
    """``break`` or ``continue``."""

    word: str


@dataclass(slots=True)
class Call(Node):
    """``template "name" pipeline``"""

    name: str
    pipe: Pipe | None


@dataclass(slots=True)
class Tree:
    """A parsed template and the templates defined in it."""

    root: Block
    defined: dict[str, Block]


def children(node: Node) -> Iterator[Node]:
    """Yield the direct children of ``node`` in source order."""
    for item in fields(node):
        value = getattr(node, item.name)
        if isinstance(value, Node):
            yield value
        elif isinstance(value, list):
            yield from (child for child in value if isinstance(child, Node))


def walk(node: Node) -> Iterator[Node]:
    """Yield ``node`` and everything below it, depth first."""
    yield node
    for child in children(node):
        yield from walk(child)
