"""Missing, default and rejected values of numbers and flags."""

import ast
from collections.abc import Iterator

from properties.mutants.operators import Place
from properties.mutants.semantic.places import is_missing
from properties.mutants.semantic.registry import kind
from properties.planting.source import Change, Function, called


def _is_number(function: Function, name: str) -> bool:
    kind_of = function.parameters.get(name, "")
    return ("int" in kind_of or "float" in kind_of) and "Float[" not in kind_of


def _refuses(function: Function) -> bool:
    return any(isinstance(node, ast.Raise) for node in ast.walk(function.node))


@kind("0 is taken for None")
def falsy_is_none(at: Place) -> Iterator[Change]:
    match at.node:
        # Once the value is settled, no 0 stands for a missing one.
        case ast.Compare(left=ast.Name(id=name)) if (
            is_missing(at.node) and _is_number(at.function, name) and _refuses(at.function)
        ):
            if "Tensor" in at.function.parameters[name]:
                # A tensor has no truth value.
                yield at.put(f"{name} is None or (isinstance({name}, int) and {name} == 0)")
            else:
                yield at.put(f"not {name}")


def _is_sentinel(node: ast.AST) -> bool:
    match node:
        case ast.Compare(
            left=ast.Name(),
            ops=[ast.Eq()],
            comparators=[ast.UnaryOp(op=ast.USub(), operand=ast.Constant(1))],
        ):
            return True
        case ast.Compare(left=ast.Name(), ops=[ast.Eq()], comparators=[ast.Name(id=name)]):
            return name == "SENTINEL"
    return False


@kind("-1.0 is not taken for the sentinel -1")
def sentinel_of_one_type(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Compare(left=ast.Name(id=name)) if _is_sentinel(at.node):
            yield at.put(f"isinstance({name}, int) and {at.function.source.of(at.node)}")


@kind("every negative number is taken for the sentinel")
def negative_is_sentinel(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Compare(left=ast.Name(id=name)) if _is_sentinel(at.node):
            yield at.put(f"{name} < 0")


@kind("a number loses its sign or its fraction, or is at least 0")
def number_changed(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Call(func=ast.Name(id="float"), args=[ast.Name(id=name)]) if _is_number(
            at.function, name
        ):
            yield at.put(f"float(int({name}))")
            if not _is_positive(at.function, name):
                yield at.put(f"abs(float({name}))")
                yield at.put(f"max(float({name}), 0.0)")


def _is_positive(function: Function, name: str) -> bool:
    """Whether a function rejects numbers that are not positive."""
    return any(
        isinstance(node, ast.Compare) and ast.unparse(node).startswith(f"0 < {name}")
        for node in ast.walk(function.node)
    )


@kind("True is accepted for 1")
def true_is_one(at: Place) -> Iterator[Change]:
    if not at.opens:
        return
    for node in ast.walk(at.function.node):
        match node:
            case ast.BoolOp(values=[*values]):
                others = [value for value in values if not _is_about_bool(value)]
                if 0 < len(others) < len(values):
                    word = " or " if isinstance(node.op, ast.Or) else " and "
                    text = word.join(at.function.source.of(value) for value in others)
                    yield at.put(text, node)


def _is_about_bool(node: ast.AST) -> bool:
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _is_about_bool(operand)
        case ast.Call(args=[_, ast.Name(id="bool")]):
            return called(node) == "isinstance"
    return False


# Flags of which at most one is set.
_EXCLUSIVE = {"USE_G", "USE_HEAD_G", "GATED"}
_SIZES = frozenset({"DTYPE", "BOUNDED"})


@kind("an option is ignored beside another one")
def lost_beside_another(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.If(test=ast.Name(id=option) as test) if at.function.on_device:
            others = [flag for flag in _flags(at.function) if flag != option]
            if option in _EXCLUSIVE:
                others = [flag for flag in others if flag not in _EXCLUSIVE]
            if option.isupper() and others:
                # Combine each option with one other, chosen by a hash.
                text = option + at.function.source.of(at.node)
                yield at.put(f"{option} and not {others[sum(text.encode()) % len(others)]}", test)
        case ast.If(test=ast.Name(id=option) as test) if (
            at.function.parameters.get(option) == "bool"
            and "cu_seqlens" in at.function.parameters
            and not any(isinstance(step, ast.Raise) for step in at.node.body)
        ):
            yield at.put(f"{option} and cu_seqlens is None", test)


def _flags(function: Function) -> list[str]:
    """A kernel's constants that are tested and passed on, but never computed with."""
    constants = [name for name, kind_of in function.parameters.items() if "constexpr" in kind_of]
    sizes = {
        name.id
        for node in ast.walk(function.node)
        if isinstance(node, (ast.BinOp, ast.Compare, ast.List, ast.Tuple, ast.Subscript))
        or (isinstance(node, ast.Call) and ast.unparse(node.func).startswith("tl."))
        for name in ast.iter_child_nodes(node)
        if isinstance(name, ast.Name)
    }
    return [name for name in constants if name not in sizes | _SIZES and name.isupper()]
