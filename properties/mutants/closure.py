"""Which modules of this project another one is made of, by its import statements."""

import ast
import hashlib
import sys
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PACKAGES = ("kernels", "properties", "reference", "regressions")
# What lists all ops. For one op, a change of another is none.
_LISTS = frozenset({"kernels", "reference", "properties.catalogue"})


def path_of(module: str) -> Path | None:
    """The file of a module of this project, or None."""
    if module.partition(".")[0] not in _PACKAGES:
        return None
    stem = ROOT.joinpath(*module.split("."))
    return next((p for p in (stem.with_suffix(".py"), stem / "__init__.py") if p.is_file()), None)


@cache
def _tree(module: str) -> ast.Module:
    path = path_of(module)
    assert path is not None
    return ast.parse(path.read_text())


@cache
def imported(module: str) -> frozenset[str]:
    """The modules of the project that one imports, or imports names of from a package."""
    return frozenset(name for name in _named(module) if path_of(name) is not None)


def _named(module: str) -> Iterator[str]:
    path = path_of(module)
    package = module if path and path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _used(_tree(module), alias)
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                parts = package.split(".")
                origin = ".".join([*parts[: len(parts) + 1 - node.level], *filter(None, [origin])])
            yield from (_origin(origin, alias.name) for alias in node.names)


def _used(tree: ast.Module, imported: ast.alias) -> Iterator[str]:
    """What is used of an imported module: of one that lists all ops, those that are named."""
    uses = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == imported.name]
    names = {n.value: n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    if imported.name in _LISTS and uses and all(use in names for use in uses):
        yield from (_origin(imported.name, names[use]) for use in uses)
    else:
        yield imported.name


def _origin(package: str, name: str) -> str:
    """The module that `name` is, or is from, where it is imported from `package`."""
    if path_of(f"{package}.{name}"):
        return f"{package}.{name}"
    path = path_of(package)
    if path is not None and path.name == "__init__.py" and package in _LISTS:
        for node in _tree(package).body:
            if isinstance(node, ast.ImportFrom) and name in [a.name for a in node.names]:
                return _origin(str(node.module), name)
    return package


def closure(modules: Iterable[str], *, lists: bool = True) -> frozenset[str]:
    """The modules, what they import, what that imports, and so on.

    Args:
        lists: include the packages that list all ops, and with them every op.
    """
    found: set[str] = set()
    left = set(modules)
    while left:
        module = left.pop()
        found.add(module)
        left |= imported(module) - found - (frozenset() if lists else _LISTS)
    return frozenset(found)


@cache
def digest(*modules: str, lists: bool = True) -> str:
    """A hash of the sources of the modules and of all that they are made of."""
    hashed = hashlib.sha256()
    for module in sorted(closure(modules, lists=lists)):
        path = path_of(module)
        assert path is not None
        hashed.update(module.encode() + path.read_bytes())
    return hashed.hexdigest()[:24]


def forget(modules: Collection[str]) -> None:
    """Have this process import modules anew, and with them all that is made of them.

    Not those of this package: what a trial answers is pickled as of a class that was imported
    before it.
    """
    if sys.modules.keys().isdisjoint(modules):
        return
    for name in list(sys.modules):
        ours = name.startswith(f"{__package__}.")
        if not ours and path_of(name) is not None and not closure([name]).isdisjoint(modules):
            del sys.modules[name]
