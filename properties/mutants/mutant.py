"""A mutant: an edit of one or more places in a module, and the kind of its mistake."""

import ast
import difflib
import hashlib
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from properties import HOME, ROOT, package_of
from properties.mutants.line_coverage import below
from properties.mutants.numbers import Numbers
from properties.mutants.operators import OPERATORS, Place
from properties.mutants.semantic import SEMANTIC
from properties.planting.closure import is_ours, path_of
from properties.planting.edit import Edit
from properties.planting.source import Change, Function, Source

KINDS = {**OPERATORS, **SEMANTIC}
PACKAGES = ("kernels", "reference")
# Modules that measure speed, and modules that tests share.
_TOOLS = frozenset({"bench", "tune", "autotune", "testing"})
# Single edits of argument checks and tile sizes tell little.
_SEMANTIC_ALONE = frozenset({"arguments", "tiles"})


@dataclass(frozen=True, eq=False)
class Mutant:
    """A change of one function.

    Args:
        path: the file of the module, as `line_coverage.below` names it.
        function: its name within the module.
        lines: the lines of the file that run the changed code.
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
        return self.source.count("\n", 0, self.change.pieces[0].start) + 1

    @property
    def package(self) -> str:
        return package_of(self.module)

    @property
    def where(self) -> str:
        return f"{self.module}.{self.function}"

    @cached_property
    def text(self) -> str:
        """The removed lines, marked -, and the added ones, marked +; unique within the function."""
        changed = [line for piece in self.change.pieces for line in self._lines_of(piece)]
        number = [f"# {self.number}"] if self.number > 1 else []
        return "\n".join(changed + number)

    def _lines_of(self, piece: Change) -> Iterator[str]:
        start = self.source.rfind("\n", 0, piece.start) + 1
        stop = self.source.find("\n", piece.stop) % (len(self.source) + 1)
        text = self.source[start:stop]
        before, after = text.splitlines(), piece.moved(-start).of(text).splitlines()
        # The difference of two lines takes long to find.
        one = len(before) == len(after) == 1
        for line in [f"- {before[0]}", f"+ {after[0]}"] if one else difflib.ndiff(before, after):
            if line[0] in "+-":
                yield f"{line[0]} {line[1:].strip()}"

    @property
    def key(self) -> str:
        """An identity: place, change, and the text of the function."""
        identity = "\n".join((self.where, self.operator, self.text, self.digest))
        return hashlib.sha256(identity.encode()).hexdigest()[:16]

    @property
    def diff(self) -> str:
        before, after = self.source.splitlines(), self.change.of(self.source).splitlines()
        name = self.path.as_posix()
        return "\n".join(difflib.unified_diff(before, after, name, name, n=2, lineterm=""))

    def edit(self) -> Edit:
        """The change as an edit of a unique text, with as many lines as that needs."""
        lines = self.source.splitlines(keepends=True)
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line))
        pieces = self.change.pieces
        first = max(n for n, start in enumerate(starts) if start <= pieces[0].start)
        last = min(n for n, start in enumerate(starts) if start >= pieces[-1].stop)
        while self.source.count(self.source[starts[first] : starts[last]]) > 1:
            first, last = max(first - 1, 0), min(last + 1, len(lines))
        start, stop = starts[first], starts[last]
        before = self.source[start:stop]
        return Edit(self.module, before, self.change.moved(-start).of(before))


def combined(mutants: Sequence[Mutant]) -> tuple[list[Edit], list[Mutant]]:
    """One edit per module, and the mutants left over because they overlap with another."""
    chosen: dict[str, list[Mutant]] = {}
    left = []
    for mutant in mutants:
        others = chosen.setdefault(mutant.module, [])
        if any(mutant.change.overlaps(other.change) for other in others):
            left.append(mutant)
        else:
            others.append(mutant)
    edits = []
    for module, group in chosen.items():
        source = group[0].source
        first, *rest = (piece for mutant in group for piece in mutant.change.pieces)
        edits.append(Edit(module, source, replace(first, also=tuple(rest)).of(source)))
    return edits, left


def modules(
    packages: Sequence[str] = PACKAGES, *, semantic: bool = False
) -> Iterator[tuple[str, Path]]:
    """The modules that are mutated, by single edits or by semantic ones, by name and file.

    Args:
        packages: some of `PACKAGES`, or the names of other modules and packages.

    Raises:
        ValueError: there is no such module.
    """
    spared = _TOOLS if semantic else _TOOLS | _SEMANTIC_ALONE
    for package in packages:
        if package not in PACKAGES:
            yield from own_modules(package)
            continue
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if path.stem != "__init__" and not _is_of_tests(path) and spared.isdisjoint(parts):
                yield HOME + ".".join(parts), path


def own_modules(name: str) -> Iterator[tuple[str, Path]]:
    """A module of another repository, or all modules of a package, by name and file.

    Raises:
        ValueError: there is no such module, or it is installed.
    """
    path = path_of(name)
    if path is None or is_ours(name):
        raise ValueError(f"--module: {name}, expected a module of yours, as Python imports it here")
    if path.name != "__init__.py":
        yield name, path
        return
    for file in sorted(path.parent.rglob("*.py")):
        if not _is_of_tests(file):
            parts = file.relative_to(path.parent).with_suffix("").parts
            yield ".".join([name, *parts]).removesuffix(".__init__"), file


def _is_of_tests(path: Path) -> bool:
    return path.stem == "conftest" or path.stem.startswith("test_")


def mutants(
    packages: Sequence[str] = PACKAGES,
    operators: Sequence[str] = (),
    *,
    semantic: bool = False,
    within: Container[str] | None = None,
) -> list[Mutant]:
    """Every mutant of the packages, in the order of the files.

    Args:
        packages: see `modules`.
        operators: names of the kinds of mistakes; if empty, all single edits or all semantic ones.
        semantic: mutate the modules for semantic mistakes.
        within: the functions to mutate, as `Mutant.where` names them; None for all.
    """
    files = modules(packages, semantic=semantic)
    sources = {name: (path, _parsed(path.read_text())) for name, path in files}
    operators = operators or list(SEMANTIC if semantic else OPERATORS)
    numbers = _numbers(*(source for _, source in sources.values()))
    return [
        mutant
        for module, (path, source) in sources.items()
        for function in source.functions
        if within is None or f"{module}.{function.name}" in within
        for mutant in _of(module, below(path), function, numbers, operators)
    ]


@cache
def _parsed(text: str) -> Source:
    return Source(text)


@cache
def _numbers(*sources: Source) -> Numbers:
    return Numbers(f for source in sources for f in source.functions)


def mutants_of(module: str, source: Source, operators: Sequence[str] = ()) -> list[Mutant]:
    """The mutants of the text of one module, with all single edits or with the named operators."""
    numbers = Numbers(source.functions)
    return [
        mutant
        for function in source.functions
        for mutant in _of(module, Path(), function, numbers, operators or list(OPERATORS))
    ]


def _of(
    module: str, path: Path, function: Function, numbers: Numbers, operators: Sequence[str]
) -> Iterator[Mutant]:
    source = function.source
    digest = hashlib.sha256(ast.unparse(function.node).encode()).hexdigest()[:16]
    seen = {source.text}
    edits: set[tuple[Any, ...]] = set()
    numbered: dict[str, int] = {}
    for node in function.nodes:
        place = Place(node, function, numbers, module)
        for name in operators:
            for change in KINDS[name].find(place):
                result = change.of(source.text)
                # Skip a single edit with the same result as another, except for barriers.
                edit = name, *((source.text[p.start : p.stop], p.text) for p in change.pieces)
                if result in seen or (edit in edits and name in OPERATORS and name != "barrier"):
                    continue
                seen.add(result)
                edits.add(edit)
                lines = source.lines(node)
                first = Mutant(
                    module, path, function.name, name, source.text, change, lines, digest
                )
                numbered[first.text] = numbered.get(first.text, 0) + 1
                number = numbered[first.text]
                yield first if number == 1 else replace(first, number=number)
