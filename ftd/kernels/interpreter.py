"""Triton's interpreter, which runs kernels on the processor, made right where it fails.

It keeps a kernel's scalars in arrays of one item and makes loop bounds of them with ``int()``, which NumPy 2.4
refuses; it keeps bfloat16 as its bits and multiplies those in ``tl.dot``. Importing this module repairs both;
without the interpreter it does nothing. Other arithmetic on bfloat16 stays wrong there: compute in float32.
"""

from typing import Any

import numpy as np
import triton
import triton.language as tl


def _repair() -> None:
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor
    dot = interpreter.InterpreterBuilder.create_dot

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        values = (handle.data.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return interpreter.TensorHandle(values, tl.float32)

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        return dot(self, widened(a), widened(b), d, *rest)

    interpreter._patch_lang_tensor = patch_lang_tensor
    interpreter.InterpreterBuilder.create_dot = create_dot


if triton.knobs.runtime.interpret:
    _repair()
