"""The modules that a module depends on, by its import statements."""

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from properties import HOME, PACKAGES, ROOT, package_of

# Packages that have a page for each op.
PAGES = ("kernels", "reference")
# Packages that import all ops, laws or targets. A user of one op does not depend on the others.
KERNELS, REFERENCE = f"{HOME}kernels", f"{HOME}reference"
LISTS = frozenset(
    {KERNELS, REFERENCE, "properties.catalogue", "properties.laws", "properties.targets"}
)
_STANDARD = sysconfig.get_path("stdlib")
# Folders of what is installed.
INSTALLED = frozenset({"site-packages", "dist-packages"})

# A name, and the module that it is or comes from.
Bound = tuple[str, str]


@cache
def path_of(module: str) -> Path | None:
    """The file of a module of this project or of code beside it; None for an installed one."""
    if is_ours(module):
        return _file_of(ROOT.joinpath(*module.removeprefix(HOME).split(".")))
    return None if _is_installed(module.partition(".")[0]) else find_file(module)


def is_ours(module: str) -> bool:
    """Whether a module is one of this project, by its name."""
    return module.startswith(HOME) and package_of(module) in PACKAGES


@cache
def _is_installed(first: str) -> bool:
    """Whether a top-level module or package is in the standard library or among the installed."""
    path = find_file(first)
    return path is None or path.is_relative_to(_STANDARD) or not INSTALLED.isdisjoint(path.parts)


@cache
def find_file(module: str) -> Path | None:
    """Find the file of a module that Python would import, without importing anything."""
    first, *rest = module.split(".")
    try:
        spec = find_spec(first)
    except ValueError:  # __main__
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations is None:
        is_source = spec.has_location and spec.origin and spec.origin.endswith(".py")
        return Path(spec.origin or "") if is_source and not rest else None
    folders = [Path(folder) for folder in spec.submodule_search_locations]
    files = (_file_of(folder.joinpath(*rest)) for folder in folders)
    return next((file for file in files if file is not None), None)


def _file_of(stem: Path) -> Path | None:
    """The file of a module, `stem.py`, or of a package, `stem/__init__.py`."""
    files = (stem.with_name(f"{stem.name}.py"), stem / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def _tree(module: str) -> ast.Module:
    path = path_of(module)
    assert path is not None
    return ast.parse(path.read_text())


@cache
def imported(module: str) -> frozenset[str]:
    """The project's modules that a module imports, or imports names from."""
    return frozenset(name for name in _named(module) if path_of(name) is not None)


def _named(module: str) -> Iterator[str]:
    tree = _tree(module)
    for node in _imports(tree):
        yield from (name for _, name in bound(node, module, tree))


def _imports(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements of a module, without a look at its many expressions."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not isinstance(node, ast.expr):
            left += ast.iter_child_nodes(node)


def bound(node: ast.Import | ast.ImportFrom, module: str, tree: ast.AST) -> Iterator[Bound]:
    """The names that an import statement binds, and the modules that they are or come from.

    Args:
        module: the module that contains the statement.
        tree: the code whose use of the names counts.
    """
    if isinstance(node, ast.Import):
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            yield from ((name, used) for used in _used(tree, alias.name, alias.name))
        return
    origin = node.module or ""
    if node.level:
        path = path_of(module)
        package = module if path and path.name == "__init__.py" else module.rpartition(".")[0]
        parts = package.split(".")
        origin = ".".join([*parts[: len(parts) + 1 - node.level], *filter(None, [origin])])
    for alias in node.names:
        name = alias.asname or alias.name
        if f"{origin}." == HOME:
            yield from ((name, used) for used in _used(tree, name, f"{HOME}{alias.name}"))
        else:
            yield name, origin_of(origin, alias.name)


def _used(tree: ast.AST, name: str, imported: str) -> Iterator[str]:
    """The used parts of an imported module; for a package of `LISTS`, the names that occur."""
    nodes = [*ast.walk(tree)] if imported in LISTS else []
    uses = [n for n in nodes if isinstance(n, ast.Name) and n.id == name]
    names = {n.value: n.attr for n in nodes if isinstance(n, ast.Attribute)}
    if uses and all(use in names for use in uses):
        yield from (origin_of(imported, names[use]) for use in uses)
    else:
        yield imported


def origin_of(package: str, name: str) -> str:
    """The module that `name` is or comes from when imported from `package`."""
    if path_of(f"{package}.{name}"):
        return f"{package}.{name}"
    path = path_of(package)
    if path is not None and path.name == "__init__.py" and _lists_ops(package):
        origin = _listed(package).get(name)
        return origin_of(origin, name) if origin else package
    return package


@cache
def _listed(package: str) -> dict[str, str]:
    """The names that a package re-exports, and the modules that it has them from."""
    nodes = [node for node in _tree(package).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in nodes for alias in node.names}


def _lists_ops(package: str) -> bool:
    """Whether a package re-exports its modules: one of `LISTS`, or a family of ops."""
    return package in LISTS or (is_ours(package) and package_of(package) in PAGES)


def closure(
    modules: Iterable[str],
    *,
    lists: bool = True,
    instead: Mapping[str, Iterable[str]] = MappingProxyType({}),
) -> frozenset[str]:
    """The modules and all they import, directly or not.

    Args:
        lists: include the packages of `LISTS`, and with them all ops, laws and targets.
        instead: module → the modules to follow in place of its imports.
    """
    reached: set[str] = set()
    left = set(modules)
    while left:
        module = left.pop()
        reached.add(module)
        following = instead[module] if module in instead else imported(module)
        left |= {*following} - reached - (frozenset() if lists else LISTS)
    return frozenset(reached)


@cache
def digest(*modules: str, lists: bool = True) -> str:
    """A hash of the sources of the modules and of all they import."""
    hashed = hashlib.sha256()
    for module in sorted(closure(modules, lists=lists)):
        path = path_of(module)
        assert path is not None
        hashed.update(module.encode() + path.read_bytes())
    return hashed.hexdigest()[:24]


def forget(modules: Collection[str]) -> None:
    """Make this process import the modules, and all that depend on them, anew.

    Modules of mutants and trials stay, because pickling a trial's answer needs the class imported
    before.
    """
    if sys.modules.keys().isdisjoint(modules):
        return
    for name in list(sys.modules):
        answers = name.startswith(("properties.mutants.", "properties.planting."))
        if not answers and path_of(name) is not None and not closure([name]).isdisjoint(modules):
            module, (package, _, part) = sys.modules.pop(name), name.rpartition(".")
            # `from package import module` takes what the package has, if that stays.
            if package in sys.modules and vars(sys.modules[package]).get(part) is module:
                delattr(sys.modules[package], part)
