"""Numbers rounded too early or kept in too few bits."""

import ast
from collections.abc import Iterator

from properties.mutants.operators import Place
from properties.mutants.semantic.places import everywhere
from properties.mutants.semantic.registry import kind
from properties.planting.source import Change, called

_SCALARS = ("scale", "factor", "state_factor", "read_factor", "write_factor")


def _is_a_sum(at: Place, name: str) -> bool:
    """Whether a number was computed, not just loaded."""
    values = [
        node.value
        for node in ast.walk(at.function.node)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    ]
    return bool(values) and not any(called(value).strip("_").startswith("load") for value in values)


@kind("a sum is rounded to the dtype of the inputs before it is scaled or divided")
def rounded_before_last_step(at: Place) -> Iterator[Change]:
    dtype = at.function.dtype_of_inputs
    match at.node:
        case ast.BinOp(
            left=ast.Name(id=total) as left, op=ast.Mult(), right=ast.Name(id=factor)
        ) if dtype and factor in _SCALARS and _is_a_sum(at, total):
            yield at.put(f"{total}.to({dtype})", left)
        case ast.AugAssign(target=ast.Name(id=total), op=ast.Mult(), value=ast.Name(id=factor)) if (
            dtype and factor in _SCALARS
        ):
            start, stop = at.function.source.span(at.node)
            text = f"{total} = ({total}.to({dtype}) * {factor}).to(tl.float32)"
            yield Change(start, stop, text)
        case ast.BinOp(left=ast.Name(id=total) as left, op=ast.Div()) if dtype:
            yield at.put(f"{total}.to({dtype})", left)


@kind("sums of two terms are kept in the dtype of the inputs")
def short_sums_in_input_dtype(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.IfExp(
            test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]) as test,
            orelse=ast.Attribute(attr="float32"),
        ):
            # Dtypes are not multiplied.
            if "dtype" in at.function.source.of(left):
                return
            constant = isinstance(right, ast.Constant)
            factor = "" if constant else "2 * "
            bound = "2" if constant else at.text(right)
            order = "<=" if constant else ">="
            yield at.put(f"{factor}{at.text(left)} {order} {bound}", test)


@kind("float64 becomes float32 in all of a function")
def float64_dropped(at: Place) -> Iterator[Change]:
    def written(node: ast.AST) -> str | None:
        if isinstance(node, ast.Attribute) and node.attr == "float64":
            return f"{at.function.source.of(node.value)}.float32"
        return None

    yield from everywhere(at, written)


@kind("terms are rounded to the dtype of the result before they are summed")
def rounded_before_sum(at: Place) -> Iterator[Change]:
    source = at.function.source
    match at.node:
        case ast.Call(func=ast.Attribute(value=ast.Call() as total, attr="to"), args=[dtype]) if (
            called(total) in ("of_each_group", "sum")
        ):
            match total:
                case ast.Call(func=ast.Name(id=name), args=[x, groups]):
                    terms = f"{name}({at.text(x)}.to({source.of(dtype)}), {source.of(groups)})"
                    yield at.put(f"{terms}.to({source.of(dtype)})")
                case ast.Call(func=ast.Attribute(value=x), args=[dims, *_]):
                    terms = f"{at.text(x)}.to({source.of(dtype)})"
                    yield at.put(f"{terms}.sum({source.of(dims)}).to({source.of(dtype)})")


@kind("positions and distances are rounded to bfloat16")
def places_in_bfloat16(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Call(func=ast.Attribute(value=x, attr="to"), args=[ast.Attribute(attr="float32")]):
            if at.function.on_device and not at.floating(x) and not called(x).startswith("load"):
                yield at.put(f"{at.text(x)}.to(tl.bfloat16).to(tl.float32)")
