"""Mutation operators: each makes one kind of mistake that real attention kernels had.

An operator takes a node of a function's syntax tree and yields the changes that make its mistake
there. It knows no ops; in Triton code it tells numbers from addresses.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from properties.mutants.numbers import Numbers
from properties.planting.source import Change, Function, called, leftmost, words


@dataclass(frozen=True)
class Place:
    """A node with its function, its module, and which names are numbers."""

    node: ast.AST
    function: Function
    numbers: Numbers
    module: str = ""

    def text(self, node: ast.AST) -> str:
        """The text of an expression, in parentheses if a neighbouring operator would split it."""
        text = self.function.source.of(node)
        split = isinstance(node, (ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.UnaryOp))
        return f"({text})" if split else text

    def joined(self, left: ast.AST, symbol: str, right: ast.AST) -> str:
        """Two expressions joined by an operator, with only the necessary parentheses."""
        source = self.function.source
        bare = f"{source.of(left)} {symbol} {source.of(right)}"
        safe = f"{self.text(left)} {symbol} {self.text(right)}"
        trees = [ast.dump(ast.parse(f"({text})", mode="eval")) for text in (bare, safe)]
        return bare if trees[0] == trees[1] else safe

    def put(self, text: str, node: ast.AST | None = None) -> Change:
        """Replace the node, or a node within it, by a text."""
        return self.function.source.replace(self.node if node is None else node, text)

    def become(self, node: ast.AST) -> Change:
        """Replace the node by a part of it."""
        return self.put(self.function.source.of(node))

    def drop(self) -> Change:
        return Change(*self.function.source.span(self.node), "pass")

    @property
    def opens(self) -> bool:
        """Whether the node is the function's first statement, where changes of the whole function
        are made once.
        """
        return self.node is self.function.opening

    def floating(self, node: ast.AST | None = None) -> bool:
        return self.numbers.floating(self.node if node is None else node, self.function)

    @property
    def in_a_loop(self) -> bool:
        node: ast.AST | None = self.node
        while node is not None and node is not self.function.node:
            node = self.function.source.parents.get(node)
            if isinstance(node, (ast.For, ast.While)):
                return True
        return False


Find = Callable[[Place], Iterator[Change]]


@dataclass(frozen=True)
class Operator:
    """A kind of mistake.

    Args:
        what: the mistake in a few words.
        find: yields the changes that make it at a place.
        only_on: the only device on which it shows, if any.
    """

    name: str
    what: str
    find: Find
    only_on: str | None = None


Register = Callable[..., Callable[[Find], Find]]


def registering(registry: dict[str, Operator]) -> Register:
    """A decorator that registers a function as an operator of its name."""

    def operator(what: str, only_on: str | None = None) -> Callable[[Find], Find]:
        def register(find: Find) -> Find:
            registry[find.__name__] = Operator(find.__name__, what, find, only_on)
            return find

        return register

    return operator


OPERATORS: dict[str, Operator] = {}
_operator = registering(OPERATORS)


def _is_barrier(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call() as call):
            return called(call) == "debug_barrier"
    return False


# Each comparison's counterpart with or without equality, and the step that moves its bound back.
_SHIFTED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<=", "-"),
    ast.Gt: (">=", "+"),
    ast.LtE: ("<", "+"),
    ast.GtE: (">", "-"),
}


@_operator("a bound is off by one")
def boundary(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Compare(left=left, ops=[order], comparators=[right]) if type(
            order
        ) in _SHIFTED and not (at.function.on_device and at.floating()):
            other, step = _SHIFTED[type(order)]
            yield at.put(at.joined(left, other, right))
            yield at.put(f"{at.text(right)} {step} 1", right)


@_operator("a mask is left out, or misses a condition")
def mask(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Call(keywords=keywords) if called(at.node) in ("load", "store"):
            if any(k.arg == "mask" for k in keywords):
                yield _without(at, "mask", "other")
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            yield at.become(left)
            yield at.become(right)
        case ast.Call(func=ast.Attribute(value=masked)) if called(at.node) in (
            "tril", "triu", "masked_fill",
        ):  # fmt: skip
            yield at.become(masked)


@_operator("a masked load lacks its `other` value")
def other(at: Place) -> Iterator[Change]:
    if isinstance(at.node, ast.Call) and any(k.arg == "other" for k in at.node.keywords):
        yield _without(at, "other")


def _without(at: Place, *names: str) -> Change:
    assert isinstance(at.node, ast.Call)
    source = at.function.source
    arguments = [source.of(a) for a in at.node.args]
    arguments += [source.of(k) for k in at.node.keywords if k.arg not in names]
    return at.put(f"{source.of(at.node.func)}({', '.join(arguments)})")


# Words that a mistake may exchange in the stride, dim or length of a tensor.
_SIBLINGS = ("q k v o do x y g gv c r", "b t h", "key value", "heads tokens", "K V", "low high")
_SIZES = words("stride dim dims length start num shape low high PAD FULL B in cu")


@_operator("a stride, dim or length of another tensor or dim is used")
def sibling(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Name(id=name, ctx=ast.Load()) if at.function.on_device:
            others = [other for other in at.function.names if _related(name, other)]
            if others:
                # Each name has one sibling, of another tensor or another dim.
                yield at.put(others[sum(name.encode()) % len(others)])
        case ast.Subscript(value=ast.Attribute(attr="shape"), slice=index):
            yield from _beside(at, index)
        case ast.Call(args=[index]) if called(at.node) in ("stride", "size"):
            yield from _beside(at, index)


@cache
def _words(name: str) -> list[str]:
    """Split a name: `stride_qb` is three words, `key_dim` two, `PAD_K` two, `BK` two."""
    parts = []
    for word in name.split("_"):
        short = len(word) == 2 and (word.isupper() or (word[0] in "qkvo" and word[1] in "bth"))
        parts += list(word) if short else [word]
    return parts


@cache
def _related(name: str, other: str) -> bool:
    """Whether two names of sizes differ in exactly one exchangeable word."""
    a, b = _words(name), _words(other)
    if len(a) != len(b) or not _SIZES & {*a}:
        return False
    different = {*a} ^ {*b}
    return sum(x != y for x, y in zip(a, b, strict=True)) == 1 and any(
        different <= words(group) for group in _SIBLINGS
    )


def _beside(at: Place, index: ast.expr) -> Iterator[Change]:
    try:
        axis = ast.literal_eval(index)
    except ValueError:
        return
    if isinstance(axis, int):
        yield at.put(str(1 if axis == 0 else axis - 1), index)


@_operator("the offset of a block is dropped")
def block(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.BinOp(left=count, op=ast.Mult(), right=ast.Name(id=size)) if (
            at.function.on_device and size.isupper() and not at.floating()
        ):
            yield at.put(f"({at.text(count)} + 1) * {size}")
        case ast.For(iter=ast.Call(args=[start, _, step, *_]) as call) if is_range(call):
            yield at.put(f"{at.text(start)} + {at.text(step)}", start)


def is_range(call: ast.Call) -> bool:
    return called(call) in ("range", "static_range")


@_operator("a loop runs only its first iteration, or skips its last")
def loop(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.For() if any(_grows_a_tuple(n) for n in ast.walk(at.node)):
            return  # a tuple that short is no code
        case ast.For(iter=ast.Call(args=[stop]) as call) if is_range(call):
            least = "tl.minimum" if at.function.on_device else "min"
            known = isinstance(stop, ast.Constant) or at.function.source.of(stop).isupper()
            yield at.put("1" if known else f"{least}({at.function.source.of(stop)}, 1)", stop)
            yield at.put(f"{at.text(stop)} - 1", stop)
        case ast.For(iter=ast.Call(args=[start, stop, step, *_]) as call) if is_range(call):
            least = "tl.minimum" if at.function.on_device else "min"
            end = at.function.source.of(stop)
            yield at.put(f"{least}({at.text(start)} + {at.text(step)}, {end})", stop)
            yield at.put(f"{at.text(stop)} - {at.text(step)}", stop)


@_operator("a state is not carried on, or carried twice")
def carry(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.AugAssign(op=step) if _sums(at):
            yield at.drop()
            if at.in_a_loop and not isinstance(step, ast.Add):
                yield _twice(at)
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if (
            at.in_a_loop and at.floating(value) and reads(value, name)
        ):
            yield at.drop()
            if not _chooses(value, name):
                yield _twice(at)


def _chooses(value: ast.AST, name: str) -> bool:
    """Whether a value chooses between the name and something else already."""
    match value:
        case ast.Call(args=[_, a, b]) if called(value) == "where":
            return any(isinstance(side, ast.Name) and side.id == name for side in (a, b))
    return False


def _sums(at: Place) -> bool:
    """Whether an augmented assignment changes a number, not a tuple that grows."""
    assert isinstance(at.node, ast.AugAssign)
    return at.floating(at.node.target) and not _grows_a_tuple(at.node)


def _grows_a_tuple(node: ast.AST) -> bool:
    return isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Tuple)


def _twice(at: Place) -> Change:
    assert isinstance(at.node, ast.stmt)
    start, stop = at.function.source.span(at.node)
    text = at.function.source.of(at.node)
    return Change(start, stop, f"{text}\n{' ' * at.node.col_offset}{text}")


def reads(node: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node))


@_operator("= for +=, or a dot without its accumulator")
def accumulate(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.AugAssign(target=target, value=value) if _sums(at):
            source = at.function.source
            yield Change(*source.span(at.node), f"{source.of(target)} = {source.of(value)}")
        case ast.Call(args=[_, _, accumulator]) if called(at.node) == "dot":
            source = at.function.source
            start, stop = source.span(accumulator)
            comma = source.text.rindex(",", 0, start)
            yield Change(comma, stop, "")


@_operator("a term is left out")
def term(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.BinOp(left=left, op=ast.Add(), right=right) if at.floating():
            yield at.become(left)
            yield at.become(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right) if at.floating():
            yield at.become(left)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub()) if (
            _is_a_place(at.node) and leftmost(at.node) not in at.function.pointers
        ):
            yield at.become(left)


def _is_a_place(node: ast.AST) -> bool:
    """Whether an index is a sum of names and numbers only, like a token's position."""
    match node:
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return _is_a_place(left) and _is_a_place(right)
    return isinstance(node, (ast.Name, ast.Constant))


@_operator("a factor is left out, or has the wrong sign")
def scale(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.BinOp(left=left, op=ast.Mult(), right=right) if at.floating():
            sizes = [sum(1 for _ in ast.walk(part)) for part in (left, right)]
            factor, rest = (left, right) if sizes[0] < sizes[1] else (right, left)
            yield at.become(rest)
            if isinstance(factor, ast.Name) and not at.numbers.assigned(factor.id, at.function):
                yield at.put(f"-{factor.id}", factor)
        case ast.BinOp(left=left, op=ast.Div() | ast.Pow() | ast.MatMult()) if at.floating():
            yield at.become(left)


@_operator("+ for -")
def sign(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.BinOp(left=left, op=ast.Sub(), right=right) if at.floating():
            yield at.put(at.joined(left, "+", right))
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            yield at.become(operand)


@_operator("a branch for an option or special case is ignored")
def branch(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.If(test=test, body=body):
            # A guard of barriers only belongs to another operator.
            if not all(_is_barrier(statement) for statement in body):
                yield at.put("False", test)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield at.become(operand)
        case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq() as op], comparators=[right]) if (
            not isinstance(at.function.source.parents[at.node], ast.If)
        ):
            other = "!=" if isinstance(op, ast.Eq) else "=="
            yield at.put(at.joined(left, other, right))
        case ast.keyword(value=ast.Compare(ops=[ast.IsNot()]) as given):
            yield at.put("False", given)
        case ast.keyword(value=ast.Constant(value=bool() as flag) as given):
            yield at.put(str(not flag), given)


@_operator("a choice always takes the same side")
def choice(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.IfExp(test=ast.Compare(ops=[ast.Is()]), body=missing):
            yield at.become(missing)
        case ast.IfExp(test=ast.Compare(ops=[ast.IsNot()]), orelse=missing):
            yield at.become(missing)
        case ast.IfExp(body=a, orelse=b):
            yield at.become(a)
            yield at.become(b)
        case ast.Call(args=[*_, ast.expr() as a, ast.expr() as b]) if called(at.node) in (
            "where",
            "maximum",
            "minimum",
            "max",
            "min",
        ):
            for side in (a, b):
                # Replacing everything by a constant is another mistake.
                if not isinstance(side, (ast.Constant, ast.Starred)):
                    yield at.become(side)


_FUNCTIONS = words(
    "exp exp2 log log2 log1p expm1 sqrt rsqrt tanh sigmoid softplus logsigmoid abs silu"
)
_METHODS = words("exp log sqrt tanh abs square reciprocal")


@_operator("an exponential, logarithm or the like is left out")
def exponential(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Call(args=[value]) if called(at.node) in _FUNCTIONS:
            yield at.become(value)
        case ast.Call(func=ast.Attribute(value=value), args=[]) if called(at.node) in _METHODS:
            yield at.become(value)


@_operator("modulo for division, or a partial last block is left out")
def division(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.BinOp(left=left, op=ast.FloorDiv(), right=right):
            yield at.put(at.joined(left, "%", right))
        case ast.Call(args=[a, b]) if called(at.node) == "cdiv":
            yield at.put(at.joined(a, "//", b))


_CASTS = ("to", "long", "float", "double", "contiguous", "flip", "clone")


@_operator("a cast (of an index to 64 bits, say) or a copy is left out")
def cast(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Call(func=ast.Attribute(value=value)) if called(at.node) in _CASTS:
            # An index wider than necessary is correct as well.
            if not at.function.source.of(at.node).endswith(".to(tl.int32)"):
                yield at.become(value)
        case ast.Call(args=[value]) if called(at.node) == "reversed":
            yield at.become(value)
        case ast.Call(args=[value, _]) if called(at.node) == "cast":
            yield at.become(value)
        case ast.Call(args=tensors) if called(at.node) in ("contiguous", "dense_rows"):
            # Leave out one tensor at a time, copying the others.
            texts = [at.function.source.of(tensor) for tensor in tensors]
            for i, text in enumerate(texts):
                copied = [", ".join(group) for group in (texts[:i], texts[i + 1 :])]
                before, after = (
                    f"*{called(at.node)}({group})" if group else "" for group in copied
                )
                if not isinstance(tensors[i], ast.Starred):
                    yield at.put(f"({', '.join(filter(None, (before, text, after)))})")


@_operator("a sum is kept in the dtype of the inputs")
def precision(at: Place) -> Iterator[Change]:
    dtype = at.function.dtype_of_inputs
    source = at.function.source
    match at.node:
        case ast.AugAssign(target=target, op=ast.Add(), value=value) if (
            dtype and at.in_a_loop and _sums(at)
        ):
            name, sum_ = source.of(target), f"{source.of(target)} + {at.text(value)}"
            text = f"{name} = ({sum_}).to({dtype}).to(tl.float32)"
            yield Change(*source.span(at.node), text)
        case ast.Call(args=[_, _, _]) if dtype and called(at.node) == "dot":
            yield at.put(f"{source.of(at.node)}.to({dtype}).to(tl.float32)")


@_operator("a barrier or an atomic is left out", only_on="cuda")
def barrier(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Expr() as statement if _is_barrier(statement):
            yield at.drop()
        case ast.Call(func=ast.Attribute(value=module)) if called(at.node).startswith("atomic_"):
            yield at.put(f"{at.function.source.of(module)}.store", at.node.func)


@_operator("a slice is off by one")
def cut(at: Place) -> Iterator[Change]:
    match at.node:
        case ast.Slice(lower=lower, upper=upper) if not at.function.on_device:
            if lower is not None:
                yield at.put(f"{at.text(lower)} + 1", lower)
            if upper is not None:
                yield at.put(f"{at.text(upper)} - 1", upper)


@_operator("two steps are exchanged")
def order(at: Place) -> Iterator[Change]:
    parent = at.function.source.parents.get(at.node)
    for body in (getattr(parent, "body", []), getattr(parent, "orelse", [])):
        if not isinstance(body, list) or at.node not in body:
            continue
        rest = body[body.index(at.node) + 1 :]
        if rest and _may_change_places(at.node, rest[0]):
            source = at.function.source
            (start, end), (begin, stop) = source.span(at.node), source.span(rest[0])
            between = source.text[end:begin]
            yield Change(start, stop, source.of(rest[0]) + between + source.of(at.node))


def _may_change_places(first: ast.AST, second: ast.AST) -> bool:
    """Whether the second step reads or writes what the first changes."""
    changed = _changed(first)
    return (
        changed is not None
        and isinstance(second, (ast.Assign, ast.AugAssign, ast.Expr, ast.If))
        and reads(second, changed)
        and not _commute(first, second, changed)
    )


def _commute(first: ast.AST, second: ast.AST, name: str) -> bool:
    """Whether both steps only add to the name, or only multiply it."""
    nodes = [*ast.walk(first), *ast.walk(second)]
    kinds, named = set(), 0
    for node in nodes:
        match node:
            case ast.AugAssign(target=ast.Name(id=changed), op=step) if changed == name:
                kinds.add(_kind(step))
                named += 1
            case ast.Assign(
                targets=[ast.Name(id=changed)],
                value=ast.BinOp(left=ast.Name(id=again), op=step),
            ) if changed == again == name:
                kinds.add(_kind(step))
                named += 2
    alone = named == sum(isinstance(n, ast.Name) and n.id == name for n in nodes)
    return alone and kinds in ({ast.Add}, {ast.Mult})


def _kind(step: ast.operator) -> type[ast.operator]:
    return ast.Add if isinstance(step, ast.Sub) else type(step)


def _changed(statement: ast.AST) -> str | None:
    """The name that a statement assigns."""
    match statement:
        case ast.AugAssign(target=ast.Name(id=name)):
            return name
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if reads(value, name):
            return name
        case ast.If(body=[step], orelse=[]):
            return _changed(step)
    return None
