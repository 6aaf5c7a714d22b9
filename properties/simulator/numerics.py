"""Arithmetic of Triton's types on NumPy arrays.

16- and 8-bit floats are float32 arrays that hold only representable values: every operation that
yields such a type rounds its float32 result to nearest even. float32 has more than twice the bits
of each, so add, subtract, multiply, divide and square root are rounded only once in effect.
`tl.dot` computes in float64 and rounds once; float32 operands are first rounded to tf32 if
requested.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, np.dtype[Any]]
Combine = Callable[..., tuple[Array, ...]]


def some(x: Array) -> bool:
    """`x.any()`, several times faster for small arrays."""
    return bool(np.count_nonzero(x))


def every(x: Array) -> bool:
    """`x.all()`, likewise."""
    return bool(np.count_nonzero(x) == x.size)


@dataclass(frozen=True)
class Element:
    """How an element type is stored (`raw`) and computed with (`value`)."""

    raw: np.dtype[Any]
    value: np.dtype[Any]
    decode: Callable[[Array], Array] | None = None
    encode: Callable[[Array], Array] | None = None

    @property
    def size(self) -> int:
        return self.raw.itemsize


def through(dtype: torch.dtype) -> Callable[[Array], Array]:
    """Rounding of float32 to a narrower float type and back."""

    def rounded(x: Array) -> Array:
        source = torch.from_numpy(np.ascontiguousarray(x, np.float32))
        return source.to(dtype).to(torch.float32).numpy()

    return rounded


round_bf16 = through(torch.bfloat16)


def round_f16(x: Array) -> Array:
    """float32 to the nearest float16; float64 is rounded directly, not through float32."""
    if x.dtype == np.float64:
        return x.astype(np.float16).astype(np.float32)
    return through(torch.float16)(x)


def decode_bf16(raw: Array) -> Array:
    return np.left_shift(raw, 16, dtype=np.uint32).view(np.float32)


def encode_bf16(x: Array) -> Array:
    return (np.ascontiguousarray(x).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def decode_f16(raw: Array) -> Array:
    if raw.size < 64:
        return raw.view(np.float16).astype(np.float32)
    source = torch.from_numpy(np.ascontiguousarray(raw).view(np.float16))
    return source.to(torch.float32).numpy()


def encode_f16(x: Array) -> Array:
    source = torch.from_numpy(np.ascontiguousarray(x))
    return source.to(torch.float16).numpy().view(np.uint16)


def float8(dtype: torch.dtype) -> tuple[Element, Callable[[Array], Array]]:
    """Element and rounding of a float8 type; values out of range saturate, as the hardware does."""
    table = torch.arange(256, dtype=torch.uint8).view(dtype).to(torch.float32).numpy()
    largest = torch.finfo(dtype).max

    def encode(x: Array) -> Array:
        clipped = torch.from_numpy(np.clip(np.ascontiguousarray(x, np.float32), -largest, largest))
        return clipped.to(dtype).view(torch.uint8).numpy()

    def rounded(x: Array) -> Array:
        return table.take(encode(x))

    element = Element(np.dtype(np.uint8), np.dtype(np.float32), lambda raw: table.take(raw), encode)
    return element, rounded


def plain(dtype: Any) -> Element:
    return Element(np.dtype(dtype), np.dtype(dtype))


E4M3, round_f8e4m3 = float8(torch.float8_e4m3fn)
E5M2, round_f8e5m2 = float8(torch.float8_e5m2)

ELEMENTS: dict[str, Element] = {
    "i1": Element(
        np.dtype(np.int8), np.dtype(np.bool_), lambda raw: raw != 0, lambda x: x.astype(np.int8)
    ),
    "i8": plain(np.int8),
    "i16": plain(np.int16),
    "i32": plain(np.int32),
    "i64": plain(np.int64),
    "index": plain(np.int64),
    "f32": plain(np.float32),
    "f64": plain(np.float64),
    "f16": Element(np.dtype(np.uint16), np.dtype(np.float32), decode_f16, encode_f16),
    "bf16": Element(np.dtype(np.uint16), np.dtype(np.float32), decode_bf16, encode_bf16),
    "f8E4M3FN": E4M3,
    "f8E5M2": E5M2,
}

ROUNDING: dict[str, Callable[[Array], Array]] = {
    "f16": round_f16,
    "bf16": round_bf16,
    "f8E4M3FN": round_f8e4m3,
    "f8E5M2": round_f8e5m2,
}


def unsigned(x: Array) -> Array:
    """The same bits as unsigned integers."""
    if x.dtype == np.bool_:
        return x.view(np.uint8)
    return x.view(f"u{x.dtype.itemsize}")


def as_unsigned(operation: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    """An operation on the same bits as unsigned integers, back in the type of `a`."""
    return operation(unsigned(a), unsigned(b)).view(a.dtype)


def divide(a: Array, b: Array) -> Array:
    """Integer division that truncates towards zero."""
    return np.asarray((a - np.fmod(a, b)) // b)


def multiply_high(a: Array, b: Array) -> Array:
    """The upper half of the full product of unsigned integers."""
    if a.dtype.itemsize < 8:
        product = a.astype(np.uint64) * b.astype(np.uint64)
        return (product >> np.uint64(a.dtype.itemsize * 8)).astype(a.dtype)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + ((a0 * b0) >> half)
    carry = (middle & low) + a0 * b1
    return np.asarray(a1 * b1 + (middle >> half) + (carry >> half))


def to_integer(x: Array, dtype: Any) -> Array:
    """Float to integer as the hardware converts: towards zero, saturating, NaN to 0."""
    limits = np.iinfo(dtype)
    wide = np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
    out = np.clip(wide, float(limits.min), float(limits.max)).astype(dtype)
    top = wide >= float(limits.max)
    return np.where(top, limits.max, out).astype(dtype) if top.any() else out


def fused_multiply_add(a: Array, b: Array, c: Array) -> Array:
    """`a * b + c`, in effect rounded once; twice in float64."""
    if a.dtype == np.float64:
        return np.asarray(a * b + c)
    return (a.astype(np.float64) * b + c).astype(np.float32)


def special(name: str, x: Array) -> Array:
    """A function of `torch.special`."""
    result: Array = getattr(torch.special, name)(torch.from_numpy(np.ascontiguousarray(x))).numpy()
    return result


def bitcast(x: Array, source: str, target: str) -> Array:
    """Reinterpret the bits of a value of equal size."""
    before, after = ELEMENTS[source], ELEMENTS[target]
    raw = np.ascontiguousarray(before.encode(x) if before.encode else x).view(after.raw)
    return after.decode(raw) if after.decode else raw


def tf32(x: Array) -> Array:
    """float32 rounded to the 10 stored bits of tf32, to nearest with ties away from zero."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(x), rounded, x)


def full(x: Array, tile: tuple[int, ...]) -> Array:
    """The value with every axis of its tile expanded."""
    return x if x.shape[1:] == tile else np.broadcast_to(x, (x.shape[0], *tile))


def stretch(x: Array, axis: int, length: int) -> Array:
    """The value with one axis expanded."""
    if x.shape[axis] == length:
        return x
    shape = list(x.shape)
    shape[axis] = length
    return np.broadcast_to(x, shape)


def dot(a: Array, b: Array, c: Array | None, inner: int) -> Array:
    """`a @ b + c` per program; `inner` is the length of the contraction.

    In float64, rounded once: as on a GPU, an element's bits do not depend on the width of its tile,
    which they do with NumPy's BLAS in float32.
    """
    a, b = stretch(a, a.ndim - 1, inner), stretch(b, b.ndim - 2, inner)
    product = np.matmul(a.astype(np.float64), b.astype(np.float64))
    product = product.astype(np.int32 if a.dtype.kind == "i" else a.dtype)
    return np.asarray(product if c is None else product + c)


def reshape(x: Array, old: tuple[int, ...], new: tuple[int, ...]) -> Array:
    """Another tile shape with the same elements in row-major order."""
    programs = x.shape[0]
    if x.size == programs:
        return x.reshape(programs, *(1,) * len(new))
    return full(x, old).reshape(programs, *new)


def join(a: Array, b: Array) -> Array:
    """A new last axis of length 2."""
    a, b = np.broadcast_arrays(a, b)
    return np.stack((a, b), axis=-1)


def split(x: Array) -> tuple[Array, Array]:
    return x[..., 0], x[..., -1]


def concatenate(a: Array, b: Array, tile: tuple[int, ...]) -> Array:
    """Two tiles after each other along the first axis."""
    programs = max(a.shape[0], b.shape[0])
    parts = [np.broadcast_to(x, (programs, *tile)) for x in (a, b)]
    return np.concatenate(parts, axis=1)


def gather(x: Array, index: Array, axis: int, tile: tuple[int, ...], to: tuple[int, ...]) -> Array:
    programs = max(x.shape[0], index.shape[0])
    source = np.broadcast_to(x, (programs, *tile))
    where = np.broadcast_to(index, (programs, *to)).astype(np.int64)
    return np.take_along_axis(source, where, axis=axis + 1)


def histogram(x: Array, mask: Array | None, length: int, bins: int) -> Array:
    """Counts of 0 ... bins - 1 per program; other values are ignored."""
    programs = max(x.shape[0], 1 if mask is None else mask.shape[0])
    values = np.broadcast_to(x, (programs, length)).astype(np.int64)
    counted = (values >= 0) & (values < bins)
    if mask is not None:
        counted &= mask
    rows = np.broadcast_to(np.arange(programs)[:, None] * bins, values.shape)
    counts = np.bincount((values + rows)[counted], minlength=programs * bins)
    return counts.reshape(programs, bins).astype(np.int32)


def reduce(
    combine: Combine, values: tuple[Array, ...], axis: int, tile: tuple[int, ...]
) -> tuple[Array, ...]:
    """Reduce by an associative, commutative function, folding one half onto the other.

    Faster than NumPy along short axes, closer to the exact sum, and bitwise independent of memory
    layout and of how many programs run together.
    """
    before: tuple[Any, ...] = (slice(None),) * (axis + 1)
    length = tile[axis]
    if len(values) == 1:
        (x,) = values
        while length > 1:
            x, length = stretch(x, axis + 1, length), length // 2
            (x,) = combine(x[(*before, slice(length))], x[(*before, slice(length, None))])
        return (x[(*before, 0)],)
    while True:
        values = tuple(stretch(x, axis + 1, length) for x in values)
        if length == 1:
            return tuple(x[(*before, 0)] for x in values)
        length //= 2
        low, high = (*before, slice(0, length)), (*before, slice(length, None))
        values = combine(*(x[low] for x in values), *(x[high] for x in values))


def scan(
    combine: Combine,
    values: tuple[Array, ...],
    axis: int,
    tile: tuple[int, ...],
    reverse: bool = False,
) -> tuple[Array, ...]:
    """Inclusive scan by any associative function, in logarithmically many steps."""
    before: tuple[Any, ...] = (slice(None),) * (axis + 1)
    length = tile[axis]
    values = tuple(np.broadcast_arrays(*(stretch(x, axis + 1, length) for x in values)))
    if reverse:
        values = tuple(np.flip(x, axis + 1) for x in values)
    step = 1
    while step < length:
        head, first, last = ((*before, slice(*ends)) for ends in ((step,), (-step,), (step, None)))
        later = combine(*(x[first] for x in values), *(x[last] for x in values))
        values = tuple(
            np.concatenate((x[head], np.broadcast_to(y, x[last].shape)), axis=axis + 1)
            for x, y in zip(values, later, strict=True)
        )
        step *= 2
    return tuple(np.flip(x, axis + 1) for x in values) if reverse else values
