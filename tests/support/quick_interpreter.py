"""Triton's interpreter, made quick: what it computes anew for every operation is computed once.

A program of a kernel is some thousand operations on small arrays, and nine tenths of their time went into
objects that describe types: names, shapes as tuples of constants, tables from Triton's types to NumPy's. Here
they are kept by their shape or name; so is a number of a kernel's text, as what it becomes beside a block.
Types that are equal are not looked at for conversions. It also widened every sum of integers to look for
overflow, and then did not ask (``options.debug`` is off). Results are the same bit for bit; nothing here
touches values.

Importing this module does it; without the interpreter (a card, or the compiler) it does nothing.
"""

import builtins
import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np
import triton
from triton.language import core
from triton.language.semantic import TritonSemantic


class _Shape(NamedTuple):
    """What types and tensors of one shape hold of it."""

    ints: Any  # core.tuple of int
    constants: Any  # core.tuple of constexpr
    numel: int
    numel_constant: Any
    sizes: builtins.tuple[int, ...]
    blocks: dict[Any, Any]  # block types of this shape, by the name of their elements' type


_shapes: dict[builtins.tuple[int, ...], _Shape] = {}
_by_tuple: dict[int, _Shape] = {}  # the same by the id of their tuples, which live as long
_INTEGERS = frozenset(core.dtype.SINT_TYPES + core.dtype.UINT_TYPES)
_FLOATS = frozenset(core.dtype.STANDARD_FP_TYPES)
_LIMITS = {  # of integers that are no truth values
    f"{sign}int{bits}": (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}
_BUILTIN = core.load.__code__  # of what looks whether a builtin is called in a kernel


def _shape(sizes: Any) -> _Shape:
    """Return what belongs to these sizes, checked when they are first seen."""
    if (kept := _by_tuple.get(id(sizes))) is not None:
        return kept
    key = builtins.tuple(core._unwrap_if_constexpr(size) for size in core._unwrap_if_constexpr(sizes))
    if key not in _shapes:
        numel = core.validate_block_shape(key)
        constants = core.tuple([core.constexpr(size) for size in key])
        kept = _Shape(core.tuple(key), constants, numel, core.constexpr(numel), key, {})
        _shapes[key] = _by_tuple[id(kept.ints)] = _by_tuple[id(kept.constants)] = kept
    return _shapes[key]


@functools.cache
def _common(one: builtins.tuple[int, ...], other: builtins.tuple[int, ...]) -> _Shape | None:
    """Return what shapes of one length broadcast to, None for others."""
    if len(one) != len(other) or any(a != b and 1 not in (a, b) for a, b in zip(one, other, strict=True)):
        return None
    return _shape([max(a, b) for a, b in zip(one, other, strict=True)])


@functools.cache
def _with_axis(sizes: builtins.tuple[int, ...], axis: int) -> _Shape:
    """Return ``sizes`` with one more axis, of one item, before ``axis``."""
    return _shape([*sizes[:axis], 1, *sizes[axis:]])


def _block_init(self: Any, element_ty: Any, shape: Any) -> None:
    assert isinstance(shape, (list, core.tuple))
    kept = _shape(shape)
    if not len(kept.ints):
        raise TypeError("0d block_type is forbidden")
    self.element_ty, self.shape, self.numel, self.kept = element_ty, kept.ints, kept.numel, kept


def _block_name(self: Any) -> str:
    return f"<{self.shape}, {self.element_ty}>"


def _block_of(element_ty: Any, kept: _Shape) -> Any:
    """Return the block type of this shape, the same object each time."""
    name = element_ty.name
    if element_ty.__class__ is not core.dtype:
        name = (name, element_ty.address_space)  # a pointer; its name says to what
    if name not in kept.blocks:
        kept.blocks[name] = core.block_type(element_ty, kept.ints)
    return kept.blocks[name]


_SCALAR = _Shape(core.tuple([]), core.tuple([]), 1, core.constexpr(1), (), {})


def _tensor_init(self: Any, handle: Any, type: Any) -> None:
    kept = type.kept if type.__class__ is core.block_type else _SCALAR
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = kept.constants, kept.numel_constant


def _tuple_equals(self: Any, other: Any) -> Any:
    other = other.values if isinstance(other, core.tuple) else list(other)
    return core.constexpr(self.values == [core._unwrap_if_constexpr(value) for value in other])


_PLAIN = frozenset((int, float, bool, str, type(None), core.dtype, core.pointer_type, core.tensor))


def _unwrap(value: Any) -> Any:
    kind = value.__class__
    if kind in _PLAIN:
        return value
    if kind is core.constexpr:
        return value.value
    if kind is core.tuple or isinstance(value, (list, builtins.tuple, core.tuple)):
        made = list if isinstance(value, list) else core.tuple if kind is core.tuple else builtins.tuple
        return made(_unwrap(each) for each in value)
    return value.value if isinstance(value, core.constexpr) else value


def _dtype_equals(self: Any, other: Any) -> bool:
    if self is other:
        return True
    if other.__class__ is not core.dtype:
        other = _unwrap(other)
    return isinstance(other, core.dtype) and self.name == other.name


# What Triton does where a closer look is needed
_check = TritonSemantic.binary_op_type_checking_impl
_broadcast = TritonSemantic.broadcast_impl_value
_expand = TritonSemantic.expand_dims
_to_tensor = TritonSemantic.to_tensor
_constants: dict[Any, Any] = {}


def _check_types(self: Any, a: Any, b: Any, *rest: Any, **named: Any) -> Any:
    # What has nothing to convert, but for floats that / and % (the last argument) may widen
    if a.__class__ is not core.tensor:
        if (constant := _constant_like(self, a, b, rest)) is not None:
            return constant, b
    elif b.__class__ is not core.tensor:
        if (constant := _constant_like(self, b, a, rest)) is not None:
            return a, constant
    elif a.dtype.__class__ is b.dtype.__class__ is core.dtype:
        if a.dtype.name == b.dtype.name and (len(rest) < 4 or a.dtype.name in _LIMITS):
            return _broadcast_values(self, a, b)
    elif rest[:2] == (True, True) and (a.dtype.name in _LIMITS or b.dtype.name in _LIMITS):
        return _broadcast_values(self, a, b)  # a pointer and how far it moves
    return _check(self, a, b, *rest, **named)


def _constant_like(self: Any, value: Any, tensor: Any, rest: Any) -> Any:
    """Return a number as what it becomes beside ``tensor``; None where that needs a closer look."""
    if tensor.__class__ is not core.tensor:
        return None
    kind, dtype = value.__class__, tensor.dtype
    if dtype.__class__ is not core.dtype and rest[:2] == (True, True):
        dtype = core.int32  # how far a pointer moves
    if dtype.__class__ is not core.dtype or (len(rest) > 2 and not rest[2]):
        return None
    if kind is int and dtype.name in _LIMITS:
        if not _LIMITS[dtype.name][0] <= value <= _LIMITS[dtype.name][1]:
            return None
    elif kind not in (int, float) or dtype.name not in _FLOATS or len(rest) > 3:
        return None
    kept = tensor.type.kept if tensor.type.__class__ is core.block_type else _SCALAR
    key = value, dtype.name, kept.sizes
    if key not in _constants:
        if len(_constants) >= 4096:
            _constants.clear()
        made = self.scalar_constant(value, dtype)
        _constants[key] = made if kept is _SCALAR else _spread(made, kept)
        _constants[key].handle.data.flags.writeable = False
    return _constants[key]


def _spread(value: Any, kept: _Shape) -> Any:
    """Return a tensor as one of this shape."""
    data = np.empty(kept.sizes, value.handle.data.dtype)
    data[...] = value.handle.data
    handle = value.handle.__class__(data, value.handle.dtype.scalar)
    return core.tensor(handle, _block_of(value.type.scalar, kept))


def _broadcast_values(self: Any, a: Any, b: Any) -> Any:
    is_block = a.type.__class__ is core.block_type, b.type.__class__ is core.block_type
    if is_block == (True, True):
        one, other = a.type.kept, b.type.kept
        if one is other:
            return a, b
        if (both := _common(one.sizes, other.sizes)) is not None:
            return a if one is both else _spread(a, both), b if other is both else _spread(b, both)
        return _broadcast(self, a, b)
    if is_block[0]:
        return a, _spread(b, a.type.kept)
    return (_spread(a, b.type.kept) if is_block[1] else a), b


def _expand_dims(self: Any, tensor: Any, axis: int) -> Any:
    if tensor.type.__class__ is not core.block_type or axis < 0:
        return _expand(self, tensor, axis)
    kept = _with_axis(tensor.type.kept.sizes, axis)
    handle = tensor.handle.__class__(tensor.handle.data.reshape(kept.sizes), tensor.handle.dtype.scalar)
    return core.tensor(handle, _block_of(tensor.type.scalar, kept))


def _quicken_language() -> None:
    semantic = TritonSemantic
    semantic.to_tensor = lambda self, x, *rest: (
        x if x.__class__ is core.tensor else _to_tensor(self, x, *rest)
    )
    semantic.expand_dims = _expand_dims
    semantic.broadcast_impl_value = _broadcast_values
    semantic.binary_op_type_checking_impl = _check_types
    core.block_type.__init__ = _block_init
    core.block_type.name = property(_block_name)
    core.block_type.with_element_ty = lambda self, scalar_ty: _block_of(scalar_ty, self.kept)
    core.tensor.__init__ = _tensor_init
    core.tuple.__eq__ = _tuple_equals
    core.dtype.__eq__ = _dtype_equals
    core.dtype.is_int = lambda self: self.name in _INTEGERS
    core._unwrap_if_constexpr = _unwrap


def _quicken_interpreter(interpreter: Any) -> None:
    original = interpreter._get_np_dtype
    pointer, numpy_types = np.dtype(np.uint64), {}
    for value in vars(core).values():
        if type(value) is core.dtype and value.name != "void":
            numpy_types[value.name] = original(value)
    item_bytes = {name: kind.itemsize for name, kind in numpy_types.items()}

    def get_np_dtype(ty: Any) -> Any:
        element = ty.scalar
        return pointer if element.is_ptr() else numpy_types[element.name]

    def patch_attr(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        semantic = TritonSemantic(builder)
        if getattr(member, "__code__", None) is _BUILTIN:
            member = member.__wrapped__

        def call(*args: Any, **keywords: Any) -> Any:
            keywords["_semantic"] = semantic
            return member(*args, **keywords)

        scope.set_attr(obj, name, call)

    def handle_init(self: Any, data: Any, dtype: Any, attr: Any = None) -> None:
        self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr
        if dtype.__class__ is core.dtype and data.itemsize > item_bytes[dtype.name]:
            raise ValueError(f"{data.dtype} is wider than {dtype}")

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        data, element = op(lhs.data, rhs.data), lhs.dtype.scalar
        if element.__class__ is core.dtype and data.itemsize > item_bytes[element.name]:
            data = data.astype(numpy_types[element.name])
        return interpreter.TensorHandle(data, element)

    def create_splat(self: Any, ty: Any, arg: Any) -> Any:
        data = np.empty(ty.kept.sizes, get_np_dtype(arg.dtype))
        data[...] = arg.data
        return interpreter.TensorHandle(data, arg.dtype.scalar)

    interpreter._get_np_dtype = get_np_dtype
    interpreter._patch_attr = patch_attr
    interpreter.TensorHandle.__init__ = handle_init
    builder = interpreter.InterpreterBuilder
    builder.binary_op, builder.create_splat = binary_op, create_splat
    builder.get_block_ty = lambda self, element, shape: _block_of(element, _shape(shape))
    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=False)


if triton.knobs.runtime.interpret:
    from triton.runtime import interpreter

    _quicken_language()
    _quicken_interpreter(interpreter)
