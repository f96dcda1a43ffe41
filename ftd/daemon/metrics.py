"""Numbers for Prometheus: counters and histograms kept here, gauges read when somebody asks.

The text format is written here, as its client library takes longer to import than the rest of the daemon's
metrics take to write.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Seconds: a decode step is at the left end, a cold load and a long prompt at the right
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

Labels = Mapping[str, str]
_Key = tuple[tuple[str, str], ...]


class Family(msgspec.Struct, frozen=True):
    """What a metric counts. Names of counters end with ``_total``, units are seconds, bytes and tokens."""

    kind: Literal["counter", "gauge", "histogram"]
    help: str


FAMILIES: dict[str, Family] = {
    "ftd_info": Family("gauge", "Version of the daemon; always 1."),
    "ftd_http_responses_total": Family("counter", "Responses begun, by route and status."),
    "ftd_requests_total": Family("counter", "Requests for text that ended, by model and reason."),
    "ftd_prompt_tokens_total": Family("counter", "Tokens of prompts, those found in the prefix cache too."),
    "ftd_cached_tokens_total": Family("counter", "Tokens of prompts found in the prefix cache."),
    "ftd_output_tokens_total": Family("counter", "Tokens of answers."),
    "ftd_first_token_seconds": Family("histogram", "From the request to its first token, loading included."),
    "ftd_request_seconds": Family("histogram", "From the request to the end of its answer."),
    "ftd_waiting_requests": Family("gauge", "Requests that wait for a model."),
    "ftd_model_bytes": Family("gauge", "Memory of the loaded model."),
    "ftd_model_context_tokens": Family("gauge", "Window of one request on the loaded model."),
    "ftd_engine_sequences": Family("gauge", "Sequences in the engine, by state."),
    "ftd_engine_pages": Family("gauge", "Pages of the KV pool, by owner."),
    "ftd_engine_steps_total": Family("counter", "Steps of the engine since it was loaded."),
    "ftd_engine_tokens_total": Family("counter", "Tokens the engine took, by phase, since it was loaded."),
    "ftd_engine_expert_slots": Family("gauge", "Experts that a card holds, where it cannot hold them all."),
    "ftd_engine_expert_reads_total": Family(
        "counter", "Reads of experts by a card of few slots, by outcome."
    ),
    "ftd_engine_expert_bytes_total": Family(
        "counter", "Bytes of experts copied to the card, and read by the processor in its place."
    ),
    "ftd_engine_expert_cpu_seconds_total": Family(
        "counter", "Time the processor worked on a card's experts."
    ),
    "ftd_engine_expert_split": Family(
        "gauge", "How many of so many missing experts of one token are copied to the card."
    ),
    "ftd_engine_seconds_total": Family("counter", "Time of the engine's steps, by phase, since loaded."),
}


class Sample(msgspec.Struct, frozen=True):
    """One value, read now."""

    name: str
    value: float
    labels: Labels = {}


class _Histogram(msgspec.Struct):
    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    sum: float = 0.0


class Metrics:
    """Counters and histograms since the daemon started. Used on its event loop only."""

    def __init__(self) -> None:
        self._counters: dict[str, dict[_Key, float]] = {}
        self._histograms: dict[str, _Histogram] = {}

    def add(self, name: str, value: float = 1, **labels: str) -> None:
        """Count ``value`` more of ``name``."""
        assert FAMILIES[name].kind == "counter"
        by_labels = self._counters.setdefault(name, {})
        key = tuple(labels.items())
        by_labels[key] = by_labels.get(key, 0) + value

    def observe(self, name: str, seconds: float) -> None:
        """Put one duration into the histogram ``name``."""
        assert FAMILIES[name].kind == "histogram"
        histogram = self._histograms.setdefault(name, _Histogram())
        histogram.counts[bisect_left(BUCKETS, seconds)] += 1
        histogram.sum += seconds

    def text(self, samples: Iterable[Sample] = ()) -> str:
        """Return everything in Prometheus's text format, with ``samples`` read by the caller."""
        lines: dict[str, list[str]] = {name: [] for name in FAMILIES}
        for name, by_labels in self._counters.items():
            lines[name] += [_line(name, dict(key), value) for key, value in by_labels.items()]
        for name, histogram in self._histograms.items():
            lines[name] += _histogram_lines(name, histogram)
        for sample in samples:
            lines[sample.name].append(_line(sample.name, sample.labels, sample.value))
        parts: list[str] = []
        for name, rows in lines.items():
            if rows:
                family = FAMILIES[name]
                parts += [f"# HELP {name} {family.help}", f"# TYPE {name} {family.kind}", *rows]
        return "\n".join(parts) + "\n"


def _histogram_lines(name: str, histogram: _Histogram) -> list[str]:
    rows, below = [], 0
    for bound, count in zip((*map(str, BUCKETS), "+Inf"), histogram.counts, strict=True):
        below += count
        rows.append(_line(f"{name}_bucket", {"le": bound}, below))
    return [*rows, _line(f"{name}_sum", {}, histogram.sum), _line(f"{name}_count", {}, below)]


def _line(name: str, labels: Labels, value: float) -> str:
    shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    number = str(int(value)) if float(value).is_integer() else repr(value)
    return f"{name}{{{shown}}} {number}" if shown else f"{name} {number}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
