"""One mutant: an edit of one line or so of a module, and the kind of mistake that it is."""

import ast
import difflib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from properties.mutants.edit import Edit
from properties.mutants.numbers import Numbers
from properties.mutants.operators import OPERATORS, Place
from properties.mutants.source import Change, Function, Source

ROOT = Path(__file__).parents[2]
PACKAGES = ("kernels", "reference")
# The refusal of bad arguments, sizes of tiles, and what measures speed.
_NOT_MUTATED = ("arguments", "tiles", "bench", "tune", "autotune")


@dataclass(frozen=True, eq=False)
class Mutant:
    """A change of one function.

    Args:
        function: its name within the module.
        lines: the lines of the file that run when the changed code does.
        number: counts the changes of one function that read the same.
    """

    module: str
    path: Path
    function: str
    operator: str
    source: str
    change: Change
    lines: range
    digest: str
    number: int = 1

    @property
    def line(self) -> int:
        """Where it is in the file."""
        return self.source.count("\n", 0, self.change.start) + 1

    @property
    def package(self) -> str:
        """The package that it is in."""
        return self.module.partition(".")[0]

    @property
    def where(self) -> str:
        """The full name of the function."""
        return f"{self.module}.{self.function}"

    @cached_property
    def text(self) -> str:
        """The lines that go, marked -, and those that come, marked +; a name among its siblings."""
        start = self.source.rfind("\n", 0, self.change.start) + 1
        stop = self.source.find("\n", self.change.stop) % (len(self.source) + 1)
        within = Change(self.change.start - start, self.change.stop - start, self.change.text)
        before = self.source[start:stop]
        changed = [
            f"{line[0]} {line[1:].strip()}"
            for line in difflib.ndiff(before.splitlines(), within.of(before).splitlines())
            if line[0] in "+-"
        ]
        number = [f"# {self.number}"] if self.number > 1 else []
        return "\n".join(changed + number)

    @property
    def key(self) -> str:
        """Where and what it is, and the text of the function that it changes."""
        told = "\n".join((self.where, self.operator, self.text, self.digest))
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    @property
    def diff(self) -> str:
        """The change as a unified diff."""
        before, after = self.source.splitlines(), self.change.of(self.source).splitlines()
        name = self.path.as_posix()
        return "\n".join(difflib.unified_diff(before, after, name, name, n=2, lineterm=""))

    def edit(self) -> Edit:
        """The change as an edit of a text that is there once: as many lines as that needs."""
        lines = self.source.splitlines(keepends=True)
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line))
        first = max(n for n, start in enumerate(starts) if start <= self.change.start)
        last = min(n for n, start in enumerate(starts) if start >= self.change.stop)
        while self.source.count(self.source[starts[first] : starts[last]]) > 1:
            first, last = max(first - 1, 0), min(last + 1, len(lines))
        start, stop = starts[first], starts[last]
        within = Change(self.change.start - start, self.change.stop - start, self.change.text)
        before = self.source[start:stop]
        return Edit(self.module, before, within.of(before))


def combined(mutants: Sequence[Mutant]) -> tuple[list[Edit], list[Mutant]]:
    """One edit for each module, and the mutants left over because another changes the same text."""
    chosen: dict[str, list[Mutant]] = {}
    left = []
    for mutant in mutants:
        others = chosen.setdefault(mutant.module, [])
        if any(mutant.change.overlaps(one.change) for one in others):
            left.append(mutant)
        else:
            others.append(mutant)
    edits = []
    for module, those in chosen.items():
        text = source = those[0].source
        for mutant in sorted(those, key=lambda m: -m.change.start):
            text = mutant.change.of(text)
        edits.append(Edit(module, source, text))
    return edits, left


def modules(packages: Sequence[str] = PACKAGES, root: Path = ROOT) -> Iterator[tuple[str, Path]]:
    """The modules that are mutated, by name and file."""
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            name = path.stem
            parts = path.relative_to(root).with_suffix("").parts
            if name in ("__init__", "conftest") or name.startswith("test_"):
                continue
            if not any(part in _NOT_MUTATED for part in parts):
                yield ".".join(parts), path


def mutants(
    packages: Sequence[str] = PACKAGES, operators: Sequence[str] = (), root: Path = ROOT
) -> list[Mutant]:
    """Every mutant of the packages, in the order of the files."""
    sources = {name: (path, Source(path.read_text())) for name, path in modules(packages, root)}
    numbers = Numbers(f for _, source in sources.values() for f in source.functions())
    return [
        mutant
        for module, (path, source) in sources.items()
        for mutant in mutants_of(module, source, operators, path.relative_to(root), numbers)
    ]


def mutants_of(
    module: str,
    source: Source,
    operators: Sequence[str] = (),
    path: Path = Path(),
    numbers: Numbers | None = None,
) -> list[Mutant]:
    """The mutants of one module, of all operators or some."""
    numbers = numbers or Numbers(source.functions())
    found: list[Mutant] = []
    for function in source.functions():
        found += _of(module, path, function, numbers, operators)
    return found


def _of(
    module: str, path: Path, function: Function, numbers: Numbers, operators: Sequence[str]
) -> Iterator[Mutant]:
    source = function.source
    digest = hashlib.sha256(ast.unparse(function.node).encode()).hexdigest()[:16]
    seen = {source.text}
    alike: set[tuple[str, str, str]] = set()
    numbered: dict[str, int] = {}
    for node in function.nodes():
        for name, operator in OPERATORS.items():
            if operators and name not in operators:
                continue
            for change in operator.find(Place(node, function, numbers)):
                result = change.of(source.text)
                # A mistake that reads the same is made once in a function, but at every barrier.
                told = name, source.text[change.start : change.stop], change.text
                if result in seen or (told in alike and name != "barrier"):
                    continue
                seen.add(result)
                alike.add(told)
                lines = source.lines(node)
                first = Mutant(
                    module, path, function.name, name, source.text, change, lines, digest
                )
                numbered[first.text] = numbered.get(first.text, 0) + 1
                yield replace(first, number=numbered[first.text])
