"""Lets Triton 3.6's interpreter loop up to a bound that was computed: NumPy 2.4 makes no int of an array [1].

Importing it is enough; on a card it changes nothing.
"""

from typing import Any

from triton.runtime import interpreter

_patch_tensor = interpreter._patch_lang_tensor


def _patch(tensor: Any, scope: Any) -> None:
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _patch
