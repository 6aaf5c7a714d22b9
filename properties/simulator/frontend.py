"""Printed Triton IR (TTIR) to instructions.

The text is parsed rather than walked through Triton's Python bindings, which do not show
attributes in every supported release. Text that is not understood raises: a simulator that skips
what it cannot read would execute another kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from .errors import Location

VALUE = r"%[\w$.\-]+(?:#\d+)?"
LOCATION = r"loc\((?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*\)"
OPERATION = re.compile(
    rf"(?:({VALUE}(?::\d+)?(?:, {VALUE}(?::\d+)?)*) = )?\"?([a-z_]+\.[\w.]+)\"?(.*)"
)
TOKEN = re.compile(
    rf"\s*(?:(?P<value>{VALUE})|(?P<block>\^bb\d+)|(?P<symbol>@(?:\"[^\"]*\"|[\w.$\-]+))"
    r"|(?P<string>\"[^\"]*\")|(?P<key>\w+) = (?P<setting>[\w.\-]+)"
    r"|(?P<word>-?[\w.+\-]+(?:<[^>]*>)?)|(?P<mark>[,()\[\]]))"
)


YIELDS = ("scf.yield", "scf.condition")


class UnreadableIR(NotImplementedError):
    """IR text that this parser does not know."""


@dataclass(frozen=True)
class Type:
    """An element type and a tile shape; `element` is "ptr" for pointers, with their `pointee`."""

    element: str
    shape: tuple[int, ...] = ()
    pointee: str = ""

    @property
    def is_pointer(self) -> bool:
        return self.element == "ptr"

    @property
    def rank(self) -> int:
        return len(self.shape)

    def with_element(self, element: str) -> Type:
        return Type(element, self.shape)


@dataclass
class Block:
    """A straight list of instructions with arguments, the last instruction being the terminator."""

    label: str
    arguments: list[tuple[str, Type]] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)


@dataclass
class Instruction:
    """One operation: `results = name operands` plus whatever else its text says.

    Attributes:
        words: bare words and symbols in order (predicates, flags, callee).
        attributes: `key = value` settings, of the dictionary or outside it.
        strings: quoted strings in order.
        regions: nested blocks; `scf.for` keeps its induction variable as first block argument.
        successors: `(label, operands)` of each branch target.
        operand_types: types as far as the text gives them (casts, stores, calls), else empty.
    """

    name: str
    location: Location
    results: list[str] = field(default_factory=list)
    types: list[Type] = field(default_factory=list)
    operands: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    attributes: dict[str, str] = field(default_factory=dict)
    strings: list[str] = field(default_factory=list)
    regions: list[list[Block]] = field(default_factory=list)
    successors: list[tuple[str, list[str]]] = field(default_factory=list)
    operand_types: list[Type] = field(default_factory=list)

    @property
    def type(self) -> Type:
        return self.types[0]

    def integers(self, key: str) -> tuple[int, ...]:
        """An integer attribute, or an array of them, as a tuple."""
        text = self.attributes[key]
        if text.startswith("array<"):
            text = text.removesuffix(">").partition(":")[2]
        else:
            text = text.partition(" : ")[0]
        return tuple(int(number) for number in text.split(",") if number.strip())

    def integer(self, key: str) -> int:
        return self.integers(key)[0]


@dataclass
class Function:
    """A `tt.func`: its arguments, result types and blocks in printed order."""

    name: str
    arguments: list[tuple[str, Type]]
    results: list[Type]
    blocks: list[Block]
    location: Location
    public: bool


def walk(blocks: list[Block]) -> Iterator[Instruction]:
    """Every instruction, the nested ones included."""
    for block in blocks:
        for instruction in block.instructions:
            yield instruction
            for region in instruction.regions:
                yield from walk(region)


@cache
def punctuation(separator: str) -> re.Pattern[str]:
    """Where `split_list` has to look."""
    return re.compile(rf"""["<(\[{{)\]}}]|(?<!-)>|{re.escape(separator)}""")


def split_list(text: str, separator: str = ",") -> list[str]:
    """Split at separators that stand outside every bracket and string."""
    parts, depth, start, quoted = [], 0, 0, False
    for match in punctuation(separator).finditer(text):
        found = match[0]
        if found == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif found in "<([{":
            depth += 1
        elif found in ")]}>":
            depth -= 1
        elif depth == 0:
            parts.append(text[start : match.start()])
            start = match.end()
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


@cache
def parse_type(text: str) -> Type:
    """`tensor<64x32x!tt.ptr<bf16>>` and its parts."""
    text = text.strip()
    if match := re.fullmatch(r"tensor<((?:\d+x)*)(.+)>", text):
        inner = parse_type(match[2])
        shape = tuple(int(size) for size in match[1].split("x") if size)
        return Type(inner.element, shape, inner.pointee)
    if match := re.fullmatch(r"!tt\.ptr<(\w+|!tt\.ptr<\w+>)(?:, \d+)?>", text):
        return Type("ptr", (), "i64" if match[1].startswith("!") else match[1])
    if re.fullmatch(r"[a-z]+\d+\w*|index", text):
        return Type(text)
    if text.startswith(("!tt.tensordesc<", "!tt.ptr<tensor")):
        return Type("descriptor", (), text)
    raise UnreadableIR(f"type {text!r}")


def parse_types(text: str) -> list[Type]:
    """A type, or a list of types with or without parentheses."""
    text = text.strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    return [parse_type(part) for part in split_list(text)]


class Locations:
    """The `#loc` aliases of a module, resolved to the line of the kernel that one would blame."""

    def __init__(self, lines: list[str]) -> None:
        self.aliases: dict[str, str] = {}
        self.frames_of: dict[str, list[Location]] = {}
        for line in lines:
            if match := re.match(r"(#loc\d*) = loc\((.*)\)$", line):
                self.aliases[match[1]] = match[2]

    def resolve(self, text: str) -> Location:
        """The innermost frame outside Triton's own library, else the innermost one."""
        frames = self.frames(text)
        for frame in frames:
            if "/triton/language/" not in frame.file:
                return frame
        return frames[0] if frames else Location()

    def frames(self, text: str) -> list[Location]:
        known = self.frames_of.get(text)
        if known is None:
            known = self.frames_of[text] = self.read(text)
        return known

    def read(self, text: str) -> list[Location]:
        if text.startswith("#loc"):
            return self.frames(self.aliases[text]) if text in self.aliases else []
        if match := re.match(r'"(.*?)":(\d+):\d+', text):
            return [Location(match[1], int(match[2]))]
        if match := re.match(r'"[^"]*"\((.*)\)$', text):
            return self.frames(match[1])
        if match := re.match(r"callsite\((.*) at (.*)\)$", text):
            return self.frames(match[1]) + self.frames(match[2])
        if match := re.match(r"fused(?:<.*>)?\[(.*)\]$", text):
            return [frame for part in split_list(match[1]) for frame in self.frames(part)]
        return []


class Parser:
    """Recursive descent over the lines of a printed module."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines()]
        self.locations = Locations(lines)
        self.lines = [line for line in lines if line and not line.startswith("#")]
        self.strings: list[str] = []
        self.position = 0

    def next(self) -> str:
        line = self.lines[self.position]
        self.position += 1
        return line

    def located(self, line: str) -> tuple[str, Location]:
        """The line without its trailing location, and that location."""
        cut = line.rfind(" loc(")
        if cut < 0 or not line.endswith(")"):
            return line, Location()
        return line[:cut].rstrip(), self.locations.resolve(line[cut + 5 : -1])

    def module(self) -> list[Function]:
        functions = []
        while self.position < len(self.lines):
            line = self.next()
            if line.startswith("tt.func"):
                functions.append(self.function(line))
            elif not (line.startswith(("module", "}", "ttg.")) or line in ("{-#", "#-}")):
                raise UnreadableIR(f"at module level: {line!r}")
        return functions

    def function(self, line: str) -> Function:
        head = re.sub(rf" {LOCATION}", "", line)
        match = re.match(r"tt\.func (public|private)?\s*@(\"[^\"]*\"|[\w.$\-]+)\((.*)", head)
        if match is None:
            raise UnreadableIR(head)
        depth, end = 1, 0
        while depth:
            depth += {"(": 1, ")": -1}.get(match[3][end], 0)
            end += 1
        end -= 1
        arguments = []
        for part in split_list(match[3][:end]):
            name, _, kind = part.partition(":")
            arguments.append((name.strip(), parse_type(re.sub(r"\s*\{.*\}$", "", kind))))
        tail = match[3][end + 1 :].strip()
        results: list[Type] = []
        if arrow := re.match(r"-> (.*?)(?: attributes \{.*\})? \{$", tail):
            results = parse_types(arrow[1])
        blocks, closing = self.region(arguments)
        return Function(
            match[2].strip('"'), arguments, results, blocks, self.located(closing)[1],
            match[1] != "private",
        )  # fmt: skip

    def region(self, arguments: list[tuple[str, Type]]) -> tuple[list[Block], str]:
        """Blocks up to the line that closes the region, which is returned with them."""
        blocks = [Block("^bb0", arguments)]
        while True:
            line = self.next()
            if line.startswith("}"):
                return blocks, line
            if line.startswith("^bb"):
                label = re.sub(r"\s*//.*$", "", re.sub(rf" {LOCATION}", "", line))
                match = re.fullmatch(r"(\^bb\d+)(?:\((.*)\))?:", label)
                if match is None:
                    raise UnreadableIR(line)
                named = [part.split(": ", 1) for part in split_list(match[2] or "")]
                block = Block(match[1], [(name, parse_type(kind)) for name, kind in named])
                if len(blocks) == 1 and not blocks[0].instructions and not blocks[0].arguments:
                    blocks = [block]
                else:
                    blocks.append(block)
                continue
            blocks[-1].instructions.append(self.instruction(line))

    def instruction(self, line: str) -> Instruction:
        text, location = self.located(line)
        text = re.sub(r'"([^"]*)"', self.put_aside, text)
        match = OPERATION.fullmatch(text)
        if match is None:
            raise UnreadableIR(line)
        instruction = Instruction(match[2], location)
        for result in (match[1] or "").split(", "):
            name, _, count = result.partition(":")
            if count:
                instruction.results += [f"{name}#{index}" for index in range(int(count))]
            elif name:
                instruction.results.append(name)
        special = getattr(self, "read_" + instruction.name.replace(".", "_"), None)
        if special is not None:
            special(instruction, match[3].strip())
        elif match[3].endswith("({"):
            self.read_regions(instruction, match[3])
        else:
            self.read_plain(instruction, match[3])
        if len(instruction.types) != len(instruction.results):
            raise UnreadableIR(f"result types of {line!r}")
        return instruction

    def put_aside(self, match: re.Match[str]) -> str:
        """A placeholder for a string whose punctuation would be mistaken for that of the IR."""
        if re.fullmatch(r"[\w.]*", match[1]):
            return match[0]
        self.strings.append(re.sub(r"\\([0-9A-F]{2})", lambda m: chr(int(m[1], 16)), match[1]))
        return f'"string {len(self.strings) - 1}"'

    def read_plain(self, instruction: Instruction, text: str) -> None:
        """`operands, words, {attributes} : types`, which is how most operations print."""
        parts = split_list(text, " : ")
        if text.lstrip().startswith(": "):
            parts = ["", text.strip()[2:]]
        if len(parts) > 2:
            raise UnreadableIR(f"{instruction.name}{text}")
        self.read_head(instruction, parts[0] if parts else "")
        if len(parts) == 2:
            self.read_signature(instruction, parts[1])

    def read_head(self, instruction: Instruction, text: str) -> None:
        text = self.read_dictionary(instruction, text)
        position, text = 0, text.strip()
        while position < len(text):
            match = TOKEN.match(text, position)
            if match is None:
                raise UnreadableIR(f"{instruction.name} {text!r} from {text[position:]!r}")
            position = match.end()
            if match["value"]:
                instruction.operands.append(match["value"])
            elif match["string"]:
                text_of = match["string"][1:-1]
                aside = re.fullmatch(r"string (\d+)", text_of)
                instruction.strings.append(self.strings[int(aside[1])] if aside else text_of)
            elif match["key"]:
                instruction.attributes[match["key"]] = match["setting"]
            elif match["block"]:
                raise UnreadableIR(f"branch target in {instruction.name} {text!r}")
            elif match["symbol"] or match["word"]:
                instruction.words.append(match["symbol"] or match["word"])
            while position < len(text) and text[position] == " ":
                position += 1

    def read_dictionary(self, instruction: Instruction, text: str) -> str:
        """Take the attribute dictionaries out of the text."""

        def take(match: re.Match[str]) -> str:
            for entry in split_list(match[1]):
                key, _, value = entry.partition(" = ")
                instruction.attributes[key.strip()] = value.strip() or "true"
            return " "

        return re.sub(r"<?\{([^{}]*)\}>?", take, text)

    def read_signature(self, instruction: Instruction, text: str) -> None:
        """Result types from whatever form the operation prints them in."""
        for arrow in (" -> ", " to "):
            if arrow in text:
                left, _, right = text.rpartition(arrow)
                parts = [
                    part for side in split_list(left, " * ") for part in split_list(side, ", ")
                ]
                instruction.operand_types = [t for part in parts for t in parse_types(part)]
                instruction.types = parse_types(right)
                if instruction.name == "tt.split":
                    instruction.types *= 2
                return
        kinds = parse_types(text)
        instruction.operand_types = kinds
        if not instruction.results:
            return
        last = kinds[-1]
        if instruction.name in ("arith.cmpi", "arith.cmpf"):
            last = last.with_element("i1")
        elif instruction.name == "tt.load":
            if not kinds[0].is_pointer:
                raise UnreadableIR(f"load through {text}")
            last = Type(kinds[0].pointee, kinds[0].shape)
        elif instruction.name == "tt.addptr":
            last = kinds[0]
        instruction.types = [last] * len(instruction.results)

    def read_tt_print(self, instruction: Instruction, text: str) -> None:
        head, *rest = split_list(text, " : ")
        self.read_head(instruction, head)
        if rest:
            instruction.operands = split_list(rest[0])
            instruction.operand_types = parse_types(rest[1])

    def read_arith_constant(self, instruction: Instruction, text: str) -> None:
        text = self.read_dictionary(instruction, text).strip()
        value, _, kind = text.rpartition(" : ")
        if not value:
            value, kind = text, "i1"
        instruction.types = [parse_type(kind)]
        instruction.words = [value]

    def read_regions(self, instruction: Instruction, text: str) -> None:
        """`"op"(operands) <{...}> ({ region }, { region }) : (types) -> types`."""
        self.read_head(instruction, text[:-2])
        while True:
            blocks, closing = self.region([])
            instruction.regions.append(blocks)
            if not closing.startswith("}, {"):
                break
        closing, instruction.location = self.located(closing)
        closing = self.read_dictionary(instruction, closing.removeprefix("})"))
        self.read_signature(instruction, closing.strip().removeprefix(":"))

    def close(self, instruction: Instruction, line: str) -> None:
        """The closing line of an scf operation: its attributes, location and elided yields."""
        for region in instruction.regions:
            block = region[-1]
            if not block.instructions or block.instructions[-1].name not in YIELDS:
                block.instructions.append(Instruction("scf.yield", instruction.location))
        text, instruction.location = self.located(line)
        rest = self.read_dictionary(instruction, text.removeprefix("}")).strip()
        if rest:
            raise UnreadableIR(line)

    def bindings(self, text: str) -> list[tuple[str, str]]:
        """`%a = %x, %b = %y` as pairs."""
        pairs = [part.partition(" = ") for part in split_list(text)]
        return [(name.strip(), value.strip()) for name, _, value in pairs]

    def read_scf_for(self, instruction: Instruction, text: str) -> None:
        match = re.fullmatch(
            rf"(unsigned )?({VALUE}) = ({VALUE}) to ({VALUE}) step ({VALUE})"
            r"(?: iter_args\((.*?)\) -> \((.*)\))?\s*(?:: (\w+))? \{",
            text,
        )
        if match is None:
            raise UnreadableIR(f"scf.for {text}")
        pairs = self.bindings(match[6] or "")
        instruction.types = parse_types(match[7] or "")
        instruction.words = ["unsigned"] if match[1] else []
        instruction.operands = [match[3], match[4], match[5]] + [init for _, init in pairs]
        names = [name for name, _ in pairs]
        carried = list(zip(names, instruction.types, strict=True))
        blocks, closing = self.region([(match[2], Type(match[8] or "index")), *carried])
        instruction.regions = [blocks]
        self.close(instruction, closing)

    def read_scf_if(self, instruction: Instruction, text: str) -> None:
        match = re.fullmatch(rf"({VALUE})(?: -> \((.*)\))? \{{", text)
        if match is None:
            raise UnreadableIR(f"scf.if {text}")
        instruction.operands = [match[1]]
        instruction.types = parse_types(match[2] or "")
        blocks, closing = self.region([])
        instruction.regions = [blocks]
        if closing == "} else {":
            blocks, closing = self.region([])
            instruction.regions.append(blocks)
        self.close(instruction, closing)

    def read_scf_while(self, instruction: Instruction, text: str) -> None:
        match = re.fullmatch(r"(?:\((.*?)\) )?: \((.*)\) -> (.*) \{", text)
        if match is None:
            raise UnreadableIR(f"scf.while {text}")
        pairs = self.bindings(match[1] or "")
        carried = parse_types(f"({match[2]})")
        instruction.operands = [init for _, init in pairs]
        instruction.types = parse_types(match[3])
        names = [name for name, _ in pairs]
        before, closing = self.region(list(zip(names, carried, strict=True)))
        if closing != "} do {":
            raise UnreadableIR(closing)
        after, closing = self.region([])
        instruction.regions = [before, after]
        self.close(instruction, closing)

    def read_scf_condition(self, instruction: Instruction, text: str) -> None:
        match = re.match(rf"\(({VALUE})\)\s*([^:]*)", text)
        if match is None:
            raise UnreadableIR(f"scf.condition {text}")
        instruction.operands = [match[1], *split_list(match[2])]

    def read_cf_br(self, instruction: Instruction, text: str) -> None:
        for part in split_list(text):
            if match := re.fullmatch(r"(\^bb\d+)(?:\((.*?) : .*\))?", part):
                instruction.successors.append((match[1], split_list(match[2] or "")))
            elif re.fullmatch(VALUE, part) and not instruction.operands:
                instruction.operands.append(part)
            else:
                raise UnreadableIR(f"{instruction.name} {text}")

    read_cf_cond_br = read_cf_br


def make_unique(function: Function) -> None:
    """Rename values so that no two share a name; sibling regions print the same names again."""
    used: set[str] = set()

    def fresh(name: str) -> str:
        stem, hash_, number = name.partition("#")
        count, candidate = 1, name
        while candidate in used:
            count += 1
            candidate = f"{stem}.{count}{hash_}{number}"
        used.add(candidate)
        return candidate

    def visit(blocks: list[Block], outer: dict[str, str]) -> None:
        # A block may be printed before the one that defines what it uses.
        scope = dict(outer)
        for block in blocks:
            for name, _ in block.arguments:
                scope[name] = fresh(name)
            for instruction in block.instructions:
                for name in instruction.results:
                    scope[name] = fresh(name)
        for block in blocks:
            block.arguments = [(scope[name], kind) for name, kind in block.arguments]
            for instruction in block.instructions:
                instruction.results = [scope[name] for name in instruction.results]
                instruction.operands = [scope[name] for name in instruction.operands]
                instruction.successors = [
                    (label, [scope[name] for name in values])
                    for label, values in instruction.successors
                ]
                for region in instruction.regions:
                    visit(region, scope)

    visit(function.blocks, {})
    function.arguments = function.blocks[0].arguments


def parse(text: str) -> list[Function]:
    """Every function of a printed module.

    Raises:
        UnreadableIR: naming the text that is not understood.
    """
    functions = Parser(text).module()
    for function in functions:
        make_unique(function)
    return functions
