"""Modelfiles: parse one into its fields, write one from fields; parse(format(x)) = x.

    # comment                      a command starts a line: WORD, one blank, value
    FROM ./model.gguf              a value runs to the end of the line, or is quoted:
    SYSTEM \"\"\"                     from \"\"\" to a \"\"\" that ends a line, from " to a " that ends a line
    Two lines.                     (no escapes); line ends inside become \\n
    \"\"\"
    PARAMETER stop "<|end|>"       stop accumulates, other parameters: the last wins
    MESSAGE user hello             roles: system, user, assistant

UTF-8 with or without BOM, UTF-16 with BOM; lines end in \\n, \\r\\n or \\r. Errors name file, line and text.
"""

import codecs
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from ftd.chat import gojson, options
from ftd.errors import InvalidModelfile, InvalidOption

MAX_MODELFILE_BYTES = 16 << 20
ROLES = ("system", "user", "assistant")
_COMMANDS = (
    *("from", "license", "template", "system", "adapter", "draft", "renderer", "parser"),
    *("parameter", "message", "requires"),
)
_WORD = re.compile(r"([^ \t]*)([ \t])")
_SEMVER = re.compile(r"v?(\d+(?:\.\d+){0,2}(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?)")


class Modelfile(msgspec.Struct):
    """The fields of a Modelfile. ``from_`` has one entry a FROM line; ``warnings`` are for the person."""

    from_: list[str] = []
    template: str | None = None
    system: str | None = None
    parameters: dict[str, Any] = {}
    messages: list[dict[str, str]] = []
    licenses: list[str] = []
    adapter: str | None = None
    drafts: list[str] = []
    renderer: str | None = None
    parser: str | None = None
    requires: str | None = None
    warnings: list[str] = []


def parse_modelfile(data: bytes, filename: str = "Modelfile") -> Modelfile:
    """Parse the bytes of a Modelfile; raise InvalidModelfile that names file, line and text."""
    return _Reader(_decode(data, filename), filename).read()


def _decode(data: bytes, filename: str) -> str:
    if len(data) > MAX_MODELFILE_BYTES:
        raise InvalidModelfile(f"{filename}: too large for a Modelfile: {len(data)} bytes")
    encoding = "utf-8-sig"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise InvalidModelfile(
            f"{filename}: (line {line}): not {encoding.removesuffix('-sig')} text: {exc.reason}",
            "save the file as UTF-8",
        ) from exc


class _Reader:
    """Walks the lines of one file and fills a Modelfile."""

    def __init__(self, text: str, filename: str) -> None:
        self._lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._filename = filename
        self._idx = 0
        self._file = Modelfile()

    def read(self) -> Modelfile:
        while self._idx < len(self._lines):
            line = self._lines[self._idx].lstrip()
            if line.strip() and not line.startswith("#"):
                self._command(line)
            self._idx += 1
        if not self._file.from_:
            raise InvalidModelfile(f"{self._filename}: no FROM line", "start with FROM and a model or a file")
        return self._file

    def _fail(self, message: str, text: str, idx: int | None = None, hint: str | None = None) -> NoReturn:
        line = (self._idx if idx is None else idx) + 1
        raise InvalidModelfile(f"{self._filename}: (line {line}): {message}: {text[:80]}", hint)

    def _command(self, line: str) -> None:
        word, blank, rest = _cut(line)
        name = word.lower()
        if name not in _COMMANDS:
            known = [f'"{command}"' for command in _COMMANDS]
            self._fail(f"command must be one of {', '.join(known[:-1])}, or {known[-1]}", line)
        if not blank:
            self._fail("unexpected EOF", f"{word} has no value")
        if name in ("parameter", "message"):
            key, blank, rest = _cut(rest.lstrip())
            if name == "message" and key not in ROLES:
                self._fail('message role must be one of "system", "user", or "assistant"', line)
            if not re.fullmatch(r"[A-Za-z0-9_]+", key) or not blank:
                self._fail("unexpected EOF", f"{line} has no value")
            self._set_keyed(name, key, self._value(rest), line)
        else:
            self._set(name, self._value(rest), line)

    def _value(self, rest: str) -> str:
        """Return the value that starts with ``rest``, reading on while a quote is open."""
        first = rest.strip()
        quote = '"""' if first.startswith('"""') else '"' if first.startswith('"') else ""
        if not quote:
            return "".join(char for char in first if char.isprintable() or char == "\t")
        if len(first) >= 2 * len(quote) and first.endswith(quote):
            return first[len(quote) : -len(quote)]
        start, parts = self._idx, [self._lines[self._idx].split(quote, 1)[1]]
        for idx in range(start + 1, len(self._lines)):
            line = self._lines[idx]
            if line.rstrip().endswith(quote):
                self._idx = idx
                return "\n".join([*parts, line.rstrip()[: -len(quote)]])
            parts.append(line)
        self._fail("unexpected EOF", f"no closing {quote} for {first}", start)

    def _set(self, name: str, value: str, line: str) -> None:
        file = self._file
        if name == "from":
            file.from_.append(value)
        elif name == "license":
            file.licenses.append(value)
        elif name == "draft":
            file.drafts.append(value)
        elif name == "requires":
            match = _SEMVER.fullmatch(value)
            if match is None:
                self._fail("requires must be a valid semver (e.g. 0.14.0)", line)
            file.requires = match[1]
        else:
            setattr(file, name, value)

    def _set_keyed(self, name: str, key: str, value: str, line: str) -> None:
        if name == "message":
            self._file.messages.append({"role": key, "content": value})
            return
        try:
            parsed = options.parse_parameter(key, value)
        except InvalidOption as exc:
            self._fail(exc.message, line, hint=exc.hint)
        if parsed is None:
            self._file.warnings.append(f"parameter {key} is deprecated")
        elif key == "stop":
            self._file.parameters.setdefault("stop", []).append(parsed)
        else:
            self._file.parameters[key] = parsed


def _cut(line: str) -> tuple[str, str, str]:
    """Split a line at its first blank, leaving out what cannot be printed before it."""
    match = _WORD.match(line)
    word, blank = (match[1], match[2]) if match else (line, "")
    return "".join(filter(str.isprintable, word)), blank, line[match.end() :] if match else ""


def format_modelfile(file: Modelfile) -> str:
    """Return the text of a Modelfile that parses to ``file``, as ``ftd show --modelfile`` prints it."""
    lines = [f"FROM {source}" for source in file.from_]
    if file.adapter is not None:
        lines.append(f"ADAPTER {file.adapter}")
    lines += [f"DRAFT {_quoted(draft)}" for draft in file.drafts]
    for name in ("template", "system", "renderer", "parser", "requires"):
        value = getattr(file, name)
        if value is not None:
            lines.append(f"{name.upper()} {_quoted(value)}")
    lines += [f"PARAMETER {name} {_quoted(text)}" for name, text in parameter_values(file.parameters)]
    lines += [f"LICENSE {_quoted(text)}" for text in file.licenses]
    lines += [f"MESSAGE {message['role']} {_quoted(message['content'])}" for message in file.messages]
    return "\n".join(lines) + "\n"


def parameter_values(parameters: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (name, text) of every parameter value, sorted by name; lists give one pair an element."""
    pairs: list[tuple[str, str]] = []
    for name in sorted(parameters):
        value = parameters[name]
        items: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
        pairs += [(name, item if isinstance(item, str) else gojson.dumps(item)) for item in items]
    return pairs


def format_parameters(parameters: Mapping[str, Any]) -> str:
    """Return the ``parameters`` text of ``/api/show``: the name padded to 30 columns, strings quoted."""
    lines = []
    for name in sorted(parameters):
        value = parameters[name]
        for item in value if isinstance(value, list | tuple) else [value]:
            text = f'"{_go_escaped(item)}"' if isinstance(item, str) else gojson.dumps(item)
            lines.append(f"{name:<30} {text}")
    return "\n".join(lines)


def _go_escaped(text: str) -> str:
    escapes = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
    return "".join(escapes.get(char, char) for char in text)


def _quoted(value: str) -> str:
    """Quote where a bare value would not come back as it is."""
    bare = value == value.strip() and value.isprintable() and not value.startswith('"')
    if bare and value:
        return value
    return f'"""{value}"""' if '"' in value else f'"{value}"'
