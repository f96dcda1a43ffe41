"""From ids to what a client reads: bytes to characters, stop strings, thinking and tool calls apart.

Tokens ─▶ StreamDecoder ─▶ StopMatcher ─▶ OutputParser (thinking, content, calls) ─▶ Delta
"""

import secrets
import string
from collections.abc import Sequence

from ftd.api.request import Delta, Logprob, ToolCall
from ftd.chat.callbodies import ParsedCall
from ftd.chat.output import Output, OutputParser
from ftd.chat.stops import StopMatcher
from ftd.chat.tokenizer import StreamDecoder, Tokenizer
from ftd.engine.messages import TokenLogprob, Tokens

_ID_CHARS = string.ascii_lowercase + string.digits


class AnswerText:
    """The text of one answer as it grows; ids after the one that completed a stop string do not count."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        parser: OutputParser | None = None,
        *,
        marks: str = "",
        max_calls: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        self._decoder = StreamDecoder(tokenizer, marks=marks)
        self._stops = StopMatcher(stops) if stops else None
        self._parser = parser
        self._max_calls = max_calls
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
        if self._is_full:
            return Delta()
        text = "" if self.is_stopped else self._decoder.flush()
        if self._stops is not None and not self.is_stopped:
            shown, self.is_stopped = self._stops.push(text)
            text = shown + self._stops.flush()
        output = self._split(text)
        if self._parser is not None:
            rest = self._parser.flush()
            output = Output(
                output.thinking + rest.thinking,
                output.content + rest.content,
                [*output.calls, *rest.calls],
            )
        return self._delta(output)

    @property
    def _is_full(self) -> bool:
        """Whether the answer has as many calls as it may have, so that nothing follows."""
        return 0 < self._max_calls <= self._num_calls

    def _delta(self, output: Output, entries: Sequence[Logprob] = ()) -> Delta:
        room = self._max_calls - self._num_calls if self._max_calls else len(output.calls)
        calls = self._numbered(output.calls[:room])
        self.is_stopped = self.is_stopped or self._is_full
        return Delta(content=output.content, thinking=output.thinking, tool_calls=calls, logprobs=entries)

    def _numbered(self, calls: Sequence[ParsedCall]) -> list[ToolCall]:
        first = self._num_calls
        self._num_calls += len(calls)
        return [
            ToolCall(_call_id(), first + idx, call.name, call.arguments) for idx, call in enumerate(calls)
        ]

    def _split(self, text: str) -> Output:
        if self._parser is None:
            return Output(content=text)
        return self._parser.push(text) if text else Output()

    def _logprob(self, entry: TokenLogprob) -> Logprob:
        top = [self._token(token, value) for token, value in entry.top]
        return self._token(entry.id, entry.logprob, top)

    def _token(self, token: int, value: float, top: Sequence[Logprob] = ()) -> Logprob:
        data = self._tokenizer.token_bytes(token)
        return Logprob(data.decode("utf-8", "replace"), data, min(value, 0.0), top)


def _call_id() -> str:
    return "call_" + "".join(secrets.choice(_ID_CHARS) for _ in range(8))
