"""The memory of a launch: tensors as bounded, typed buffers.

A pointer is a pair `(buffer, offset)` with an int64 array of element offsets from the first element
of its tensor. If lanes of one pointer may be in different tensors, or an address was computed as an
integer, the buffer is `ANYWHERE` and the offset is a byte address.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch.jit._builtins import _register_builtin
from torch.utils._device import _device_constructors

from .numerics import ELEMENTS, Array, Element, some

Pointer = tuple["Buffer", Array]
Member = Callable[[Array], Array]
TABLE_LIMIT = 2**27
FILL_LIMIT = 2**30

ELEMENT_OF: dict[torch.dtype, str] = {
    torch.bool: "i1",
    torch.int8: "i8",
    torch.uint8: "i8",
    torch.int16: "i16",
    torch.uint16: "i16",
    torch.int32: "i32",
    torch.uint32: "i32",
    torch.int64: "i64",
    torch.uint64: "i64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float8_e4m3fn: "f8E4M3FN",
    torch.float8_e5m2: "f8E5M2",
}


class Window:
    """Raw memory for NumPy; the holder of the array must keep the tensor alive."""

    def __init__(self, address: int, count: int, dtype: np.dtype[Any]) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (count,),
            "typestr": dtype.str,
            "version": 3,
        }


def memory_at(address: int, count: int, dtype: np.dtype[Any]) -> Array:
    """`count` elements of memory; for 0, an array that cannot be read."""
    return np.asarray(Window(address, count, dtype)) if count else np.zeros(1, dtype)


@lru_cache(maxsize=64)
def layout(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, Member | None]:
    """Extent of a view in elements and, if it has gaps, which offsets belong to it."""
    if 0 in shape:
        return 0, None
    spans = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size > 1]
    extent = 1 + sum((size - 1) * stride for size, stride in spans)
    count = 1
    for size, stride in spans:
        count *= size if stride else 1
    if count >= extent:
        return extent, None
    if extent > TABLE_LIMIT:
        return extent, nested(sorted(((s, n) for n, s in spans if s), reverse=True))
    table = np.zeros(extent, np.bool_)
    np.lib.stride_tricks.as_strided(table, shape, strides)[...] = True
    return extent, None if table.all() else lambda offset: table.take(offset, mode="clip")


def nested(spans: list[tuple[int, int]]) -> Member | None:
    """Membership by division, for views too large for a table: `(stride, size)`, widest first."""
    inner = 1
    for stride, size in reversed(spans):
        if stride < inner:
            return None
        inner = stride * (size - 1) + inner

    def belongs(offset: Array) -> Array:
        inside = np.ones(offset.shape, np.bool_)
        for stride, size in spans:
            inside &= offset // stride < size
            offset = offset % stride
        return np.asarray(inside & (offset == 0))

    return belongs


# Stands for several programs in a table of readers.
SEVERAL = np.int32(-(2**31))


class Traffic:
    """Which program of the launch last wrote, and which read, each element of a storage.

    Programs count from 1; 0 is nobody. In `writers`, -n is program n that updated the element
    atomically. There is no table of readers if the launch does not load from the storage.
    """

    def __init__(self, address: int, nbytes: int, itemsize: int, read: bool) -> None:
        self.address, self.itemsize = address, itemsize
        self.writer = np.zeros(nbytes // itemsize + 1, np.int32)
        self.reader = np.zeros(nbytes // itemsize + 1, np.int32) if read else None


def sign(book: Array, place: Array, mark: Array) -> None:
    """Enter a program at each place, unless it wrote there; several programs become SEVERAL."""
    before = book.take(place)
    if not some(before != mark):
        return
    entry = mark
    if some(before):
        alone = (before == 0) | (before == mark)
        entry = np.where(alone, mark, np.where(before == -mark, before, SEVERAL))
    book[place] = entry
    lost = book.take(place) != entry
    if some(lost):
        book[place[lost]] = SEVERAL


class Buffer:
    """One tensor argument as a kernel sees it: a base address and its own offsets.

    Attributes:
        data: the raw elements from the first one of the view to its last one.
        size: number of elements in that range; offsets at or above it are out of bounds.
        member: for views with gaps, which offsets belong to the view.
        fresh: the storage came from `torch.empty` and may hold unwritten elements.
    """

    __slots__ = (
        "address", "data", "element", "fresh", "kind", "member", "name", "shift", "size", "storage",
        "tensor", "traffic",
    )  # fmt: skip

    def __init__(self, name: str, tensor: torch.Tensor, kind: str) -> None:
        self.name, self.tensor, self.kind = name, tensor, kind
        self.element: Element = ELEMENTS[kind]
        self.address = tensor.data_ptr()
        self.size, self.member = layout(tuple(tensor.shape), tensor.stride())
        self.data = memory_at(self.address, self.size, self.element.raw)
        storage = tensor.untyped_storage()
        self.storage = storage.data_ptr()
        self.fresh = canary_of(kind) if is_fresh(tensor) else None
        self.shift = 0
        self.traffic: Traffic | None = None

    def watch(self, traffic: Traffic) -> None:
        """Record which programs read and write this buffer."""
        if traffic.itemsize == self.element.size:
            self.traffic = traffic
            self.shift = (self.address - traffic.address) // traffic.itemsize

    def cast(self, kind: str) -> Buffer:
        """The same memory as elements of another type."""
        if kind == self.kind:
            return self
        other = object.__new__(Buffer)
        for slot in Buffer.__slots__:
            setattr(other, slot, getattr(self, slot))
        other.kind, other.element = kind, ELEMENTS[kind]
        before, after = self.element.size, other.element.size
        if before != after:
            other.size = self.size * before // after
            other.data = memory_at(self.address, other.size, other.element.raw)
            member, ratio = self.member, before // after
            other.member = None
            if member is not None and ratio:
                other.member = lambda offset: member(offset // ratio)
            other.traffic = None
            other.fresh = canary_of(kind) if is_fresh(self.tensor) else None
        elif other.data.dtype != other.element.raw:
            other.data = self.data.view(other.element.raw)
        return other

    def place_of(self, offset: int) -> str:
        """Where an offset outside the tensor points."""
        if 0 <= offset < self.size:
            return "which is in its storage but between the elements of the view"
        allowed = f"allowed are 0 to {self.size - 1}" if self.size else "the tensor is empty"
        storage = self.tensor.untyped_storage()
        start = (storage.data_ptr() - self.address) // self.element.size
        inside = start <= offset < start + storage.nbytes() // self.element.size
        return allowed + (", though its storage goes on there" if inside else "")

    def describe(self) -> str:
        shape, strides = tuple(self.tensor.shape), self.tensor.stride()
        gaps = "" if self.tensor.is_contiguous() else f" and strides {strides}"
        return f"argument `{self.name}` of shape {shape}{gaps}"


class Anywhere(Buffer):
    """All of memory, by byte address."""

    def __init__(self) -> None:
        self.name, self.kind, self.address, self.size = "an address", "i8", 0, 0


ANYWHERE = Anywhere()


def address_of(pointer: Pointer) -> Array:
    """Byte addresses of a pointer."""
    buffer, offset = pointer
    if buffer is ANYWHERE:
        return offset
    return offset * np.int64(buffer.element.size) + np.int64(buffer.address)


def choose(mask: Array, one: Pointer, two: Pointer) -> Pointer:
    """Select a pointer lane by lane."""
    if one[0] is two[0]:
        return one[0], np.where(mask, one[1], two[1])
    return ANYWHERE, np.where(mask, address_of(one), address_of(two))


def recast(pointer: Pointer, kind: str) -> Pointer:
    """A pointer to elements of another type."""
    buffer, offset = pointer
    if buffer is ANYWHERE:
        return pointer
    other = buffer.cast(kind)
    before, after = buffer.element.size, other.element.size
    if before % after == 0:
        return other, offset if before == after else offset * np.int64(before // after)
    if (offset * before % after).any():
        return ANYWHERE, address_of(pointer)
    return other, offset * before // after


# Memory from `torch.empty` is filled with this 16-bit pattern while the simulator is installed. It
# is NaN in every float type of 16 bits and more, and an implausible integer. Memory that still
# holds it was written by no kernel and no host operation.
PATTERN = 0x7FFD
CANARY: dict[int, Any] = {
    2: np.uint16(PATTERN),
    4: np.uint32(PATTERN * 0x10001),
    8: np.uint64(PATTERN * 0x0001000100010001),
}
# By address; memory that is freed and reallocated belongs to another storage.
FRESH: OrderedDict[int, ref[torch.UntypedStorage]] = OrderedDict()
FRESH_LIMIT = 8192


def canary_of(kind: str) -> Any:
    """The pattern as an element of this type; `None` if it could be a legitimate value."""
    size = ELEMENTS[kind].size
    return CANARY.get(size) if size > 2 or "f" in kind else None


def fill_fresh(tensor: Any) -> None:
    """Mark the storage of a new tensor as unwritten."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.element_size() < 2:
        return
    if not (tensor.dtype.is_floating_point or tensor.element_size() > 2):
        return
    storage = tensor.untyped_storage()
    address, count = storage.data_ptr(), storage.nbytes() // 2
    if not address or not 0 < count <= FILL_LIMIT // 2:
        return
    memory_at(address, count, np.dtype(np.uint16)).fill(PATTERN)
    FRESH[address] = ref(storage)
    FRESH.move_to_end(address)
    while len(FRESH) > FRESH_LIMIT:
        FRESH.popitem(last=False)


def is_fresh(tensor: torch.Tensor) -> bool:
    """Whether `torch.empty` or its kin made a tensor's storage."""
    storage = tensor.untyped_storage()
    known = FRESH.get(storage.data_ptr())
    return known is not None and known() is storage


def unwritten(tensor: torch.Tensor) -> torch.Tensor | None:
    """Which elements nobody has written since `torch.empty` made them.

    Args:
        tensor: any tensor or view on the CPU.

    Returns:
        A bool tensor of the same shape, or `None` if unknown: the memory did not come from
            `torch.empty` or its kin while the simulator was installed, it is larger than 1 GiB, or
            the elements have one byte or are integers of two, which have no implausible value.
    """
    if tensor.device.type != "cpu" or not is_fresh(tensor):
        return None
    if not (tensor.dtype.is_floating_point or tensor.element_size() > 2):
        return None
    canary = CANARY.get(tensor.element_size())
    if canary is None:
        return None
    raw = np.dtype(f"u{tensor.element_size()}")
    extent, _ = layout(tuple(tensor.shape), tensor.stride())
    flat = torch.from_numpy(memory_at(tensor.data_ptr(), extent, raw) == canary)
    return flat.as_strided(tensor.shape, tensor.stride(), 0).clone()


ALLOCATORS: tuple[tuple[Any, str], ...] = (
    (torch, "empty"),
    (torch, "empty_like"),
    (torch, "empty_strided"),
    (torch.Tensor, "new_empty"),
    (torch.Tensor, "new_empty_strided"),
)


# Functions of torch that make tensors with contents.
MAKERS = ("arange", "full", "full_like", "ones", "ones_like", "tensor", "zeros", "zeros_like")


def allocators() -> Iterator[tuple[Any, str, Any]]:
    """Replacements for functions that make tensors: (owner, name, function)."""
    # torch collects once the functions that obey a default device: before they are replaced.
    _device_constructors()
    for owner, name in ALLOCATORS:
        yield owner, name, placing(getattr(owner, name), fill_fresh)
    for name in MAKERS:
        yield torch, name, placing(getattr(torch, name), None)


@cache
def placing(original: Any, then: Callable[[Any], None] | None) -> Any:
    """A function that makes a tensor on the CPU, whose memory stands for a GPU's.

    There is one for each: TorchScript knows operators by the addresses of their functions.

    Args:
        original: torch's.
        then: what is done with the tensor.
    """

    def make(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs and _is_a_gpu(kwargs["device"]):
            kwargs["device"] = "cpu"
        tensor = original(*args, **kwargs)
        if then is not None:
            then(tensor)
        return tensor

    make.__name__ = make.__qualname__ = original.__name__
    make.__doc__ = original.__doc__
    _register_builtin(make, f"aten::{original.__name__}")
    return make


def _is_a_gpu(device: Any) -> bool:
    if isinstance(device, str):
        return device.partition(":")[0] == "cuda"
    return isinstance(device, torch.device) and device.type == "cuda"
