"""Instructions to NumPy source: one Python function per IR function.

`LOWERINGS` at the end of this file has an entry per operation. The source that comes out is meant
to be read: variables keep the names of the kernel, and every kernel line stands above its code.
"""

from __future__ import annotations

import keyword
import re
import struct
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path

from .errors import Location
from .frontend import Block, Function, Instruction, Type, walk
from .numerics import ELEMENTS, ROUNDING

SHAPING = ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.unsplat")
LINEAR = ("arith.addi", "arith.subi", "arith.muli")
AXES = {"x": 0, "y": 1, "z": 2}
IGNORED = (
    "fastmath<",
    "overflow<",
    "allow_reorder",
    "efficient_layout",
)


class Unsupported(NotImplementedError):
    """An operation that the simulator does not execute."""

    def __init__(self, instruction: Instruction, why: str = "") -> None:
        text = f": {instruction.location.text}" if instruction.location.text else ""
        reason = f" ({why})" if why else ""
        super().__init__(
            f"{instruction.name}{reason} is not simulated, at {instruction.location}{text}"
        )


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


class Module:
    """Source of a whole IR module: constants, sites, region functions, then the functions."""

    def __init__(self, functions: list[Function]) -> None:
        self.header: list[str] = []
        self.body: list[str] = []
        self.constants: dict[str, str] = {}
        self.names: dict[str, str] = {f.name: identifier(f.name) for f in functions}
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
            known = identifier(hint)
            if known in self.constants.values():
                self.count += 1
                known = f"{known}_k{self.count}"
            self.constants[expression] = known
        return known

    def fresh(self, hint: str) -> str:
        self.count += 1
        return f"{hint}_{self.count}"

    def source(self) -> str:
        constants = [f"{name} = {text}" for text, name in self.constants.items()]
        return "\n".join([*constants, "", *self.body, "", *self.header, ""])


def volatile(instruction: Instruction) -> bool:
    return instruction.name == "tt.load" and instruction.attributes.get("isVolatile") == "true"


def identifier(name: str) -> str:
    """An SSA name as a Python name."""
    text = re.sub(r"\W", "_", name.lstrip("%@").replace("#", "_r").replace("-", "m"))
    if text[:1].isdigit():
        text = "v" + text
    return text + "_" if keyword.iskeyword(text) or text in RESERVED else text


RESERVED = {"np", "slab", "pred", "ENTRY", "print", "range", "type"}


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
        return f"{text}_i32" if value in self.facts.wide else text

    def define(self, value: str, expression: str) -> None:
        name = self.name(value)
        self.emit(f"{name} = {expression}")
        if value in self.facts.wide and value in self.facts.narrowed:
            self.emit(f"{name}_i32 = {name}.astype(np.int32)")

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
        lowering = LOWERINGS.get(instruction.name)
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
        done: Callable[[int], str] = "returned_{}".format
        if self.function.results:
            self.emit("left = False")
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
                        f"{done(index)} = {new} if left is False else "
                        f"merge({self.pred}, {new}, {done(index)})"
                    )
                if last.operands:
                    self.emit(f"left = either(left, {self.pred})")
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
    return "in_" + block.label[1:]


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


Lowering = Callable[[FunctionWriter, Instruction], None]


def check_words(instruction: Instruction) -> None:
    for word in instruction.words:
        if not word.startswith(IGNORED):
            raise Unsupported(instruction, word)


def rounded(element: str, expression: str) -> str:
    return f"round_{short(element)}({expression})" if element in ROUNDING else expression


def short(element: str) -> str:
    return {"f8E4M3FN": "f8e4m3", "f8E5M2": "f8e5m2"}.get(element, element)


def value_dtype(element: str) -> str:
    return f"np.{ELEMENTS[element].value.name}"


def elementwise(template: str, rounds: bool = True, on_bool: str = "") -> Lowering:
    """`{0}`, `{1}`, `{2}` are the operands; `on_bool` is the same operation for i1."""

    def lower(w: FunctionWriter, i: Instruction) -> None:
        check_words(i)
        element = i.type.element
        text = on_bool if on_bool and element == "i1" else template
        expression = text.format(*(w.use(name) for name in i.operands))
        w.define(i.results[0], rounded(element, expression) if rounds else expression)

    return lower


def linear(symbol: str, ufunc: str, on_bool: str) -> Lowering:
    """Integer arithmetic; values on their way to an address stay exact in int64."""
    plain = elementwise(f"{{0}} {symbol} {{1}}", on_bool=f"{{0}} {on_bool} {{1}}")

    def lower(w: FunctionWriter, i: Instruction) -> None:
        if i.results[0] not in w.facts.wide:
            plain(w, i)
            return
        check_words(i)
        left, right = (w.name(name) for name in i.operands)
        if any(name in w.facts.wide for name in i.operands):
            w.define(i.results[0], f"{left} {symbol} {right}")
        else:
            w.define(i.results[0], f"{ufunc}({left}, {right}, dtype=np.int64)")

    return lower


def constant(w: FunctionWriter, i: Instruction) -> None:
    kind = i.type
    dtype = value_dtype(kind.element)
    text = i.words[0]
    if match := re.fullmatch(r"dense<(.*)>", text):
        text = match[1]
    if text.startswith('"'):
        raise Unsupported(i, "a constant in hexadecimal blocks")
    if text.startswith("["):
        numbers = re.findall(r"[^\[\],\s]+", text)
        values = ", ".join(literal(number, kind.element) for number in numbers)
        expression = f"np.array([{values}], {dtype}).reshape{(1, *kind.shape)}"
    else:
        ones = (1,) * (kind.rank + 1)
        expression = f"np.full({ones}, {literal(text, kind.element)}, {dtype})"
    # Decimals of a narrow type are printed with just the digits that identify it.
    expression = rounded(kind.element, expression)
    w.names[i.results[0]] = w.module.constant(i.results[0], expression)


def literal(text: str, element: str) -> str:
    """A number of the IR as a Python expression; hexadecimal floats are bit patterns."""
    if text in ("true", "false"):
        return text.capitalize()
    if element in ELEMENTS and "f" in element and text.startswith("0x"):
        size = (len(text) - 2) // 2
        if element == "bf16":
            value = struct.unpack(">f", bytes.fromhex(text[2:] + "0000"))[0]
        else:
            value = struct.unpack({2: ">e", 4: ">f", 8: ">d"}[size], bytes.fromhex(text[2:]))[0]
        return repr(value) if value - value == 0 else f"float({str(value)!r})"
    return text


def poison(w: FunctionWriter, i: Instruction) -> None:
    """A value that nobody may use, as the IR has it."""
    ones = (1,) * (i.type.rank + 1)
    text = f"np.zeros({ones}, {value_dtype(i.type.element)})"
    w.names[i.results[0]] = w.module.constant(i.results[0], text)


def make_range(w: FunctionWriter, i: Instruction) -> None:
    text = f"np.arange({i.integer('start')}, {i.integer('end')}, dtype=np.int32)[None]"
    w.names[i.results[0]] = w.module.constant(f"range_{i.integer('end')}", text)


def program_id(w: FunctionWriter, i: Instruction) -> None:
    w.define(i.results[0], f"slab.ids[{AXES[i.words[0]]}]")


def num_programs(w: FunctionWriter, i: Instruction) -> None:
    w.define(i.results[0], f"slab.counts[{AXES[i.words[0]]}]")


def shaping(text: Callable[[Instruction, Type], str]) -> Lowering:
    """A change of shape: `text` follows the array, or takes its place where it has a `{}`."""

    def lower(w: FunctionWriter, i: Instruction) -> None:
        check_words(i)
        source = i.operands[0]
        change = text(i, w.type(source))
        change = change if "{}" in change else "{}" + change
        # A wide value stays wide through its change of shape, if the result is wide too.
        name = w.name(source) if i.results[0] in w.facts.wide else w.use(source)
        if i.type.is_pointer:
            w.define(i.results[0], f"({name}[0], {change.format(name + '[1]')})")
        else:
            w.define(i.results[0], change.format(name))

    return lower


def broadcast(w: FunctionWriter, i: Instruction) -> None:
    """Nothing: axes of length 1 stand for any length."""
    source, result = i.operands[0], i.results[0]
    if source in w.facts.wide and result not in w.facts.wide:
        w.define(result, w.use(source))
    else:
        w.alias(result, source)


def expand_dims(i: Instruction, _: Type) -> str:
    return "[" + ":, " * (i.integer("axis") + 1) + "None]"


def splat(i: Instruction, _: Type) -> str:
    return f".reshape(-1{', 1' * i.type.rank})"


def transpose(i: Instruction, _: Type) -> str:
    return f".transpose(0, {', '.join(str(axis + 1) for axis in i.integers('order'))})"


def reshaped(i: Instruction, source: Type) -> str:
    return f"reshape({{}}, {source.shape}, {i.type.shape})"


def compare_integers(w: FunctionWriter, i: Instruction) -> None:
    predicate = i.words[0]
    symbol = {"e": "==", "n": "!="}.get(predicate[0], "")
    left, right = (w.use(name) for name in i.operands)
    if predicate[0] == "u":
        left, right = f"unsigned({left})", f"unsigned({right})"
    if not symbol:
        symbol = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}[predicate[1:]]
        if w.facts.element(i.operands[0]) == "i1" and predicate[0] == "s":
            # True is -1 as a signed number of one bit.
            left, right = right, left
    w.define(i.results[0], f"{left} {symbol} {right}")


def compare_floats(w: FunctionWriter, i: Instruction) -> None:
    left, right = (w.use(name) for name in i.operands)
    text = FLOAT_COMPARISONS.get(i.words[0])
    if text is None:
        raise Unsupported(i, i.words[0])
    w.define(i.results[0], text.format(left, right))


FLOAT_COMPARISONS = {
    "oeq": "{0} == {1}",
    "ogt": "{0} > {1}",
    "oge": "{0} >= {1}",
    "olt": "{0} < {1}",
    "ole": "{0} <= {1}",
    "one": "({0} < {1}) | ({0} > {1})",
    "ord": "({0} == {0}) & ({1} == {1})",
    "ueq": "~(({0} < {1}) | ({0} > {1}))",
    "ugt": "~({0} <= {1})",
    "uge": "~({0} < {1})",
    "ult": "~({0} >= {1})",
    "ule": "~({0} > {1})",
    "une": "{0} != {1}",
    "uno": "({0} != {0}) | ({1} != {1})",
}


def select(w: FunctionWriter, i: Instruction) -> None:
    condition, one, two = (w.use(name) for name in i.operands)
    rank = i.type.rank
    if rank and not w.type(i.operands[0]).rank:
        condition = f"{condition}.reshape(-1{', 1' * rank})"
    chosen = "choose" if i.type.is_pointer else "np.where"
    w.define(i.results[0], f"{chosen}({condition}, {one}, {two})")


def convert(w: FunctionWriter, i: Instruction) -> None:
    """Between float types, between integer types, and from integer to float."""
    check_words(i)
    source, target = w.type(i.operands[0]).element, i.type.element
    value = w.use(i.operands[0])
    if i.attributes.get("rounding", "rtne") != "rtne" and target in ROUNDING:
        raise Unsupported(i, i.attributes["rounding"])
    if i.name in ("arith.uitofp", "arith.extui"):
        value = f"unsigned({value})" if source != "i1" else value
    if i.name == "arith.extsi" and source == "i1":
        value = f"-{value}.view(np.int8)"
    if i.name == "arith.trunci" and target == "i1":
        w.define(i.results[0], f"({value} & 1) != 0")
        return
    if target in ROUNDING and i.name in ("arith.sitofp", "arith.uitofp"):
        value = f"{value}.astype(np.float32)"
    if target in ROUNDING:
        w.define(i.results[0], rounded(target, value))
    elif ELEMENTS[source].value == ELEMENTS[target].value:
        w.define(i.results[0], value)
    else:
        w.define(i.results[0], f"{value}.astype({value_dtype(target)})")


def extend_signed(w: FunctionWriter, i: Instruction) -> None:
    source = i.operands[0]
    if source in w.facts.wide and i.results[0] in w.facts.addressing:
        site = w.site(i, "", True)
        w.define(i.results[0], f"slab.widen({site}, {w.name(source)}, {w.pred})")
    else:
        convert(w, i)


def to_integer(w: FunctionWriter, i: Instruction) -> None:
    dtype = value_dtype(i.type.element)
    if i.name == "arith.fptoui":
        unsigned = dtype.replace("np.", "np.u")
        w.define(i.results[0], f"to_integer({w.use(i.operands[0])}, {unsigned}).view({dtype})")
    else:
        w.define(i.results[0], f"to_integer({w.use(i.operands[0])}, {dtype})")


def bitcast(w: FunctionWriter, i: Instruction) -> None:
    source, target = w.type(i.operands[0]), i.type
    value = w.use(i.operands[0])
    if target.is_pointer:
        w.define(i.results[0], f"recast({value}, {target.pointee!r})")
    elif source.element == target.element:
        w.define(i.results[0], value)
    else:
        w.define(i.results[0], f"bitcast({value}, {source.element!r}, {target.element!r})")


def add_pointer(w: FunctionWriter, i: Instruction) -> None:
    pointer, offset = i.operands
    size = ELEMENTS[i.type.pointee].size
    narrow = w.facts.element(offset) != "i64"
    text = f"advance({w.name(pointer)}, {w.name(offset)}, {size}{', True' if narrow else ''})"
    w.define(i.results[0], text)


def pointer_to_integer(w: FunctionWriter, i: Instruction) -> None:
    w.define(i.results[0], f"address_of({w.use(i.operands[0])})")


def integer_to_pointer(w: FunctionWriter, i: Instruction) -> None:
    w.define(i.results[0], f"(ANYWHERE, {w.use(i.operands[0])})")


def access(w: FunctionWriter, i: Instruction) -> str:
    """Site of a memory access."""
    pointer = w.type(i.operands[0])
    if not pointer.is_pointer:
        raise Unsupported(i, "not a plain pointer")
    return w.site(i, pointer.pointee, w.facts.narrow_address(i.operands[0]))


def keywords(**arguments: str) -> str:
    return "".join(f", {key}={text}" for key, text in arguments.items() if text not in ("", "None"))


def load(w: FunctionWriter, i: Instruction) -> None:
    pointer, *rest = (w.use(name) for name in i.operands)
    site = access(w, i)
    extra = "".join(f", {text}" for text in rest) + keywords(pred=w.pred)
    w.define(i.results[0], f"slab.load({site}, {pointer}{extra})")


def store(w: FunctionWriter, i: Instruction) -> None:
    pointer, value, *mask = (w.use(name) for name in i.operands)
    extra = "".join(f", {text}" for text in mask) + keywords(pred=w.pred)
    w.emit(f"slab.store({access(w, i)}, {pointer}, {value}{extra})")


def atomic_rmw(w: FunctionWriter, i: Instruction) -> None:
    pointer, value, *mask = (w.use(name) for name in i.operands)
    wanted = "" if w.facts.uses.get(i.results[0]) else "False"
    extra = "".join(f", {text}" for text in mask) + keywords(pred=w.pred, wanted=wanted)
    text = f"slab.atomic({access(w, i)}, {i.words[0]!r}, {pointer}, {value}{extra})"
    w.define(i.results[0], text)


def atomic_cas(w: FunctionWriter, i: Instruction) -> None:
    pointer, expected, value = (w.use(name) for name in i.operands)
    extra = keywords(pred=w.pred, compare=expected)
    w.define(i.results[0], f"slab.atomic({access(w, i)}, 'cas', {pointer}, {value}{extra})")


def dot(w: FunctionWriter, i: Instruction) -> None:
    check_words(i)
    a, b, c = i.operands
    inner = w.type(a).shape[-1]
    zero = w.facts.definition.get(c)
    is_zero = zero is not None and zero.name == "arith.constant" and zero.words[0] in ZEROS
    left, right = w.use(a), w.use(b)
    if i.attributes.get("inputPrecision", "ieee") == "tf32" and w.facts.element(a) == "f32":
        left, right = f"slab.dot_operand({left})", f"slab.dot_operand({right})"
    text = f"dot({left}, {right}, {'None' if is_zero else w.use(c)}, {inner})"
    w.define(i.results[0], rounded(i.type.element, text))


ZEROS = ("dense<0.000000e+00>", "dense<0>")

UFUNCS = {
    "arith.addf": "np.add",
    "arith.addi": "np.add",
    "arith.mulf": "np.multiply",
    "arith.muli": "np.multiply",
    "arith.maxnumf": "np.fmax",
    "arith.minnumf": "np.fmin",
    "arith.maximumf": "np.maximum",
    "arith.minimumf": "np.minimum",
    "arith.maxsi": "np.maximum",
    "arith.minsi": "np.minimum",
    "arith.andi": "np.bitwise_and",
    "arith.ori": "np.bitwise_or",
    "arith.xori": "np.bitwise_xor",
}


def single_ufunc(i: Instruction) -> str | None:
    """The NumPy operation that a region amounts to, if it is just one."""
    (block,) = i.regions[0]
    if len(block.instructions) != 2 or len(i.operands) != 1:
        return None
    operation, last = block.instructions
    element = operation.types[0].element
    arguments = [name for name, _ in block.arguments]
    if sorted(operation.operands) != sorted(arguments) or last.operands != operation.results:
        return None
    sums = operation.name in ("arith.addf", "arith.mulf", "arith.addi", "arith.muli")
    if sums and (element in ROUNDING or element == "i1"):
        return None
    return UFUNCS.get(operation.name)


def region_function(w: FunctionWriter, i: Instruction) -> str:
    """A reduce or scan region as a function of its own."""
    if len(i.regions[0]) != 1:
        raise Unsupported(i, "branches in its region")
    block = i.regions[0][0]
    for inner in walk([block]):
        for name in inner.operands:
            source = w.facts.definition.get(name)
            outside = source is not None and source not in list(walk([block]))
            if outside and source is not None and source.name != "arith.constant":
                raise Unsupported(i, "a region that uses a value from outside")
    name = w.module.fresh("combine")
    lines, depth, pred = w.lines, w.depth, w.pred
    w.lines, w.depth, w.pred = [], 1, "None"
    last = w.block(block)
    w.emit(f"return {w.tuple(w.use(value) for value in last.operands)}")
    arguments = ", ".join(w.name(argument) for argument, _ in block.arguments)
    w.module.body += ["", "", f"def {name}({arguments}):", *w.lines]
    w.lines, w.depth, w.pred = lines, depth, pred
    return name


def assign_all(w: FunctionWriter, results: list[str], text: str) -> None:
    targets = ", ".join(w.name(name) for name in results)
    w.emit(f"{targets}{',' if len(results) == 1 else ''} = {text}")


def reduce(w: FunctionWriter, i: Instruction) -> None:
    axis, tile = i.integer("axis"), w.type(i.operands[0]).shape
    ufunc = single_ufunc(i)
    if ufunc:
        text = f"reduce_with({ufunc}, {w.use(i.operands[0])}, {axis}, {tile})"
        w.define(i.results[0], text)
        return
    values = w.tuple(w.use(name) for name in i.operands)
    text = f"reduce_region({region_function(w, i)}, {values}, {axis}, {tile})"
    assign_all(w, i.results, text)


def scan(w: FunctionWriter, i: Instruction) -> None:
    axis, tile = i.integer("axis"), w.type(i.operands[0]).shape
    reverse = i.attributes.get("reverse") == "true"
    ufunc = single_ufunc(i)
    if ufunc:
        text = f"accumulate_with({ufunc}, {w.use(i.operands[0])}, {axis}, {tile}, {reverse})"
        w.define(i.results[0], text)
        return
    values = w.tuple(w.use(name) for name in i.operands)
    text = f"scan_region({region_function(w, i)}, {values}, {axis}, {tile}, {reverse})"
    assign_all(w, i.results, text)


def for_loop(w: FunctionWriter, i: Instruction) -> None:
    (body,) = i.regions[0]
    if i.words:
        raise Unsupported(i, "unsigned bounds")
    (induction, _), *carried = body.arguments
    for (name, _), init in zip(carried, i.operands[3:], strict=True):
        w.emit(f"{w.name(name)} = {w.use(init)}")
    inside = w.module.fresh("in_loop")
    low, high, step = (w.use(name) for name in i.operands[:3])
    w.emit(f"for {w.name(induction)}, {inside} in counted({low}, {high}, {step}, {w.pred}):")
    start = len(w.lines)
    last = w.under(inside, body)
    w.depth += 1
    carry(w, inside, [name for name, _ in carried], [w.use(name) for name in last.operands])
    if len(w.lines) == start:
        w.emit("pass")
    w.depth -= 1
    for result, (name, _) in zip(i.results, carried, strict=True):
        w.alias(result, name)


def carry(w: FunctionWriter, inside: str, targets: list[str], values: list[str]) -> None:
    """Hand values to the next turn of a loop; programs that have left keep their old ones."""
    names = [w.name(target) for target in targets]
    changed = [(old, value) for old, value in zip(names, values, strict=True) if old != value]
    if not changed:
        return
    old, new = (w.tuple(side) for side in zip(*changed, strict=True))
    w.emit(f"{old[1:-1]} = carried({inside}, {w.pred}, {new}, {old})")


def if_else(w: FunctionWriter, i: Instruction) -> None:
    there, here = w.module.fresh("then"), w.module.fresh("else")
    w.emit(f"{there}, {here} = branch({w.pred}, {w.use(i.operands[0])})")
    results = [w.name(name) for name in i.results]
    for number, (pred, region) in enumerate(zip((there, here), i.regions, strict=False)):
        (block,) = region
        w.emit(f"if {pred} is not False:")
        start = len(w.lines)
        last = w.under(pred, block)
        w.depth += 1
        for name, value in zip(results, last.operands, strict=True):
            new = w.use(value)
            if number:
                new = f"{new} if {there} is False else merge({there}, {name}, {new})"
            w.emit(f"{name} = {new}")
        if len(w.lines) == start:
            w.emit("pass")
        w.depth -= 1


def while_loop(w: FunctionWriter, i: Instruction) -> None:
    (before,), (after,) = i.regions
    for (name, _), init in zip(before.arguments, i.operands, strict=True):
        w.emit(f"{w.name(name)} = {w.use(init)}")
    looping, again = w.module.fresh("in_while"), w.module.fresh("again")
    w.emit(f"{looping} = {w.pred}")
    for name in i.results:
        w.emit(f"{w.name(name)} = None")
    w.emit("while True:")
    outer = w.pred
    w.depth += 1
    w.emit(f"slab.tick({w.site(i)})")
    w.depth -= 1
    last = w.under(looping, before)
    w.depth += 1
    condition, *passed = (w.use(name) for name in last.operands)
    w.emit(f"{again}, _ = branch({looping}, {condition})")
    carry(w, looping, i.results, passed)
    w.emit(f"if {again} is False:")
    w.emit("    break")
    for (name, _), value in zip(after.arguments, passed, strict=True):
        w.emit(f"{w.name(name)} = {value}")
    w.depth -= 1
    last = w.under(again, after)
    w.depth += 1
    w.pred = outer
    carry(w, again, [n for n, _ in before.arguments], [w.use(n) for n in last.operands])
    w.emit(f"{looping} = {again}")
    w.depth -= 1


def call(w: FunctionWriter, i: Instruction) -> None:
    callee = i.words[0].lstrip("@").strip('"')
    arguments = ", ".join(["slab", w.pred, *(w.use(name) for name in i.operands)])
    text = f"{w.module.names[callee]}({arguments})"
    if i.results:
        assign_all(w, i.results, text)
    else:
        w.emit(text)


def barrier(w: FunctionWriter, i: Instruction) -> None:
    """Nothing: the elements of a tile never run ahead of each other."""


def assertion(w: FunctionWriter, i: Instruction) -> None:
    """`tl.device_assert`, and `tl.assume`, which promises as much."""
    w.emit(f"slab.check_assertion({w.site(i)}, {w.use(i.operands[0])}, {w.pred})")


def device_print(w: FunctionWriter, i: Instruction) -> None:
    values = w.tuple(w.use(name) for name in i.operands)
    w.emit(f"slab.show({w.site(i)}, {values}, {w.pred})")


def clamp(w: FunctionWriter, i: Instruction) -> None:
    low, high = "np.fmax", "np.fmin"
    if i.attributes.get("propagateNan") == "all":
        low, high = "np.maximum", "np.minimum"
    x, least, most = (w.use(name) for name in i.operands)
    w.define(i.results[0], rounded(i.type.element, f"{high}({low}({x}, {least}), {most})"))


def split_last(w: FunctionWriter, i: Instruction) -> None:
    assign_all(w, i.results, f"split({w.use(i.operands[0])})")


def concatenated(w: FunctionWriter, i: Instruction) -> None:
    one, two = (w.use(name) for name in i.operands)
    w.define(i.results[0], f"concatenate({one}, {two}, {w.type(i.operands[0]).shape})")


def gathered(w: FunctionWriter, i: Instruction) -> None:
    (source, index), axis = i.operands, i.integer("axis")
    shapes = f"{w.type(source).shape}, {i.type.shape}"
    w.define(i.results[0], f"gather({w.use(source)}, {w.use(index)}, {axis}, {shapes})")


def histogram(w: FunctionWriter, i: Instruction) -> None:
    source, *mask = i.operands
    text = w.use(mask[0]) if mask else "None"
    length, bins = w.type(source).shape[0], i.type.shape[0]
    w.define(i.results[0], f"histogram({w.use(source)}, {text}, {length}, {bins})")


def external(w: FunctionWriter, i: Instruction) -> None:
    """A function of libdevice, by its symbol."""
    symbol = i.attributes["symbol"].strip('"')
    name = symbol.removeprefix("__nv_")
    text = EXTERNAL.get(name) or EXTERNAL.get(name.removesuffix("f"))
    if text is None:
        raise Unsupported(i, symbol)
    expression = text.format(*(w.use(name) for name in i.operands))
    w.define(i.results[0], rounded(i.type.element, expression))


EXTERNAL = {
    "tanh": "np.tanh({0})",
    "exp": "np.exp({0})",
    "fast_expf": "np.exp({0})",
    "exp2": "np.exp2({0})",
    "expm1": "np.expm1({0})",
    "log": "np.log({0})",
    "fast_logf": "np.log({0})",
    "log2": "np.log2({0})",
    "log1p": "np.log1p({0})",
    "sqrt": "np.sqrt({0})",
    "rsqrt": "(1 / np.sqrt({0})).astype({0}.dtype)",
    "pow": "np.power({0}, {1})",
    "fabs": "np.abs({0})",
    "floor": "np.floor({0})",
    "ceil": "np.ceil({0})",
    "rint": "np.rint({0})",
    "trunc": "np.trunc({0})",
    "round": "np.copysign(np.floor(np.abs({0}) + {0}.dtype.type(0.5)), {0})",
    "fmod": "np.fmod({0}, {1})",
    "fmax": "np.fmax({0}, {1})",
    "fmin": "np.fmin({0}, {1})",
    "sin": "np.sin({0})",
    "cos": "np.cos({0})",
    "tan": "np.tan({0})",
    "atan": "np.arctan({0})",
    "atan2": "np.arctan2({0}, {1})",
    "sinh": "np.sinh({0})",
    "cosh": "np.cosh({0})",
    "erf": "error_function({0})",
    "isnanf": "np.isnan({0}).astype(np.int32)",
    "isnand": "np.isnan({0}).astype(np.int32)",
    "isinff": "np.isinf({0}).astype(np.int32)",
    "isinfd": "np.isinf({0}).astype(np.int32)",
}


LOWERINGS: dict[str, Lowering] = {
    # Integers
    "arith.constant": constant,
    "ub.poison": poison,
    "arith.addi": linear("+", "np.add", "^"),
    "arith.subi": linear("-", "np.subtract", "^"),
    "arith.muli": linear("*", "np.multiply", "&"),
    "arith.divsi": elementwise("divide({0}, {1})"),
    "arith.divui": elementwise("divide_unsigned({0}, {1})"),
    "arith.remsi": elementwise("np.fmod({0}, {1})"),
    "arith.remui": elementwise("remainder_unsigned({0}, {1})"),
    "arith.floordivsi": elementwise("divide_floor({0}, {1})"),
    "arith.ceildivsi": elementwise("divide_ceil({0}, {1})"),
    "arith.andi": elementwise("{0} & {1}"),
    "arith.ori": elementwise("{0} | {1}"),
    "arith.xori": elementwise("{0} ^ {1}"),
    "arith.shli": elementwise("{0} << {1}"),
    "arith.shrsi": elementwise("{0} >> {1}"),
    "arith.shrui": elementwise("shift_right_unsigned({0}, {1})"),
    "arith.maxsi": elementwise("np.maximum({0}, {1})"),
    "arith.minsi": elementwise("np.minimum({0}, {1})"),
    "arith.maxui": elementwise("maximum_unsigned({0}, {1})"),
    "arith.minui": elementwise("minimum_unsigned({0}, {1})"),
    "arith.cmpi": compare_integers,
    "math.absi": elementwise("np.abs({0})"),
    "tt.mulhiui": elementwise("multiply_high_unsigned({0}, {1})"),
    # Floats
    "arith.addf": elementwise("{0} + {1}"),
    "arith.subf": elementwise("{0} - {1}"),
    "arith.mulf": elementwise("{0} * {1}"),
    "arith.divf": elementwise("{0} / {1}"),
    "arith.remf": elementwise("np.fmod({0}, {1})"),
    "arith.negf": elementwise("-{0}", rounds=False),
    "arith.maxnumf": elementwise("np.fmax({0}, {1})", rounds=False),
    "arith.minnumf": elementwise("np.fmin({0}, {1})", rounds=False),
    "arith.maximumf": elementwise("np.maximum({0}, {1})", rounds=False),
    "arith.minimumf": elementwise("np.minimum({0}, {1})", rounds=False),
    "arith.cmpf": compare_floats,
    "math.exp": elementwise("np.exp({0})"),
    "math.exp2": elementwise("np.exp2({0})"),
    "math.log": elementwise("np.log({0})"),
    "math.log2": elementwise("np.log2({0})"),
    "math.sqrt": elementwise("np.sqrt({0})"),
    "math.rsqrt": elementwise("(1 / np.sqrt({0})).astype({0}.dtype)"),
    "math.sin": elementwise("np.sin({0})"),
    "math.cos": elementwise("np.cos({0})"),
    "math.tanh": elementwise("np.tanh({0})"),
    "math.erf": elementwise("error_function({0})"),
    "math.absf": elementwise("np.abs({0})", rounds=False),
    "math.floor": elementwise("np.floor({0})"),
    "math.ceil": elementwise("np.ceil({0})"),
    "math.fma": elementwise("fused_multiply_add({0}, {1}, {2})"),
    "tt.precise_sqrt": elementwise("np.sqrt({0})"),
    "tt.precise_divf": elementwise("{0} / {1}"),
    "tt.clampf": clamp,
    "tt.extern_elementwise": external,
    # Conversions
    "arith.extsi": extend_signed,
    "arith.extui": convert,
    "arith.trunci": convert,
    "arith.extf": convert,
    "arith.truncf": convert,
    "arith.sitofp": convert,
    "arith.uitofp": convert,
    "arith.index_cast": convert,
    "tt.fp_to_fp": convert,
    "arith.fptosi": to_integer,
    "arith.fptoui": to_integer,
    "arith.bitcast": bitcast,
    "tt.bitcast": bitcast,
    "arith.select": select,
    # Shapes
    "tt.make_range": make_range,
    "tt.splat": shaping(splat),
    "tt.unsplat": shaping(lambda i, source: ".reshape(-1)"),
    "tt.broadcast": broadcast,
    "tt.expand_dims": shaping(expand_dims),
    "tt.trans": shaping(transpose),
    "tt.reshape": shaping(reshaped),
    "tt.join": elementwise("join({0}, {1})", rounds=False),
    "tt.split": split_last,
    "tt.cat": concatenated,
    "tt.gather": gathered,
    "tt.histogram": histogram,
    # Memory
    "tt.addptr": add_pointer,
    "tt.ptr_to_int": pointer_to_integer,
    "tt.int_to_ptr": integer_to_pointer,
    "tt.load": load,
    "tt.store": store,
    "tt.atomic_rmw": atomic_rmw,
    "tt.atomic_cas": atomic_cas,
    # Tiles as a whole
    "tt.dot": dot,
    "tt.reduce": reduce,
    "tt.scan": scan,
    # Programs and control
    "tt.get_program_id": program_id,
    "tt.get_num_programs": num_programs,
    "scf.for": for_loop,
    "scf.if": if_else,
    "scf.while": while_loop,
    "tt.call": call,
    "ttg.barrier": barrier,
    "gpu.barrier": barrier,
    "tt.assert": assertion,
    "llvm.intr.assume": assertion,
    "tt.print": device_print,
}


def generate(functions: list[Function]) -> str:
    """Python source of an IR module.

    Raises:
        Unsupported: naming the operation and the kernel's source line.
    """
    return Module(functions).source()
