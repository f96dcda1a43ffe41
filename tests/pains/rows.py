"""Faults that users of comparable programs meet, each with an id and, in our words, what must hold here.

Every row of these areas has tests that name it: in their docstring, or as ``test_<area>_<number>_…``.
``test_rows.py`` checks that, and prints which tests name a row: ``python tests/pains/rows.py``.
"""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROWS = {
    "API-1": "keep_alive works on every endpoint that loads a model",
    "API-3": "show has every field that clients require, whatever the model lacks",
    "API-4": "a stream tells its token usage when asked, and only then",
    "API-5": "num_ctx and think are honoured on /v1",
    "API-6": "alive and ready are two things; a chat during a load waits",
    "STR-1": "a stream ends with exactly one last object, and is never silent for long",
    "STR-3": "a failure in mid-stream is told in the API's own form",
    "TOOL-1": "streamed calls have rising indexes, own ids, a type and a reason",
    "TOOL-3": "parsers of all families give the same token by token as at once",
    "TOOL-4": "a malformed call is repaired or is content; never an error",
    "TOOL-6": "arguments follow the schema where a call is forced or strict",
    "TOOL-7": "a template that knows tools makes a model that has tools",
    "THINK-1": "no thinking and no tag of it is ever content",
    "THINK-2": "capability, flag and answer agree about thinking",
    "JSON-1": "a bound answer does not run on in white space",
    "EMB-1": "long input is cut and reported by default, or refused with both numbers",
    "EMB-3": "a text has the same vector alone, in a batch and beside others",
    "EMB-4": "vectors are finite and of length one, whatever the text",
    "CTX-1": "nothing of a prompt is lost in silence",
    "CTX-3": "a conversation that does not fit is refused in words that agents know",
    "CTX-4": "the window that is told is the window that a request has",
    "KEEP-1": "a smaller or no num_ctx uses the loaded model",
    "LOAD-1": "a load goes on when the client leaves; one that waits hears that it is not forgotten",
    "SVC-1": "a service starts only when asked to, and its settings outlive it",
    "MOD-1": "an error of a Modelfile names file, line and text; any encoding is read",
    "MOD-3": "system and developer messages may stand anywhere",
    "MOD-4": "FROM alone gives a model with its template and its end",
    "TOK-1": "no character is ever split, and none is lost at a limit",
    "TOK-3": "a prompt begins with exactly one BOS",
    "CLI-1": "read commands have --json, lists have names only; failures have a status",
}

# What clients in use send and expect
CLIENTS = {
    "CLIENT-1": "Codex wants a version of at least 0.13.4 and brings tools of unknown types",
    "CLIENT-2": "Claude Code sends system messages in the middle, and fields of its own servers",
    "CLIENT-3": "Claude Code's first line changes with each conversation; the prompt must not",
    "CLIENT-4": "OpenClaw takes its last message back: the prompt is reused up to there",
    "CLIENT-5": "OpenClaw wants no truncation, no shift, no thinking and a window of 32768",
    "CLIENT-6": "Open WebUI sends 36 tools, and asks for a title at the same time",
    "CLIENT-7": "Open WebUI's stop button closes the socket: the answer is cancelled",
    "CLIENT-8": "errors come before the headers where they can",
    "CLIENT-9": "each client writes pull in its own way; delete has a body",
    "CLIENT-10": "blobs are posted without asking first",
    "CLIENT-11": "empty tools, an empty format and options of null are harmless",
    "CLIENT-12": "unknown paths are 404; models have Anthropic's shape for Anthropic's clients",
}

TESTS = Path(__file__).parents[1]


def named_rows(folder: Path = TESTS) -> dict[str, list[str]]:
    """Return row -> the tests that name it, as ``file::function``."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if not node.name.startswith("test_"):
                continue
            texts = re.findall(r"\b[A-Z]{3,6}-\d+\b", ast.get_docstring(node) or "")
            if match := re.match(r"test_([a-z]+)_(\d+)_", node.name):
                texts.append(f"{match[1].upper()}-{match[2]}")
            for row in set(texts):
                found[row].append(f"{path.relative_to(folder)}::{node.name}")
    return dict(found)


if __name__ == "__main__":
    names = named_rows()
    for row, text in (ROWS | CLIENTS).items():
        print(f"{row:9} {text}")
        for test in names.get(row, ["(no test)"]):
            print(f"          {test}")
