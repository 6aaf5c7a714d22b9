"""Let Triton's frontend visit the body of each loop once."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from contextlib import contextmanager
from typing import Any

from triton.compiler.code_generator import CodeGenerator, flatten_values_to_ir
from triton.language.core import base_value


@contextmanager
def visited_once() -> Iterator[None]:
    """The variables that a loop carries are those that its body assigns.

    Triton visits each body once more, to see which variables change: 2^d times in d loops, half of
    the frontend's time. A variable that is assigned but keeps its value, as in a branch that is
    not compiled, is carried here too, until MLIR's canonicalizer finds that it is invariant.
    """
    find, visit = CodeGenerator._find_carries, CodeGenerator.visit_compound_statement
    # The bodies being visited, each with the variables before its loop and the loop's own.
    bodies: list[tuple[Any, dict[str, Any], Set[str]]] = []

    def find_carries(
        generator: Any, loop: Any, before: dict[str, Any], ignore: Set[str] = frozenset()
    ) -> tuple[list[str], list[Any], list[Any]]:
        names, handles, types = [], [], []
        assigned = assigned_in(loop.body) - ignore
        for name, value in before.items():
            if name in assigned and isinstance(value, base_value):
                parts = flatten_values_to_ir([value])
                # A constexpr has no parts.
                if parts:
                    names.append(name)
                    handles += parts
                    types.append(value.type)
        generator.lscope = before.copy()
        generator.local_defs = {}
        bodies.append((loop.body, before, ignore))
        return names, handles, types

    def visit_statements(generator: Any, statements: Any) -> None:
        visit(generator, statements)
        if bodies and bodies[-1][0] is statements:
            _, before, ignore = bodies.pop()
            verify(generator, before, ignore)

    CodeGenerator._find_carries = find_carries
    CodeGenerator.visit_compound_statement = visit_statements
    try:
        yield
    finally:
        CodeGenerator._find_carries = find
        CodeGenerator.visit_compound_statement = visit


def assigned_in(statements: list[ast.stmt]) -> set[str]:
    """The names that statements may assign: Triton's other targets are no variables."""
    nodes = (node for statement in statements for node in ast.walk(statement))
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def verify(generator: Any, before: dict[str, Any], ignore: Set[str]) -> None:
    """Raise Triton's errors about variables whose kind or type changes in a loop."""
    for name, value in before.items():
        if name in ignore or generator.lscope[name] is value:
            continue
        if isinstance(value, base_value):
            generator._verify_loop_carried_variable(name, generator.lscope[name], value)
        else:
            text = f"Loop carried variable {name} is not a triton value"
            assert name not in generator.local_defs, text
