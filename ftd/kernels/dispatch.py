"""The one door to the kernels: which implementation of an op runs on a device.

Layers ask once, when they are built; nothing is chosen per call. ``FTD_KERNELS=reference`` forces the
definitions (a switch for bug reports, not a setting: it holds for every process that computes).

A CPU op is a triple, written like this (``rms_norm`` as the example):

    rms_norm_ref.py       check() and rms_norm(): NumPy, the definition and the documentation
    src/rms_norm.h        struct RmsNormArgs only; includes op.h
    src/rms_norm_run.h    the SPMD functions, one per instruction set, and their choice by level; included by
                          _rms_norm_cy.pyx only
    _rms_norm_cy.pxd      cdef extern from "rms_norm.h": RmsNormArgs; cdef OpFn rms_norm_fn() noexcept nogil
    _rms_norm_cy.pyx      rms_norm(): check, allocate, take memoryviews, run_ops(pool, ...) without the GIL
    _rms_norm_cy.pyi      the types

``_graph_cy`` cimports RmsNormArgs and rms_norm_fn, fills the struct and appends an Op, so each C++ source is
compiled once. ``rms_norm_fn`` returns the function of ``current_isa()``.

A card runs whole programs, so only "graph" is asked for there; each op has a file all the same:

    rms_norm_triton.py    rms_norm(): the reference's parameters, of tensors (a pool means nothing to it); it
                          allocates its result and calls rms_norm_into(), which checks, and launches into
                          memory that is there: a program's, with its padding, sums and workspaces
"""

import importlib
import warnings
from collections.abc import Callable
from typing import Any

from ftd import environment
from ftd.errors import KernelUnavailable
from ftd.kernels import cpu

OPS: dict[tuple[str, str], tuple[str, ...]] = {
    (op, "cpu"): ("cython", "reference")
    for op in (
        "add",
        "attention",
        "causal_conv",
        "dequantize",
        "embedding",
        "expert_ffn",
        "gated_delta",
        "geglu",
        "gelu",
        "graph",
        "head_linear",
        "index_select",
        "kv_store",
        "latent_attention",
        "latent_norm",
        "latent_store",
        "layer_norm",
        "logprobs",
        "matmul",
        "position_embedding",
        "quantize_k",
        "rms_norm",
        "rope",
        "route_topk",
        "sample",
        "select_logit_rows",
        "sigmoid_gate",
        "swiglu",
    )
}

OPS["graph", "cuda"] = ("triton",)

MODULES: dict[str, str] = {
    "cython": "ftd.kernels._{op}_cy",
    "reference": "ftd.kernels.{op}_ref",
    "triton": "ftd.kernels.{op}_triton",
}

# What records programs of ops is no op itself: the module and the class of each implementation.
_GRAPHS: dict[str, tuple[str, str]] = {
    "cython": ("ftd.kernels._graph_cy", "CpuGraph"),
    "reference": ("ftd.kernels.reference_graph", "ReferenceGraph"),
    "triton": ("ftd.kernels.graph_triton", "CudaGraph"),
}


def _candidates(op: str, device: str) -> tuple[str, ...]:
    row = OPS.get((op, device))
    if row is None:
        raise KernelUnavailable(
            f"no op {op} on device {device}", f"use one of {' '.join(sorted({o for o, _ in OPS}))}"
        )
    forced = environment.kernels()
    if not forced:
        return row
    if forced not in row:
        raise KernelUnavailable(
            f"FTD_KERNELS has no implementation of {op} on {device}: {forced}", "unset FTD_KERNELS"
        )
    return (forced,)


def _place(op: str, implementation: str) -> tuple[str, str]:
    """Return the module that has an implementation, and its name there."""
    return _GRAPHS[implementation] if op == "graph" else (MODULES[implementation].format(op=op), op)


def _load(op: str, implementation: str) -> Callable[..., Any]:
    module, name = _place(op, implementation)
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def choose(op: str, device: str = "cpu") -> tuple[str, Callable[..., Any]]:
    """Return the implementation's name and the function: the best one that is built.

    Raises KernelUnavailable if there is no such op or, on a device other than the CPU, no fast version.
    """
    candidates = _candidates(op, device)
    for implementation in candidates:
        try:
            return implementation, _load(op, implementation)
        except ModuleNotFoundError as exc:
            if exc.name != _place(op, implementation)[0]:
                raise
            if device != "cpu" or implementation == candidates[-1]:
                raise KernelUnavailable(
                    f"{implementation} {op} is not built for {device}", "run scripts/build"
                ) from exc
            warnings.warn(
                f"{implementation} {op} is not built; a slow one runs", RuntimeWarning, stacklevel=3
            )
    raise AssertionError("every row of OPS has an implementation")


def get(op: str, device: str = "cpu") -> Callable[..., Any]:
    """Return the function (or, for "graph", the class) that computes ``op`` on ``device``."""
    return choose(op, device)[1]


def describe(device: str = "cpu") -> dict[str, str]:
    """Return which implementation of each op is in force, and the instruction set, for the start-up log."""
    isa = cpu.isa()
    chosen = {op: choose(op, device)[0] for op, on in sorted(OPS) if on == device}
    return {op: f"{name} {isa}" if name == "cython" else name for op, name in chosen.items()}
