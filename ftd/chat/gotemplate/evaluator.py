"""Run a parsed Go template over plain values."""

from collections.abc import Iterable
from typing import Any

from ftd.chat.gotemplate import nodes as n
from ftd.chat.gotemplate.functions import FUNCTIONS, typescript_type
from ftd.chat.gotemplate.nodes import GoTemplateError
from ftd.chat.gotemplate.values import MISSING, JsonList, JsonMap, Struct, kind, to_text, truth

MAX_CALL_DEPTH = 100


class _Jumped(Exception):
    """Carries ``break`` and ``continue`` to their loop."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


class Evaluator:
    """Executes one tree; the output of a run is the list of its pieces."""

    def __init__(self, tree: n.Tree) -> None:
        self._tree = tree
        self._out: list[str] = []
        self._scope: list[list[Any]] = []  # [name, value] pairs, innermost last
        self._call_depth = 0

    def run(self, data: Any) -> str:
        """Return what the template writes for ``data``; raise GoTemplateError."""
        self._out, self._scope, self._call_depth = [], [["$", data]], 0
        try:
            self._block(self._tree.root, data)
        except RecursionError:
            raise GoTemplateError("template is nested too deeply", "failed") from None
        except TypeError as exc:
            raise GoTemplateError(f"wrong number of arguments: {exc}", "failed") from exc
        return "".join(self._out)

    def _block(self, block: n.Block | None, dot: Any) -> None:
        if block is None:
            return
        scope_len = len(self._scope)
        try:
            for node in block.nodes:
                self._node(node, dot)
        finally:
            del self._scope[scope_len:]

    def _node(self, node: n.Node, dot: Any) -> None:
        if isinstance(node, n.Text):
            self._out.append(node.text)
        elif isinstance(node, n.Action):
            value = self._pipe(node.pipe, dot)
            if not node.pipe.names:
                self._out.append(to_text(value))
        elif isinstance(node, n.If):
            scope_len = len(self._scope)
            value = self._pipe(node.pipe, dot)
            if truth(value):
                self._block(node.body, value if node.sets_dot else dot)
            else:
                self._block(node.otherwise, dot)
            del self._scope[scope_len:]
        elif isinstance(node, n.Range):
            self._range(node, dot)
        elif isinstance(node, n.Jump):
            raise _Jumped(node.word)
        elif isinstance(node, n.Call):
            self._call(node, dot)

    def _call(self, node: n.Call, dot: Any) -> None:
        block = self._tree.defined.get(node.name)
        if block is None:
            raise GoTemplateError(f'line {node.line}: template "{node.name:.80}" not defined', "failed")
        if self._call_depth >= MAX_CALL_DEPTH:
            raise GoTemplateError(f"templates call each other more than {MAX_CALL_DEPTH} deep", "failed")
        value = self._pipe(node.pipe, dot) if node.pipe else None
        saved, self._scope = self._scope, [["$", value]]
        self._call_depth += 1
        self._block(block, value)
        self._call_depth -= 1
        self._scope = saved

    def _range(self, node: n.Range, dot: Any) -> None:
        scope_len = len(self._scope)
        pipe = n.Pipe(node.pipe.commands, line=node.line)
        items = self._items(self._pipe(pipe, dot), node.line)
        names, ran = node.pipe.names, False
        for key, item in items:
            ran = True
            bound = [item] if len(names) == 1 else [key, item]
            for name, value in zip(names, bound, strict=False):
                self._store(name, value, node.pipe.declares)
            try:
                self._block(node.body, item)
            except _Jumped as jump:
                if jump.word == "break":
                    break
            finally:
                del self._scope[scope_len:]
        if not ran:
            self._block(node.otherwise, dot)

    def _items(self, value: Any, line: int) -> Iterable[tuple[Any, Any]]:
        if value is None or value is MISSING:
            return ()
        if isinstance(value, bool):
            raise GoTemplateError(f"line {line}: range can't iterate over {to_text(value)}", "failed")
        if isinstance(value, list):
            return enumerate(value)
        if isinstance(value, dict):
            return ((key, value[key]) for key in sorted(value))
        if isinstance(value, int):
            return ((idx, idx) for idx in range(value))
        raise GoTemplateError(f"line {line}: range can't iterate over {kind(value)}", "failed")

    def _store(self, name: str, value: Any, declares: bool) -> None:
        if declares:
            self._scope.append([name, value])
            return
        for pair in reversed(self._scope):
            if pair[0] == name:
                pair[1] = value
                return
        raise GoTemplateError(f"undefined variable: {name}", "failed")

    def _pipe(self, pipe: n.Pipe, dot: Any) -> Any:
        value: Any = None
        for idx, command in enumerate(pipe.commands):
            value = self._command(command, dot, [value] if idx else [])
        for name in pipe.names:
            self._store(name, value, pipe.declares)
        return value

    def _command(self, command: n.Command, dot: Any, last: list[Any]) -> Any:
        head, rest = command.args[0], command.args[1:]
        if isinstance(head, n.Function):
            if head.name in ("and", "or"):
                return self._shortcut(head.name, rest, dot, last)
            args = [self._operand(arg, dot) for arg in rest] + last
            try:
                return FUNCTIONS[head.name](*args)
            except GoTemplateError as exc:
                raise GoTemplateError(f"line {command.line}: {exc}", "failed") from None
        value = self._operand(head, dot)
        if rest or last:
            raise GoTemplateError(f"line {command.line}: a value cannot take arguments", "failed")
        return value

    def _shortcut(self, name: str, rest: list[n.Node], dot: Any, last: list[Any]) -> Any:
        value: Any = None
        for arg in rest:
            value = self._operand(arg, dot)
            if truth(value) == (name == "or"):
                return value
        if last:
            return last[0]
        if not rest:
            raise GoTemplateError(f"wrong number of args for {name}: want at least 1 got 0", "failed")
        return value

    def _operand(self, node: n.Node, dot: Any) -> Any:
        if isinstance(node, n.Literal):
            return node.value
        if isinstance(node, n.Dot):
            return dot
        if isinstance(node, n.Field):
            return self._fields(dot, node.names, node.line)
        if isinstance(node, n.Variable):
            for name, value in reversed(self._scope):
                if name == node.name:
                    return self._fields(value, node.names, node.line)
            raise GoTemplateError(f"line {node.line}: undefined variable: {node.name}", "failed")
        if isinstance(node, n.Chain):
            return self._fields(self._operand(node.node, dot), node.names, node.line)
        if isinstance(node, n.Pipe):
            return self._pipe(node, dot)
        if isinstance(node, n.Function):
            return self._command(n.Command([node], line=node.line), dot, [])
        raise GoTemplateError(f"line {node.line}: cannot evaluate {type(node).__name__}", "failed")

    def _fields(self, value: Any, names: list[str], line: int) -> Any:
        for name in names:
            if isinstance(value, dict):
                if name == "String" and isinstance(value, JsonMap) and name not in value:
                    return to_text(value)
                value = value.get(name, MISSING)
            elif isinstance(value, Struct) and name in value.fields:
                value = value.fields[name]
            elif name == "String" and isinstance(value, Struct | JsonList):
                return to_text(value)
            elif name == "ToTypeScriptType" and isinstance(value, Struct):
                return typescript_type(value)
            elif value is None or value is MISSING:
                raise GoTemplateError(
                    f"line {line}: nil pointer evaluating interface {{}}.{name:.80}", "failed"
                )
            else:
                raise GoTemplateError(
                    f"line {line}: can't evaluate field {name:.80} in type {kind(value)}", "failed"
                )
        return value
