"""What generated code calls: predicates, loops, and memory accesses that are checked.

A value is an array `[P or 1, *tile]` for the P programs of a slab; any axis may have length 1. A
predicate says which programs are active: `None` for all of them, `False` for none, else `bool[P]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np

from .errors import (
    AtomicOutOfBounds,
    DeviceAssertion,
    GatherOutOfBounds,
    IndexOverflow,
    LoadOutOfBounds,
    Location,
    OutOfBounds,
    Race,
    SimulationError,
    StoreOutOfBounds,
    Stuck,
    UninitializedRead,
)
from .memory import ANYWHERE, Buffer, Pointer, choose
from .numerics import ELEMENTS, ROUNDING, Array, gather, tf32, unsigned

Active = Array | None
Predicate = Array | Literal[False] | None
INT32 = np.iinfo(np.int32)
OVERFLOWN = -(2**62)
LOOP_LIMIT = 1_000_000


@dataclass(frozen=True)
class Site:
    """A place in a kernel that touches memory, asserts, prints or loops.

    Attributes:
        element: type behind the pointer.
        narrow: the address was computed from int32 values.
        text: message of an assertion or prefix of a print.
    """

    location: Location
    element: str = ""
    narrow: bool = False
    text: str = ""


def branch(pred: Active, condition: Array) -> tuple[Predicate, Predicate]:
    """The programs that take a branch, and those that do not."""
    if condition.size == 1:
        return (pred, False) if condition.all() else (False, pred)
    taken = condition if pred is None else condition & pred
    if not taken.any():
        return False, pred
    left = ~condition if pred is None else ~condition & pred
    if not left.any():
        return pred, False
    return taken, left


def either(one: Predicate, two: Predicate) -> Predicate:
    """Programs active in one predicate or the other."""
    if one is False:
        return two
    if two is False:
        return one
    if one is None or two is None:
        return None
    both = one | two
    return None if both.all() else both


def merge(pred: Active, new: Any, old: Any) -> Any:
    """`new` for the active programs, `old` for the others."""
    if pred is None or new is old:
        return new
    if isinstance(new, tuple):
        rank = max(new[1].ndim, old[1].ndim)
        return choose(pred.reshape(-1, *(1,) * (rank - 1)), new, old)
    return np.where(pred.reshape(-1, *(1,) * (new.ndim - 1)), new, old)


def carried(
    inside: Active, outer: Active, new: tuple[Any, ...], old: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Values for the next turn of a loop: programs that are not in it keep theirs."""
    if inside is outer:
        return new
    return tuple(merge(inside, n, o) for n, o in zip(new, old, strict=True))


def advance(pointer: Pointer, offset: Array, size: int, narrow: bool = False) -> Pointer:
    """`pointer + offset` in elements of `size` bytes.

    Where a tensor is so large that an overflown int32 could land inside it, lanes that overflow
    are moved far out of bounds, to be reported if they are used.
    """
    buffer, start = pointer
    if buffer is ANYWHERE:
        return buffer, start + offset.astype(np.int64) * size
    if narrow and buffer.size > INT32.max:
        fits = (offset >= INT32.min) & (offset <= INT32.max)
        offset = np.where(fits, offset, offset.astype(np.int64) + OVERFLOWN)
    return buffer, start + offset


def counted(low: Array, high: Array, step: Array, pred: Active) -> Iterator[tuple[Array, Active]]:
    """The induction variable of a loop and the programs still in it.

    The predicate is the very object `pred` as long as all of those programs are in the loop.
    """
    dtype = low.dtype
    if low.size == high.size == step.size == 1:
        for value in range(int(low.item()), int(high.item()), int(step.item())):
            yield np.array([value], dtype), pred
        return
    now, end, stride = (x.astype(np.int64) for x in (low, high, step))
    while True:
        inside = now < end
        if pred is not None:
            inside = inside & pred
        if inside.all() or (pred is not None and np.array_equal(inside, pred)):
            yield now.astype(dtype), pred
        elif inside.any():
            yield now.astype(dtype), inside
        else:
            return
        now = now + stride


def activity(mask: Active, pred: Active, rank: int) -> Active:
    """The lanes of an access that happen."""
    if pred is None:
        return mask
    programs = pred.reshape(-1, *(1,) * (rank - 1))
    return programs if mask is None else mask & programs


def lanes_of(active: Active, *values: Array) -> list[Array]:
    """The values of the active lanes, one-dimensional, in program order."""
    shape = np.broadcast_shapes(*(x.shape for x in values), () if active is None else active.shape)
    if active is None:
        return [np.broadcast_to(x, shape).reshape(-1) for x in values]
    chosen = np.broadcast_to(active, shape)
    return [np.broadcast_to(x, shape)[chosen] for x in values]


def ranks(offset: Array) -> Array:
    """How many earlier lanes have the same offset as this one."""
    order = np.argsort(offset, kind="stable")
    ordered = offset[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(np.r_[starts, len(ordered)])
    rank = np.empty(len(ordered), np.int64)
    rank[order] = np.arange(len(ordered)) - np.repeat(starts, lengths)
    return rank


def sign(book: Array, place: Array, number: Array) -> None:
    """Enter a program at each place; one that another program has signed becomes -1."""
    before = book.take(place)
    book[place] = np.where((before == 0) | (before == number), number, np.int32(-1))
    shared = (book.take(place) != number) & (before >= 0)
    if shared.any():
        book[place[shared]] = -1


def exchange(kind: str, old: Array, new: Array) -> Array:
    """What an atomic operation leaves in memory."""
    if kind in ("add", "fadd"):
        return np.asarray(old + new)
    if kind in ("max", "min"):
        if old.dtype.kind == "f":
            return np.asarray((np.fmax if kind == "max" else np.fmin)(old, new))
        return np.asarray((np.maximum if kind == "max" else np.minimum)(old, new))
    if kind in ("umax", "umin"):
        pick = np.maximum if kind == "umax" else np.minimum
        return np.asarray(pick(unsigned(old), unsigned(new)).view(old.dtype))
    if kind in ("and", "or", "xor"):
        return np.asarray(getattr(np, f"bitwise_{kind}")(old, new))
    if kind == "exch":
        return new
    raise NotImplementedError(f"tt.atomic_rmw {kind}")


class Slab:
    """The programs that run together.

    Attributes:
        ids: program ids, one int32 array per axis.
        counts: number of programs, one int32 array per axis.
        number: 1, 2, ... over the whole launch, which identifies a program in race detection.
    """

    def __init__(
        self,
        kernel: str,
        grid: tuple[int, int, int],
        programs: Array,
        as_tf32: bool,
        unmasked: float,
    ) -> None:
        self.kernel = kernel
        self.as_tf32 = as_tf32
        self.unmasked = unmasked
        x, y, _ = grid
        self.ids = (
            (programs % x).astype(np.int32),
            (programs // x % y).astype(np.int32),
            (programs // (x * y)).astype(np.int32),
        )
        self.counts = tuple(np.array([count], np.int32) for count in grid)
        self.number = (programs + 1).astype(np.int32)
        self.alone = grid[0] * grid[1] * grid[2] == 1
        self.steps = 0

    def program(self, index: int) -> tuple[int, int, int]:
        x, y, z = (int(axis[index]) for axis in self.ids)
        return x, y, z

    def numbered(self, number: int) -> tuple[int, int, int]:
        """The program id behind a number of the launch."""
        x, y, _ = (int(count[0]) for count in self.counts)
        index = number - 1
        return index % x, index // x % y, index // (x * y)

    def fail(
        self,
        error: type[SimulationError],
        site: Site,
        detail: str,
        buffer: Buffer | None = None,
        bad: Array | None = None,
    ) -> NoReturn:
        """Raise, naming the first lane of `bad`."""
        program = tile = None
        if bad is not None:
            first = [int(i) for i in np.unravel_index(int(bad.argmax()), bad.shape)]
            program, tile = self.program(first[0]), tuple(first[1:])
        name = buffer.name if buffer is not None else None
        raise error(self.kernel, site.location, detail, name, program, tile)

    def check(self, site: Site, pointer: Pointer, active: Active, error: type[OutOfBounds]) -> None:
        """Every active offset belongs to the tensor."""
        buffer, offset = pointer
        place = offset.view(np.uint64)
        if buffer.member is None:
            if place.max() < buffer.size:
                return
            bad = place >= buffer.size
        else:
            bad = (place >= buffer.size) | ~buffer.member(offset)
        if active is not None:
            bad = bad & active
        if bad.any():
            self.outside(site, buffer, offset, bad, error)

    def outside(
        self, site: Site, buffer: Buffer, offset: Array, bad: Array, error: type[OutOfBounds]
    ) -> NoReturn:
        """Say where the first bad lane points to."""
        at = int(np.broadcast_to(offset, bad.shape).flat[int(bad.argmax())])
        if at < OVERFLOWN // 2:
            at -= OVERFLOWN
        if site.narrow and not INT32.min <= at <= INT32.max:
            wrapped = (at - INT32.min) % 2**32 + INT32.min
            detail = f"{buffer.describe()}: the int32 offset {at} wraps around to {wrapped}"
            self.fail(IndexOverflow, site, detail, buffer, bad)
        detail = f"{buffer.describe()}: element offset {at}, "
        if 0 <= at < buffer.size:
            detail += "which is in its storage but between the rows of the view"
            self.fail(error, site, detail, buffer, bad)
        detail += f"allowed are 0 to {buffer.size - 1}" if buffer.size else "the tensor is empty"
        start, stop = self.storage_range(buffer)
        if start <= at < stop:
            detail += ", though its storage goes on there"
        self.fail(error, site, detail, buffer, bad)

    def storage_range(self, buffer: Buffer) -> tuple[int, int]:
        """The storage behind a buffer, in element offsets of the buffer."""
        storage = buffer.tensor.untyped_storage()
        start = (storage.data_ptr() - buffer.address) // buffer.element.size
        return start, start + storage.nbytes() // buffer.element.size

    def widen(self, site: Site, value: Array, pred: Active) -> Array:
        """int32 to int64, of a value that was kept exact so that an overflow shows."""
        wrong = (value < INT32.min) | (value > INT32.max)
        if wrong.any():
            bad = wrong if pred is None else wrong & pred.reshape(-1, *(1,) * (value.ndim - 1))
            if bad.any():
                at = int(np.broadcast_to(value, bad.shape).flat[int(bad.argmax())])
                detail = f"an index is {at}, which int32 does not hold, before it becomes int64"
                self.fail(IndexOverflow, site, detail, None, bad)
        return value

    def load(
        self,
        site: Site,
        pointer: Pointer,
        mask: Active = None,
        other: Array | None = None,
        pred: Active = None,
    ) -> Array:
        """Gather; inactive lanes are `other`, or the launch's filler where there is none."""
        buffer, offset = pointer
        active = activity(mask, pred, offset.ndim)
        if buffer is ANYWHERE:
            return self.load_anywhere(site, offset, active, other)
        self.check(site, pointer, active, LoadOutOfBounds)
        raw = buffer.data.take(offset, mode="clip")
        if buffer.traffic is not None and not self.alone:
            self.note_read(site, buffer, offset, active)
        if buffer.fresh is not None:
            stale = raw.view(buffer.fresh.dtype) == buffer.fresh
            if stale.any() and (active is None or (stale & active).any()):
                bad = stale if active is None else stale & active
                at = int(np.broadcast_to(offset, bad.shape).flat[int(bad.argmax())])
                detail = f"{buffer.describe()}: nobody has written element offset {at}"
                self.fail(UninitializedRead, site, detail, buffer, bad)
        value = raw if buffer.element.decode is None else buffer.element.decode(raw)
        if active is None or active.all():
            return value
        if other is None:
            filler = self.unmasked if value.dtype.kind == "f" else 0
            return np.where(active, value, value.dtype.type(filler))
        return np.where(active, value, other)

    def store(
        self,
        site: Site,
        pointer: Pointer,
        value: Array,
        mask: Active = None,
        pred: Active = None,
    ) -> None:
        """Scatter the active lanes."""
        buffer, offset = pointer
        active = activity(mask, pred, max(offset.ndim, value.ndim))
        if buffer is ANYWHERE:
            for part, place, lanes in self.parts(site, offset, active, value.shape):
                self.store(site, (part, place), value, lanes)
            return
        self.check(site, pointer, active, StoreOutOfBounds)
        raw = buffer.element.encode(value) if buffer.element.encode else value
        watched = buffer.traffic is not None and not self.alone
        if active is None and not watched and offset.shape == raw.shape:
            buffer.data[offset] = raw
            return
        if not watched:
            offset, raw = lanes_of(active, offset, raw)
            buffer.data[offset] = raw
            return
        number = self.number.reshape(-1, *(1,) * (offset.ndim - 1))
        offset, raw, number = lanes_of(active, offset, raw, number)
        self.write_watched(site, buffer, offset, raw, number)

    def write_watched(
        self, site: Site, buffer: Buffer, offset: Array, raw: Array, number: Array
    ) -> None:
        """A store that looks for other programs at the same addresses."""
        traffic = buffer.traffic
        assert traffic is not None
        place = offset + buffer.shift
        self.unread(site, buffer, place, offset, number)
        before = traffic.writer.take(place)
        if before.any():
            self.same_value(site, buffer, offset, raw, number, before)
        traffic.writer[place] = number
        buffer.data[offset] = raw
        last = traffic.writer.take(place)
        if not np.array_equal(last, number):
            self.same_value(site, buffer, offset, raw, number, last)

    def same_value(
        self, site: Site, buffer: Buffer, offset: Array, raw: Array, number: Array, other: Array
    ) -> None:
        """Where other programs have written, they wrote the same bits."""
        bits = f"u{buffer.element.size}"
        differs = buffer.data.take(offset).view(bits) != raw.view(bits)
        clash = (other != 0) & (other != number) & differs
        if clash.any():
            at = int(clash.argmax())
            self.race(site, buffer, offset[at], number[at], "writes", other[at], "wrote another")

    def unread(
        self, site: Site, buffer: Buffer, place: Array, offset: Array, number: Array
    ) -> None:
        """No other program of the launch has read what is about to be written."""
        assert buffer.traffic is not None
        if buffer.traffic.reader is None:
            return
        readers = buffer.traffic.reader.take(place)
        clash = (readers != 0) & (readers != number)
        if clash.any():
            at = int(clash.argmax())
            self.race(site, buffer, offset[at], number[at], "writes", readers[at], "read")

    def note_read(self, site: Site, buffer: Buffer, offset: Array, active: Active) -> None:
        """A load that looks for other programs' writes, and leaves a note for later ones."""
        traffic = buffer.traffic
        assert traffic is not None
        number = self.number.reshape(-1, *(1,) * (offset.ndim - 1))
        offset, number = lanes_of(active, offset, number)
        place = offset + buffer.shift
        writers = traffic.writer.take(place)
        clash = (writers != 0) & (writers != number)
        if clash.any():
            at = int(clash.argmax())
            self.race(site, buffer, offset[at], number[at], "reads", writers[at], "wrote")
        if traffic.reader is not None:
            sign(traffic.reader, place, number)

    def race(
        self, site: Site, buffer: Buffer, offset: Any, number: Any, verb: str, other: Any, did: str
    ) -> NoReturn:
        program = self.numbered(int(number))
        rival = f"program {self.numbered(int(other))}" if other > 0 else "another program"
        object_ = " value" if did.endswith("another") else " it"
        detail = (
            f"{buffer.describe()}: program {program} {verb} element offset {int(offset)} and "
            f"{rival} {did}{object_} in the same launch"
        )
        raise Race(self.kernel, site.location, detail, buffer.name, program)

    def atomic(
        self,
        site: Site,
        kind: str,
        pointer: Pointer,
        value: Array,
        mask: Active = None,
        pred: Active = None,
        compare: Array | None = None,
        wanted: bool = True,
    ) -> Array | None:
        """Read-modify-write, lane after lane in program order; yields what was there before."""
        buffer, offset = pointer
        programs = self.number.reshape(-1, *(1,) * (max(offset.ndim, value.ndim) - 1))
        active = activity(mask, pred, programs.ndim)
        if buffer is ANYWHERE:
            raise NotImplementedError(f"atomic on a computed address at {site.location}")
        self.check(site, pointer, active, AtomicOutOfBounds)
        element = buffer.element
        extra = [] if compare is None else [compare]
        place, operand, number, *rest = lanes_of(active, offset, value, programs, *extra)
        if buffer.traffic is not None and not self.alone:
            self.unread(site, buffer, place + buffer.shift, place, number)
            sign(buffer.traffic.writer, place + buffer.shift, number)
        if not wanted and kind in ("add", "fadd") and element.decode is None:
            np.add.at(buffer.data, place, operand)
            return None
        result = np.zeros(len(place), element.value)
        rank = ranks(place)
        for turn in range(int(rank.max()) + 1 if len(place) else 0):
            now = np.flatnonzero(rank == turn)
            where = place[now]
            old = buffer.data.take(where)
            old = element.decode(old) if element.decode else old
            if compare is None:
                new = exchange(kind, old, operand[now])
            else:
                new = np.where(unsigned(old) == unsigned(rest[0][now]), operand[now], old)
            if site.element in ROUNDING:
                new = ROUNDING[site.element](new)
            buffer.data[where] = element.encode(new) if element.encode else new
            result[now] = old
        shape = np.broadcast_shapes(offset.shape, value.shape, programs.shape)
        if active is None:
            return result.reshape(np.broadcast_shapes(shape))
        out = np.zeros(np.broadcast_shapes(shape, active.shape), element.value)
        out[np.broadcast_to(active, out.shape)] = result
        return out

    buffers: tuple[Buffer, ...] = ()

    def parts(
        self, site: Site, address: Array, active: Active, shape: tuple[int, ...]
    ) -> Iterator[tuple[Buffer, Array, Array]]:
        """Byte addresses by the tensor that they fall in: `(buffer, offsets, lanes)`."""
        shape = np.broadcast_shapes(
            address.shape, shape, () if active is None else active.shape, (len(self.number),)
            + (1,) * (address.ndim - 1)
        )  # fmt: skip
        address = np.broadcast_to(address, shape)
        left = np.broadcast_to(np.bool_(True) if active is None else active, shape).copy()
        for buffer in self.buffers:
            end = buffer.address + buffer.size * buffer.element.size
            mine = left & (address >= buffer.address) & (address < end)
            if mine.any():
                part = buffer.cast(site.element)
                offset = (address - np.int64(buffer.address)) // np.int64(part.element.size)
                yield part, np.where(mine, offset, 0), mine
                left &= ~mine
        if left.any():
            at = int(address.flat[int(left.argmax())])
            detail = f"the address {at:#x} lies in no tensor argument of the kernel"
            self.fail(OutOfBounds, site, detail, None, left)

    def load_anywhere(
        self, site: Site, address: Array, active: Active, other: Array | None
    ) -> Array:
        value = np.zeros(1, ELEMENTS[site.element].value) if other is None else other
        shape: tuple[int, ...] = ()
        for part, offset, lanes in self.parts(site, address, active, shape):
            value = np.where(lanes, self.load(site, (part, offset), lanes), value)
        return value.reshape(-1, *(1,) * (address.ndim - 1)) if value.ndim == 1 else value

    def gather(
        self,
        site: Site,
        x: Array,
        index: Array,
        axis: int,
        tile: tuple[int, ...],
        to: tuple[int, ...],
        pred: Active,
    ) -> Array:
        """`tl.gather`; programs that are not here may have any index."""
        outside = (index < 0) | (index >= tile[axis])
        if outside.any():
            active = activity(None, pred, index.ndim)
            bad = outside if active is None else outside & active
            if bad.any():
                at = int(np.broadcast_to(index, bad.shape).flat[int(bad.argmax())])
                detail = f"index {at} into an axis of {tile[axis]}"
                self.fail(GatherOutOfBounds, site, detail, None, bad)
            index = np.where(outside, index.dtype.type(0), index)
        return gather(x, index, axis, tile, to)

    def dot_operand(self, x: Array) -> Array:
        """A float32 operand of a dot that allows tf32."""
        return tf32(x) if self.as_tf32 and x.dtype == np.float32 else x

    def check_assertion(self, site: Site, condition: Array, pred: Active) -> None:
        failed = ~condition
        if pred is not None:
            failed = failed & pred.reshape(-1, *(1,) * (condition.ndim - 1))
        if failed.any():
            self.fail(DeviceAssertion, site, site.text or "no message", None, failed)

    def show(self, site: Site, values: tuple[Array, ...], pred: Active) -> None:
        """`tl.device_print`, program by program."""
        for index in range(len(self.number)):
            if pred is None or pred[index]:
                parts = [x[index if x.shape[0] > 1 else 0].tolist() for x in values]
                print(f"pid {self.program(index)}{site.text}", *parts)

    def tick(self, site: Site) -> None:
        """Count a turn of a `while` loop."""
        self.steps += 1
        if self.steps > LOOP_LIMIT:
            detail = (
                f"{LOOP_LIMIT} turns of while loops in one slab: does it wait for a program that "
                "runs after this one?"
            )
            self.fail(Stuck, site, detail)
