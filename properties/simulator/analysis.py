"""What is known about the values of an IR function before any code is written."""

from __future__ import annotations

from collections.abc import Iterable

from .frontend import Block, Function, Instruction, Type, walk

SHAPING = ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.unsplat")
LINEAR = ("arith.addi", "arith.subi", "arith.muli")


class Facts:
    """What is known about the values of one function before any code is written.

    Attributes:
        types: type of every value.
        definition: instruction that defines a value; block arguments have none.
        wide: those of them that are int32 and computed. They are kept exact in int64, so that an
            overflow shows where the address is used.
        addressing: values that lead by linear arithmetic to an address.
        narrowed: wide values that are also used where they must wrap like int32.
        roots: arguments that a pointer may be derived from, by argument name.
    """

    def __init__(self, function: Function) -> None:
        self.types: dict[str, Type] = dict(function.arguments)
        self.definition: dict[str, Instruction] = {}
        self.instructions = list(walk(function.blocks))
        for block in all_blocks(function.blocks):
            self.types.update(block.arguments)
        for instruction in self.instructions:
            for name, kind in zip(instruction.results, instruction.types, strict=True):
                self.types[name] = kind
                self.definition[name] = instruction
        self.uses: dict[str, int] = {}
        for instruction in self.instructions:
            for name in operands_of(instruction):
                self.uses[name] = self.uses.get(name, 0) + 1
        self.addressing: set[str] = set()
        self.wide: set[str] = set()
        self.narrowed: set[str] = set()
        self.find_wide()
        self.roots: dict[str, set[str]] = {}
        self.find_roots(function)

    def element(self, name: str) -> str:
        return self.types[name].element

    def find_wide(self) -> None:
        addressing = self.addressing
        pending = [i.operands[1] for i in self.instructions if i.name == "tt.addptr"]
        while pending:
            name = pending.pop()
            source = self.definition.get(name)
            if source is None or name in addressing:
                continue
            if source.name in (*LINEAR, *SHAPING, "arith.extsi"):
                addressing.add(name)
                pending += source.operands
        for instruction in self.instructions:
            for name in instruction.results:
                if name not in addressing or self.element(name) != "i32":
                    continue
                if instruction.name in LINEAR or instruction.operands[0] in self.wide:
                    self.wide.add(name)
        for instruction in reversed(self.instructions):
            widening = instruction.name == "arith.extsi" and instruction.results[0] in addressing
            if widening or instruction.name == "tt.addptr":
                continue
            if instruction.results and instruction.results[0] in self.wide:
                aliased = instruction.name == "tt.broadcast"
                if aliased and instruction.results[0] in self.narrowed:
                    self.narrowed.add(instruction.operands[0])
                continue
            self.narrowed.update(n for n in operands_of(instruction) if n in self.wide)

    def find_roots(self, function: Function) -> None:
        """A fixpoint: whatever flows into an operation may come out of it as a pointer."""
        self.roots = {name: set() for name in self.types}
        for name, kind in function.arguments:
            self.roots[name] |= {name} if kind.is_pointer else set()
        flows: list[tuple[list[str], list[str]]] = []
        for instruction in self.instructions:
            sources, targets = operands_of(instruction), list(instruction.results)
            for region in instruction.regions:
                for block in region:
                    targets += [name for name, _ in block.arguments]
                    sources += block.instructions[-1].operands if block.instructions else []
            if instruction.name != "tt.load":
                flows.append((sources, targets))
        arguments = {b.label: [n for n, _ in b.arguments] for b in function.blocks}
        for instruction in self.instructions:
            for label, values in instruction.successors:
                flows.append((values, arguments.get(label, [])))
        changed = True
        while changed:
            changed = False
            for sources, targets in flows:
                reached = set().union(*(self.roots[name] for name in sources))
                for name in targets:
                    if not reached <= self.roots[name]:
                        self.roots[name] |= reached
                        changed = True

    def narrow_address(self, pointer: str) -> bool:
        """Whether int32 offsets may have gone into a pointer."""
        source = self.definition.get(pointer)
        if source is None:
            return not self.types[pointer].is_pointer or pointer not in self.roots[pointer]
        if source.name == "tt.addptr":
            offset = self.element(source.operands[1])
            return offset != "i64" or self.narrow_address(source.operands[0])
        if source.name in SHAPING:
            return self.narrow_address(source.operands[0])
        return True


def all_blocks(blocks: Iterable[Block]) -> Iterable[Block]:
    for block in blocks:
        yield block
        for instruction in block.instructions:
            for region in instruction.regions:
                yield from all_blocks(region)


def operands_of(instruction: Instruction) -> list[str]:
    """Operands, those passed to branch targets included."""
    return instruction.operands + [name for _, values in instruction.successors for name in values]


def volatile(instruction: Instruction) -> bool:
    return instruction.name == "tt.load" and instruction.attributes.get("isVolatile") == "true"
