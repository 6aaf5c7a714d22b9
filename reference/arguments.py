"""Check the arguments of a call against the annotations of its signature.

The jaxtyping annotations of an op state its shapes and dtypes once, for the documentation
(`reference.gla?` shows them) and for this check. jaxtyping matches sizes by name, and a mismatch
raises one sentence about one argument,

    k: float32[1, 7, 2, 5], expected [B, T, H, K] with B=1, T=7, H=3, K=5

A wrong type (a list for a tensor, an integer dtype for a float one, a dtype that differs among
`same_dtype`) is a TypeError; a wrong rank or size is a ValueError.
"""

import functools
import inspect
import re
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping
from math import inf
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, is_typeddict, overload

from jaxtyping import AbstractArray, Shaped, jaxtyped
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[A-Za-z_]\w*")
# The largest int that an argument of each type takes.
_LARGEST: dict[Any, Any] = {int: 2**63 - 1, float: sys.float_info.max}


@overload
def checked(function: Callable[P, R]) -> Callable[P, R]: ...


@overload
def checked(*, same_dtype: Iterable[str] = ()) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def checked(
    function: Callable[P, R] | None = None, *, same_dtype: Iterable[str] = ()
) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
    """Check the arguments of every call against the annotations of the function.

    An annotation is a jaxtyping array of `torch.Tensor`, `bool`, `int`, `float` (also for
    an int, not for a bool), another class such as `Mapping[str, object]`, a `TypedDict` (any dict),
    or a union of these with None. A size is a name, `#B` (1 or B), a number, or a sum such as
    `N+1`. In a sum integer and boolean arguments stand for their values: `V+normalize` is `V+1` if
    `normalize=True`.

    The check binds sizes in the order of the signature. If there is an argument `cu_seqlens`, it
    binds N first: `len(cu_seqlens) - 1`, or the first size of the first tensor if that is None.

    Args:
        function: a function whose parameters are all annotated.
        same_dtype: parameters that must have one dtype, the first of them setting it.

    Returns:
        The function with its name, docstring and signature, and with the check in front.

    Raises (in the function returned):
        TypeError: an argument is of the wrong type or dtype, missing, or unknown.
        ValueError: a tensor has a wrong rank or size, or lies on another device than the first.
    """
    if function is None:
        return functools.partial(_checked, same_dtype=tuple(same_dtype))
    return _checked(function, tuple(same_dtype))


def same_dtype(function: Callable[..., object]) -> tuple[str, ...]:
    """The names of the arguments that a `@checked` function wants in one dtype."""
    names: tuple[str, ...] = getattr(function, "_same_dtype", ())
    return names


def _checked(function: Callable[P, R], same_dtype: tuple[str, ...]) -> Callable[P, R]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = bind(function.__name__, signature, args, kwargs)
        check(signature, bound.arguments, same_dtype)
        return function(*bound.args, **bound.kwargs)

    wrapper._same_dtype = same_dtype  # type: ignore[attr-defined]
    return wrapper


def is_normal(x: float) -> bool:
    """Whether a number is positive and normal in float32, in which kernels take it."""
    return 2.0**-126 <= x <= 2.0**128 - 2.0**104


def bind(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """Bind the arguments of one call of the function `name`, and the defaults of the others."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
    bound.apply_defaults()
    return bound


def check(
    signature: inspect.Signature, arguments: Mapping[str, Any], same_dtype: tuple[str, ...]
) -> dict[str, int]:
    """Check the arguments of one call as `checked` does, and return the size of each named dim."""
    with jaxtyped("context"):
        sizes = _check_each(signature, arguments)
    _check_dtypes(arguments, same_dtype)
    _check_devices(arguments)
    return sizes


def arrays(annotation: Any) -> list[Any]:
    """Return the jaxtyping arrays of an annotation: itself, or those of its union or tuple."""
    kinds = get_args(annotation) or (annotation,)
    return [kind for kind in kinds if _is_array(kind)]


def _check_each(signature: inspect.Signature, arguments: Mapping[str, Any]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name, value in arguments.items():
        if isinstance(value, int):
            _set_size(name, int(value), sizes)
    if "cu_seqlens" in arguments:
        _bind_sequences(arguments, sizes)
    for name, value in arguments.items():
        kinds = _kinds(signature.parameters[name].annotation)
        kind = next((kind for kind in kinds if _matches(value, kind)), None)
        if kind is None:
            raise _mismatch(name, value, kinds, sizes)
        if isinstance(value, int) and abs(value) > _LARGEST.get(kind, inf):
            raise ValueError(f"{name}: {describe(value)}, expected a number of 64 bits")
        if _is_array(kind):
            for axis, size in zip(kind.dim_str.split(), value.shape, strict=True):
                if _NAME.fullmatch(axis):
                    sizes[axis] = size
    return sizes


def _bind_sequences(arguments: Mapping[str, Any], sizes: dict[str, int]) -> None:
    cu_seqlens = arguments["cu_seqlens"]
    first = next((x for x in arguments.values() if isinstance(x, Tensor)), None)
    if isinstance(cu_seqlens, Tensor) and cu_seqlens.ndim == 1:
        if not len(cu_seqlens):
            raise ValueError(f"cu_seqlens: {describe(cu_seqlens)}, expected [N+1]")
        _set_size("N", len(cu_seqlens) - 1, sizes)
    elif cu_seqlens is None and first is not None and first.ndim > 0:
        _set_size("N", first.shape[0], sizes)


def _set_size(name: str, size: int, sizes: dict[str, int]) -> None:
    sizes[name] = size
    # jaxtyping has no call to bind a size, but it binds one when it sees an array of that shape.
    isinstance(SimpleNamespace(shape=(size,), dtype="size"), _vector(name))


# Making a type takes longer than most checks.
@functools.cache
def _vector(name: str) -> Any:
    return Shaped[Any, name]


@functools.cache
def _kinds(annotation: Any) -> tuple[Any, ...]:
    union = get_origin(annotation) in (Union, UnionType)
    return get_args(annotation) if union else (annotation,)


def _matches(value: object, kind: Any) -> bool:
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if is_typeddict(kind):
        return isinstance(value, dict)
    return isinstance(value, get_origin(kind) or kind)


def _is_array(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, AbstractArray)


def _mismatch(
    name: str, value: object, kinds: tuple[Any, ...], sizes: Mapping[str, int]
) -> TypeError | ValueError:
    tensors = [kind for kind in kinds if _is_array(kind)]
    if any(isinstance(value, kind.dtype[Tensor, "..."]) for kind in tensors):
        axes = tensors[0].dim_str.split()
        known = {axis: sizes[axis] for axis in _NAME.findall(" ".join(axes)) if axis in sizes}
        where = ", ".join(f"{axis}={size}" for axis, size in known.items())
        return ValueError(
            f"{name}: {describe(value)}, expected [{', '.join(axes)}]"
            + (f" with {where}" if where else "")
        )
    expected = " or ".join(_describe_kind(kind) for kind in kinds)
    return TypeError(f"{name}: {describe(value)}, expected {expected}")


def _check_dtypes(arguments: Mapping[str, Any], names: tuple[str, ...]) -> None:
    tensors = {name: arguments[name] for name in names if arguments[name] is not None}
    for name, tensor in tensors.items():
        first, model = next(iter(tensors.items()))
        if tensor.dtype != model.dtype:
            raise TypeError(
                f"{name}: {describe(tensor)}, expected {_dtype(model)}, the dtype of {first}"
            )


def _check_devices(arguments: Mapping[str, Any]) -> None:
    tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    for name, tensor in tensors.items():
        first, model = next(iter(tensors.items()))
        if tensor.device != model.device:
            raise ValueError(
                f"{name}: on {tensor.device}, expected {model.device}, the device of {first}"
            )


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def describe(value: object) -> str:
    """`float32[2, 7, 3, 5]` for a tensor, `'x' (str)` for anything else."""
    if isinstance(value, Tensor):
        return f"{_dtype(value)}[{', '.join(map(str, value.shape))}]"
    return f"{reprlib.repr(value)} ({type(value).__name__})"


def _describe_kind(kind: Any) -> str:
    if _is_array(kind):
        return f"{kind.dtype.__name__.lower()}[{', '.join(kind.dim_str.split())}]"
    return "None" if kind is NoneType else str(kind.__name__)
