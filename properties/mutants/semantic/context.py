"""Mistakes that depend on the context: no gradients, inference mode, `torch.compile`, autocast."""

import ast
from collections.abc import Iterator

from properties.mutants.operators import Place
from properties.mutants.semantic.places import after, knows
from properties.mutants.semantic.registry import kind
from properties.planting.source import Change, called


def _unconverted(at: Place) -> str | None:
    """The unconverted argument of a conversion."""
    source = at.function.source
    match at.node:
        case ast.Call(func=ast.Name(id="resolve_scale"), args=[given, dim]):
            # The default stays; the sentinel counts as any number.
            scale = source.of(given)
            return f"{source.of(dim)} ** -0.5 if {scale} is None else {scale}"
        case ast.Call(func=ast.Name(id="check_cu_seqlens"), args=[_, given, *_]):
            return source.of(given)
        case ast.Call(func=ast.Name(id="contiguous" | "dense_rows"), args=given):
            # A comma makes a tuple of a starred argument, too.
            return f"({', '.join(map(source.of, given))}{',' * isinstance(given[0], ast.Starred)})"
        case ast.Call(func=ast.Name(id="check_softcap" | "check_window"), args=[given]):
            return source.of(given)
        case ast.Call(func=ast.Attribute(value=given, attr="to" | "float" | "contiguous")):
            return source.of(given)
    return None


def _left_out(at: Place, context: str) -> Iterator[Change]:
    """Skip a conversion in a context."""
    raw = _unconverted(at)
    if raw is not None and knows(at.function, "torch"):
        raw = f"({raw})" if " if " in raw else raw
        yield at.put(f"{raw} if {context} else {at.function.source.of(at.node)}")


@kind("a conversion is skipped under no_grad")
def without_grad(at: Place) -> Iterator[Change]:
    # Below the public function, autograd has turned gradients off.
    if at.function.is_public:
        yield from _left_out(at, "not torch.is_grad_enabled()")


@kind("a conversion is skipped in inference mode")
def in_inference_mode(at: Place) -> Iterator[Change]:
    backward = not {"do", "dy", "d0"}.isdisjoint(at.function.parameters)
    if at.function.is_public or (at.function.launches and not backward):
        yield from _left_out(at, "torch.is_inference_mode_enabled()")


@kind("a conversion is skipped while torch.compile traces the call")
def while_compiling(at: Place) -> Iterator[Change]:
    # The compiler does not trace into an op.
    if at.function.is_public:
        yield from _left_out(at, "torch.compiler.is_compiling()")


@kind("inputs are cast to the dtype of autocast, and so are the results")
def under_autocast(at: Place) -> Iterator[Change]:
    if not (at.function.is_public and knows(at.function, "torch")):
        return
    match at.node:
        case ast.Assign(value=ast.Call(keywords=[*given]) as check) if (
            called(check) == "check_one_dtype" and given
        ):
            names = [keyword.arg for keyword in given if keyword.arg]
            device = f"{names[0]}.device.type" if names else ""
            casts = [
                f"    {n} = None if {n} is None else {n}.to(torch.get_autocast_dtype({device}))"
                for n in names
            ]
            if named := _of_a_dict(given):
                tensors, keys = map(at.function.source.of, named)
                device = f"{tensors}[{keys}[0]].device.type"
                cast = f"{tensors}[n].to(torch.get_autocast_dtype({device}))"
                casts = [f"    {tensors} |= {{n: {cast} for n in {keys}}}"]
            yield after(at, at.node, f"if torch.is_autocast_enabled({device}):", *casts)


def _of_a_dict(given: list[ast.keyword]) -> tuple[ast.expr, ast.expr] | None:
    """The tensors and their names in `**{name: tensors[name] for name in names}`."""
    match given:
        case [
            ast.keyword(
                arg=None,
                value=ast.DictComp(
                    value=ast.Subscript(value=tensors), generators=[ast.comprehension(iter=names)]
                ),
            )
        ]:
            return tensors, names
    return None


@kind("memory that outlives a call is made in inference mode if the call is")
def inference_memory(at: Place) -> Iterator[Change]:
    source = at.function.source
    match at.node:
        case ast.With(items=[ast.withitem(context_expr=context)]) if _leaves(context):
            yield at.put("torch.inference_mode(torch.is_inference_mode_enabled())", context)
    if at.opens:
        for decorator in at.function.node.decorator_list:
            if _leaves(decorator):
                start, stop = source.span(decorator)
                yield Change(start, stop, "torch.no_grad()")


def _leaves(node: ast.AST) -> bool:
    match node:
        case ast.Call(args=[ast.Constant(False)]):
            return called(node) == "inference_mode"
    return False


@kind("one of two conditions is not tested")
def half_a_condition(at: Place) -> Iterator[Change]:
    decides = isinstance(
        at.function.source.parents.get(at.node), (ast.If, ast.IfExp, ast.UnaryOp, ast.BoolOp)
    )
    match at.node:
        case ast.BoolOp(values=[first, second]) if decides:
            # If one half tests for None or a type, the other depends on it.
            if not any(map(_is_about_type, (first, second))):
                yield at.become(first)
                yield at.become(second)


def _is_about_type(node: ast.AST) -> bool:
    match node:
        case ast.Compare(comparators=[ast.Constant(None)]):
            return True
    return called(node) == "isinstance" or ".dtype" in ast.unparse(node)
