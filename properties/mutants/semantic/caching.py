"""Caches between calls whose keys are too coarse."""

import ast
from collections.abc import Iterator

from properties import package_of
from properties.mutants.operators import Place
from properties.mutants.semantic.places import above, after, knows, returns, together
from properties.mutants.semantic.registry import kind
from properties.planting.source import Change, Function, called, words

# Attributes and methods of a tensor that do not read its numbers.
_METADATA = words("shape dtype device ndim itemsize")
_QUESTIONS = words("dim stride size numel is_contiguous new_empty new_zeros new_ones new_full")
_ABOUT_METADATA = words("count_sequences gate_flags keys_gradient_dtype describe len bind_dims")
# Functions with more arguments do an op's work; those with fewer prepare it.
_FEW = 6


# Types that cannot be hashed, or are no values.
_NO_KEYS = ("list", "Sequence", "Mapping", "object", "Any", "Callable")


def _is_a_helper(at: Place) -> bool:
    """Whether a host function of a kernel module returns something worth caching."""
    function, given = at.function, at.function.node.args
    return (
        at.opens
        and package_of(at.module) != "reference"
        and not function.on_device
        and not function.is_public
        and "." not in function.name
        and not function.node.decorator_list
        and not (given.vararg or given.kwarg)
        and function.name not in ("forward", "backward", "register")
        and all(function.parameters.values())
        and len(function.parameters) <= _FEW
        and any(returns(function))
    )


def _kept(at: Place, asked: str, *, held: str = "") -> Change:
    """Cache the function's result by a key.

    Args:
        held: objects to keep alive with the result, so that their addresses are not reused.
    """
    function = at.function
    name = function.name.strip("_")
    table, fresh = f"_KNOWN_{name.upper()}", f"_fresh_{name}"
    given = function.node.args
    passed = [a.arg for a in (*given.posonlyargs, *given.args)]
    passed += [f"{a.arg}={a.arg}" for a in given.kwonlyargs]
    call = f"{fresh}({', '.join(passed)})"
    lines = [f"    asked = {asked}", f"    if asked not in {table}:"]
    if held:
        lines += [f"        {table}.clear()", f"        {table}[asked] = {held}, {call}"]
        lines += [f"    return {table}[asked][1]"]
    else:
        lines += [f"        {table}[asked] = {call}", f"    return {table}[asked]"]
    lines += ["", "", f"{table}: dict = {{}}", "", "", f"def {fresh}({ast.unparse(given)}):"]
    start, _ = function.source.span(function.body[0])
    indent = " " * function.body[0].col_offset
    return Change(start - len(indent), start, "\n".join([*lines, ""]) + indent)


def _tuple(parts: list[str]) -> str:
    return f"({', '.join(parts)},)"


def _reads_numbers(function: Function, name: str) -> bool:
    source = function.source
    for node in ast.walk(function.node):
        if not (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)):
            continue
        parent = source.parents[node]
        while isinstance(parent, (ast.Tuple, ast.keyword)):
            parent = source.parents[parent]
        match parent:
            case ast.Attribute(attr=attr) if attr in _METADATA or attr in _QUESTIONS:
                pass
            case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
                pass
            case ast.Call() if _asks_metadata(function, parent, node):
                pass
            case _:
                return True
    return False


def _asks_metadata(function: Function, call: ast.Call, node: ast.Name) -> bool:
    if called(call) in _ABOUT_METADATA or called(call).startswith("check_"):
        return True
    if not isinstance(call.func, ast.Name) or node not in call.args:
        return False
    for other in function.source.functions:
        if other.name == call.func.id and other.name != function.name:
            names = [*other.parameters]
            return not _reads_numbers(other, names[call.args.index(node)])
    return False


def _by_metadata(function: Function, name: str) -> str:
    """A key of an argument's metadata, without its numbers."""
    if name not in function.tensors:
        return name
    metadata = f"{name}.shape, {name}.dtype, {name}.device"
    return f"None if {name} is None else ({metadata})"


def _readers(at: Place) -> list[str]:
    if not _is_a_helper(at):
        return []
    return [name for name in at.function.tensors if _reads_numbers(at.function, name)]


@kind("a value derived from a tensor is cached by the tensor's identity")
def kept_by_identity(at: Place) -> Iterator[Change]:
    read = _readers(at)
    if read:
        every = at.function.parameters
        # A non-tensor may be a list, which cannot be hashed.
        parts = [f"id({n})" if n in at.function.tensors else f"str({n})" for n in every]
        held = [n for n in every if n in at.function.tensors]
        yield _kept(at, _tuple(parts), held=_tuple(held))


@kind("a value derived from a tensor is cached by the tensor's address and shape")
def kept_by_address(at: Place) -> Iterator[Change]:
    read = _readers(at)
    if read:
        every = at.function.parameters
        parts = [
            f"None if {n} is None else ({n}.data_ptr(), {n}.shape)"
            if n in at.function.tensors
            else f"str({n})"
            for n in every
        ]
        yield _kept(at, _tuple(parts))


@kind("a cache key misses one argument")
def cache_without_argument(at: Place) -> Iterator[Change]:
    function = at.function
    if not _is_a_helper(at) or any(called(node) == "empty" for node in ast.walk(function.node)):
        return
    every = [*function.parameters]
    if any(kind_of.startswith(_NO_KEYS) for kind_of in function.parameters.values()):
        return
    if any(_reads_numbers(function, name) for name in function.tensors):
        return
    for name in every:
        if name in function.tensors or name == "name":
            continue
        parts = [_by_metadata(function, other) for other in every if other != name]
        if parts:
            yield _kept(at, _tuple(parts))


@kind("a check of numbers is cached by equality, so that True passes after 1")
def cached_by_equality(at: Place) -> Iterator[Change]:
    function = at.function
    if not _is_a_helper(at) or function.tensors:
        return
    if any(called(node) == "isinstance" and _is_of_bool(node) for node in ast.walk(function.node)):
        yield _kept(at, _tuple([*function.parameters]))


def _is_of_bool(node: ast.AST) -> bool:
    match node:
        case ast.Call(args=[_, ast.Name(id="bool")]):
            return True
    return False


_ALLOCATES = words("empty empty_like new_empty empty_parts")


@kind("a result is written to the memory of the last result of its shape")
def kept_result(at: Place) -> Iterator[Change]:
    if at.function.on_device:
        return
    match at.node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if called(value) in _ALLOCATES:
            returned = {
                node.id
                for each in returns(at.function)
                for node in ast.walk(each)
                if isinstance(node, ast.Name)
            }
            if name in returned and name in ("o", "y", "out", "final", "final_state", "last"):
                table = f"_KEPT_{at.function.name.strip('_').replace('.', '_').upper()}"
                key = f"({name!r}, {name}.shape, {name}.dtype, {name}.device)"
                keep = f"{name} = {table}.setdefault({key}, {name})"
                yield together(after(at, at.node, keep), above(at, f"{table}: dict = {{}}"))


@kind("a module in eval mode keeps the weights of its first call")
def kept_weights(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="self"), attr=layer), args=[ast.Name(id=x)]
        ) if knows(at.function, "F") and _is_linear(at.function, layer):
            weight = f"self.{layer}.weight.detach().clone()"
            first = f'self.__dict__.setdefault("_kept_{layer}", {weight})'
            still = f"F.linear({x}, {first}, self.{layer}.bias)"
            yield at.put(f"self.{layer}({x}) if self.training else {still}")


def _is_linear(function: Function, layer: str) -> bool:
    """Whether a class assigns itself a linear layer of that name, or None."""
    for node in ast.walk(function.source.tree):
        match node:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]):
                if name == layer and any(called(n) == "Linear" for n in ast.walk(node.value)):
                    return not any(called(n) == "Sequential" for n in ast.walk(node.value))
    return False
