"""Parse a Go template into a tree."""

from functools import lru_cache

from ftd.chat.gotemplate import nodes as n
from ftd.chat.gotemplate.functions import FUNCTIONS
from ftd.chat.gotemplate.lexer import ActionPart, Token, parts
from ftd.chat.gotemplate.nodes import GoTemplateError

# Parsing takes about 4 µs a character and may happen in the event loop
MAX_SOURCE_CHARS = 1 << 16
MAX_DEPTH = 100
_KEYWORDS = frozenset(
    ("if", "else", "end", "range", "with", "define", "block", "template", "break", "continue")
)
_CONSTANTS = {"true": True, "false": False, "nil": None}


@lru_cache(maxsize=32)
def parse(source: str) -> n.Tree:
    """Return the tree of ``source``; raise GoTemplateError with the line."""
    if len(source) > MAX_SOURCE_CHARS:
        raise GoTemplateError(f"template is longer than {MAX_SOURCE_CHARS} characters")
    try:
        return _Parser(source).parse()
    except RecursionError:
        raise GoTemplateError("template is nested too deeply") from None


class _Parser:
    """Recursive descent over the parts of one template."""

    def __init__(self, source: str) -> None:
        self._parts = list(parts(source))
        self._idx = 0
        self._defined: dict[str, n.Block] = {}
        self._scope: list[str] = ["$"]
        self._depth = 0
        self._loops = 0

    def parse(self) -> n.Tree:
        root, end = self._block(())
        assert end is None
        return n.Tree(root, self._defined)

    def _block(self, enders: tuple[str, ...]) -> tuple[n.Block, "_Action | None"]:
        """Parse nodes up to one of ``enders``; return them and the action that ended them."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise GoTemplateError(f"blocks are nested more than {MAX_DEPTH} deep")
        scope_len = len(self._scope)
        block = n.Block([])
        while self._idx < len(self._parts):
            part = self._parts[self._idx]
            self._idx += 1
            if not isinstance(part, ActionPart):
                block.nodes.append(n.Text(part.text, line=part.line))
                continue
            action = _Action(part, self._scope)
            word = action.keyword()
            if word in ("else", "end"):
                if word not in enders:
                    raise GoTemplateError(f"line {part.line}: unexpected {{{{{word}}}}}")
                del self._scope[scope_len:]
                self._depth -= 1
                return block, action
            node = self._statement(word, action)
            if node is not None:
                block.nodes.append(node)
        if enders:
            raise GoTemplateError("unexpected EOF: a block is not closed by {{end}}")
        return block, None

    def _statement(self, word: str, action: "_Action") -> n.Node | None:
        line = action.line
        if word in ("if", "with", "range"):
            action.take()
            return self._control(word, action)
        if word in ("break", "continue"):
            action.take()
            action.finish()
            if not self._loops:
                raise GoTemplateError(f"line {line}: {{{{{word}}}}} outside {{{{range}}}}")
            return n.Jump(word, line=line)
        if word == "template":
            action.take()
            name = action.string()
            return n.Call(name, action.pipeline() if action.more() else None, line=line)
        if word in ("define", "block"):
            action.take()
            return self._definition(word, action)
        return n.Action(action.pipeline(), line=line)

    def _control(self, word: str, action: "_Action") -> n.Node:
        scope_len = len(self._scope)
        pipe = action.pipeline(range_names=word == "range")
        self._loops += word == "range"
        body, ender = self._block(("else", "end"))
        self._loops -= word == "range"
        assert ender is not None
        otherwise = None
        if ender.take().text == "else":
            follow = ender.keyword()
            if follow in ("if", "with") and word != "range":
                ender.take()
                otherwise = n.Block([self._control(follow, ender)])
            else:
                ender.finish()
                otherwise, ender = self._block(("end",))
                assert ender is not None
                ender.take()
                ender.finish()
        else:
            ender.finish()
        del self._scope[scope_len:]
        if word == "range":
            return n.Range(pipe, body, otherwise, line=action.line)
        return n.If(pipe, body, otherwise, word == "with", line=action.line)

    def _definition(self, word: str, action: "_Action") -> n.Node | None:
        name = action.string()
        pipe = action.pipeline() if word == "block" else None
        if pipe is None:
            action.finish()
        saved, self._scope = self._scope, ["$"]
        loops, self._loops = self._loops, 0
        body, ender = self._block(("end",))
        self._scope, self._loops = saved, loops
        assert ender is not None
        ender.take()
        ender.finish()
        self._defined[name] = body
        return n.Call(name, pipe, line=action.line) if pipe else None


class _Action:
    """The tokens of one action, read from left to right. ``scope`` holds the variables known so far."""

    def __init__(self, part: ActionPart, scope: list[str]) -> None:
        self._tokens = part.tokens
        self._idx = 0
        self._scope = scope
        self._depth = 0
        self.line = part.line

    def keyword(self) -> str:
        """Return the keyword that comes next, or nothing."""
        token = self._peek()
        return token.text if token and token.kind == "word" and token.text in _KEYWORDS else ""

    def more(self) -> bool:
        """Say whether tokens are left."""
        return self._idx < len(self._tokens)

    def _peek(self) -> Token | None:
        return self._tokens[self._idx] if self.more() else None

    def take(self) -> Token:
        """Return the next token and step over it."""
        if not self.more():
            raise self.error("unexpected end of action")
        self._idx += 1
        return self._tokens[self._idx - 1]

    def finish(self) -> None:
        """Raise unless all tokens are used."""
        if self.more():
            raise self.error(f"unexpected {self.take().text!r:.40}")

    def error(self, message: str) -> GoTemplateError:
        """Return an error at this action's line."""
        return GoTemplateError(f"line {self.line}: {message}")

    def string(self) -> str:
        """Take a string constant."""
        token = self.take()
        if token.kind != "string":
            raise self.error(f"expected a quoted name, got {token.text!r:.40}")
        return str(token.value)

    def pipeline(self, range_names: bool = False, closed_by: str = "") -> n.Pipe:
        """Take a pipeline up to the end of the action, or up to ``closed_by``."""
        names, declares = self._names(range_names)
        commands = [self._command(closed_by)]
        while (token := self._peek()) and token.kind == "|":
            self.take()
            commands.append(self._command(closed_by))
        if closed_by:
            if not self.more() or self.take().kind != closed_by:
                raise self.error("unclosed left paren")
        else:
            self.finish()
        for command in commands[1:]:
            if not isinstance(command.args[0], n.Function | n.Field | n.Variable | n.Chain):
                raise self.error("non executable command in pipeline")
        if declares:
            self._scope.extend(names)
        return n.Pipe(commands, names, declares, line=self.line)

    def _names(self, range_names: bool) -> tuple[list[str], bool]:
        tokens = self._tokens[self._idx : self._idx + 4]
        kinds = [token.kind for token in tokens]
        if kinds[:2] in (["variable", ":="], ["variable", "="]):
            count = 1
        elif range_names and kinds[:3] == ["variable", ",", "variable"] and kinds[3:4] in ([":="], ["="]):
            count = 3
        else:
            return [], False
        self._idx += count + 1
        names = [token.text for token in tokens[:count] if token.kind == "variable"]
        declares = self._tokens[self._idx - 1].kind == ":="
        for name in names:
            if not declares and name not in self._scope:
                raise self.error(f'undefined variable "{name}"')
        return names, declares

    def _command(self, closed_by: str) -> n.Command:
        args: list[n.Node] = []
        while (token := self._peek()) and token.kind not in ("|", closed_by):
            if args and not token.spaced:
                raise self.error(f"unexpected {token.text!r:.40} in operand")
            args.append(self._operand())
        if not args:
            raise self.error("missing value for command")
        if len(args) > 1 and isinstance(args[0], n.Literal | n.Dot):
            raise self.error(f"can't give argument to non-function {self._tokens[0].text:.40}")
        return n.Command(args, line=self.line)

    def _operand(self) -> n.Node:
        token = self.take()
        node: n.Node
        if token.kind == "field":
            node = n.Field([token.text[1:], *self._fields()], line=self.line)
        elif token.kind == "variable":
            if token.text not in self._scope:
                raise self.error(f'undefined variable "{token.text}"')
            node = n.Variable(token.text, self._fields(), line=self.line)
        elif token.kind == ".":
            node = n.Dot(line=self.line)
        elif token.kind in ("string", "number"):
            node = n.Literal(token.value, line=self.line)
        elif token.kind == "(":
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise self.error(f"parentheses are nested more than {MAX_DEPTH} deep")
            inner = self.pipeline(closed_by=")")
            self._depth -= 1
            names = self._fields()
            node = n.Chain(inner, names, line=self.line) if names else inner
        elif token.kind == "word" and token.text in _CONSTANTS:
            node = n.Literal(_CONSTANTS[token.text], line=self.line)
        elif token.kind == "word" and token.text in FUNCTIONS:
            node = n.Function(token.text, line=self.line)
        elif token.kind == "word":
            raise self.error(f'function "{token.text:.40}" not defined')
        else:
            raise self.error(f"unexpected {token.text!r:.40} in command")
        return node

    def _fields(self) -> list[str]:
        names = []
        while (token := self._peek()) and token.kind == "field" and not token.spaced:
            names.append(self.take().text[1:])
        return names
