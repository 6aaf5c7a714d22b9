"""Exponentials, logarithms and roots with wrong subtraction, clamping, masking or epsilon."""

import ast
from collections.abc import Iterator

from properties.mutants.operators import Place
from properties.mutants.semantic.places import everywhere
from properties.mutants.semantic.registry import kind
from properties.planting.source import Change, called, words

_EXPONENTIALS = words("exp exp2")


@kind("an exponent is clamped at -30")
def clamped_exponent(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=module)), args=[x]) if (
            called(at.node) in _EXPONENTIALS
        ):
            text = at.function.source.of(x)
            if module == "tl":
                yield at.put(f"tl.maximum({text}, -30.0)", x)
            elif module == "torch":
                yield at.put(f"({text}).clamp(min=-30)", x)


def _is_infinite(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant("-inf")]):
            return True
        case ast.UnaryOp(op=ast.USub(), operand=ast.Attribute(attr="inf")):
            return True
    return False


@kind("the row maximum that is subtracted is at least 0")
def maximum_at_least_zero(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Call(
            args=[
                ast.Compare(left=ast.Name(id=row_maximum), comparators=[bound]),
                ast.Constant(0),
                _,
            ]
        ) if called(at.node) == "where" and _is_infinite(bound):
            clamped = (
                f"tl.maximum({row_maximum}, 0.0)"
                if at.function.on_device
                else f"{row_maximum}.clamp(min=0)"
            )
            yield at.put(clamped)


@kind("-10000 stands for -inf in all of a function")
def finite_mask(at: Place) -> Iterator[Change]:
    yield from everywhere(at, lambda node: "-1.0e4" if _is_infinite(node) else None)


@kind("epsilon is added to the root, or bounds the sum")
def epsilon_moved(at: Place) -> Iterator[Change]:
    source = at.function.source
    match at.node:
        case ast.Call(args=[ast.BinOp(left=total, op=ast.Add(), right=ast.Name(id=eps))]) if (
            called(at.node) == "sqrt"
        ):
            root = f"{source.of(at.node.func)}({source.of(total)})"
            yield at.put(f"({root} + {eps})")
            most = "tl.maximum" if at.function.on_device else "torch.clamp"
            bounded = f"{most}({source.of(total)}, {eps})"
            yield at.put(f"{source.of(at.node.func)}({bounded})")


# Functions whose first argument says towards which end of a chunk a decay runs.
_SIDED = words("head_decay pair_decay chunk_span chunk_span_transposed")


@kind("a decay runs to the other end of the chunk")
def other_end(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Call(args=[ast.Constant(0 | 1 as side) as end, *_]) if called(at.node) in _SIDED:
            yield at.put(str(1 - side), end)
