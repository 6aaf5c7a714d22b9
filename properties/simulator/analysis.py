"""Facts about the values of an IR function, found before code is generated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .frontend import Function, Instruction, blocks_within, walk

SHAPING = ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.unsplat")
LINEAR = ("arith.addi", "arith.subi", "arith.muli")
FROM_FLOATS = ("arith.fptosi", "arith.fptoui", "arith.bitcast", "tt.bitcast")
STORES = ("tt.store", "tt.atomic_rmw", "tt.atomic_cas")


class Facts:
    """Facts about the values of one function.

    Attributes:
        types: type of every value.
        definition: instruction that defines a value; block arguments have none.
        uses: how often a value is used.
        addressing: values that affect an address by linear arithmetic.
        wide: computed int32 values among them. They are kept exact in int64, so that an overflow
            shows where the address is used.
        narrowed: wide values also used where they must wrap like int32.
        quantities: integers converted from floats, and those computed from them. They count no
            elements.
        stored, loaded, updated: arguments through which memory is written, read, or changed by an
            atomic operation.
        synchronises: the kernel reads the result of an atomic, or reads past caches.
        waits: it may wait for another program.
    """

    def __init__(self, function: Function) -> None:
        self.instructions = list(walk(function.blocks))
        self.arguments = {name for name, _ in function.arguments}
        blocks = list(blocks_within(function.blocks))
        self.types = {name: kind for block in blocks for name, kind in block.arguments}
        self.definition: dict[str, Instruction] = {}
        self.uses: Counter[str] = Counter()
        for instruction in self.instructions:
            self.types.update(zip(instruction.results, instruction.types, strict=True))
            self.definition.update(dict.fromkeys(instruction.results, instruction))
            self.uses.update(used_by(instruction))
        self.addressing: set[str] = set()
        self.wide: set[str] = set()
        self.narrowed: set[str] = set()
        self.find_wide()
        self.flows = list(self.find_flows(function))
        self.quantities = self.reached_from(
            {i.results[0] for i in self.instructions if i.name in FROM_FLOATS}
        )
        self.stored: set[str] = set()
        self.loaded: set[str] = set()
        self.updated: set[str] = set()
        self.find_accesses(function)
        self.synchronises = any(
            volatile(i) or (i.name == "tt.atomic_rmw" and self.uses[i.results[0]])
            for i in self.instructions
        )
        self.waits = any(i.name == "tt.atomic_cas" or spins(i) for i in self.instructions)

    def find_wide(self) -> None:
        pending = [i.operands[1] for i in self.instructions if i.name == "tt.addptr"]
        while pending:
            name = pending.pop()
            source = self.definition.get(name)
            if source is None or name in self.addressing:
                continue
            if source.name in (*LINEAR, *SHAPING, "arith.extsi"):
                self.addressing.add(name)
                pending += source.operands
        for instruction in self.instructions:
            for name in self.addressing.intersection(instruction.results):
                computed = instruction.name in LINEAR or instruction.operands[0] in self.wide
                if computed and self.types[name].element == "i32":
                    self.wide.add(name)
        for instruction in reversed(self.instructions):
            result = instruction.results[0] if instruction.results else ""
            if instruction.name == "tt.broadcast" and result in self.wide:
                # Another name for its operand.
                self.narrowed.update(instruction.operands if result in self.narrowed else ())
            widens = instruction.name == "arith.extsi" and result in self.addressing
            if not (widens or result in self.wide or instruction.name == "tt.addptr"):
                self.narrowed.update(self.wide.intersection(used_by(instruction)))

    def constant(self, name: str) -> str:
        """The text of a constant value; empty for others."""
        source = self.definition.get(name)
        return source.attributes.get("value", "") if source is not None else ""

    def narrow(self, pointer: str) -> bool:
        """Whether a pointer may include computed int32 offsets."""
        source = self.definition.get(pointer)
        if source is None:
            return pointer not in self.arguments
        if source.name == "tt.addptr" and source.operands[1] in self.wide:
            return True
        return source.name not in (*SHAPING, "tt.addptr") or self.narrow(source.operands[0])

    def find_flows(self, function: Function) -> Iterator[tuple[list[str], list[str]]]:
        """Pairs of values that flow into an operation and values they may come out as."""
        into = {block.label: [n for n, _ in block.arguments] for block in function.blocks}
        for instruction in self.instructions:
            inside = [block for region in instruction.regions for block in region]
            sources = sum((b.instructions[-1].operands for b in inside), instruction.operands)
            targets = [name for block in inside for name, _ in block.arguments]
            if instruction.name != "tt.load":
                yield sources, instruction.results + targets
            for label, values in instruction.successors:
                yield values, into[label]

    def reached_from(self, roots: set[str]) -> set[str]:
        """Integers computed from these; a comparison relates its operands."""
        found, size = set(roots), 0
        while roots and size < (size := len(found)):
            for sources, targets in self.flows:
                if not found.isdisjoint(sources):
                    found.update(n for n in targets if self.types[n].element == "i32")
        return found

    def find_accesses(self, function: Function) -> None:
        """Follow the pointer arguments to loads and stores."""
        pointers = [name for name, kind in function.arguments if kind.is_pointer]
        # Sets of arguments as bits.
        roots = {name: 1 << place for place, name in enumerate(pointers)}
        growing = True
        while growing:
            growing = False
            for sources, targets in self.flows:
                root = 0
                for name in sources:
                    root |= roots.get(name, 0)
                for name in targets if root else ():
                    before = roots.get(name, 0)
                    if before | root != before:
                        roots[name], growing = before | root, True
        for instruction in self.instructions:
            if instruction.name not in (*STORES, "tt.load", "tt.call"):
                continue
            through = {
                argument
                for place, argument in enumerate(pointers)
                if any(roots.get(name, 0) >> place & 1 for name in instruction.operands)
            }
            if instruction.name != "tt.load":
                self.stored |= through
            if instruction.name in ("tt.load", "tt.call"):
                self.loaded |= through
            if instruction.name not in ("tt.load", "tt.store"):
                self.updated |= through


def used_by(instruction: Instruction) -> list[str]:
    """Operands, including those of branch targets."""
    if not instruction.successors:
        return instruction.operands
    return sum((values for _, values in instruction.successors), instruction.operands)


def volatile(instruction: Instruction) -> bool:
    return instruction.name == "tt.load" and instruction.attributes.get("isVolatile") == "true"


def spins(instruction: Instruction) -> bool:
    """Whether a loop reads memory that another program may change."""
    if instruction.name != "scf.while":
        return False
    inside = walk([block for region in instruction.regions for block in region])
    return any(i.name.startswith("tt.atomic") or volatile(i) for i in inside)
