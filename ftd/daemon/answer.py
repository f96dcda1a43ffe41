"""From ids to what a client reads: bytes to characters, stop strings, thinking and tool calls apart.

Tokens ─▶ StreamDecoder ─▶ StopMatcher ─▶ ThinkingSplitter ─▶ ToolCallParser ─▶ Delta
"""

import secrets
import string
from collections.abc import Sequence
from dataclasses import replace

from ftd.api.request import Delta, Logprob, ToolCall
from ftd.chat.callformats import ParsedCall
from ftd.chat.stops import StopMatcher
from ftd.chat.thinking import Split, ThinkingSplitter
from ftd.chat.tokenizer import StreamDecoder, Tokenizer
from ftd.chat.toolcalls import Parsed, ToolCallParser
from ftd.engine.messages import TokenLogprob, Tokens

_ID_CHARS = string.ascii_lowercase + string.digits


class AnswerText:
    """The text of one answer as it grows; ids after the one that completed a stop string do not count."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        thinking: ThinkingSplitter | None = None,
        calls: ToolCallParser | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._decoder = StreamDecoder(tokenizer)
        self._stops = StopMatcher(stops) if stops else None
        self._thinking = thinking
        self._calls = calls
        self._num_calls = 0
        self.ids: list[int] = []
        self.is_stopped = False

    @property
    def stop(self) -> str:
        """The stop string that ended the answer, empty if none did."""
        return self._stops.found if self._stops is not None else ""

    @property
    def num_tokens(self) -> int:
        """Ids that are part of the answer."""
        return len(self.ids)

    def push(self, tokens: Tokens) -> Delta:
        """Return what the next ids add; after a stop string nothing is added any more."""
        if self._stops is None:
            self.ids += tokens.ids
            text, used = self._decoder.push(tokens.ids), len(tokens.ids)
        else:
            text, used = self._until_stop(tokens.ids)
        entries = [self._logprob(entry) for entry in (tokens.logprobs or ())[:used]]
        return self._delta(self._split(text), entries)

    def _until_stop(self, ids: Sequence[int]) -> tuple[str, int]:
        """Return the text of ``ids`` before a stop string, and how many of them were used."""
        assert self._stops is not None
        shown = ""
        for used, token in enumerate(ids, 1):
            self.ids.append(token)
            text, self.is_stopped = self._stops.push(self._decoder.push((token,)))
            shown += text
            if self.is_stopped:
                return shown, used
        return shown, len(ids)

    def finish(self) -> Delta:
        """Return the text that was held back, at the end of the answer."""
        text = "" if self.is_stopped else self._decoder.flush()
        if self._stops is not None and not self.is_stopped:
            shown, self.is_stopped = self._stops.push(text)
            text = shown + self._stops.flush()
        split = self._split(text)
        if self._thinking is not None:
            rest = self._thinking.flush()
            split = Split(split.thinking + rest.thinking, split.content + rest.content)
        delta = self._delta(split)
        if self._calls is None:
            return delta
        rest_of_calls = self._calls.flush()
        return replace(
            delta,
            content=delta.content + rest_of_calls.content,
            tool_calls=[*delta.tool_calls, *self._numbered(rest_of_calls.calls)],
        )

    def _delta(self, split: Split, entries: Sequence[Logprob] = ()) -> Delta:
        parsed = Parsed(split.content)
        if self._calls is not None and split.content:
            parsed = self._calls.push(split.content)
        calls = self._numbered(parsed.calls)
        return Delta(content=parsed.content, thinking=split.thinking, tool_calls=calls, logprobs=entries)

    def _numbered(self, calls: Sequence[ParsedCall]) -> list[ToolCall]:
        first = self._num_calls
        self._num_calls += len(calls)
        return [
            ToolCall(_call_id(), first + idx, call.name, call.arguments) for idx, call in enumerate(calls)
        ]

    def _split(self, text: str) -> Split:
        if self._thinking is None:
            return Split(content=text)
        return self._thinking.push(text) if text else Split()

    def _logprob(self, entry: TokenLogprob) -> Logprob:
        top = [self._token(token, value) for token, value in entry.top]
        return self._token(entry.id, entry.logprob, top)

    def _token(self, token: int, value: float, top: Sequence[Logprob] = ()) -> Logprob:
        data = self._tokenizer.token_bytes(token)
        return Logprob(data.decode("utf-8", "replace"), data, min(value, 0.0), top)


def _call_id() -> str:
    return "call_" + "".join(secrets.choice(_ID_CHARS) for _ in range(8))
