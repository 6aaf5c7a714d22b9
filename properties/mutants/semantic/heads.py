"""Mistakes with shared kv heads, and with heads and sequences of a batch."""

import ast
from collections.abc import Iterator

from properties.mutants.operators import Place
from properties.mutants.semantic.registry import kind
from properties.planting.source import Change, called

_MEMBERS = 4


@kind("head h reads key head h % G, not h // (H // G)")
def tiled_heads(at: Place) -> Iterator[Change]:
    source = at.function.source
    match at.node:
        case ast.BinOp(
            left=ast.Name(id="head") as head, op=ast.FloorDiv(), right=ast.Name(id="group")
        ) if "heads" in at.function.names:
            yield at.put(f"{head.id} % (heads // group)")
        case ast.BinOp(
            left=ast.Call() as heads, op=ast.FloorDiv(), right=ast.BinOp(right=groups)
        ) if called(heads) == "arange":
            yield at.put(f"{source.of(heads)} % {source.of(groups)}")
        case ast.Call(func=ast.Attribute(value=x), args=[times], keywords=[ast.keyword(arg="dim")]):
            if called(at.node) == "repeat_interleave" and source.of(at.node).endswith("dim=2)"):
                yield at.put(f"{at.text(x)}.repeat(1, 1, {source.of(times)}, 1)")
        case ast.Call(
            func=ast.Attribute(
                value=ast.Call(
                    func=ast.Attribute(value=x),
                    args=[ast.Constant(2), ast.Tuple(elts=[groups, _])],
                ) as cut
            ),
            args=[ast.Constant(3)],
        ) if called(at.node) == "sum" and called(cut) == "unflatten":
            yield at.put(f"{at.text(x)}.unflatten(2, (-1, {source.of(groups)})).sum(2)")


@kind("a group has at most four query heads")
def small_groups(at: Place) -> Iterator[Change]:
    least = "tl.minimum" if at.function.on_device else "min"
    match at.node:
        case ast.BinOp(op=ast.FloorDiv(), right=ast.Name(id="group") as group):
            yield at.put(f"{least}(group, {_MEMBERS})", group)
        case ast.For(iter=ast.Call(args=[ast.Name(id="group") as group])):
            yield at.put(f"{least}(group, {_MEMBERS})", group)
        case ast.Call(args=[ast.BinOp(op=ast.FloorDiv()) as times]) if (
            called(at.node) == "repeat_interleave"
        ):
            yield at.put(f"{least}({at.function.source.of(times)}, {_MEMBERS})", times)


@kind("batch and head are exchanged in an offset")
def batch_and_head_exchanged(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.BinOp(
            left=ast.BinOp(left=ast.Name(id="batch"), op=ast.Mult(), right=ast.Name(id="heads")),
            op=ast.Add(),
            right=ast.Name(id=head),
        ) if at.function.on_device:
            yield at.put(f"{head} * heads + batch")
