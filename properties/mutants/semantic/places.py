"""Queries on functions and changes of several pieces, shared by semantic operators."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace

from properties.mutants.operators import Place
from properties.planting.source import Change, Function


def together(first: Change, *others: Change) -> Change:
    """One change of several pieces."""
    return replace(first, also=(*first.also, *others))


def everywhere(at: Place, written: Callable[[ast.AST], str | None]) -> Iterator[Change]:
    """One change, at the head of a function, of all nodes for which something else is written."""
    nodes = at.function.nodes if at.opens else ()
    changes = [at.put(text, node) for node in nodes if (text := written(node)) is not None]
    if changes:
        yield together(*changes)


def before(at: Place, statement: ast.stmt, *lines: str) -> Change:
    """Insert lines before a statement, at its indentation."""
    start, _ = at.function.source.span(statement)
    indent = " " * statement.col_offset
    return Change(start, start, "".join(f"{line}\n{indent}" for line in lines))


def after(at: Place, statement: ast.stmt, *lines: str) -> Change:
    """Insert lines after a statement, at its indentation."""
    _, stop = at.function.source.span(statement)
    indent = " " * statement.col_offset
    return Change(stop, stop, "".join(f"\n{indent}{line}" for line in lines))


def above(at: Place, *lines: str) -> Change:
    """Insert lines at module level above the function or its class."""
    source, outer = at.function.source, at.function.node
    parents = source.parents
    node: ast.AST = outer
    while not isinstance(parents[node], ast.Module):
        node = parents[node]
    assert isinstance(node, (ast.FunctionDef, ast.ClassDef))
    decorators = [source.span(decorator)[0] for decorator in node.decorator_list]
    start = source.text.rfind("\n", 0, min([source.span(node)[0], *decorators])) + 1
    return Change(start, start, "".join(f"{line}\n" for line in lines) + "\n\n")


def returns(function: Function) -> Iterator[ast.Return]:
    """A function's own returns, not those of inner functions."""
    for node in _own(function.node):
        if isinstance(node, ast.Return) and node.value is not None:
            yield node


def _own(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            yield from _own(child)


def knows(function: Function, name: str) -> bool:
    """Whether the module of a function imports or defines a name."""
    for node in function.source.tree.body:
        match node:
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                if name in [alias.asname or alias.name for alias in names]:
                    return True
            case ast.FunctionDef(name=defined) | ast.ClassDef(name=defined):
                if defined == name:
                    return True
            case ast.Assign(targets=[ast.Name(id=assigned)]):
                if assigned == name:
                    return True
    return False


def is_missing(node: ast.AST, *names: str) -> bool:
    """Whether an expression is `name is None`, for one of some names."""
    match node:
        case ast.Compare(left=ast.Name(id=name), ops=[ast.Is()], comparators=[ast.Constant(None)]):
            return not names or name in names
    return False


def least(at: Place) -> str:
    """The name of the minimum function on the device or on the host."""
    return "tl.minimum" if at.function.on_device else "min"


def uses(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def sets(node: ast.AST) -> set[str]:
    return {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
