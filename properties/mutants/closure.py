"""Which modules of this project another one is made of, by its import statements."""

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("kernels", "properties", "reference", "regressions")


def path_of(module: str) -> Path | None:
    """The file of a module of this project, or None."""
    if module.partition(".")[0] not in PACKAGES:
        return None
    stem = ROOT.joinpath(*module.split("."))
    return next((p for p in (stem.with_suffix(".py"), stem / "__init__.py") if p.is_file()), None)


@cache
def imported(module: str) -> frozenset[str]:
    """The modules that one names in its imports; a package is not named by what is in it."""
    path = path_of(module)
    assert path is not None
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return frozenset(
        name for name in _named(ast.parse(path.read_text()), package) if path_of(name) is not None
    )


def _named(tree: ast.AST, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) + 1 - node.level]
            origin = ".".join([*parts, *filter(None, [node.module])]) if node.level else node.module
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                yield inner if path_of(inner) else str(origin)


# What lists all ops. A change of one op would be a change of everything that knows them all.
_LISTS = frozenset({"kernels", "reference", "properties.catalogue"})


def closure(modules: Iterable[str]) -> frozenset[str]:
    """The modules, what they import, what that imports, and so on, but for the lists of all ops."""
    found: set[str] = set()
    left = set(modules)
    while left:
        module = left.pop()
        found.add(module)
        left |= imported(module) - found - _LISTS
    return frozenset(found)


@cache
def digest(*modules: str) -> str:
    """A hash of the sources of the modules and of all that they are made of."""
    hashed = hashlib.sha256()
    for module in sorted(closure(modules)):
        path = path_of(module)
        assert path is not None
        hashed.update(module.encode() + path.read_bytes())
    return hashed.hexdigest()[:24]
