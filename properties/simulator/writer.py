"""The frame of the generated source: modules, functions, blocks and predicates.

The source is meant to be read: variables keep the kernel's names, and every kernel line stands
above its code. Other names begin with an underscore, those of constants with `_k_`.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from os.path import basename
from typing import Any

import numpy as np

from . import memory, numerics, runtime
from .analysis import Facts
from .errors import Location
from .frontend import Block, Function, Instruction, Type

# Names that generated code may use.
NAMESPACE: dict[str, Any] = {"np": np, "Location": Location}
for module in (numerics, memory, runtime):
    NAMESPACE.update({name: x for name, x in vars(module).items() if not name.startswith("_")})
RESERVED = {*NAMESPACE, *keyword.kwlist, "slab", "pred", "float", "dict"}
# How the names of constants begin.
CONSTANT = "_k_"


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


def tuple_of(expressions: Iterable[str]) -> str:
    return f"({''.join(f'{text}, ' for text in expressions)})"


Lowering = Callable[["FunctionWriter", Instruction], None]


class Module:
    """Source of a whole IR module: constants and sites, the functions, facts for the launcher."""

    def __init__(
        self,
        functions: list[Function],
        lowerings: Mapping[str, Lowering],
        understood: Container[str],
    ) -> None:
        self.lowerings, self.understood = lowerings, understood
        self.body: list[str] = []
        self.constants: dict[str, str] = {}
        self.taken: set[str] = set()
        self.names = {f.name: "_" + identifier(f.name) for f in functions}
        self.count = 0
        self.entry = next(f for f in functions if f.public)
        self.facts = {f.name: Facts(f) for f in functions}
        for function in functions:
            FunctionWriter(self, function, function is self.entry).write()

    def header(self) -> list[str]:
        """Constants for the launcher."""
        facts, known = list(self.facts.values()), self.facts[self.entry.name]
        names = [name for name, _ in self.entry.arguments]
        arguments = [(kind.element, kind.shape, kind.pointee) for _, kind in self.entry.arguments]
        waits = any(each.waits for each in facts)
        return [
            f"ENTRY = {self.names[self.entry.name]}",
            f"ARGUMENTS = {arguments}",
            f"TILE = {max(prod(kind.shape) for each in facts for kind in each.types.values())}",
            f"WRITTEN = {[i for i, name in enumerate(names) if name in known.stored]}",
            f"READ = {[i for i, name in enumerate(names) if name in known.loaded]}",
            f"UPDATED = {[i for i, name in enumerate(names) if name in known.updated]}",
            f"SYNCHRONISES = {waits or any(each.synchronises for each in facts)}",
            f"SEQUENTIAL = {waits}",
        ]

    def constant(self, hint: str, expression: str) -> str:
        """A module-level name for an expression."""
        known = self.constants.get(expression)
        if known is None:
            known = _free(
                CONSTANT + re.sub(r"\W", "_", hint.lstrip("%").replace("-", "m")), self.taken
            )
            self.constants[expression] = known
        return known

    def fresh(self, hint: str) -> str:
        self.count += 1
        return f"_{hint}_{self.count}"

    def source(self) -> str:
        constants = [f"{name} = {text}" for text, name in self.constants.items()]
        return "\n".join([*constants, "", *self.body, "", *self.header(), ""])


def _free(name: str, taken: set[str]) -> str:
    """Take the name, with underscores behind it if it is taken already."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


class FunctionWriter:
    """Writes one IR function; the lowerings call back into it."""

    def __init__(self, module: Module, function: Function, entry: bool) -> None:
        self.module, self.function, self.entry = module, function, entry
        self.facts = module.facts[function.name]
        self.lines: list[str] = []
        self.depth = 1
        self.pred = "None" if entry else "pred"
        self.names: dict[str, str] = {}
        self.taken: set[str] = set()
        self.mentioned: set[str] = set()
        self.shown = Location()

    # Writing

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    @contextmanager
    def indented(self, head: str, pred: str = "") -> Iterator[None]:
        """Lines below a head, under a predicate of their own."""
        self.emit(head)
        start, outer = len(self.lines), self.pred
        self.depth, self.pred = self.depth + 1, pred or outer
        yield
        if len(self.lines) == start:
            self.emit("pass")
        self.depth, self.pred = self.depth - 1, outer

    def name(self, value: str) -> str:
        """Python variable of an SSA value."""
        known = self.names.get(value)
        if known is None:
            known = _free(identifier(value), self.taken)
            self.names[value] = known
        self.mentioned.add(known)
        return known

    def use(self, value: str) -> str:
        """Expression of a value as an operand, wrapped to int32 if it is kept wide."""
        text = self.name(value)
        if value in self.facts.wide:
            text = narrowed(text)
            self.mentioned.add(text)
        return text

    def uses(self, instruction: Instruction) -> list[str]:
        return [self.use(name) for name in instruction.operands]

    def define(self, value: str, expression: str) -> None:
        name = self.name(value)
        self.emit(f"{name} = {expression}")
        if value in self.facts.wide and value in self.facts.narrowed:
            self.emit(f"{narrowed(name)} = {name}.astype(np.int32)")

    def define_all(self, values: list[str], expression: str) -> None:
        targets = "".join(f"{self.name(value)}, " for value in values)
        self.emit(f"{targets}= {expression}" if values else expression)

    def alias(self, value: str, source: str) -> None:
        """Another name for the same array."""
        self.names[value] = self.name(source)

    def join(self, name: str, new: str, pred: str, already: str) -> None:
        """Assign `new` to a variable where `pred` holds; where `already` holds it has a value."""
        self.emit(f"{name} = {new} if {already} is False else merge({pred}, {new}, {name})")

    def site(
        self, instruction: Instruction, element: str = "", narrow: bool = False, text: str = ""
    ) -> str:
        place = instruction.location
        parts = [f"Location({place.file!r}, {place.line})", repr(element), repr(narrow), repr(text)]
        while parts[-1] in ("''", "False"):
            parts.pop()
        return self.module.constant(f"L{place.line}", f"Site({', '.join(parts)})")

    def type(self, value: str) -> Type:
        return self.facts.types[value]

    # Structure

    def write(self) -> None:
        arguments = ["slab", *([] if self.entry else ["pred"])]
        arguments += [self.name(name) for name, _ in self.function.arguments]
        head = f"def {self.module.names[self.function.name]}({', '.join(arguments)}):"
        if len(self.function.blocks) == 1:
            last = self.block(self.function.blocks[0])
            self.emit(f"return {tuple_of(self.uses(last))}")
        else:
            self.graph(self.function.blocks)
        self.module.body += ["", "", head, *self.lines]

    def block(self, block: Block) -> Instruction:
        """Write everything up to the terminator, and return that."""
        *instructions, last = block.instructions
        for instruction in instructions:
            self.lower(instruction)
        return last

    def packed(self, block: Block, pred: str) -> list[str]:
        """Write a block that leaves out the idle programs if they are many; return what it yields,
        for all programs."""
        known = {name for name in self.names.values() if not name.startswith(CONSTANT)}
        wrapped = self.facts.wide & self.facts.narrowed & self.names.keys()
        known |= {narrowed(self.names[value]) for value in wrapped}
        start, before, self.mentioned = len(self.lines), self.mentioned, set()
        values = self.uses(self.block(block))
        outer = tuple_of(["slab", pred, *sorted(self.mentioned & known)])
        self.mentioned |= before
        if len(self.lines) == start:
            return values
        whole, margin = self.module.fresh("whole"), "    " * self.depth
        self.lines[start:start] = [
            f"{margin}{whole} = {outer}",
            f"{margin}if {pred} is not None: {outer} = pack(*{whole})",
        ]
        made = [v for v in values if v not in known and not v.startswith(CONSTANT)]
        if made:
            self.emit(f"{tuple_of(made)} = unpack({whole}[1], {tuple_of(made)})")
        self.emit(f"{outer} = {whole}")
        return values

    def lower(self, instruction: Instruction) -> None:
        lowering = self.module.lowerings.get(instruction.name)
        if lowering is None:
            raise Unsupported(instruction)
        for key in instruction.attributes:
            if key not in self.module.understood and "." not in key:
                raise Unsupported(instruction, key)
        if instruction.location != self.shown and instruction.location.line:
            self.shown = instruction.location
            where = f"{basename(self.shown.file)}:{self.shown.line}"
            self.emit(f"# {where}  {self.shown.text}"[:120])
        lowering(self, instruction)

    def graph(self, blocks: list[Block]) -> None:
        """Branches between blocks: each block runs under the union of its incoming edges."""
        by_label = {block.label: block for block in blocks}
        results = [f"_returned_{index}" for index in range(len(self.function.results))]
        for flag in [*map(in_block, blocks[1:]), "_left"]:
            self.emit(f"{flag} = False")
        self.emit(f"{in_block(blocks[0])} = {self.pred}")
        for block in reverse_post_order(blocks):
            here = in_block(block)
            with self.indented(f"if {here} is not False:", here):
                last = self.block(block)
                if last.name == "tt.return":
                    for result, new in zip(results, self.uses(last), strict=True):
                        self.join(result, new, here, "_left")
                    self.emit(f"_left = either(_left, {here})")
                    continue
                edges = [here]
                if last.name == "cf.cond_br":
                    edges = [self.module.fresh("then"), self.module.fresh("else")]
                    condition = self.use(last.operands[0])
                    self.emit(f"{', '.join(edges)} = branch({here}, {condition})")
                elif last.name != "cf.br":
                    raise Unsupported(last)
                for edge, (label, values) in zip(edges, last.successors, strict=True):
                    with self.indented(f"if {edge} is not False:"):
                        target = by_label[label]
                        into = in_block(target)
                        for (argument, _), value in zip(target.arguments, values, strict=True):
                            self.join(self.name(argument), self.use(value), edge, into)
                        self.emit(f"{into} = either({into}, {edge})")
        self.emit(f"return {tuple_of(results)}")


def narrowed(name: str) -> str:
    """The variable of a wide value that is wrapped to int32."""
    return f"_{name}_i32"


def in_block(block: Block) -> str:
    return "_in_" + block.label[1:]


def reverse_post_order(blocks: list[Block]) -> list[Block]:
    """Every block after all of its predecessors, whatever the printed order."""
    by_label = {block.label: block for block in blocks}
    finished: list[Block] = []
    entered: set[str] = set()

    def visit(block: Block) -> None:
        entered.add(block.label)
        last = block.instructions[-1]
        for label, _ in last.successors:
            if label not in entered:
                visit(by_label[label])
            elif by_label[label] not in finished:
                raise Unsupported(last, "a loop of branches")
        finished.append(block)

    visit(blocks[0])
    return finished[::-1]
