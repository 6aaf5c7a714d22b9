"""The parts of the project that one test uses.

A test file imports more than each of its tests uses. So names are followed within the file, from
the test to the functions, fixtures and constants that it refers to. Everything that those import
counts.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from properties import HOME, ROOT
from properties.planting.closure import bound

_Import = ast.Import | ast.ImportFrom
# The plugin that the conftest.py at the root loads has fixtures, too.
_SESSION = ROOT / "properties" / "session.py"
# The marker with the ops that a test of a tool is about: the tool takes any.
_MARK = "pytest.mark.ops"
_ASKING = ("usefixtures", "getfixturevalue")


@dataclass(frozen=True)
class Uses:
    """The names that a test uses.

    Args:
        modules: those imported for what the test refers to.
        words: the strings in its code, which may name modules and files.
        picked: the ops that it takes from the catalogue, or is marked with, by name.
        all_ops: whether it uses the whole catalogue.
    """

    modules: frozenset[str]
    words: frozenset[str]
    picked: frozenset[str]
    all_ops: bool


class _Scope:
    """The names of a test file or conftest.py."""

    def __init__(self, path: Path) -> None:
        self.module = HOME + ".".join(path.relative_to(ROOT).with_suffix("").parts)
        self.definitions: dict[str, list[ast.stmt]] = {}
        self.imports: dict[str, _Import] = {}
        self.always: list[ast.stmt] = []
        self._read(
            ast.parse(path.read_text()).body,
            is_conftest=path.name == "conftest.py" or path == _SESSION,
        )

    def _read(self, body: list[ast.stmt], *, is_conftest: bool) -> None:
        for statement in body:
            if isinstance(statement, ast.If | ast.Try):
                blocks = [statement.body, statement.orelse, getattr(statement, "finalbody", [])]
                blocks += [handler.body for handler in getattr(statement, "handlers", [])]
                for block in blocks:
                    self._read(block, is_conftest=is_conftest)
            elif isinstance(statement, _Import):
                for alias in statement.names:
                    self.imports[alias.asname or alias.name.partition(".")[0]] = statement
            elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
                self.definitions.setdefault(statement.name, []).append(statement)
                hook = statement.name.startswith("pytest_") and not is_conftest
                if hook or "autouse=True" in " ".join(map(ast.unparse, statement.decorator_list)):
                    self.always.append(statement)
            else:
                names = {
                    node.id
                    for node in ast.walk(statement)
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                }
                for name in names:
                    self.definitions.setdefault(name, []).append(statement)
                if not is_conftest and (not names or "pytestmark" in names):
                    self.always.append(statement)


@cache
def _scope(path: Path) -> _Scope:
    return _Scope(path)


@cache
def names_of_tests(path: Path) -> tuple[str, ...]:
    return tuple(n for n in _scope(path).definitions if n.startswith(("test", "Test")))


@cache
def uses(path: Path, test: str) -> Uses:
    """The names that a test of a file uses; those of the file if there is no such test."""
    folders = [folder for folder in path.parents if folder.is_relative_to(ROOT)]
    conftests = [*(folder / "conftest.py" for folder in folders), _SESSION]
    scopes = [_scope(path), *(_scope(file) for file in conftests if file.exists())]
    own = scopes[0].definitions
    begins = own.get(test) or [statement for those in own.values() for statement in those]
    left = [(scopes[0], statement) for statement in begins]
    left += [(scope, statement) for scope in scopes for statement in scope.always]
    modules: set[str] = set()
    words: set[str] = set()
    picked: set[str] = set()
    catalogues = 0
    marked = False
    seen: set[ast.stmt] = set()
    while left:
        scope, statement = left.pop()
        if statement in seen:
            continue
        seen.add(statement)
        for node in _code(statement):
            if isinstance(node, _Import):
                modules |= {module for _, module in bound(node, scope.module, statement)}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value)
            elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                if isinstance(node.value, ast.Name) and node.value.id == "OPS":
                    picked.add(str(node.slice.value))
                    catalogues -= 1
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == _MARK:
                picked |= {str(a.value) for a in node.args if isinstance(a, ast.Constant)}
                marked = True
            elif isinstance(node, ast.Name):
                catalogues += node.id == "OPS"
                left += [(scope, other) for other in scope.definitions.get(node.id, ())]
                if node.id in scope.imports:
                    those = bound(scope.imports[node.id], scope.module, statement)
                    modules |= {module for known, module in those if known == node.id}
            for name in _fixtures(node):
                found = next((s for s in scopes if name in s.definitions), None)
                left += [(found, other) for other in found.definitions[name]] if found else []
    return Uses(
        frozenset(modules), frozenset(words), frozenset(picked), catalogues > 0 and not marked
    )


def _code(statement: ast.stmt) -> Iterator[ast.AST]:
    left: list[ast.AST] = [statement]
    while left:
        node = left.pop()
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            yield node
            left += ast.iter_child_nodes(node)


def _fixtures(node: ast.AST) -> Iterator[str]:
    """The fixtures that a test, a fixture, or a call with names requests."""
    if isinstance(node, ast.FunctionDef):
        decorators = " ".join(map(ast.unparse, node.decorator_list))
        if node.name.startswith(("test", "pytest_")) or "fixture" in decorators:
            yield from (a.arg for a in (*node.args.args, *node.args.kwonlyargs))
    elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _ASKING:
        yield from (str(a.value) for a in node.args if isinstance(a, ast.Constant))


@cache
def words_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    constants = [n for s in tree.body for n in _code(s) if isinstance(n, ast.Constant)]
    return frozenset(node.value for node in constants if isinstance(node.value, str))
