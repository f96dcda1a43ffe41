"""The two functions of the gated delta rule's rates, right for large and for small arguments."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl


@triton.jit
def softplus(x):
    """Return log(1 + exp(x)), right for large and for small results."""
    tail = tl.exp(-tl.abs(x))
    # The logarithm of 1 + tail loses the digits of a small tail.
    return tl.maximum(x, 0.0) + tl.where(tail < 1e-3, tail - 0.5 * tail * tail, tl.log(1.0 + tail))


@triton.jit
def sigmoid(x):
    """Return 1 / (1 + exp(-x)); exp overflows for no x."""
    decay = tl.exp(-tl.abs(x))
    return tl.where(x >= 0.0, 1.0, decay) / (1.0 + decay)
