"""Fuses neighbouring ops of a recorded GPU program, so that a step launches fewer kernels.

    norm heads, rotate q and k, store K and V   ─▶ QkvPost
    that, then attention of heads that rotate   ─▶ TokenAttention
    gate and up, then their activation          ─▶ GatedProduct
    norm, the router's product, the choice      ─▶ Router
    experts, then x += their sum                ─▶ Experts(add)
    x += y, then the norm of x                  ─▶ AddNorm
    x += a product, the norm of x, one product  ─▶ Product(following), Product(norm, writer)
    the norm of x, then one product of it       ─▶ Product(norm), if its weight is of floats

A value that vanishes into a fused op must not be read by anybody before it is written anew: ``_is_dead``.
Results that no op reads (hidden states, logits) are never among them.
"""

from dataclasses import replace

import torch

from ftd.kernels.attention_token_triton import rotates_whole
from ftd.kernels.cuda_attention import Attention, KvStore, QkvPost, TokenAttention
from ftd.kernels.cuda_experts import Experts, Route, Router
from ftd.kernels.cuda_program import (
    Add,
    AddNorm,
    DeviceBuffer,
    Gate,
    GatedProduct,
    Op,
    Product,
    RmsNorm,
    Rope,
)
from ftd.kernels.rms_norm_triton import MAX_WIDTH
from ftd.kernels.router_triton import FORMATS, MAX_TOKENS
from ftd.kernels.word_product_triton import CODE_FORMATS


def fuse(program: list[Op]) -> list[Op]:
    """Return a program of fewer launches that leaves the same results."""
    for rule in RULES:
        fused: list[Op] = []
        position = 0
        while position < len(program):
            found = rule(program, position)
            ops, taken = ([program[position]], 1) if found is None else found
            fused += ops
            position += taken
        program = fused
    return program


def _is_dead(buffer: DeviceBuffer, rest: list[Op]) -> bool:
    """Return whether nobody reads ``buffer`` before it is written again."""
    for op in rest:
        if buffer in op.buffers(op.READS):
            return False
        if buffer in op.buffers(op.WRITES):
            return True
    return True


def _qkv_post(program: list[Op], start: int) -> tuple[list[Op], int] | None:
    """Fuse what lies between the products of q, k and v and their attention."""
    end = start
    while end < len(program) and isinstance(program[end], RmsNorm | Rope):
        end += 1
    if end == start or end + 1 >= len(program):
        return None
    store, attention = program[end], program[end + 1]
    if not isinstance(store, KvStore) or not isinstance(attention, Attention):
        return None
    ropes: dict[DeviceBuffer, Rope] = {}
    norms: dict[DeviceBuffer, RmsNorm] = {}
    before: list[Op] = []
    for op in program[start:end]:
        if isinstance(op, Rope):
            if op.x in ropes or op.x not in (attention.q, store.k):
                return None
            ropes[op.x] = op
        elif isinstance(op, RmsNorm):
            if op.x is not op.out or op.x not in (attention.q, store.k) or op.x in ropes:
                return None
            if op.weight.shape[0] == op.x.width:
                before.append(op)
            else:
                norms[op.x] = op
    q_rope, k_rope = ropes.get(attention.q), ropes.get(store.k)
    if q_rope is None or k_rope is None:
        return None
    if q_rope.scale != k_rope.scale or q_rope.inv_freq is not k_rope.inv_freq:
        return None
    q_norm, k_norm = norms.get(attention.q), norms.get(store.k)
    if (q_norm is None) != (k_norm is None):
        return None
    rest = program[end + 1 :]
    if not _is_dead(store.k, rest) or not _is_dead(store.v, rest):
        return None
    fused = QkvPost(attention.q, store.k, store.v, q_rope, q_norm, k_norm, store)
    return [*before, fused], end + 1 - start


def _token_attention(program: list[Op], start: int) -> tuple[list[Op], int] | None:
    """Let attention normalise, rotate and store a step's own tokens."""
    if start + 1 >= len(program):
        return None
    post, attention = program[start], program[start + 1]
    if not isinstance(post, QkvPost) or type(attention) is not Attention or attention.q is not post.q:
        return None
    if not rotates_whole(post.rotation.inv_freq, attention.k_pages.shape[2]):
        return None
    if attention.out is post.q or not _is_dead(post.q, program[start + 2 :]):
        return None
    return [TokenAttention(post, attention)], 2


def _gated(program: list[Op], start: int) -> tuple[list[Op], int] | None:
    """Fuse the products of gate and up with their activation."""
    if start + 1 >= len(program):
        return None
    product, gate = program[start], program[start + 1]
    if not isinstance(product, Product) or not isinstance(gate, Gate):
        return None
    if product.outs != [gate.gate, gate.up] or product.bias is not None or product.add:
        return None
    if gate.gate.width != gate.up.width or gate.out is product.x:  # programs still read x
        return None
    rest = program[start + 2 :]
    if any(each is not gate.out and not _is_dead(each, rest) for each in product.outs):
        return None
    fused = GatedProduct(gate.out, product.x, product.weight, gate.activation, product.precision)
    return [fused], 2


def _router(program: list[Op], start: int) -> tuple[list[Op], int] | None:
    """Fuse a norm with the router's product and the choice of experts; the experts read the norm too."""
    if start + 2 >= len(program):
        return None
    norm, product, route = program[start : start + 3]
    if not isinstance(norm, RmsNorm) or not isinstance(product, Product) or not isinstance(route, Route):
        return None
    if product.x is not norm.out or product.outs != [route.logits] or product.add:
        return None
    if norm.weight.shape[0] != norm.x.width or norm.x is norm.out or product.weight.format not in FORMATS:
        return None
    if not _is_dead(route.logits, program[start + 3 :]):
        return None
    arrivals = torch.zeros(MAX_TOKENS, dtype=torch.int32, device=route.routing.ids.device)
    return [Router(norm, product, route, arrivals)], 3


def _expert_sum(program: list[Op], start: int) -> tuple[list[Op], int] | None:
    """Let the experts add to x themselves."""
    if start + 1 >= len(program):
        return None
    experts, add = program[start], program[start + 1]
    if not isinstance(experts, Experts) or not isinstance(add, Add) or add.x is not experts.out:
        return None
    if experts.add or add.out is experts.x or not _is_dead(experts.out, program[start + 2 :]):
        return None
    return [replace(experts, out=add.out, add=True, scale=add.scale)], 2


def _add_norm(program: list[Op], start: int) -> tuple[list[Op], int] | None:
    """Fuse an addition with the norm of its sum."""
    if start + 1 >= len(program):
        return None
    add, norm = program[start], program[start + 1]
    if not isinstance(add, Add) or not isinstance(norm, RmsNorm) or norm.x is not add.out:
        return None
    if norm.weight.shape[0] != norm.x.width or norm.out is add.out:
        return None
    return [AddNorm(norm.out, add.out, add.x, add.scale, norm.weight, norm.eps)], 2


def _norm_between(program: list[Op], start: int) -> tuple[list[Op], int] | None:
    """Let a product that adds scale its sums for the norm behind it, which the next product ends."""
    if start + 2 >= len(program):
        return None
    first, norm, second = program[start : start + 3]
    if not isinstance(first, Product) or not isinstance(norm, RmsNorm) or first.outs != [norm.x]:
        return None
    if not isinstance(second, Product | GatedProduct) or not _is_alone(norm, second, program[start + 3 :]):
        return None
    if first.weight.shape[0] > MAX_WIDTH:
        return None
    # The first writes while it reads: what is scaled may not be its x, nor its sums of squares lie where it
    # finds those of the product before it
    if norm.out is first.x or first.writer is not None:
        return None
    second.norm, second.writer, first.following = norm, first, norm
    return [first], 2


def _norm_product(program: list[Op], start: int) -> tuple[list[Op], int] | None:
    """Let a product of floats that alone reads a norm compute it.

    Products of codes have no instructions to spare for it: in one of q4_0, 28,672 x 4,096, a norm costs 8.7
    us on an H200, a norm of its own less than 2.
    """
    if start + 1 >= len(program):
        return None
    norm, product = program[start], program[start + 1]
    if not isinstance(norm, RmsNorm) or not isinstance(product, Product | GatedProduct):
        return None
    if product.weight.format in CODE_FORMATS or not _is_alone(norm, product, program[start + 2 :]):
        return None
    product.x, product.norm = norm.x, norm
    return [product], 2


def _is_alone(norm: RmsNorm, product: Product | GatedProduct, rest: list[Op]) -> bool:
    """Return whether ``product`` alone reads the norm of whole rows, and writes over nothing of it."""
    if product.x is not norm.out or norm.x is norm.out or product.norm is not None:
        return False
    written = product.buffers(product.WRITES)
    if norm.weight.shape[0] != norm.x.width or norm.out in written or norm.x in written:
        return False
    return _is_dead(norm.out, rest)


# In this order: a norm goes to the products around it before it goes to the one behind it
RULES = (
    _qkv_post,
    _token_attention,
    _gated,
    _router,
    _expert_sum,
    _add_norm,
    _norm_between,
    _norm_product,
)
