"""The functions that generated code calls: predicates, loops, and checked memory accesses.

A value is an array `[P or 1, *tile]` for the P programs of a slab; any axis may have length 1. A
predicate says which programs are active: `None` for all of them, `False` for none, else `bool[P]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

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
    UndefinedResult,
    UninitializedRead,
)
from .memory import ANYWHERE, SEVERAL, Buffer, Pointer, choose, sign
from .numerics import (
    ELEMENTS,
    ROUNDING,
    Array,
    as_unsigned,
    every,
    gather,
    some,
    tf32,
    unsigned,
)
from .options import Options

Active = Array | None
Predicate = Array | Literal[False] | None
OVERFLOWN = -(2**62)
# No simulated call counts so far: a number that marks what is unused, as in a table of pages.
UNCOUNTED = 2**30
LOOP_LIMIT = 1_000_000
# Lanes of idle programs, in the largest tile, that take longer than it takes to leave them out.
MANY_IDLE = 2**12
CLOBBERS = ("written", "wrote another value")


@dataclass(frozen=True)
class Site:
    """A place in a kernel that accesses memory, divides, asserts, prints or loops.

    Attributes:
        element: type behind the pointer.
        narrow: the address was computed from int32 values.
        text: message of an assertion or prefix of a print.
    """

    location: Location
    element: str = ""
    narrow: bool = False
    text: str = ""


# Predicates


def branch(pred: Active, condition: Array) -> tuple[Predicate, Predicate]:
    """The programs that take a branch, and those that do not."""
    if condition.size == 1:
        return (pred, False) if every(condition) else (False, pred)
    taken = condition if pred is None else condition & pred
    if not some(taken):
        return False, pred
    left = ~condition if pred is None else ~condition & pred
    if not some(left):
        return pred, False
    return taken, left


def either(one: Predicate, two: Predicate) -> Predicate:
    """Programs active in one predicate or the other."""
    if one is False or two is None:
        return two
    if two is False or one is None:
        return one
    both = one | two
    return None if every(both) else both


def along(pred: Array, rank: int) -> Array:
    """A predicate that broadcasts over tiles; `rank` counts the axis of programs."""
    return pred.reshape(-1, *(1,) * (rank - 1))


def merge(pred: Active, new: Any, old: Any) -> Any:
    """`new` for the active programs, `old` for the others."""
    if pred is None or new is old:
        return new
    if isinstance(new, tuple):
        return choose(along(pred, max(new[1].ndim, old[1].ndim)), new, old)
    return np.where(along(pred, new.ndim), new, old)


def carried(
    inside: Active, outer: Active, new: tuple[Any, ...], old: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Loop values for the next iteration: programs outside the loop keep theirs."""
    if inside is outer:
        return new
    return tuple(merge(inside, n, o) for n, o in zip(new, old, strict=True))


def pack(slab: Slab, pred: Array, *values: Any) -> tuple[Any, ...]:
    """The same for the active programs alone; unchanged if few are idle."""
    active = np.flatnonzero(pred)
    idle = len(pred) - len(active)
    if idle < len(active) or idle * slab.tile < MANY_IDLE:
        return (slab, pred, *values)
    return (slab.part(active), None, *(rows(x, active) for x in values))


def rows(x: Any, programs: Array) -> Any:
    """A value of some programs."""
    if isinstance(x, tuple):
        return x[0], rows(x[1], programs)
    return x if len(x) == 1 else x.take(programs, axis=0)


def unpack(pred: Active, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Values of the active programs as values of all programs, if they were packed."""
    return values if pred is None else tuple(spread(pred, x) for x in values)


def spread(pred: Array, x: Any) -> Any:
    if isinstance(x, tuple):
        return x[0], spread(pred, x[1])
    if len(x) in (1, len(pred)):
        return x
    whole = np.zeros((len(pred), *x.shape[1:]), x.dtype)
    whole[pred] = x
    return whole


def activity(mask: Active, pred: Active, rank: int) -> Active:
    """The active lanes of an access."""
    if pred is None:
        return mask
    return along(pred, rank) if mask is None else mask & along(pred, rank)


# Lanes


def advance(pointer: Pointer, offset: Array, size: int) -> Pointer:
    """`pointer + offset` in elements of `size` bytes."""
    buffer, start = pointer
    if buffer is ANYWHERE:
        return buffer, start + offset.astype(np.int64) * size
    return buffer, start + offset


def lanes_of(active: Active, *values: Array) -> list[Array]:
    """The values of the active lanes, one-dimensional, in program order."""
    shape = np.broadcast(*values, True if active is None else active).shape
    spread = [x if x.shape == shape else np.broadcast_to(x, shape) for x in values]
    if active is None or every(active):
        return [x.reshape(-1) for x in spread]
    chosen = active if active.shape == shape else np.broadcast_to(active, shape)
    return [x[chosen] for x in spread]


def ranks(offset: Array) -> Array:
    """How many earlier lanes have the same offset as this one."""
    order = np.argsort(offset, kind="stable")
    ordered = offset[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(np.r_[starts, len(ordered)])
    rank = np.empty(len(ordered), np.int64)
    rank[order] = np.arange(len(ordered)) - np.repeat(starts, lengths)
    return rank


# The new value in memory of an atomic operation; a number wins over NaN.
EXCHANGES: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "fadd": np.add,
    "max": np.fmax,
    "min": np.fmin,
    "umax": partial(as_unsigned, np.maximum),
    "umin": partial(as_unsigned, np.minimum),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda old, new: new,
}


class Slab:
    """The programs that run together.

    Attributes:
        ids: program ids, one int32 array per axis.
        counts: number of programs, one int32 array per axis.
        number: 1, 2, ... over the whole launch, which identifies a program in race detection.
        buffers: the tensor arguments, among which computed addresses are looked up.
        tile: elements of the kernel's largest tile.
        limit: exclusive bound of a 32-bit integer in an address.
        few: whether that is less than 2^31.
    """

    def __init__(
        self,
        kernel: str,
        grid: tuple[int, int, int],
        programs: Array,
        options: Options,
        buffers: tuple[Buffer, ...] = (),
        tile: int = 1,
    ) -> None:
        self.kernel, self.grid, self.buffers, self.tile = kernel, grid, buffers, tile
        self.as_tf32, self.unmasked = options.tf32, options.unmasked
        self.limit = 2 ** (options.index_bits - 1)
        self.few = options.index_bits < 32
        self.number = (programs + 1).astype(np.int32)
        self.ids = self.numbered(self.number)
        self.counts = tuple(np.array([count], np.int32) for count in grid)
        self.alone = grid[0] * grid[1] * grid[2] == 1
        self.steps = 0

    def part(self, active: Array) -> Slab:
        """The slab of some of its programs."""
        other = copy(self)
        other.number, other.ids = self.number[active], tuple(x[active] for x in self.ids)
        return other

    def numbered(self, number: Any) -> tuple[Any, Any, Any]:
        """The program ids of numbers of the launch."""
        (x, y, _), index = self.grid, number - 1
        return index % x, index // x % y, index // (x * y)

    # What is refused

    def refuse(
        self,
        error: type[SimulationError],
        site: Site,
        wrong: Array,
        active: Active,
        detail: Callable[[int], str],
        value: Array | None = None,
        buffer: Buffer | None = None,
    ) -> None:
        """Raise if an active lane is wrong, naming the first one; `detail` gets its `value`."""
        if not some(wrong):
            return
        bad = wrong if active is None else wrong & active
        if not some(bad):
            return
        bad, value = np.broadcast_arrays(bad, bad if value is None else value)
        at = int(bad.argmax())
        lane, *tile_index = (int(i) for i in np.unravel_index(at, bad.shape))
        program = tuple(int(axis[lane]) for axis in self.ids)
        name = buffer.name if buffer is not None else None
        text = detail(int(value.flat[at]))
        if error is IndexOverflow and self.few:
            bits = self.limit.bit_length()
            text += f"; integers have {bits} bits here, to show what 32 bits do in larger tensors"
        raise error(self.kernel, site.location, text, name, program, tuple(tile_index))

    def check(self, site: Site, pointer: Pointer, active: Active, error: type[OutOfBounds]) -> None:
        """Check that every active offset belongs to the tensor."""
        buffer, offset = pointer
        place = offset.view(np.uint64)
        wrong = place >= buffer.size
        if buffer.member is not None:
            wrong = wrong | ~buffer.member(offset)
        # Most launches return here, with idle lanes past the end at worst.
        if not some(wrong) or (active is not None and not some(wrong & active)):
            return
        beyond = site.narrow & self.overflows(offset)
        wraps = beyond | (offset < OVERFLOWN // 2)

        def wrapped(at: int) -> str:
            at = at if at > OVERFLOWN // 2 else at - OVERFLOWN
            to = (at + self.limit) % (2 * self.limit) - self.limit
            return f"{buffer.describe()}: the int32 offset {at} wraps around to {to}"

        def outside(at: int) -> str:
            return f"{buffer.describe()}: element offset {at}, {buffer.place_of(at)}"

        self.refuse(IndexOverflow, site, wrong & wraps, active, wrapped, offset, buffer)
        self.refuse(error, site, wrong, active, outside, offset, buffer)

    def overflows(self, value: Array) -> Array:
        """Where a value does not fit into int32."""
        beyond: Array = (value < -self.limit) | (value >= self.limit)
        return beyond

    def advance(self, pointer: Pointer, offset: Array, size: int) -> Pointer:
        """`advance` by an int32 that was kept exact.

        If a tensor is so large that an overflowed address could land inside it, overflowed lanes
        move far out of bounds, so that their use is reported.
        """
        if pointer[0] is not ANYWHERE and pointer[0].size > self.limit:
            moved = offset.astype(np.int64) + OVERFLOWN
            offset = np.where(self.overflows(offset), moved, offset)
        return advance(pointer, offset, size)

    def widen(self, site: Site, value: Array, pred: Active) -> Array:
        """Extend an exact int32 to int64, and report an overflow."""
        wrong = self.overflows(value)
        text = "an index is {}, which int32 does not hold, before it becomes int64".format
        self.refuse(IndexOverflow, site, wrong, activity(None, pred, value.ndim), text, value)
        return value

    def fits(self, site: Site, pred: Active, value: Array, *made_of: Array) -> None:
        """Check that an integer fits into the index bits if its operands do.

        A constant that does not fit may stand for infinity, and so may a number in memory that is
        larger than any count of a simulated call.
        """
        wrong = self.overflows(value) & (made_of != () or (abs(value) < UNCOUNTED))
        for each in made_of:
            wrong = wrong & ~self.overflows(each)
        text = "an integer is {}, which int32 does not hold".format
        self.refuse(IndexOverflow, site, wrong, activity(None, pred, value.ndim), text, value)

    def check_division(self, site: Site, a: Array, b: Array, signed: bool, pred: Active) -> None:
        """Check that no active lane divides by zero, or the least integer by -1.

        With fewer index bits, operands must fit as well, since their quotient would hide it.
        """
        if signed and a.dtype == np.int32 and self.few:
            wrong = self.overflows(a)
            text = "an index is {}, which int32 does not hold, before it is divided".format
            self.refuse(IndexOverflow, site, wrong, activity(None, pred, a.ndim), text, a)
        if every(b) and not (signed and some(b == -1)):
            return
        active = activity(None, pred, max(a.ndim, b.ndim))
        self.refuse(UndefinedResult, site, b == 0, active, "{} divided by 0".format, a)
        if signed:
            wrong = (b == -1) & (a == np.iinfo(a.dtype).min)
            text = "{} divided by -1, which its type does not hold".format
            self.refuse(UndefinedResult, site, wrong, active, text, a)

    def check_assertion(self, site: Site, condition: Array, pred: Active) -> None:
        active, text = activity(None, pred, condition.ndim), site.text or "no message"
        self.refuse(DeviceAssertion, site, ~condition, active, lambda _: text)

    # Loops

    def counted(
        self, site: Site, low: Array, high: Array, step: Array, pred: Active
    ) -> Iterator[tuple[Array, Active]]:
        """The induction variable of a loop and the programs still in it.

        The predicate is the object `pred` itself while all of its programs are in the loop.
        """
        self.refuse(UndefinedResult, site, step <= 0, pred, "a loop in steps of {}".format, step)
        dtype = low.dtype
        if low.size == high.size == step.size == 1:
            for value in range(int(low.item()), int(high.item()), int(step.item())):
                yield np.array([value], dtype), pred
            return
        now, end, stride = (x.astype(np.int64) for x in (low, high, step))
        while True:
            inside = now < end if pred is None else (now < end) & pred
            if not some(inside):
                return
            everybody = every(inside) if pred is None else np.array_equal(inside, pred)
            yield now.astype(dtype), pred if everybody else inside
            now = now + stride

    def tick(self, site: Site) -> None:
        """Count a turn of a `while` loop."""
        self.steps += 1
        if self.steps > LOOP_LIMIT:
            detail = (
                f"{LOOP_LIMIT} turns of while loops in one slab: does it wait for a program that "
                "runs after this one?"
            )
            raise Stuck(self.kernel, site.location, detail)

    # Memory

    def load(
        self,
        site: Site,
        pointer: Pointer,
        mask: Active = None,
        other: Array | None = None,
        pred: Active = None,
    ) -> Array:
        """Gather; inactive lanes are `other`, or the launch's filler without one."""
        buffer, offset = pointer
        active = activity(mask, pred, offset.ndim)
        if buffer is ANYWHERE:
            value = np.zeros(1, ELEMENTS[site.element].value) if other is None else other
            for part, place, lanes in self.parts(site, offset, active):
                value = np.where(lanes, self.load(site, (part, place), lanes), value)
            return value
        self.check(site, pointer, active, LoadOutOfBounds)
        raw = buffer.data.take(offset, mode="clip")
        if buffer.traffic is not None and not self.alone:
            self.note_read(site, buffer, offset, active)
        if buffer.fresh is not None:
            self.refuse(
                UninitializedRead, site, raw.view(buffer.fresh.dtype) == buffer.fresh, active,
                lambda at: f"{buffer.describe()}: nobody has written element offset {at}",
                offset, buffer,
            )  # fmt: skip
        value = raw if buffer.element.decode is None else buffer.element.decode(raw)
        if active is None or every(active):
            return value
        if other is None:
            other = value.dtype.type(self.unmasked if value.dtype.kind == "f" else 0)
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
        number = along(self.number, offset.ndim)
        offset, raw, number = lanes_of(active, offset, raw, number)
        traffic = None if self.alone else buffer.traffic
        bits = f"u{buffer.element.size}"
        if traffic is not None:
            place = offset + buffer.shift
            self.check_readers(site, buffer, offset, number, "written")
            rival = traffic.writer.take(place)
            if some(rival):
                differs = buffer.data.take(offset).view(bits) != raw.view(bits)
                wrong = (rival != number) & (rival > 0) & differs
                self.race(site, buffer, offset, number, rival, wrong, *CLOBBERS)
                wrong = (rival != -number) & (rival < 0)
                self.race(site, buffer, offset, number, rival, wrong, "written", "updated it")
            traffic.writer[place] = number
        buffer.data[offset] = raw
        lost = buffer.data.take(offset).view(bits) != raw.view(bits)
        if not some(lost):
            return
        if traffic is not None:
            rival = traffic.writer.take(place)
            self.race(site, buffer, offset, number, rival, lost & (rival != number), *CLOBBERS)
        order = np.lexsort((number, offset))
        (offset, number), raw = (x[order] for x in (offset, number)), raw.view(bits)[order]
        same = (offset[1:] == offset[:-1]) & (number[1:] == number[:-1])
        twice = np.flatnonzero(same & (raw[1:] != raw[:-1]))
        if len(twice):
            at, program = offset[twice[0]], self.program(number[twice[0]])
            detail = (
                f"{buffer.describe()}: one store gives element offset {at} two different values"
            )
            raise UndefinedResult(self.kernel, site.location, detail, buffer.name, program)

    def atomic(
        self,
        site: Site,
        kind: str,
        pointer: Pointer,
        *operands: Array,
        pred: Active = None,
        wanted: bool = True,
    ) -> Array | None:
        """Read-modify-write, lane after lane in program order; return the old values.

        Args:
            operands: the value and perhaps a mask; for "cas" the expected and the new value.
        """
        buffer, offset = pointer
        if buffer is ANYWHERE:
            raise NotImplementedError(f"atomic on a computed address at {site.location}")
        expected, value = operands[0], operands[1 if kind == "cas" else 0]
        mask = operands[1] if kind != "cas" and len(operands) > 1 else None
        number = along(self.number, max(offset.ndim, value.ndim))
        active = activity(mask, pred, number.ndim)
        self.check(site, pointer, active, AtomicOutOfBounds)
        shape = np.broadcast_shapes(*(x.shape for x in (offset, value, number)))
        place, value, expected, number = lanes_of(active, offset, value, expected, number)
        if buffer.traffic is not None and not self.alone:
            self.check_readers(site, buffer, place, number, "updated")
            writer, entry = buffer.traffic.writer, place + buffer.shift
            rival = writer.take(entry)
            wrong = (rival > 0) & (rival != number)
            self.race(site, buffer, place, number, rival, wrong, "updated", "wrote it")
            sign(writer, entry, -number)
        element = buffer.element
        if not wanted and kind in ("add", "fadd") and element.decode is None:
            np.add.at(buffer.data, place, value)
            return None
        result = np.zeros(len(place), element.value)
        turns = ranks(place)
        for turn in range(int(turns.max()) + 1 if len(place) else 0):
            now = np.flatnonzero(turns == turn)
            old = buffer.data.take(place[now])
            result[now] = old = element.decode(old) if element.decode else old
            if kind == "cas":
                new = np.where(unsigned(old) == unsigned(expected[now]), value[now], old)
            else:
                new = EXCHANGES[kind](old, value[now])
            if site.element in ROUNDING:
                new = ROUNDING[site.element](new)
            buffer.data[place[now]] = element.encode(new) if element.encode else new
        if active is None:
            return result.reshape(shape)
        out = np.zeros(np.broadcast_shapes(shape, active.shape), element.value)
        out[np.broadcast_to(active, out.shape)] = result
        return out

    def parts(
        self, site: Site, address: Array, active: Active, shape: tuple[int, ...] = ()
    ) -> Iterator[tuple[Buffer, Array, Array]]:
        """Byte addresses by the tensor that they fall in: `(buffer, offsets, lanes)`."""
        lanes = np.True_ if active is None else active
        programs = along(self.number, address.ndim).shape
        shape = np.broadcast_shapes(address.shape, shape, lanes.shape, programs)
        address, left = np.broadcast_to(address, shape), np.broadcast_to(lanes, shape).copy()
        for buffer in self.buffers:
            end = buffer.address + buffer.size * buffer.element.size
            mine = left & (address >= buffer.address) & (address < end)
            if some(mine):
                part = buffer.cast(site.element)
                offset = (address - np.int64(buffer.address)) // np.int64(part.element.size)
                yield part, np.where(mine, offset, 0), mine
                left &= ~mine
        text = "the address {:#x} lies in no tensor argument of the kernel".format
        self.refuse(OutOfBounds, site, left, None, text, address)

    # Races

    def note_read(self, site: Site, buffer: Buffer, offset: Array, active: Active) -> None:
        """Check a load against other programs' writes, and record it."""
        traffic = buffer.traffic
        assert traffic is not None
        offset, number = lanes_of(active, offset, along(self.number, offset.ndim))
        place = offset + buffer.shift
        rival = traffic.writer.take(place)
        if some(rival):
            wrong = (rival != 0) & (abs(rival) != number)
            self.race(site, buffer, offset, number, rival, wrong, "read", "wrote it")
        if traffic.reader is not None:
            sign(traffic.reader, place, number)

    def check_readers(
        self, site: Site, buffer: Buffer, offset: Array, number: Array, done: str
    ) -> None:
        """Check that no other program of the launch has read what is about to be written."""
        assert buffer.traffic is not None
        if buffer.traffic.reader is not None:
            rival = buffer.traffic.reader.take(offset + buffer.shift)
            if some(rival):
                wrong = (rival != 0) & (rival != number)
                self.race(site, buffer, offset, number, rival, wrong, done, "read it")

    def race(
        self,
        site: Site,
        buffer: Buffer,
        offset: Array,
        number: Array,
        rival: Array,
        wrong: Array,
        done: str,
        did: str,
    ) -> None:
        """Raise for the first lane that is wrong, naming both programs."""
        if not some(wrong):
            return
        at = int(wrong.argmax())
        other = "another program"
        if rival[at] != SEVERAL:
            other = f"program {self.program(abs(rival[at]))}"
        detail = (
            f"{buffer.describe()}: element offset {offset[at]} is {done} and {other} {did} in the "
            "same launch"
        )
        program = self.program(number[at])
        raise Race(self.kernel, site.location, detail, buffer.name, program)

    def program(self, number: Any) -> tuple[int, ...]:
        return tuple(int(axis) for axis in self.numbered(int(number)))

    # Tiles

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
        """`tl.gather`; inactive programs may have any index."""
        outside = (index < 0) | (index >= tile[axis])
        if some(outside):
            active, text = (
                activity(None, pred, index.ndim),
                f"index {{}} into an axis of {tile[axis]}",
            )
            self.refuse(GatherOutOfBounds, site, outside, active, text.format, index)
            index = np.where(outside, index.dtype.type(0), index)
        return gather(x, index, axis, tile, to)

    def dot_operand(self, x: Array) -> Array:
        """A float32 operand of a dot that allows tf32."""
        return tf32(x) if self.as_tf32 else x

    def show(self, site: Site, values: tuple[Array, ...], pred: Active) -> None:
        """`tl.device_print`, program by program."""
        for index, number in enumerate(self.number):
            if pred is None or pred[index]:
                parts = [x[index if x.shape[0] > 1 else 0].tolist() for x in values]
                print(f"pid {self.program(number)}{site.text}", *parts)
