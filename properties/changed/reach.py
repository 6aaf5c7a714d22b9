"""Find the tests that a change can reach.

A test depends on what it uses (`uses`), on what that imports, and so on (`closure`). If its
parameters name ops, laws or targets, a package that imports all of them counts only as those; if
they name no op, as the ops that its code names, or that it imports where it lies beside them. A
file that is no module is reached through the modules and tests that name it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from properties import HOME, PACKAGES, ROOT, package_of
from properties.catalogue import DECLARING, OPS
from properties.catalogue.op import Op
from properties.changed.uses import names_of_tests, uses, words_of
from properties.counted import counted
from properties.laws import LAWS
from properties.planting.closure import KERNELS, LISTS, PAGES, REFERENCE, closure, imported, path_of
from properties.planting.op_modules import OpModules, kernels_of, oracles_of
from properties.targets import NAMES

# Files that affect every test: its options and the releases that it runs on.
_OF_ALL = frozenset({"conftest.py", "pyproject.toml", "constraints.txt"})
# A test that asks for the target under test depends on its kernels; one that names others, or
# modules in its parameters, does not unless it asks.
_TARGET = "oracles_target"
_MODULE = re.compile(rf"\b{re.escape(HOME)}(?:{'|'.join(PACKAGES)})(?:\.\w+)+")
_FILE = re.compile(rf"\b(?:{'|'.join(PACKAGES)})(?:/\w+)+\.py\b")
_NODE = re.compile(r"([\w/]+\.py)::(\w+)(.*)")


@dataclass(frozen=True)
class Changed:
    """Changed files, and what they can reach.

    Args:
        since: the commit that they differ from, in a few words.
        files: paths below the root.
        target: whose kernels are under test.
    """

    since: str
    files: tuple[str, ...]
    target: str = "ours"

    def reaches(self, path: Path, test: str, parameters: Iterable[Any]) -> bool:
        """Whether any of the files can change what a test does.

        Args:
            path: the file of the test.
            test: the name of a test function or class in it.
            parameters: the values of this item of the test.
        """
        named = _relevant(_strings([*parameters]))
        return any(self._reaches(file, path, test, named) for file in self.files)

    def _reaches(self, file: str, path: Path, test: str, named: frozenset[str]) -> bool:
        below = Path(file).name == "conftest.py" and path.is_relative_to((ROOT / file).parent)
        if file in _OF_ALL or below:
            return True
        if file in self._unnamed:
            return path in self._unnamed[file]
        return self._depends_on(file, path, test, named)

    def _depends_on(self, file: str, path: Path, test: str, named: frozenset[str]) -> bool:
        modules = _dependencies(path, test, named, self.target)
        if file.endswith(".py"):
            return _runs(_module(file), modules)
        return not modules.isdisjoint(_readers(file)) or _names(uses(path, test).words, file)

    def is_of_others(self, op: str) -> bool:
        """Whether all changed files that an op runs are reached through modules of other ops."""
        own = _own_modules(op)
        others = frozenset[str]().union(*map(_own_modules, OPS)) - own
        whole = closure(own, lists=False)
        near = closure(own, lists=False, instead=dict.fromkeys(others, ())) - others
        run = [module for module in map(_module, self.files) if _runs(module, whole)]
        return bool(run) and not any(_runs(module, near) for module in run)

    @cached_property
    def _unnamed(self) -> dict[str, frozenset[Path]]:
        """Files that no code names: deleted ones, and those found by listing a folder. They count
        as read by the tests of the nearest folder that has tests, itself or below.
        """
        found = {}
        for file in self.files:
            inside = file.partition("/")[0] in PACKAGES and not file.endswith(".md")
            if inside and file not in _OF_ALL and not any(self._tests(file)):
                near = next(filter(None, _tests_near(file)))
                found[file] = frozenset(near)
        return found

    def _tests(self, file: str) -> Iterator[Path]:
        for path in _files_of_tests():
            if any(
                self._depends_on(file, path, test, frozenset()) for test in names_of_tests(path)
            ):
                yield path

    def _ops(self, file: str) -> list[str]:
        laws = ROOT / "properties" / "suite" / "test_laws.py"
        return [
            op
            for op in _ops_with_kernels()
            if self._reaches(file, laws, "test_law_holds", frozenset([op]))
        ]

    def header(self) -> list[str]:
        """Return the lines of pytest's header: what each file reaches."""
        lines = [f"changed since {self.since}: {counted(len(self.files), 'file')}"]
        return lines + [f"  {file} -> {self._description(file)}" for file in self.files]

    def _description(self, file: str) -> str:
        if file in _OF_ALL:
            return "every test"
        near = self._unnamed.get(file)
        tests = [*near] if near is not None else [*self._tests(file)]
        laws = ROOT / "properties" / "suite" / "test_laws.py"
        reached = []
        if laws in tests and near is None:
            ops = self._ops(file)
            every = _ops_with_kernels()
            names = f"all {len(every)} ops" if ops == every else ", ".join(ops)
            reached.append(f"laws of {names}")
            tests.remove(laws)
        if tests:
            beside = "that are nearest, as nothing names it" if near is not None else ""
            reached.append(f"tests in {counted(len(tests), 'file')} {beside}".strip())
        return "; ".join(reached) or "nothing"


def _module(file: str) -> str:
    return HOME + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _runs(module: str, modules: frozenset[str]) -> bool:
    """Whether a dependency on these modules runs `module`; a package runs if one of its modules
    does.
    """
    path = path_of(module)
    package = path is not None and path.name == "__init__.py"
    return module in modules or (package and any(m.startswith(f"{module}.") for m in modules))


@cache
def _own_modules(op: str) -> frozenset[str]:
    """The modules that define an op, without what they import."""
    return kernels_of(OPS[op]) | oracles_of(OPS[op])


def _ops_with_kernels() -> list[str]:
    return [op.name for op in OPS.values() if op.modes]


def _tests_near(file: str) -> Iterator[list[Path]]:
    """The tests in each folder above a file, then also those below these folders."""
    folders = [ROOT / folder for folder in Path(file).parents]
    yield from ([*folder.glob("test_*.py")] for folder in folders)
    yield from ([*folder.rglob("test_*.py")] for folder in folders)


@cache
def _files_of_tests() -> tuple[Path, ...]:
    return tuple(
        path for package in PACKAGES for path in sorted((ROOT / package).rglob("test_*.py"))
    )


@cache
def _dependencies(path: Path, test: str, named: frozenset[str], target: str) -> frozenset[str]:
    """The modules that a test depends on, with these names in its parameters."""
    used = uses(path, test)
    own = HOME + ".".join(path.relative_to(ROOT).with_suffix("").parts)
    ops = [op for op in OPS if op in named]
    if ops or not used.all_ops:
        ops += used.picked - named
    if not (ops or used.all_ops or KERNELS in used.modules):
        # A test beside kernels or pages is about the ops that it imports.
        imports = used.modules if package_of(own) in PAGES else frozenset()
        ops = [op for op in OPS if op in used.words or not imports.isdisjoint(_own_modules(op))]
    laws = [law for law in LAWS if law in named]
    words = used.words | named
    targets = {NAMES[name] for name in NAMES if name in words}
    if _TARGET in words or not (targets or any(map(_MODULE.fullmatch, named))):
        targets.add(NAMES.get(target, target))
    instead: dict[str, Iterable[str]] = {
        # Its tests import what they use.
        own: frozenset[str](),
        "properties.targets": frozenset(known for name in targets if (known := _of_target(name))),
        **_in_place_of_ops(tuple(ops)),
        **({"properties.laws": {f"properties.laws.{law}" for law in laws}} if laws else {}),
    }
    modules = {own, *filter(path_of, used.modules), *_mentioned(words)}
    nodes = [] if ops else [node for node in map(_NODE.fullmatch, named) if node]
    if not nodes:
        return closure(modules, instead=instead)
    # The test runs other tests by name: add what those depend on.
    instead |= dict.fromkeys(LISTS, ())
    return closure(modules, instead=instead).union(
        *(_dependencies(ROOT / n[1], n[2], _relevant(named_in(n[3])), target) for n in nodes)
    )


def _of_target(name: str) -> str:
    module = name.partition(":")[0]
    return module if path_of(module) is not None else ""


@cache
def _in_place_of_ops(ops: tuple[str, ...]) -> Mapping[str, frozenset[str]]:
    """The files that stand for the packages that import all ops, for a test of these ops."""
    if not ops:
        return {}
    sources = [OpModules.of(OPS[op]) for op in ops]
    reference = frozenset[str]().union(*(s.reference for s in sources))
    declaring = {s.declaration for s in sources}
    beside = {name: _without_oracles(name) for name in {*DECLARING.values()}}
    kernels = frozenset[str]().union(*(s.kernels for s in sources))
    return {
        KERNELS: kernels,
        # This module knows the ops whose pages were imported.
        f"{KERNELS}.recurrence": kernels,
        f"{KERNELS}.bench.problems": kernels,
        REFERENCE: reference,
        "properties.catalogue": reference | declaring,
        # One file declares a family's ops, and other files import shared parts from it.
        **beside,
        **{name: beside[name] | reference for name in declaring},
    }


def _without_oracles(module: str) -> frozenset[str]:
    return frozenset(m for m in imported(module) if package_of(m) != "reference")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Op):
        yield value.name
    elif isinstance(value, Mapping):
        yield from _strings([*value.values()])
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _strings(each)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _strings(getattr(value, field.name))


def _relevant(words: Iterable[str]) -> frozenset[str]:
    """The strings that say what a test is about."""
    known = {*OPS, *LAWS, *NAMES}
    return frozenset(w for w in words if w in known or _MODULE.fullmatch(w) or _FILE.match(w))


def named_in(values: str) -> list[str]:
    """The names that may be parameters in a test's id, "[gla-chunk]"."""
    return re.split("[][-]", values)


def _mentioned(words: Iterable[str]) -> Iterator[str]:
    """Modules named by strings, which run in another process or are edited."""
    for word in words:
        for name in _MODULE.findall(word):
            while path_of(name) is None and "." in name:
                name = name.rpartition(".")[0]
            if name not in LISTS and path_of(name) is not None:
                yield name
                if path_of(f"{name}.__main__"):
                    yield f"{name}.__main__"
        yield from (_module(file) for file in _FILE.findall(word) if (ROOT / file).exists())


@cache
def _readers(file: str) -> frozenset[str]:
    """Modules that name a non-module file, or share its stem."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    stem = (ROOT / file).with_suffix(".py")
    return frozenset(
        _module(path.relative_to(ROOT).as_posix())
        for path in paths
        if path == stem or (_reads(path, file) and not path.name.startswith("test_"))
    )


def _reads(path: Path, file: str) -> bool:
    return Path(file).name in path.read_text() and _names(words_of(path), file)


def _names(words: Iterable[str], file: str) -> bool:
    name = Path(file).name
    return any(name in word for word in words)
