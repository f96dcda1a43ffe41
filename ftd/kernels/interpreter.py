"""Triton's interpreter, which runs kernels on the processor, made right where it fails.

It keeps a kernel's scalars in arrays of one item and makes loop bounds of them with ``int()``, which NumPy
2.4 refuses; it keeps bfloat16 as its bits, and adds and multiplies those; it does not know all of a card's
ways to multiply float32. Importing this module repairs loops, ``+ - *``, constants and ``tl.dot``; without
the interpreter it does nothing.

It also replaces the language's functions anew, in milliseconds, for each call of a function in a kernel: here
only if they are not replaced yet.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import triton
import triton.language as tl


def _widened(handle: Any) -> Any:
    """Return an interpreter's value, as float32 if it is a bfloat16."""
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    values = (handle.data.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return type(handle)(values, tl.float32)


def _rounded(handle: Any) -> Any:
    """Return an interpreter's float32 as the nearest bfloat16, the even one of two."""
    bits = np.ascontiguousarray(handle.data, np.float32).view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return type(handle)(nearest.astype(np.uint16), tl.bfloat16)


def _arithmetic(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``compute`` of two values, right for bfloat16 too."""

    def computed(self: Any, a: Any, b: Any) -> Any:
        if a.dtype.scalar != tl.bfloat16:
            return compute(self, a, b)
        return _rounded(compute(self, _widened(a), _widened(b)))

    return computed


def _repair(interpreter: Any) -> None:
    """Repair Triton's module of this name, which is only there to import where Triton interprets."""
    builder = interpreter.InterpreterBuilder
    patch_tensor = interpreter._patch_lang_tensor
    patch_language = interpreter._patch_lang
    dot, cast = builder.create_dot, builder.cast_impl

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        return dot(self, _widened(a), _widened(b), d, *rest)

    def cast_impl(self: Any, source: Any, wanted: Any) -> Any:
        from_to = (source.dtype.scalar, wanted.scalar)
        if from_to == (tl.bfloat16, tl.float32):
            return _widened(source)
        if from_to == (tl.float32, tl.bfloat16):
            return _rounded(source)
        return cast(self, source, wanted)

    def get_bf16(self: Any, value: float) -> Any:
        return _rounded(interpreter.TensorHandle(np.array([value], np.float32), tl.float32))

    @functools.cache
    def languages(function: Any) -> list[Any]:
        return [each for each in function.__globals__.values() if each is tl or each is tl.core]

    def patch_once(function: Any) -> Any:
        modules = languages(function)
        if modules and all(not tl.core.is_builtin(module.load) for module in modules):
            return interpreter._LangPatchScope()
        return patch_language(function)

    interpreter._patch_lang = patch_once
    interpreter._patch_lang_tensor = patch_lang_tensor
    builder.get_bf16 = get_bf16
    builder.cast_impl = cast_impl
    builder.create_dot = create_dot
    options = dataclasses.replace(
        interpreter.interpreter_builder.options,
        allowed_dot_input_precisions=("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6"),
    )
    interpreter.interpreter_builder.options = options
    for name in ("create_fadd", "create_fsub", "create_fmul"):
        setattr(builder, name, _arithmetic(getattr(builder, name)))


if triton.knobs.runtime.interpret:
    from triton.runtime import interpreter

    _repair(interpreter)
