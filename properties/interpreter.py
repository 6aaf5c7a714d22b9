"""Triton's interpreter (``TRITON_INTERPRET=1``), repaired where it disagrees with a GPU.

The interpreter runs a kernel in NumPy, which has no bfloat16: it keeps the raw bits in ``uint16``
and most operations then work on those integers. :func:`install` replaces, in the running process,
the few methods that are wrong. Each repair below has a kernel in ``test_interpreter.py`` that
fails without it. Checked with Triton 3.6.0, 3.7.1, 3.8.0 and 3.9.0.

==================================================  ==============================================
fault (Triton where it ends)                        repair
==================================================  ==============================================
bfloat16 ``+ - * /``, comparisons, ``tl.dot`` and   decode to float32, compute, round the result
reductions work on raw bits                         back to bfloat16 if the operation returns it
float32 to bfloat16 truncates; with an explicit     round to nearest, ties to even; NaN stays NaN
rounding mode a carry out of the mantissa is lost
integers and float64 to bfloat16 cast the bits      through float32, as the compiler does
``tl.full(..., dtype=tl.bfloat16)`` raises (3.9)    ``get_bf16``
a comparison keeps the type of its operands, so     the type is ``int1``
that casting it to bfloat16 fails
``tl.maximum``/``minimum``/``clamp`` spread NaN     ``numpy.fmax``/``fmin``: the NaN is ignored
that PTX drops (3.8)
loop variables of ``range``/``tl.range`` are        a scalar tensor of the promoted type of the
Python ints: no ``.to()``, no int32 division        bounds, as in the compiler
a tensor as loop bound raises with NumPy 2.4 (3.7)  the bound is read with ``.item()``
a float argument stays a Python float (so a         a float32 scalar; bool arguments are ``int1``
bfloat16 block times it stays bfloat16); a bool
raises (the latter 3.8)
NumPy warns of a NaN or an overflow in a kernel     no warnings
a ``tl.constexpr`` of a module to the left of a     the tensor's method, as in the compiler
tensor takes the result for a constant
each call of a device function replaces the         once in a launch for each module of functions
language anew, in a third of the time
``triton.autotune`` asks a driver for a timer       the first configuration that survives pruning
``tl.zeros``, ``tl.sum`` and others cannot be       they are interpreted when they are called
called if Triton was imported before the variable
was set
==================================================  ==============================================

Not repaired, because no kernel here uses them: float8 conversions, atomics on bfloat16 (refused
with ``NotImplementedError``), ``tl.dot_scaled``, ``tl.fma`` rounding twice before 3.9. Not
imitated: ``input_precision="tf32"`` (products are exact here) and the summation order of a GPU.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton import knobs
from triton.runtime import autotuner
from triton.runtime import interpreter as upstream
from triton.runtime.jit import JITFunction

_FLOAT_METHODS = (
    *("fadd", "fsub", "fmul", "fdiv", "frem", "fneg", "precise_divf", "approx_divf", "fma"),
    *("minimumf", "maximumf", "minnumf", "maxnumf", "clampf"),
    *("exp", "exp2", "log", "log2", "sin", "cos", "erf", "floor", "ceil"),
    *("sqrt", "precise_sqrt", "rsqrt", "dot"),
)

_OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"),
    *("lt", "le", "gt", "ge", "eq", "ne"),
)

_installed = False


def install() -> None:
    """Repair the interpreter in this process; a second call does nothing.

    Call it before the first launch. Compiled kernels do not use the replaced code, so it is
    harmless without `TRITON_INTERPRET`.
    """
    global _installed
    if _installed:
        return
    _installed = True
    _repair_conversions()
    _repair_nan_rules()
    _repair_comparisons()
    _repair_bfloat16_arithmetic()
    _repair_loops()
    _repair_arguments()
    _repair_constants()
    _repair_warnings()
    _repair_patches()
    _repair_autotune()
    _repair_library()
    upstream.InterpretedFunction.rewritten_fn.clear()


def _is_bfloat16(value: Any) -> bool:
    return isinstance(value, upstream.TensorHandle) and value.dtype.scalar == tl.bfloat16


def _widen(bits: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def _round(values: npt.NDArray[Any], *, toward_zero: bool = False) -> npt.NDArray[np.uint16]:
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).reshape(values.shape)
    half = np.uint32(0) if toward_zero else np.uint32(0x7FFF) + ((bits >> 16) & 1)
    quiet_nan = bits | np.uint32(0x0040_0000)
    rounded = np.where(np.isnan(values), quiet_nan, bits + half)
    return (rounded >> 16).astype(np.uint16)


def _decode(value: Any) -> Any:
    if _is_bfloat16(value):
        return upstream.TensorHandle(_widen(value.data), tl.float32)
    return value


def _encode(handle: Any) -> Any:
    return upstream.TensorHandle(_round(handle.data), tl.bfloat16)


def _repair_conversions() -> None:
    builder = upstream.InterpreterBuilder
    convert, cast = upstream._convert_float, builder.cast_impl

    def convert_float(values: Any, source: Any, target: Any, rounding_mode: Any) -> Any:
        if (source, target) == (tl.float32, tl.bfloat16):
            return _round(values, toward_zero=rounding_mode == upstream._ir.ROUNDING_MODE.RTZ)
        if (source, target) == (tl.bfloat16, tl.float32):
            return _widen(values).view(np.uint32)
        return convert(values, source, target, rounding_mode)

    def cast_impl(self: Any, handle: Any, target: Any) -> Any:
        if _is_bfloat16(handle) and target.scalar != tl.bfloat16:
            handle = _decode(handle)
        elif target.scalar == tl.bfloat16 and not _is_bfloat16(handle):
            return _encode(cast(self, handle, tl.float32))
        return cast(self, handle, target)

    upstream._convert_float = convert_float
    builder.cast_impl = cast_impl
    builder.get_bf16 = lambda self, value: _encode(self.get_fp32(value))


def _repair_nan_rules() -> None:
    builder = upstream.InterpreterBuilder
    spread = builder.create_clampf

    def clampf(self: Any, value: Any, low: Any, high: Any, propagate_nans: Any) -> Any:
        if propagate_nans == upstream._ir.PROPAGATE_NAN.NONE:
            return self.binary_op(self.binary_op(value, low, np.fmax), high, np.fmin)
        return spread(self, value, low, high, propagate_nans)

    builder.create_minnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmin)
    builder.create_maxnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmax)
    builder.create_clampf = clampf


def _repair_comparisons() -> None:
    def returning_int1(compare: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compare)
        def repaired(self: Any, lhs: Any, rhs: Any) -> Any:
            result = compare(self, _decode(lhs), _decode(rhs))
            return upstream.TensorHandle(result.data.astype(np.bool_), tl.int1)

        return repaired

    builder = upstream.InterpreterBuilder
    for name in dir(builder):
        if name.startswith(("create_fcmp", "create_icmp")):
            setattr(builder, name, returning_int1(getattr(builder, name)))


def _repair_bfloat16_arithmetic() -> None:
    def in_float32(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def repaired(self: Any, *args: Any) -> Any:
            operands = [arg for arg in args if isinstance(arg, upstream.TensorHandle)]
            if not any(map(_is_bfloat16, operands)):
                return method(self, *args)
            result = method(self, *map(_decode, args))
            # The last operand has the result's type; for tl.dot it is the accumulator.
            return _encode(result) if _is_bfloat16(operands[-1]) else result

        return repaired

    builder = upstream.InterpreterBuilder
    for name in _FLOAT_METHODS:
        if hasattr(builder, f"create_{name}"):
            method = getattr(builder, f"create_{name}")
            setattr(builder, f"create_{name}", in_float32(method))

    atomic = builder.create_atomic_rmw

    def create_atomic_rmw(self: Any, operation: Any, pointer: Any, value: Any, *rest: Any) -> Any:
        if _is_bfloat16(value) and operation != upstream._ir.ATOMIC_OP.XCHG:
            raise NotImplementedError("atomics on bfloat16 are not emulated by the interpreter")
        return atomic(self, operation, pointer, value, *rest)

    builder.create_atomic_rmw = create_atomic_rmw

    reduce_or_scan = upstream.ReduceScanOpInterface
    apply = reduce_or_scan.apply

    def apply_without_shortcut(self: Any, values: Any) -> Any:
        blocks = values if isinstance(values, tuple) else (values,)
        if any(block.dtype == tl.bfloat16 for block in blocks):
            # Functions without a shortcut (np.sum, ...) run through the builder.
            self.combine_fn = SimpleNamespace(fn=self.combine_fn.fn)
        return apply(self, values)

    reduce_or_scan.apply = apply_without_shortcut


def _tensor_range(
    first: Any, second: Any = None, step: Any = 1, **_scheduling_hints: Any
) -> Iterator[Any]:
    semantic = upstream.interpreter_semantic
    start, stop = (0, first) if second is None else (first, second)
    bounds = [semantic.to_tensor(bound) for bound in (start, stop, 1 if step is None else step)]
    dtype = functools.reduce(semantic.integer_promote_impl, [bound.dtype for bound in bounds])
    for value in range(*(int(bound.handle.data.item()) for bound in bounds)):
        yield semantic.scalar_constant(value, dtype)


def _repair_loops() -> None:
    def visit_for(self: ast.NodeTransformer, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        call = node.iter
        if isinstance(call, ast.Call):
            name = call.func
            builtin = isinstance(name, ast.Name) and name.id == "range"
            if builtin or (isinstance(name, ast.Attribute) and name.attr == "range"):
                call.func = ast.Name(id=_tensor_range.__name__, ctx=ast.Load())
        return node

    patch_tensor = upstream._patch_lang_tensor

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    upstream.ASTTransformer.visit_For = visit_for
    # The rewritten kernel finds every global of the interpreter's module.
    upstream._tensor_range = _tensor_range
    upstream._patch_lang_tensor = patch_lang_tensor


def _repair_arguments() -> None:
    convert = upstream._implicit_cvt

    def implicit_cvt(argument: Any) -> Any:
        if isinstance(argument, bool):
            return tl.tensor(upstream.TensorHandle(np.array([argument]), tl.int1), tl.int1)
        if isinstance(argument, float):
            data = np.array([argument], dtype=np.float32)
            return tl.tensor(upstream.TensorHandle(data, tl.float32), tl.float32)
        return convert(argument)

    upstream._implicit_cvt = implicit_cvt


def _repair_constants() -> None:
    def left_to_tensors(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def repaired(self: Any, other: Any) -> Any:
            return NotImplemented if isinstance(other, tl.tensor) else method(self, other)

        return repaired

    for name in (f"__{operator}__" for operator in _OPERATORS):
        setattr(tl.constexpr, name, left_to_tensors(getattr(tl.constexpr, name)))


def _repair_warnings() -> None:
    launch = upstream.GridExecutor.__call__

    @functools.wraps(launch)
    def without_warnings(self: Any, *args: Any, **kwargs: Any) -> None:
        with np.errstate(all="ignore"):
            launch(self, *args, **kwargs)

    upstream.GridExecutor.__call__ = without_warnings


def _repair_patches() -> None:
    patch, launch = upstream._patch_lang, upstream.GridExecutor.__call__
    # By the names of a module, which say what of the language its functions see.
    patched: dict[int, Any] = {}

    def patch_lang(function: Any) -> Any:
        key = id(function.__globals__)
        if key not in patched:
            patched[key] = patch(function)
        return patched[key]

    @functools.wraps(launch)
    def anew(self: Any, *args: Any, **kwargs: Any) -> None:
        patched.clear()
        launch(self, *args, **kwargs)

    upstream._patch_lang = patch_lang
    upstream.GridExecutor.__call__ = anew


def _repair_autotune() -> None:
    run = autotuner.Autotuner.run

    def run_first_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = self.fn
        while not isinstance(kernel, upstream.InterpretedFunction):
            if not hasattr(kernel, "fn"):
                return run(self, *args, **kwargs)
            kernel = kernel.fn
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        choices, self.configs = self.configs, self.prune_configs(kwargs)[:1]
        try:
            return run(self, *args, **kwargs)
        finally:
            self.configs = choices

    autotuner.Autotuner.run = run_first_config


def _repair_library() -> None:
    original = JITFunction.__call__

    @functools.cache
    def interpreted(function: Callable[..., Any]) -> Any:
        return upstream.InterpretedFunction(function)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if knobs.runtime.interpret:
            return interpreted(self.fn)(*args, **kwargs)
        return original(self, *args, **kwargs)

    JITFunction.__call__ = call
