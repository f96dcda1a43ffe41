"""Jinja as Hugging Face chat templates expect it, in a sandbox. Runs in the render worker only.

The environment is that of ``transformers``: ``trim_blocks``, ``lstrip_blocks``, loop controls, ``generation``
tags, a ``tojson`` without HTML escapes, ``raise_exception`` and ``strftime_now``.
"""

import json
import pprint  # noqa: F401 (the filter of this name imports it, when files can no longer be opened)
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_MAX_COMPILED = 16


class Refused(jinja2.TemplateError):
    """The template itself called ``raise_exception``."""


class _Generation(Extension):
    """``{% generation %}…{% endgeneration %}`` marks what the model wrote; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 (as the base class declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        """Turn the tag into a call block around its body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller: Any) -> str:
        return str(caller())


class _PlainNamespace(Namespace):
    """A namespace that refuses names with a leading underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        attrs = dict(*args[1:], **kwargs)
        for name in attrs:
            _check_name(name)
        Namespace.__init__(args[0], attrs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"namespace attribute starts with an underscore: {name!r:.80}")


def _raise_exception(message: Any) -> None:
    raise Refused(str(message)[:1000])


def _as_list(value: Any) -> Any:
    """Let filters that return generators (``map``, ``select``) be written as JSON too."""
    if isinstance(value, Generator):
        return list(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_as_list,
    )


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox; errors come out as they are (rewriting tracebacks would open source files)."""

    def handle_exception(self, source: str | None = None) -> NoReturn:
        raise  # noqa: PLE0704 (jinja2 calls this while it handles the exception)


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension], cache_size=0
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, namespace=_PlainNamespace
    )
    return environment


_ENVIRONMENT = _environment()


@lru_cache(maxsize=_MAX_COMPILED)
def compiled(source: str) -> jinja2.Template:
    """Return the compiled template; jinja2.TemplateSyntaxError if it does not parse."""
    return _ENVIRONMENT.from_string(source)


def pieces(source: str, variables: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parts of the rendered template."""
    yield from compiled(source).generate(**variables)


@lru_cache(maxsize=_MAX_COMPILED)
def literals(source: str) -> list[str]:
    """Return the texts that the template writes by itself: data between tags, and string constants.

    It is compiled too, so that the first rendering finds that done.
    """
    with suppress(jinja2.TemplateError):  # rendering meets it again
        compiled(source)
    tree = _ENVIRONMENT.parse(source)
    data = [node.data for node in tree.find_all(nodes.TemplateData)]
    constants = [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    return sorted({text for text in data + constants if text})


def fault(exc: Exception) -> tuple[str, str] | None:
    """Return the status of a template's fault and what to say of it, None if it just failed."""
    if isinstance(exc, Refused):
        return "refused", str(exc)
    if isinstance(exc, jinja2.TemplateSyntaxError):
        return "invalid", f"line {exc.lineno}: {exc.message}"
    return None
