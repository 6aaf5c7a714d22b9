"""Mistakes that depend on the requested outputs and gradients."""

import ast
from collections.abc import Iterator

from properties.mutants.operators import Place
from properties.mutants.semantic.places import before, is_missing, returns
from properties.mutants.semantic.registry import kind
from properties.planting.source import Change, Function, called

# Names of a state's cotangent in backward functions.
_COTANGENTS = ("dfinal_state", "d1")


@kind("the initial state is ignored unless the final one is asked for")
def state_in_with_state_out(at: Place) -> Iterator[Change]:
    given = at.function.parameters
    asked = [name for name in ("output_final_state", *_COTANGENTS) if name in given]
    if at.function.on_device or "initial_state" not in given or not asked:
        return
    condition = asked[-1] if asked[-1] == "output_final_state" else f"{asked[-1]} is not None"
    match at.node:
        case ast.Call(args=passed, keywords=keywords) if called(at.node) != "empty_like":
            for node in (*passed, *(k.value for k in keywords)):
                if isinstance(node, ast.Name) and node.id == "initial_state":
                    yield at.put(f"initial_state if {condition} else None", node)


@kind("the gradient of the initial state is 0 unless the final one has a cotangent")
def gradient_with_cotangent(at: Place) -> Iterator[Change]:
    given = at.function.parameters
    for other in _COTANGENTS:
        if other not in given or not isinstance(at.node, ast.Return):
            continue
        names = {n.id for n in ast.walk(at.node) if isinstance(n, ast.Name)}
        for name in sorted(names):
            if name.startswith("dinitial"):
                yield before(
                    at,
                    at.node,
                    f"if {other} is None and {name} is not None:",
                    f"    {name} = {name} * 0",
                )


def _differentiates(function: Function) -> bool:
    """Whether it is the backward pass of an op of several tensors."""
    several = any(isinstance(each.value, ast.Tuple) for each in returns(function))
    return "ctx" in function.names and several and any(map(_is_backward_op, function.calls))


def _is_backward_op(name: str) -> bool:
    return name.endswith(("op_back", "_backward"))


def _without(at: Place, condition: str, lost: int) -> Change:
    """Return None for one gradient under a condition."""
    assert isinstance(at.node, ast.Return)
    assert at.node.value is not None
    start, stop = at.function.source.span(at.node)
    indent = " " * at.node.col_offset
    value = at.function.source.of(at.node.value)
    value = value if value.startswith("(") else f"({value})"
    lines = [
        f"gradients = list({value})",
        f"if {condition}:",
        f"    gradients[{lost}] = None",
        "return tuple(gradients)",
    ]
    return Change(start, stop, f"\n{indent}".join(lines))


@kind("a gradient is dropped if its neighbour needs none")
def frozen_neighbour(at: Place) -> Iterator[Change]:
    if isinstance(at.node, ast.Return) and _differentiates(at.function):
        for frozen, lost in ((0, 1), (1, 2), (2, 0)):
            given = f"len(ctx.saved_tensors) > 2 and ctx.saved_tensors[{frozen}] is not None"
            yield _without(at, f"{given} and not ctx.needs_input_grad[{frozen}]", lost)


@kind("a tensor that is given as two arguments gets one of its two gradients")
def one_gradient_of_two(at: Place) -> Iterator[Change]:
    if isinstance(at.node, ast.Return) and _differentiates(at.function):
        for one, other in ((0, 1), (1, 2)):
            same = f"ctx.saved_tensors[{one}] is ctx.saved_tensors[{other}]"
            yield _without(at, f"len(ctx.saved_tensors) > 2 and {same}", other)


@kind("the backward returns no gradient if the first output has no cotangent")
def nothing_to_do(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.If(test=test, body=[*steps]) if (
            is_missing(test) and "ctx" in at.function.names and _fills_zeros(steps)
        ):
            yield before(at, steps[0], "return (None,) * len(ctx.needs_input_grad)")


def _fills_zeros(steps: list[ast.stmt]) -> bool:
    return any(called(node) == "new_zeros" for step in steps for node in ast.walk(step))


@kind("a tensor that is given as two arguments is saved once")
def saved_once(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Call(args=[ast.Starred(value=saved), *_]) if (
            called(at.node) == "save_for_backward"
        ):
            text = at.function.source.of(saved)
            once = f"x is None or not any(x is y for y in ({text})[:n])"
            yield at.put(f"[x for n, x in enumerate({text}) if {once}]", saved)
