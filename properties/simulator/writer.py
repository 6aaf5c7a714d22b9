"""The frame of the generated source: modules, functions, blocks and predicates.

The source is meant to be read: variables keep the names of the kernel, and every kernel line stands
above its code. Names that the kernel did not choose begin with an underscore.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from . import memory, numerics, runtime
from .analysis import Facts, volatile
from .errors import Location
from .frontend import Block, Function, Instruction, Type, walk


def public(module: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if not name.startswith("_")}


# What generated code may refer to.
NAMESPACE: dict[str, Any] = {
    **public(numerics),
    **public(memory),
    **public(runtime),
    "np": np,
    "Location": Location,
}
RESERVED = {*NAMESPACE, *keyword.kwlist, "slab", "pred", "float", "dict"}


class Unsupported(NotImplementedError):
    """An operation that the simulator does not execute."""

    def __init__(self, instruction: Instruction, why: str = "") -> None:
        text = f": {instruction.location.text}" if instruction.location.text else ""
        reason = f" ({why})" if why else ""
        super().__init__(
            f"{instruction.name}{reason} is not simulated, at {instruction.location}{text}"
        )


def identifier(name: str) -> str:
    """An SSA name as a Python name."""
    text = re.sub(r"\W", "_", name.lstrip("%@").replace("#", "_r").replace("-", "m"))
    if text[:1].isdigit() or text.startswith("_"):
        text = "v" + text
    return text + "_" if text in RESERVED else text


Lowering = Callable[["FunctionWriter", Instruction], None]


class Module:
    """Source of a whole IR module: constants, sites, region functions, then the functions."""

    def __init__(self, functions: list[Function], lowerings: Mapping[str, Lowering]) -> None:
        self.lowerings = lowerings
        self.header: list[str] = []
        self.body: list[str] = []
        self.constants: dict[str, str] = {}
        self.names: dict[str, str] = {f.name: "_" + identifier(f.name) for f in functions}
        self.count = 0
        entry = next(f for f in functions if f.public)
        facts = {f.name: Facts(f) for f in functions}
        for function in functions:
            FunctionWriter(self, function, facts[function.name], function is entry).write()
        self.describe(entry, facts)

    def describe(self, entry: Function, facts: dict[str, Facts]) -> None:
        """What the launcher wants to know."""
        known = facts[entry.name]
        stored: set[str] = set()
        loaded: set[str] = set()
        for instruction in known.instructions:
            if instruction.name in ("tt.store", "tt.atomic_rmw", "tt.atomic_cas"):
                stored |= known.roots[instruction.operands[0]]
            elif instruction.name == "tt.load":
                loaded |= known.roots[instruction.operands[0]]
            elif instruction.name == "tt.call":
                passed = set().union(*(known.roots[name] for name in instruction.operands))
                stored |= passed
                loaded |= passed
        waits = looks = False
        for each in facts.values():
            for instruction in each.instructions:
                waits |= instruction.name == "tt.atomic_cas"
                looks |= volatile(instruction)
                if instruction.name == "tt.atomic_rmw":
                    looks |= each.uses.get(instruction.results[0], 0) > 0
                elif instruction.name == "scf.while":
                    inner = [i for region in instruction.regions for i in walk(region)]
                    waits |= any(i.name.startswith("tt.atomic") or volatile(i) for i in inner)
        tile = max((prod(k.shape) for f in facts.values() for k in f.types.values()), default=1)
        names = [name for name, _ in entry.arguments]
        arguments = tuple((k.element, k.shape, k.pointee) for _, k in entry.arguments)
        self.header += [
            f"ENTRY = {self.names[entry.name]}",
            f"ARGUMENTS = {arguments}",
            f"TILE = {tile}  # elements of the largest tile",
            f"WRITTEN = {tuple(i for i, name in enumerate(names) if name in stored)}"
            "  # arguments that may be stored to",
            f"READ = {tuple(i for i, name in enumerate(names) if name in loaded)}",
            f"SYNCHRONISES = {waits or looks}  # looks at what an atomic returns",
            f"SEQUENTIAL = {waits}  # may wait for another program",
        ]

    def constant(self, hint: str, expression: str) -> str:
        """A module-level name for an expression."""
        known = self.constants.get(expression)
        if known is None:
            known = "_" + identifier(hint)
            if known in self.constants.values():
                self.count += 1
                known = f"{known}_k{self.count}"
            self.constants[expression] = known
        return known

    def fresh(self, hint: str) -> str:
        self.count += 1
        return f"_{hint}_{self.count}"

    def source(self) -> str:
        constants = [f"{name} = {text}" for text, name in self.constants.items()]
        return "\n".join([*constants, "", *self.body, "", *self.header, ""])


class FunctionWriter:
    """Writes one IR function; the lowerings call back into it."""

    def __init__(self, module: Module, function: Function, facts: Facts, entry: bool) -> None:
        self.module, self.function, self.facts, self.entry = module, function, facts, entry
        self.lines: list[str] = []
        self.depth = 1
        self.pred = "None" if entry else "pred"
        self.names: dict[str, str] = {}
        self.taken: set[str] = set()
        self.shown = Location()

    # Writing

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def name(self, value: str) -> str:
        """Python variable of an SSA value."""
        known = self.names.get(value)
        if known is None:
            known = identifier(value)
            while known in self.taken:
                known += "_"
            self.taken.add(known)
            self.names[value] = known
        return known

    def use(self, value: str) -> str:
        """Expression of a value as an operand, wrapped to int32 where it is kept wide."""
        text = self.name(value)
        return f"_{text}_i32" if value in self.facts.wide else text

    def define(self, value: str, expression: str) -> None:
        name = self.name(value)
        self.emit(f"{name} = {expression}")
        if value in self.facts.wide and value in self.facts.narrowed:
            self.emit(f"_{name}_i32 = {name}.astype(np.int32)")

    def alias(self, value: str, source: str) -> None:
        """Another name for the same array."""
        self.names[value] = self.name(source)

    def site(self, instruction: Instruction, element: str = "", narrow: bool = False) -> str:
        place = instruction.location
        text = instruction.strings[0] if instruction.strings else ""
        parts = [f"Location({place.file!r}, {place.line})", repr(element)]
        if narrow or text:
            parts += [repr(narrow), repr(text)]
        return self.module.constant(f"L{place.line}", f"Site({', '.join(parts)})")

    def type(self, value: str) -> Type:
        return self.facts.types[value]

    # Structure

    def write(self) -> None:
        arguments = [self.name(name) for name, _ in self.function.arguments]
        lead = ["slab"] if self.entry else ["slab", "pred"]
        if len(self.function.blocks) == 1:
            self.block(self.function.blocks[0])
        else:
            self.graph(self.function.blocks)
        head = f"def {self.module.names[self.function.name]}({', '.join(lead + arguments)}):"
        self.module.body += ["", "", head, *(self.lines or ["    pass"])]

    def block(self, block: Block) -> Instruction:
        """Everything up to the terminator, which is returned; a `tt.return` is written as well."""
        for instruction in block.instructions[:-1]:
            self.lower(instruction)
        last = block.instructions[-1]
        if last.name == "tt.return":
            values = ", ".join(self.use(name) for name in last.operands)
            self.emit(f"return ({values},)" if values else "return None")
        return last

    def lower(self, instruction: Instruction) -> None:
        lowering = self.module.lowerings.get(instruction.name)
        if lowering is None:
            raise Unsupported(instruction)
        if instruction.location != self.shown and instruction.location.line:
            self.shown = instruction.location
            where = f"{Path(self.shown.file).name}:{self.shown.line}"
            self.emit(f"# {where}  {self.shown.text}"[:120])
        lowering(self, instruction)

    def graph(self, blocks: list[Block]) -> None:
        """Branches between blocks: each block runs under the union of its incoming edges."""
        by_label = {block.label: block for block in blocks}
        for block in blocks[1:]:
            self.emit(f"{in_block(block)} = False")
        done: Callable[[int], str] = "_returned_{}".format
        if self.function.results:
            self.emit("_left = False")
        for block in reverse_post_order(blocks):
            outer, depth = self.pred, self.depth
            if block is not blocks[0]:
                self.emit(f"if {in_block(block)} is not False:")
                self.depth += 1
                self.pred = in_block(block)
            for instruction in block.instructions[:-1]:
                self.lower(instruction)
            last = block.instructions[-1]
            if last.name == "cf.br":
                self.edge(self.pred, last.successors[0], by_label)
            elif last.name == "cf.cond_br":
                there, here = self.module.fresh("then"), self.module.fresh("else")
                self.emit(f"{there}, {here} = branch({self.pred}, {self.use(last.operands[0])})")
                for edge, successor in zip((there, here), last.successors, strict=True):
                    self.emit(f"if {edge} is not False:")
                    self.depth += 1
                    self.edge(edge, successor, by_label)
                    self.depth -= 1
            elif last.name == "tt.return":
                for index, value in enumerate(last.operands):
                    new = self.use(value)
                    self.emit(
                        f"{done(index)} = {new} if _left is False else "
                        f"merge({self.pred}, {new}, {done(index)})"
                    )
                if last.operands:
                    self.emit(f"_left = either(_left, {self.pred})")
                elif block is not blocks[0]:
                    self.emit("pass")
            else:
                raise Unsupported(last)
            self.pred, self.depth = outer, depth
        if self.function.results:
            values = ", ".join(done(index) for index in range(len(self.function.results)))
            self.emit(f"return ({values},)")

    def edge(self, edge: str, successor: tuple[str, list[str]], blocks: dict[str, Block]) -> None:
        label, values = successor
        target = blocks[label]
        into = in_block(target)
        for (argument, _), value in zip(target.arguments, values, strict=True):
            name, new = self.name(argument), self.use(value)
            self.emit(f"{name} = {new} if {into} is False else merge({edge}, {new}, {name})")
        self.emit(f"{into} = either({into}, {edge})")

    def under(self, pred: str, block: Block) -> Instruction:
        """A nested block one level deeper, under its own predicate."""
        outer, self.pred = self.pred, pred
        self.depth += 1
        last = self.block(block)
        self.pred = outer
        self.depth -= 1
        return last

    def tuple(self, values: Iterable[str]) -> str:
        items = list(values)
        return f"({', '.join(items)},)" if len(items) == 1 else f"({', '.join(items)})"


def in_block(block: Block) -> str:
    return "_in_" + block.label[1:]


def reverse_post_order(blocks: list[Block]) -> list[Block]:
    """Every block after all of its predecessors, whatever the printed order."""
    by_label = {block.label: block for block in blocks}
    finished: list[Block] = []
    open_labels: set[str] = set()
    seen: set[str] = set()

    def visit(block: Block) -> None:
        seen.add(block.label)
        open_labels.add(block.label)
        for label, _ in block.instructions[-1].successors:
            if label in open_labels:
                raise Unsupported(block.instructions[-1], "a loop of branches")
            if label not in seen:
                visit(by_label[label])
        open_labels.discard(block.label)
        finished.append(block)

    visit(blocks[0])
    return finished[::-1]
