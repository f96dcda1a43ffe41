"""A vocabulary of one id for each ASCII character and a few of several, as real ones have, and a grammar."""

from typing import Any

from ftd.chat.schema import grammar_of
from ftd.engine.messages import Grammar, Vocabulary

END, OPEN = 159, 158
LONG = (b'{"', b'":', b'", "', b"}}", b"true", b"\xe6\x97", b"\xa5", b'"}', b"</think>", b"k>{", b"12", b"]}")
TOKENS = [bytes([i]) for i in range(128)] + list(LONG)
TOKENS += [b"<%d>" % i for i in range(len(TOKENS), 160)]
VOCABULARY = Vocabulary(tokens=TOKENS, special_ids=list(range(128 + len(LONG), 160)), eos_ids=[END])
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "size": {"enum": ["small", "large"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "size"],
    "additionalProperties": False,
}
GRAMMAR = Grammar(text=grammar_of(SCHEMA))
