"""Run by test_compile_triton: compiles what mixtures of experts launch for real shapes.

With an argument, only the formats that it names, separated by commas.
"""

import sys
from typing import Any

import numpy as np
import torch
import triton_compiler

from ftd.kernels import expert_ffn_triton, expert_mailbox_triton, residency_triton, router_triton
from ftd.kernels.device_matrix import DTYPES, DeviceBank, DeviceMatrix
from ftd.kernels.expert_ffn_triton import expert_ffn_into
from ftd.kernels.expert_mailbox_triton import Mailbox, collect
from ftd.kernels.expert_prompts import PromptShare
from ftd.kernels.expert_workspace import Workspace
from ftd.kernels.fill_triton import DEEP, SHALLOW, fill
from ftd.kernels.look_ahead_triton import look_ahead
from ftd.kernels.quant import FORMATS
from ftd.kernels.residency_state import Message, Placement, Residency
from ftd.kernels.residency_triton import access, advance
from ftd.kernels.route_topk_triton import route_topk
from ftd.kernels.router_triton import Expected, router

# A thread's registers in memory that cost nothing to speak of.
FEW_BYTES = 64
D, F, E, K = 2048, 768, 4, 2


def bank_of(name: str, biased: bool, width: int, inner: int, fused: bool) -> DeviceBank:
    """Return experts of zeros; fused: gate and up are one matrix."""

    def zeros(format_name: str, shape: tuple[int, int]) -> DeviceMatrix:
        planes = (
            torch.zeros((E, *FORMATS[format_name].plane_shape(plane, shape)), dtype=DTYPES[plane.dtype])
            for plane in FORMATS[format_name].planes
        )
        return DeviceMatrix(format_name, shape, tuple(planes))

    matrices = {"down": zeros(name, (width, inner))}
    if fused:
        matrices["gate_up"] = zeros(name, (2 * inner, width))
    else:
        matrices |= {role: zeros(name, (inner, width)) for role in ("gate", "up")}
    if biased:
        matrices |= {"gate_up_bias": zeros("f32", (1, 2 * inner)), "down_bias": zeros("f32", (1, width))}
    return DeviceBank(0, matrices, torch.arange(E, dtype=torch.int32))


def experts_of(name: str, width: int = D, inner: int = F, fused: bool = True) -> None:
    """Compile a single token, few and many, in both precisions."""
    bank = bank_of(name, name == "mxfp4", width, inner, fused)
    uses = torch.zeros(E + 1, dtype=torch.int64)
    activation = "clamped" if name == "mxfp4" else "silu"
    for tokens, precision in ((1, "fast"), (8, "fast"), (64, "fast"), (1, "f32"), (64, "f32")):
        x = torch.zeros((tokens, width), dtype=torch.bfloat16 if precision == "fast" else torch.float32)
        ids, weights = torch.zeros((tokens, K), dtype=torch.int32), torch.ones((tokens, K))
        memory = {
            "out": torch.zeros((tokens, width)),
            "workspace": Workspace.make(tokens, K, E, width, inner, precision, "cpu"),
            "uses": uses,
        }
        for rows in (x, x.float()):
            expert_ffn_into(rows, ids, weights, bank, activation, precision=precision, **memory)


def routers(tokens: int, experts: int, width: int, name: str, **options: Any) -> None:
    """Compile the choice of experts, and norm, product and choice at once."""
    x, kv_index = torch.zeros((tokens, width)), torch.zeros(tokens, dtype=torch.int32)
    logits, weight = torch.zeros((tokens, experts)), torch.zeros((1, experts, width), dtype=DTYPES[name])
    ids, weights = route_topk(logits, 8, **options)
    matrix = DeviceMatrix("f32" if name == "<f4" else "bf16", (experts, width), (weight,))
    arrivals, bias = torch.zeros_like(kv_index), options.get("bias")
    memory = {"logits": logits, "arrivals": arrivals, "ids": ids, "weights": weights}
    for expected in (None, Expected(matrix, None, bias, **memory)):
        router(
            x, (x[0], 1e-6), matrix, None, 8, **options, **memory, kv_index=kv_index,
            normed=x.to(torch.bfloat16), expected=expected,
        )  # fmt: skip


def residency() -> None:
    """Compile what experts beyond the card's memory need."""
    for tokens, slots in ((1, 1500), (16, 6144)):
        state = Residency.make(6144, slots, [0, 1], [1 << 16] * 32, "cpu")
        placement = Placement.make(tokens, 8, 128, "cpu")
        ids = torch.zeros((tokens, 8), dtype=torch.int32)
        x, weights = torch.zeros((tokens, D), dtype=torch.bfloat16), torch.ones((tokens, 8))
        mailbox = Mailbox.allocate(16, 8, D, torch.bfloat16, "cpu", most=600)
        for policy in ("decayed", "lru"):
            access(state, ids, 0, placement, policy)
            message = Message(mailbox, x, weights, 1)
            for warms in (True, False):
                access(state, ids, 0, placement, policy, 256, message=message, warms=warms)
        count = torch.zeros(1, dtype=torch.int32)
        look_ahead(state, ids[:8], 128, placement, count, torch.zeros((1, 2), dtype=torch.int32), count)
        advance(state, 24)
        collect(mailbox, torch.zeros((tokens, D)), placement.counts[2:])
        bases, pool = torch.zeros(48, dtype=torch.int64), torch.zeros((2, 1 << 20), dtype=torch.uint8)
        for depth in (DEEP, SHALLOW):
            fill(placement.fetch, placement.counts, bases, pool, 128, 1 << 20, depth)
    for dtype in (torch.float32, torch.bfloat16):
        share = PromptShare(mailbox, 2, 128, 1)
        share.use(np.ones((2, 128), bool))
        ids = torch.zeros((512, 8), dtype=torch.int32)
        uses = torch.zeros(129, dtype=torch.int64)
        share.send(1, torch.zeros((512, D), dtype=torch.bfloat16), ids, torch.zeros((512, 8)), uses)
        share.collect(1, torch.zeros((512, D), dtype=dtype), 1.0)


def main() -> None:
    """Compile; print a line a kernel that keeps more than a few registers in memory."""
    expert_ffn_triton._is_interpreted = lambda _: False
    for module in (expert_ffn_triton, expert_mailbox_triton, residency_triton, router_triton):
        module.early = lambda _: {"EARLY": True, "launch_pdl": True}
    for name in sys.argv[1].split(",") if len(sys.argv) > 1 else FORMATS:
        experts_of(name)
    experts_of("bf16", fused=False)
    # Rows that end within a step of columns
    experts_of("bf16", 96, 64, fused=False)
    routers(1, 128, 2048, "<f4")
    routers(2, 256, 7168, "<u2", scoring="sigmoid", bias=torch.zeros(256), num_groups=8, top_groups=4)
    residency()
    for kernel, (registers, stack) in triton_compiler.compiled.items():
        if stack > FEW_BYTES:
            print(f"{stack} bytes, {registers} registers: {kernel}")


if __name__ == "__main__":
    main()
