"""Calls and sequences with no token or one token, and rows without a visible key."""

import ast
from collections.abc import Iterator

from properties.mutants.operators import Place, is_range
from properties.mutants.semantic.places import before
from properties.mutants.semantic.registry import kind
from properties.planting.source import Change


@kind("a program with an empty loop returns before it stores")
def returns_before_it_stores(at: Place) -> Iterator[Change]:
    if not at.function.is_kernel or at.node not in at.function.body[:-1]:
        return
    match at.node:
        case ast.For(iter=ast.Call(args=[ast.Name(id=count)]) as call) if (
            is_range(call) and count != "group" and count.islower()
        ):
            yield before(at, at.node, f"if {count} == 0:", "    return")
        case ast.Assign(targets=[ast.Name(id="high")], value=ast.Subscript(value=bounds)):
            name = at.function.source.of(bounds)
            end = at.function.source.statement(at.node)
            rest = at.function.body
            following = rest[rest.index(end) + 1]
            yield before(at, following, f"if {name}[0] >= high:", "    return")


@kind("a call without tokens returns a final state of zeros")
def empty_call_has_no_state(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Return(value=ast.Tuple(elts=[_, ast.Name(id=state)])) if (
            state.startswith("final") and at.function.tensors
        ):
            first = at.function.tensors[0]
            yield before(
                at,
                at.node,
                f"if {first}.shape[1] == 0 and {state} is not None:",
                f"    {state}.zero_()",
            )


@kind("a call with one token ignores its gate")
def one_token_has_no_gate(at: Place) -> Iterator[Change]:
    given = at.function.parameters
    if at.opens and {"q", "g", "initial_state", "output_final_state"} <= {*given}:
        yield before(at, at.function.body[0], "if q.shape[1] == 1:", "    g = None")
