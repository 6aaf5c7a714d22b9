"""Wrong strides and wrong assumptions about memory layout."""

import ast
from collections.abc import Iterator
from itertools import pairwise

from properties.mutants.operators import Place
from properties.mutants.semantic.registry import kind
from properties.planting.source import Change, Function, called, is_launch, words


def _strided(node: ast.AST) -> tuple[ast.expr, ast.Call] | None:
    """The tensor and the call of `*x.stride()` or `*x.stride()[:3]`."""
    match node:
        case (
            ast.Starred(value=ast.Subscript(value=ast.Call() as call))
            | ast.Starred(value=ast.Call() as call)
        ):
            match call:
                case ast.Call(func=ast.Attribute(value=x, attr="stride"), args=[]):
                    return x, call
    return None


@kind("a tensor is read with the strides of its sibling if both have one shape")
def sibling_strides(at: Place) -> Iterator[Change]:
    source = at.function.source
    match at.node:
        case ast.Call(args=given) | ast.Tuple(elts=given):
            if isinstance(at.node, ast.Call) and not is_launch(at.node):
                return
            strides = [strided for each in given if (strided := _strided(each)) is not None]
            for (x, _), (y, call) in pairwise(strides):
                first, second = source.of(x), source.of(y)
                chosen = f"({first} if {first}.shape == {second}.shape else {second})"
                yield at.put(f"{chosen}.stride()", call)
        case ast.ListComp() if "tensors" in at.function.names:
            for node in ast.walk(at.node):
                match node:
                    case ast.Call(func=ast.Attribute(value=ast.Name(id=one), attr="stride")):
                        same = f"tensors[0] if {one}.shape == tensors[0].shape else {one}"
                        yield at.put(f"({same}).stride()", node)


@kind("a stride of 0 is taken for a missing one")
def zero_stride(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Subscript(value=ast.Call() as call) if called(call) == "stride":
            yield at.put(f"[stride or 1 for stride in {at.function.source.of(at.node)}]")
        case ast.Call(args=[]) if called(at.node) == "stride":
            if not isinstance(at.function.source.parents[at.node], ast.Subscript):
                yield at.put(f"[stride or 1 for stride in {at.function.source.of(at.node)}]")


@kind("an expanded last dim is taken for a dense one")
def loose_stride(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(1)]) if (
            called(left) == "stride"
        ):
            yield at.put(f"{at.function.source.of(left)} <= 1")


@kind("no tensor is copied if the first is contiguous")
def first_is_contiguous(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Call(func=ast.Name(id="contiguous" | "dense_rows"), args=[first, _, *_]):
            every = ", ".join(map(at.function.source.of, at.node.args))
            if isinstance(first, ast.Name) and not _may_be_none(at.function, first.id):
                copied = at.function.source.of(at.node)
                yield at.put(f"({every}) if {first.id}.is_contiguous() else {copied}")


def _may_be_none(function: Function, name: str) -> bool:
    return "None" in function.parameters.get(name, "")


@kind("a result takes the layout of its input")
def like_the_input(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.Call(func=ast.Attribute(value=ast.Name(id=x), attr="new_empty")) as call,
        ) if name == f"d{x}" and len(call.args) > 1:
            yield at.put(f"torch.empty_like({x})", call)
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id=x), attr="new_empty"),
            args=[ast.Attribute(value=ast.Name(id=shaped), attr="shape")],
        ) if x == shaped:
            yield at.put(f"torch.empty_like({x})")


@kind("a copy keeps the layout of its source")
def layout_kept(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Call(keywords=keywords) if any(k.arg == "memory_format" for k in keywords):
            source = at.function.source
            arguments = [source.of(a) for a in at.node.args]
            arguments += [source.of(k) for k in keywords if k.arg != "memory_format"]
            yield at.put(f"{source.of(at.node.func)}({', '.join(arguments)})")


@kind("a result is written into the memory of an input")
def writes_into_input(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Call(args=[ast.Name(id=x)], keywords=[]) if called(at.node) == "empty_like":
            if x in at.function.tensors:
                yield at.put(x)


_WORKSPACES = words("empty_like new_empty empty new_zeros zeros")


@kind("a float32 tensor takes the dtype of the inputs")
def workspace_in_input_dtype(at: Place) -> Iterator[Change]:
    source = at.function.source
    match at.node:
        case ast.Call(func=function, args=given, keywords=keywords) if (
            called(at.node) in _WORKSPACES and not at.function.on_device
        ):
            wide = [k for k in keywords if k.arg == "dtype" and _is_float32(k.value)]
            if not wide:
                return
            arguments = [source.of(a) for a in given]
            arguments += [source.of(k) for k in keywords if k not in wide]
            for keyword in keywords:
                match keyword:
                    case ast.keyword(arg="device", value=ast.Attribute(value=x)):
                        arguments.append(f"dtype={source.of(x)}.dtype")
            # Only `torch.zeros` defaults to float32.
            like = called(at.node) == "empty_like" or not source.of(function).startswith("torch.")
            if like or "dtype=" in " ".join(arguments):
                yield at.put(f"{source.of(function)}({', '.join(arguments)})")


def _is_float32(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "float32"
