"""Parse printed Triton IR (TTIR) into instructions.

The text is parsed, since Triton's Python bindings do not show attributes in every supported
release. It is in MLIR's generic form, whose grammar is the same for all operations and releases:

    %a, %b:2 = "name"(%x, %y)[^bb1] <{properties}> ({regions}) {attributes} : (types) -> types

Unknown text raises an error: skipping it would execute another kernel.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from .errors import Location

LOCATION = r"loc\((?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*\)"
OPERATION = re.compile(
    r'(?:(?P<results>%[^"=]*) = )?"(?P<name>\w+\.[\w.]+)"\((?P<operands>[^()]*)\)'
    r"(?:\[(?P<successors>[^\]]*)\])?(?: <\{(?P<properties>.*)\}>)?(?P<rest>.*)"
)
TAIL = re.compile(r"(?: \{(?P<attributes>.*)\})? : \((?P<operands>.*)\) -> (?P<results>.*)")
ASIDE = re.compile(rf"\s*//.*| {LOCATION}")
ALIAS = re.compile(r"(#loc\d*) = loc\((.*)\)")
FRAME = re.compile(r'"([^"]*)":(\d+):\d+|(#loc\d*)')
BLOCK = re.compile(r"(?P<label>\^bb\d+)(?:\((?P<arguments>.*)\))?:")


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


@dataclass
class Block:
    """A straight list of instructions with arguments, the last instruction being the terminator."""

    label: str
    arguments: list[tuple[str, Type]] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)


@dataclass
class Instruction:
    """One operation.

    Attributes:
        attributes: properties and attributes as their text; strings without their quotes.
        regions: nested blocks; empty regions are left out.
        successors: `(label, operands)` of each branch target.
    """

    name: str
    location: Location
    results: list[str]
    types: tuple[Type, ...]
    operands: list[str]
    attributes: dict[str, str]
    regions: list[list[Block]] = field(default_factory=list)
    successors: list[tuple[str, list[str]]] = field(default_factory=list)

    @property
    def type(self) -> Type:
        return self.types[0]

    def integers(self, key: str) -> tuple[int, ...]:
        """An integer attribute, or an array of them, as a tuple."""
        text = self.attributes[key]
        if text.startswith("array<"):
            text = text.removesuffix(">").partition(":")[2]
        return tuple(int(number) for number in text.partition(" : ")[0].split(",") if number)

    def integer(self, key: str) -> int:
        return self.integers(key)[0]


@dataclass
class Function:
    """A `tt.func`: its arguments, result types and blocks in printed order."""

    name: str
    results: tuple[Type, ...]
    blocks: list[Block]
    public: bool

    @property
    def arguments(self) -> list[tuple[str, Type]]:
        return self.blocks[0].arguments


def blocks_within(blocks: list[Block]) -> Iterator[Block]:
    """Every block, the nested ones included."""
    for block in blocks:
        yield block
        for instruction in block.instructions:
            for region in instruction.regions:
                yield from blocks_within(region)


def walk(blocks: list[Block]) -> Iterator[Instruction]:
    """Every instruction, the nested ones after the one that holds them."""
    for block in blocks:
        for instruction in block.instructions:
            yield instruction
            for region in instruction.regions:
                yield from walk(region)


STRING = re.compile(r'"([^"]*)"')
PLAIN = re.compile(r"[\w./\-]*")
PUNCTUATION = re.compile(r"""["<(\[{)\]},]|(?<!-)>""")
OPENING = re.compile(r"""["<(\[{]""")


def split_list(text: str) -> list[str]:
    """Split at commas that stand outside every bracket and string."""
    if "," not in text or not OPENING.search(text):
        return [part for part in map(str.strip, text.split(",")) if part]
    parts, depth, start, quoted = [], 0, 0, False
    for match in PUNCTUATION.finditer(text):
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


@cache
def parse_types(text: str) -> tuple[Type, ...]:
    """A type, or a list of types in parentheses."""
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    return tuple(parse_type(part) for part in split_list(text))


class Locations:
    """The `#loc` aliases of a module, resolved to the line of the kernel that one would blame."""

    def __init__(self, lines: list[str]) -> None:
        matches = (ALIAS.fullmatch(line) for line in lines if line.startswith("#loc"))
        self.aliases = {match[1]: match[2] for match in matches if match}
        self.known: dict[str, tuple[Location | None, Location | None]] = {}

    def resolve(self, text: str) -> Location:
        """The innermost frame outside Triton's own library, else the innermost one."""
        own, innermost = self.frames(text)
        return own or innermost or Location()

    def frames(self, text: str) -> tuple[Location | None, Location | None]:
        """The innermost frame outside Triton's own library, and the innermost of all; every form
        prints its frames from that one out.
        """
        if text not in self.known:
            own, innermost = None, None
            for file, line, alias in FRAME.findall(text):
                if alias:
                    inner = self.frames(self.aliases.get(alias, ""))
                else:
                    frame = Location(file, int(line))
                    inner = (None if "/triton/language/" in file else frame), frame
                own, innermost = own or inner[0], innermost or inner[1]
            self.known[text] = own, innermost
        return self.known[text]


def source_lines(text: str) -> list[tuple[str, int]]:
    """File and line of the source of a printed module, without Triton's own library."""
    found = {
        (file, int(line)) for file, line in re.findall(r'^#loc.*"([^"]*)":(\d+):\d+', text, re.M)
    }
    return sorted(one for one in found if "/triton/language/" not in one[0])


class Parser:
    """Recursive descent over the lines of a printed module."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines()]
        self.locations = Locations(lines)
        self.lines = iter([line for line in lines if line and not line.startswith("#")])
        self.strings: list[str] = []
        self.dictionaries: dict[str | None, dict[str, str]] = {None: {}}

    def next(self) -> str:
        """The next line, with placeholders for strings that contain IR punctuation."""
        line = next(self.lines, "the end of the text")
        # Most lines have one string, the name of an operation.
        first, last = line.find('"'), line.rfind('"')
        if line.count('"') == 2 and PLAIN.fullmatch(line, first + 1, last):
            return line
        return STRING.sub(self.put_aside, line)

    def put_aside(self, match: re.Match[str]) -> str:
        if PLAIN.fullmatch(match[1]):
            return match[0]
        self.strings.append(re.sub(r"\\([0-9A-F]{2})", lambda m: chr(int(m[1], 16)), match[1]))
        return f'"string {len(self.strings) - 1}"'

    def located(self, line: str) -> tuple[str, Location]:
        """The line without its trailing location, and that location."""
        cut = line.rfind(" loc(")
        if cut < 0 or not line.endswith(")"):
            return line, Location()
        return line[:cut], self.locations.resolve(line[cut + 5 : -1])

    def region(self) -> tuple[list[Block], str]:
        """Blocks up to the line that closes the region, which is returned with them."""
        blocks = [Block("^bb0")]
        while not (line := self.next()).startswith("}"):
            if not line.startswith("^bb"):
                blocks[-1].instructions.append(self.instruction(line))
                continue
            head = ASIDE.sub("", line)
            match = BLOCK.fullmatch(head)
            if match is None:
                raise UnreadableIR(line)
            named = [part.partition(": ") for part in split_list(match["arguments"] or "")]
            block = Block(match["label"], [(name, parse_type(kind)) for name, _, kind in named])
            blocks = [*blocks, block] if blocks[-1].instructions else [block]
        return blocks, line

    def instruction(self, line: str) -> Instruction:
        text, location = self.located(line)
        match = OPERATION.fullmatch(text)
        if match is None:
            raise UnreadableIR(line)
        regions, tail = [], match["rest"]
        if tail == " ({":
            closing = "}, {"
            while closing == "}, {":
                blocks, closing = self.region()
                regions += [blocks] if blocks[0].instructions else []
            closing, location = self.located(closing)
            tail = closing.removeprefix("})")
        end = TAIL.fullmatch(tail)
        if end is None:
            raise UnreadableIR(line)
        instruction = Instruction(
            match["name"],
            location,
            names(match["results"] or ""),
            parse_types(end["results"]),
            split_list(match["operands"]),
            self.dictionary(match["properties"]) | self.dictionary(end["attributes"]),
            regions,
        )
        if len(instruction.types) != len(instruction.results):
            raise UnreadableIR(f"result types of {line!r}")
        if match["successors"]:
            hand_over(instruction, split_list(match["successors"]))
        return instruction

    def dictionary(self, text: str | None) -> dict[str, str]:
        known = self.dictionaries.get(text)
        if known is None:
            entries = (entry.partition(" = ") for entry in split_list(text or ""))
            known = {key: self.plain(value) if value else "true" for key, _, value in entries}
            self.dictionaries[text] = known
        return known

    def plain(self, text: str) -> str:
        """The text of an attribute; a string without its quotes."""
        if aside := re.fullmatch(r'"string (\d+)"', text):
            return self.strings[int(aside[1])]
        return text[1:-1] if text.startswith('"') else text


def names(text: str) -> list[str]:
    """`%a, %b:2` as `%a`, `%b#0`, `%b#1`."""
    result = []
    for part in split_list(text):
        name, _, count = part.partition(":")
        result += [f"{name}#{index}" for index in range(int(count))] if count else [name]
    return result


def hand_over(branch: Instruction, labels: list[str]) -> None:
    """Pass the operands of a branch to its targets."""
    own, *sizes = 0, len(branch.operands)
    if len(labels) > 1:
        own, *sizes = branch.integers("operandSegmentSizes")
    rest, branch.operands = branch.operands[own:], branch.operands[:own]
    for label, size in zip(labels, sizes, strict=True):
        branch.successors.append((label, rest[:size]))
        rest = rest[size:]


def make_unique(function: Function) -> None:
    """Make names unique, since sibling regions reuse them."""
    used: set[str] = set()
    counts: Counter[str] = Counter()

    def fresh(name: str) -> str:
        candidate = name
        if name in used:
            stem, hash_, number = name.partition("#")
            while candidate in used:
                counts[name] += 1
                candidate = f"{stem}.{counts[name] + 1}{hash_}{number}"
        used.add(candidate)
        return candidate

    def visit(blocks: list[Block], outer: dict[str, str]) -> None:
        # A block may be printed before the one that defines its operands.
        scope = dict(outer)
        for block in blocks:
            defined = [name for name, _ in block.arguments]
            for name in sum((i.results for i in block.instructions), defined):
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


def parse(text: str) -> list[Function]:
    """Every function of a printed module.

    Raises:
        UnreadableIR: naming the text that is not understood.
    """
    parser = Parser(text)
    module = parser.instruction(parser.next())
    functions = []
    for instruction in module.regions[0][0].instructions:
        if instruction.name != "tt.func":
            raise UnreadableIR(f"{instruction.name} at module level")
        attributes = instruction.attributes
        results = parse_types(attributes["function_type"].rpartition(" -> ")[2])
        public = attributes.get("sym_visibility") != "private"
        function = Function(attributes["sym_name"], results, instruction.regions[0], public)
        make_unique(function)
        functions.append(function)
    return functions
