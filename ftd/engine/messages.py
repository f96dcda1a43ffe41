"""What crosses the socket between daemon and engine: token ids and numbers, never text.

    frame := length of the body (u32, little endian) · body (msgpack of one tagged struct)

Down: Load, Grow, Vocabulary, Generate, Cancel, Embed, GetStats, Unload.
Up: Ready, Progress, Tokens, Finished, Embedded, Stats, Failed.
``request_id`` is chosen by the daemon and unique while the engine lives. Durations are nanoseconds.
"""

import struct
from typing import Literal

import msgspec

import ftd

MAX_FRAME_BYTES = 256 << 20
HEADER = struct.Struct("<I")


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all messages; the struct's tag is its lower-case class name."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is chosen; defaults are Ollama's. ``seed`` None draws a random one."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None


class Load(Message, frozen=True, kw_only=True, tag="load"):
    """Load the model whose FTW config lies at ``config_path``; answered by Progress… then Ready or Failed.

    blob_paths: digest -> file, for every blob that the config names. ``context_tokens`` is the window of one
    request, ``kv_bytes`` bounds the whole KV pool (0: enough for max_sequences full windows, bounded by free
    memory). ``device``: auto takes a card where one can be used. ``device_memory_bytes``: most that the
    process takes there; ``host_memory_bytes``: most of the host's for weights, or experts that a card does
    not hold, and what sequences keep (0: what is free). ``prefill_chunk_tokens``: prompt tokens of one step
    (0: what is free, what suits the device). ``experts``: what becomes of those that a card does not hold:
    auto, fill, cpu or split=F (F are fetched). ``experts_policy``: which of them stay there, see
    ``expert_plan.POLICIES``. ``expert_slots``: the part of all experts that a card holds (0: as many as fit).
    ``version``: the sender's, whose other messages an engine of another version may not understand.
    """

    config_path: str
    blob_paths: dict[str, str]
    context_tokens: int
    max_sequences: int = 8
    kv_bytes: int = 0
    num_threads: int = 0
    precision: Literal["fast", "f32"] = "fast"
    prefill_chunk_tokens: int = 0
    device: Literal["auto", "cpu", "cuda", "interpreter"] = "cpu"
    device_memory_bytes: int = 0
    host_memory_bytes: int = 0
    experts: str = "auto"
    experts_policy: str = "ftd"
    expert_slots: float = 0.0
    debug_checks: bool = False
    version: str = ftd.__version__


class Grow(Message, frozen=True, kw_only=True, tag="grow"):
    """Make the window larger without reading the weights again; answered by Ready or Failed.

    Only between requests. The prefix cache begins anew; on a card slots of experts make room.
    """

    context_tokens: int


class Vocabulary(Message, frozen=True, kw_only=True, tag="vocabulary"):
    """The bytes of every id, for requests with a grammar; sent once, before the first of them.

    A grammar's text never contains the ids of ``special_ids``; ``eos_ids`` may follow it.
    """

    tokens: list[bytes]
    special_ids: list[int] = []
    eos_ids: list[int] = []


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """What the output must be. ``text``: a grammar as llguidance writes it (``ftd.chat.schema`` makes them).

    free_until: output is free up to and including these bytes (the end of thinking), bound after them.
    detours: id -> bytes. Output may begin with this id instead, and is free then until these bytes came; no
    bytes: to its end.
    """

    text: str
    free_until: bytes = b""
    detours: dict[int, bytes] = {}


class Generate(Message, frozen=True, kw_only=True, tag="generate"):
    """Continue ``ids``; answered by Tokens… then Finished or Failed.

    max_tokens <= 0 means until the window is full. A stop id ends the sequence and is not emitted.
    ``num_logprobs``: -1 none, 0 the chosen token only, n the n best too. ``cache_salt`` separates prefix
    caches. A sequence whose ``grammar`` is complete ends with reason ``stop``. window_tokens bounds
    prompt and output together (0: the window that was loaded). num_keep: when it is full the oldest ids
    behind the first ``num_keep`` make room for more, half of them at a time; -1: the request ends.
    """

    request_id: int
    ids: list[int]
    max_tokens: int = 0
    stop_ids: list[int] = []
    sampling: SamplingParams = SamplingParams()
    num_logprobs: int = -1
    cache_salt: str = ""
    window_tokens: int = 0
    num_keep: int = -1
    grammar: Grammar | None = None


class Cancel(Message, frozen=True, kw_only=True, tag="cancel"):
    """Abort a request within one step; answered by Finished with reason ``abort`` unless it had ended."""

    request_id: int


class Embed(Message, frozen=True, kw_only=True, tag="embed"):
    """Pool the last hidden state of each sequence; answered by Embedded or Failed."""

    request_id: int
    sequences: list[list[int]]
    pooling: Literal["mean", "last", "cls"] = "mean"


class GetStats(Message, frozen=True, kw_only=True, tag="get_stats"):
    """Ask for Stats."""


class Unload(Message, frozen=True, kw_only=True, tag="unload"):
    """End the engine process after the current step."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Where a loaded model lies and what it takes there, as planned. ``used_bytes``: measured, all of the
    process; 0 on the processor. ``budget_bytes``: what it was allowed (0: what is free).

    place, reason: the device, and why it was chosen if nobody asked for it. overhead: of a card's driver and
    kernels. Of ``experts`` that a card does not hold: slots for some, with those that stage layers
    ``slot_bytes``, and all of them in host memory. notes: what people should know.
    """

    place: str = ""
    reason: str = ""
    weight_bytes: int = 0
    kv_bytes: int = 0
    workspace_bytes: int = 0
    overhead_bytes: int = 0
    slots: int = 0
    slot_bytes: int = 0
    experts: int = 0
    host_expert_bytes: int = 0
    used_bytes: int = 0
    budget_bytes: int = 0
    notes: list[str] = []


class Ready(Message, frozen=True, kw_only=True, tag="ready"):
    """The model is loaded; sizes are those in force, ``device_bytes`` is what of them lies on a card."""

    context_tokens: int
    weight_bytes: int
    kv_bytes: int
    workspace_bytes: int
    num_threads: int
    device: str
    load_ns: int
    kernels: dict[str, str]
    device_bytes: int = 0
    memory: Memory = Memory()


class Progress(Message, frozen=True, kw_only=True, tag="progress"):
    """Bytes of weights read so far; sent while loading, at most ten times a second."""

    completed_bytes: int
    total_bytes: int


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Natural logarithm of a token's probability before temperature and filters."""

    id: int
    logprob: float
    top: list[tuple[int, float]] = []


class Tokens(Message, frozen=True, kw_only=True, tag="tokens"):
    """The next ids of a request, in order; ``logprobs`` is parallel to ``ids`` when asked for."""

    request_id: int
    ids: list[int]
    logprobs: list[TokenLogprob] | None = None


class Finished(Message, frozen=True, kw_only=True, tag="finished"):
    """A request ended. ``output_tokens`` counts what was emitted (a stop id is not), ``shifted_tokens`` the
    ids that left a full window meanwhile.
    """

    request_id: int
    reason: Literal["stop", "length", "abort"]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_ns: int
    prefill_ns: int
    decode_ns: int
    shifted_tokens: int = 0


class Embedded(Message, frozen=True, kw_only=True, tag="embedded"):
    """One f32 little-endian vector of ``width`` values for each sequence, concatenated."""

    request_id: int
    width: int
    data: bytes
    prompt_tokens: int


class Stats(Message, frozen=True, kw_only=True, tag="stats"):
    """Counters since load and gauges of this moment.

    Of models with experts: ``expert_uses`` counts tokens times the experts that they used in all layers,
    ``expert_reads`` how often an expert's weights were read for a step. Where a card holds some of them, in
    ``expert_slots``: reads from a slot (hits), of experts copied into one (fills), of experts copied for one
    step (transient fills), and by the processor; steps that stage whole layers are not among these.
    ``expert_copied_bytes`` went to the card (staged ones too), ``expert_cpu_bytes`` were read by the
    processor in ``expert_cpu_ns``. ``expert_split``: how many of 1, 2, … missing of one token are copied.
    """

    running: int
    waiting: int
    steps: int
    prefill_tokens: int
    decode_tokens: int
    cached_tokens: int
    pages_free: int
    pages_tree: int
    pages_live: int
    pages_total: int
    prefill_ns: int
    decode_ns: int
    expert_uses: int = 0
    expert_reads: int = 0
    expert_slots: int = 0
    expert_hits: int = 0
    expert_fills: int = 0
    expert_transient_fills: int = 0
    experts_on_cpu: int = 0
    expert_copied_bytes: int = 0
    expert_cpu_bytes: int = 0
    expert_cpu_ns: int = 0
    expert_split: list[int] = []


class Failed(Message, frozen=True, kw_only=True, tag="failed"):
    """A request (or, with request_id None, the load or the whole engine) failed.

    ``kind`` is the name of a class in ``ftd.errors``.
    """

    kind: str
    message: str
    hint: str | None = None
    request_id: int | None = None


Down = Load | Grow | Vocabulary | Generate | Cancel | Embed | GetStats | Unload
Up = Ready | Progress | Tokens | Finished | Embedded | Stats | Failed

_encoder = msgspec.msgpack.Encoder()
_down = msgspec.msgpack.Decoder(Down)
_up = msgspec.msgpack.Decoder(Up)


def encode(message: Down | Up) -> bytes:
    """Return the frame of one message."""
    body = _encoder.encode(message)
    return HEADER.pack(len(body)) + body


def decode_down(body: bytes) -> Down:
    """Decode the body of a frame sent by the daemon."""
    return _down.decode(body)


def decode_up(body: bytes) -> Up:
    """Decode the body of a frame sent by the engine."""
    return _up.decode(body)
