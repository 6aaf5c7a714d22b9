"""Addresses that fit into 32 bits only for small tensors."""

import ast
from collections.abc import Iterator

from properties.mutants.operators import Place
from properties.mutants.semantic.registry import kind
from properties.planting.source import Change, called


def _is_wide(node: ast.AST) -> bool:
    match node:
        case ast.Call(args=[ast.Attribute(attr="int64")]):
            return called(node) == "to"
    return False


@kind("an index is widened to 64 bits after it is multiplied")
def widened_too_late(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.BinOp(
            left=ast.Call(func=ast.Attribute(value=narrow)) as left, op=ast.Mult(), right=right
        ) if _is_wide(left):
            product = at.joined(narrow, "*", right)
            yield at.put(f"({product}).to(tl.int64)")
        case ast.BinOp(op=ast.Mult(), right=ast.Call(func=ast.Attribute(value=x, attr="long"))):
            yield at.put(f"({at.text(at.node.left)} * {at.function.source.of(x)}).long()")


@kind("a row offset is narrowed to 32 bits before it is multiplied by a width")
def narrowed_row(at: Place) -> Iterator[Change]:
    if not at.function.on_device or at.floating():
        return
    match at.node:
        case ast.BinOp(left=ast.BinOp(op=ast.Add()) as row, op=ast.Mult(), right=ast.Name()):
            yield at.put(f"{at.text(row)}.to(tl.int32)", row)
        case ast.BinOp(left=ast.Name(id="cell" | "row" | "first_row") as row, op=ast.Mult()):
            yield at.put(f"{row.id}.to(tl.int32)", row)
