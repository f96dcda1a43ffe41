"""The mailbox between a GPU's step and the workers that run experts on the CPU, without calls of the host.

    card   send      stores the tokens' rows, what runs on the CPU and its weights, then rings: bell = n
    host   workers   see the bell, compute out[t] = sum of weight * expert(x_t), then answer: done = n
    card   collect   waits until done = n and adds the rows

The memory is pinned and mapped; what each side writes has cache lines of its own. Stores before a bell or an
answer are seen by who sees it: release and acquire at system scope. A worker that fails answers ``FAILED``;
one that is silent for too long is given up. Either poisons the mailbox: ``poison`` is the number of the
message, this and later waits end at once, and the engine, which looks at it after each step, makes an error
of that. The card waits a microsecond for each read of host memory, one after the other: it looks with one
thread, and keeps what it can know by itself in its own memory.

One token's message and answer in words of 64 bits with its number in each (as in NCCL's LL protocol: no
fence, no second read after the one that saw the answer) decoded at the same speed: 907 to 980 tokens/s
against 948 to 1,005 in 12 layers of q4_0, 628 to 661 against 641 to 665 in 6 of bf16 (30b-a3b, H200).
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ftd.kernels.early_triton import early
from ftd.kernels.shapes import ceil_div, expect, power_of_two

LINE_WORDS = 16  # a cache line of 64 bytes
# Who sees the bell has the words beside it too
BELL, TOKENS, LAYER = 0, 1, 2
DONE, POISON = LINE_WORDS, 2 * LINE_WORDS
HEADER_WORDS = 3 * LINE_WORDS
FAILED = -1
# Tokens of the answer that one program adds, and values of it at once.
COLLECTED_TOKENS, COLLECTED_VALUES = 16, 8192
# A look at host memory takes 1 to 8 us over PCIe; ``looks_in`` measures it.
MAX_LOOKS = 200_000
_PROBED_LOOKS, _INTERPRETED_LOOKS = 2_000, 200

_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}
_IS_COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)
_FAILED = tl.constexpr(FAILED)
_DONE, _POISON, _TOKENS, _LAYER = (tl.constexpr(word) for word in (DONE, POISON, TOKENS, LAYER))


@dataclass(frozen=True, slots=True, eq=False)
class Mailbox:
    """Views of one pinned block: ``host`` for the CPU; the card gets the same memory by address.

    words    [48]   i32   bell, tokens, layer at 0, 1, 2; done at 16; poison at 32
    on_cpu   [T, K] i32   the layer's experts that the CPU runs, -1 elsewhere
    weights  [T, K] f32
    x        [T, D] f32 or bf16
    out      [N, D] f32   of up to N tokens
    many     [T, D] of x's dtype, in the same memory: of more
    sent     [2]    i32   on the device: number of the last message, and of the one that was given up
    """

    words: torch.Tensor
    on_cpu: torch.Tensor
    weights: torch.Tensor
    x: torch.Tensor
    out: torch.Tensor
    many: torch.Tensor
    sent: torch.Tensor

    @staticmethod
    def num_bytes(tokens: int, chosen: int, width: int, dtype: torch.dtype, most: int = 0) -> int:
        """Return the bytes of pinned memory; each part begins at a multiple of 64.

        Sums of up to ``tokens`` are f32. most: tokens of the largest step, if that is not all.
        """
        return sum(_part_bytes(tokens, chosen, width, dtype, max(tokens, most)))

    @classmethod
    def allocate(
        cls, tokens: int, chosen: int, width: int, dtype: torch.dtype, device: str, most: int = 0
    ) -> "Mailbox":
        """Return a mailbox in memory of its own, which is pinned for a card; as ``num_bytes`` takes it."""
        size = cls.num_bytes(tokens, chosen, width, dtype, most) + 64
        memory = torch.empty(size, dtype=torch.uint8, pin_memory=device != "cpu")
        return cls.place(memory[-memory.data_ptr() % 64 :], tokens, chosen, width, dtype, device, most=most)

    @classmethod
    def place(
        cls,
        memory: torch.Tensor,
        tokens: int,
        chosen: int,
        width: int,
        dtype: torch.dtype,
        device: str,
        clear: bool = True,
        most: int = 0,
    ) -> "Mailbox":
        """Lay a mailbox out in ``memory`` u8, which is pinned; the card's side clears it first."""
        most = max(tokens, most)
        sizes = _part_bytes(tokens, chosen, width, dtype, most)
        if memory.nbytes < sum(sizes) or memory.data_ptr() % 64:
            raise ValueError(f"a mailbox of {sum(sizes)} bytes at 64 does not fit {memory.nbytes} bytes")
        if clear:
            memory.zero_()
        parts = torch.split(memory[: sum(sizes)], sizes)
        pairs, values = most * chosen, most * width
        return cls(
            parts[0].view(torch.int32),
            parts[1].view(torch.int32)[:pairs].view(most, chosen),
            parts[2].view(torch.float32)[:pairs].view(most, chosen),
            parts[3].view(dtype)[:values].view(most, width),
            parts[4].view(torch.float32)[: tokens * width].view(tokens, width),
            parts[4].view(dtype)[:values].view(most, width),
            torch.zeros(2, dtype=torch.int32, device=device),
        )

    def addresses(self) -> tuple[object, ...]:
        """Return what ``send`` takes of it: sent, and where words, on_cpu, weights and x are."""
        return self.sent, *(part.data_ptr() for part in (self.words, self.on_cpu, self.weights, self.x))


def _part_bytes(tokens: int, chosen: int, width: int, dtype: torch.dtype, most: int) -> list[int]:
    pairs, x_bytes = most * chosen, most * width * dtype.itemsize
    items = [4 * HEADER_WORDS, 4 * pairs, 4 * pairs, x_bytes, max(x_bytes, 4 * tokens * width)]
    return [-(-size // 64) * 64 for size in items]


@triton.jit
def _ring(words, number):
    """Store ``number`` at address ``words`` where the host sees it after all that the program has stored."""
    if _IS_COMPILED:
        # Nobody waits for a store; an exchange would wait for the host
        tl.inline_asm_elementwise(
            """{
            .reg .pred first; .reg .u32 thread;
            mov.u32 thread, %tid.x;
            setp.eq.u32 first, thread, 0;
            @first st.release.sys.global.u32 [$1], $2;
            mov.u32 $0, 0;
            }""",
            "=r,l,r", [words, number], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        tl.atomic_xchg(words.to(tl.pointer_type(tl.int32)), number, sem="release", scope="sys")


@triton.jit
def send(
    x, on_cpu, weights, sent, words, to_on_cpu, to_weights, to_x, pair, T, K, D, layer,
    x_stride, weights_stride, TOKENS: tl.constexpr,
):  # fmt: skip
    """Store a message and ring; on_cpu: of each ``pair``. ``words`` and ``to_*`` are addresses.

    Part of a program that has decided that the CPU is to run something.
    """
    BLOCK: tl.constexpr = 1024 if TOKENS < 4 else 256
    token = tl.arange(0, TOKENS)[:, None]
    to_rows = tl.multiple_of(to_x.to(tl.pointer_type(x.dtype.element_ty)), 16)
    for first in range(0, D, BLOCK):
        column = (first + tl.arange(0, BLOCK))[None, :]
        inside = (token < T) & (column < D)
        tl.store(
            to_rows + token * D + column, tl.load(x + token * x_stride + column, mask=inside), mask=inside
        )
    weight = tl.load(weights + pair // K * weights_stride + pair % K, mask=pair < T * K)
    tl.store(to_on_cpu.to(tl.pointer_type(tl.int32)) + pair, on_cpu, mask=pair < T * K)
    tl.store(to_weights.to(tl.pointer_type(tl.float32)) + pair, weight, mask=pair < T * K)
    word = words.to(tl.pointer_type(tl.int32))
    tl.store(word + _TOKENS, T)
    tl.store(word + _LAYER, layer)
    number = tl.load(sent) + 1
    tl.debug_barrier()  # every thread's stores come before the bell
    tl.store(sent, number)
    _ring(words, number)


@triton.jit(do_not_specialize=["T", "layer"])
def _announce(sent, words, T, layer):
    word = words.to(tl.pointer_type(tl.int32))
    tl.store(word + _TOKENS, T)
    tl.store(word + _LAYER, layer)
    number = tl.load(sent) + 1
    tl.debug_barrier()
    tl.store(sent, number)
    _ring(words, number)


def ring(mailbox: Mailbox, tokens: int, layer: int) -> None:
    """Let the workers begin with a message that lies in the mailbox."""
    _announce[(1,)](mailbox.sent, mailbox.words.data_ptr(), tokens, layer, num_warps=1)


@triton.jit(do_not_specialize=["T", "max_looks"])
def _collect(
    # pointers
    out, num_on_cpu, sent, words, answer,
    # sizes
    T, D, scale, max_looks,
    # strides
    out_stride,
    # meta
    EACH: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr, ANSWER: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Wait for the answer and add a program's rows of it to out; ``words``, ``answer`` are addresses."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    if tl.load(num_on_cpu) == 0:
        return
    word = words.to(tl.pointer_type(tl.int32))
    number, poison = tl.load(sent), tl.load(sent + 1)
    # An addition of nothing is compiled to a load of one thread, a load would be one of each warp.
    done = tl.atomic_add(word + _DONE, 0, sem="acquire", scope="sys")
    looks = number * 0
    while (done != number) & (done != _FAILED) & (poison == 0) & (looks < max_looks):
        done = tl.atomic_add(word + _DONE, 0, sem="acquire", scope="sys")
        looks += 1
    if done == number and poison == 0:
        tl.debug_barrier()  # no thread reads rows before the one that saw the answer
        rows = tl.multiple_of(answer.to(tl.pointer_type(ANSWER)), 16)
        begin = tl.program_id(0) * EACH
        for first in range(begin, tl.minimum(begin + EACH, T), TOKENS):
            token = (first + tl.arange(0, TOKENS))[:, None]
            for left in range(0, D, BLOCK):
                column = (left + tl.arange(0, BLOCK))[None, :]
                inside = (token < T) & (column < D)
                target = out + token * out_stride + column
                values = tl.load(rows + token * D + column, mask=inside, cache_modifier=".cv")
                values = values.to(tl.float32) * scale
                values += tl.load(target, mask=inside).to(tl.float32)
                tl.store(target, values, mask=inside)
    elif poison == 0:
        tl.store(word + _POISON, number)
        tl.store(sent + 1, number)


def collect(
    mailbox: Mailbox,
    out: torch.Tensor,
    num_on_cpu: torch.Tensor,
    scale: float = 1.0,
    max_looks: int = MAX_LOOKS,
) -> None:
    """Wait for the workers' answer; add scale * it to ``out`` [T, D] f32 or bf16. Safe under capture."""
    expect("out", out, "float32 bfloat16", ("T", mailbox.out.shape[1]))
    _launch_collect(mailbox, mailbox.out, out, num_on_cpu, scale, max_looks)


def collect_many(mailbox: Mailbox, out: torch.Tensor, scale: float, max_looks: int = MAX_LOOKS) -> None:
    """Do the same for a message of more tokens than ``mailbox.out`` has, which was sent."""
    expect("out", out, "float32 bfloat16", ("T", mailbox.out.shape[1]))
    asked = mailbox.sent[:1]  # the number of a message: not 0
    # One program waits, the others look once
    _launch_collect(mailbox, mailbox.many, out[:0], asked, scale, max_looks)
    _launch_collect(mailbox, mailbox.many, out, asked, scale, max_looks)


def _launch_collect(
    mailbox: Mailbox,
    answer: torch.Tensor,
    out: torch.Tensor,
    num_on_cpu: torch.Tensor,
    scale: float,
    max_looks: int,
) -> None:
    tokens, width = out.shape
    rows = min(power_of_two(max(tokens, 1)), 4)
    columns = min(power_of_two(width), COLLECTED_VALUES // rows)
    programs = max(ceil_div(tokens, COLLECTED_TOKENS), 1)
    _collect[(programs,)](
        out, num_on_cpu, mailbox.sent, mailbox.words.data_ptr(), answer.data_ptr(),
        tokens, width, float(scale), max(max_looks // programs, 1), out.stride(0),
        EACH=COLLECTED_TOKENS, TOKENS=rows, BLOCK=columns, ANSWER=_DTYPES[answer.dtype],
        num_warps=4 if rows == 1 else 8, **early(out),
    )  # fmt: skip


def looks_in(mailbox: Mailbox, wait_s: float) -> int:
    """Return how many looks the card takes in ``wait_s``; before workers are there and messages are sent."""
    out = torch.zeros((1, mailbox.x.shape[1]), device=mailbox.sent.device)
    some = torch.ones(1, dtype=torch.int32, device=out.device)
    looks = _PROBED_LOOKS if out.device.type == "cuda" else _INTERPRETED_LOOKS
    mailbox.words[DONE] = FAILED - 1  # the answer to no message
    for _ in range(2):  # the first one compiles
        mailbox.words[POISON] = 0
        mailbox.sent.zero_()
        took_s = _seconds(lambda: collect(mailbox, out, some, 1.0, looks), out.device.type)
    mailbox.words[DONE] = mailbox.words[POISON] = 0
    return max(1, int(wait_s / took_s * looks))


def _seconds(action: Callable[[], None], device: str) -> float:
    """Return how long ``action`` takes on the device."""
    if device != "cuda":
        begin_s = time.perf_counter()
        action()
        return max(time.perf_counter() - begin_s, 1e-9)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    action()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
