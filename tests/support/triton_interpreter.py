"""Mends Triton 3.6's interpreter; importing it is enough, and on a card it changes nothing.

- It makes an int of an array [1] for the bound of a loop, which NumPy 2.4 refuses.
- It replaces all functions of the language anew for each call of a function inside a kernel, which takes
  milliseconds a call: here only if they are not replaced already.
"""

import inspect
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

_patch_tensor = interpreter._patch_lang_tensor
_patch_language = interpreter._patch_lang


def _patch_tensor_and_index(tensor: Any, scope: Any) -> None:
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def _patch_once(function: Any) -> Any:
    modules = [
        each for each in function.__globals__.values() if inspect.ismodule(each) and each in (tl, tl.core)
    ]
    if modules and all(not tl.core.is_builtin(module.load) for module in modules):
        return interpreter._LangPatchScope()
    return _patch_language(function)


interpreter._patch_lang_tensor = _patch_tensor_and_index
interpreter._patch_lang = _patch_once
