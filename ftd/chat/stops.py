"""Stop strings in streamed text: found wherever the pieces are cut, removed from the text, in linear time."""

from collections import deque
from collections.abc import Sequence

from ftd.errors import InvalidOption

MAX_STOPS_CHARS = 1 << 16


class StopMatcher:
    """Holds back the longest text that may still become a stop string (an Aho-Corasick automaton).

    The first stop string that is complete ends the text; of several that end together the longest counts.
    The result does not depend on how the text was cut into pieces. ``found`` is the string that ended it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        stops = [stop for stop in stops if stop]
        if sum(map(len, stops)) > MAX_STOPS_CHARS:
            raise InvalidOption(f"stop strings are longer than {MAX_STOPS_CHARS} characters together")
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match = [0]  # state -> length of the longest stop string that ends here
        for stop in stops:
            self._insert(stop)
        self._fail = [0] * len(self._next)
        self._link()
        self._state = 0
        self._held = ""
        self._stopped = False
        self.found = ""

    def _insert(self, stop: str) -> None:
        state = 0
        for char in stop:
            if char not in self._next[state]:
                self._next[state][char] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append(0)
            state = self._next[state][char]
        self._match[state] = len(stop)

    def _link(self) -> None:
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self._next[state].items():
                self._fail[child] = self._step(self._fail[state], char)
                self._match[child] = self._match[child] or self._match[self._fail[child]]
                queue.append(child)

    def _step(self, state: int, char: str) -> int:
        while state and char not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(char, 0)

    def push(self, text: str) -> tuple[str, bool]:
        """Return the text to show and whether a stop string was found; after that nothing more comes."""
        if self._stopped:
            return "", True
        for idx, char in enumerate(text):
            self._state = self._step(self._state, char)
            if length := self._match[self._state]:
                self._stopped = True
                seen = self._held + text[: idx + 1]
                shown, self.found = seen[:-length], seen[-length:]
                self._held = ""
                return shown, True
        whole = self._held + text
        cut = len(whole) - self._depth[self._state]
        self._held = whole[cut:]
        return whole[:cut], False

    def flush(self) -> str:
        """Return the text held back, at the end of the stream."""
        held, self._held, self._state = self._held, "", 0
        return held
