"""Wrong order in objects with state: written before checks, shared, or updated in one place
only.
"""

import ast
from collections.abc import Iterator
from itertools import pairwise

from properties.mutants.operators import Place
from properties.mutants.semantic.places import knows, sets, uses
from properties.mutants.semantic.registry import kind
from properties.planting.source import Change, called


def _changes_itself(statement: ast.stmt) -> bool:
    """Whether a method changes its object in this statement."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="self")))):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Call() as parent))):
            return called(parent) == "super"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript() as target]):
            return ast.unparse(target).startswith("self.")
    return False


@kind("an object changes one step earlier, before a step that may raise")
def changed_too_early(at: Place) -> Iterator[Change]:
    if not at.opens or "self" not in at.function.names or at.function.node.name == "__init__":
        return
    source = at.function.source
    steps = at.function.body
    for step, following in pairwise(steps):
        moves = _changes_itself(following) and not _changes_itself(step)
        if moves and not sets(step) & uses(following):
            (start, end), (begin, stop) = source.span(step), source.span(following)
            between = source.text[end:begin]
            yield Change(start, stop, source.of(following) + between + source.of(step))


@kind("all sequences or layers share one list")
def one_list_for_all(at: Place) -> Iterator[Change]:
    source = at.function.source
    match at.node:
        case ast.ListComp(elt=each, generators=[ast.comprehension(target=one, iter=every, ifs=[])]):
            makes = isinstance(each, ast.List) or source.of(each).startswith("[")
            if makes and not sets(one) & uses(each):
                match every:
                    case ast.Call(func=ast.Name(id="range"), args=[count]):
                        yield at.put(f"[{source.of(each)}] * {at.text(count)}")
                    case _:
                        yield at.put(f"[{source.of(each)}] * len({source.of(every)})")


@kind("only the first sequence is tested")
def first_sequence_alone(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.For(target=ast.Tuple(elts=[ast.Name(id=n), *_]), iter=call) if (
            called(call) == "enumerate"
        ):
            for step in ast.walk(at.node):
                if isinstance(step, ast.If):
                    yield at.put(f"{n} == 0 and {at.text(step.test)}", step.test)


@kind("an in-place call returns a copy, or hides the write from autograd")
def in_place_copies(at: Place) -> Iterator[Change]:
    source = at.function.source
    match at.node:
        case ast.Return(value=ast.Call(func=ast.Attribute(attr="copy_"), args=[copy]) as call):
            yield at.put(source.of(copy), call)
        case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=given)) if name.endswith(
            "_"
        ) and knows(at.function, name.removesuffix("_")):
            texts = ", ".join(map(source.of, given))
            start, stop = source.span(at.node)
            yield Change(start, stop, f"return {name.removesuffix('_')}({texts})")
        case ast.Expr(value=call) if called(call) == "mark_dirty":
            yield at.drop()
