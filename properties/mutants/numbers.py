"""Which expressions of Triton code are numbers of the op, and which are indices and addresses.

An edit of numbers changes the formula; an edit of addresses mostly reads elsewhere, which every
address check sees. The result of a dot, an exponential or a load is a number, and so is all that is
computed from it. Names are followed through assignments and calls.
"""

import ast
from collections.abc import Iterable

from properties.planting.source import Function, leftmost, words

_NUMBERS = words("dot exp exp2 log log2 sqrt rsqrt sigmoid softmax fma cumsum cumprod erf rand")
# Words in the names of integer tables.
_TABLES = words("cu seqlens bounds starts table rows index offsets pages counts")
# Functions whose result is a number if an argument is.
_THROUGH = words(
    "where maximum minimum abs sum max min trans reshape join split cat ravel broadcast_to flip "
    "expand_dims permute reduce associative_scan view floor ceil"
)


class Numbers:
    """The names that hold numbers in a package's device functions.

    Args:
        functions: all of them, so that calls can be followed.
    """

    def __init__(self, functions: Iterable[Function]) -> None:
        self.functions = [f for f in functions if f.on_device]
        self.returning: set[str] = set()
        self.names: dict[ast.FunctionDef, set[str]] = {f.node: set() for f in self.functions}
        self._nodes = {f.node: [*filter(_tells, ast.walk(f.node))] for f in self.functions}
        self._by_name = {f.node.name: f for f in self.functions}
        learning = True
        while learning:
            learning = sum(self._follow(f) for f in self.functions) > 0

    def floating(self, node: ast.AST, function: Function) -> bool:
        """Whether an expression's value is a number; on the host all are."""
        if not function.on_device:
            return True
        return self._is_number(node, self.names[function.node])

    def assigned(self, name: str, function: Function) -> bool:
        """Whether a name holds a tile of numbers, not an argument of the kernel."""
        return name in self.names.get(function.node, ()) or not function.on_device

    def _follow(self, function: Function) -> bool:
        """Propagate within one function; return whether anything new was learned."""
        names = self.names[function.node]
        before = len(names), len(self.returning), sum(map(len, self.names.values()))
        for node in self._nodes[function.node]:
            match node:
                case ast.Assign(targets=[target], value=value):
                    self._assign(target, value, names)
                case ast.AugAssign(target=target, value=value):
                    self._assign(target, value, names)
                case ast.Return(value=ast.expr() as value) if self._is_number(value, names):
                    self.returning.add(function.node.name)
                case ast.Call(func=ast.Name(id=name)) if name in self._by_name:
                    self._pass(node, self._by_name[name], names)
        after = len(names), len(self.returning), sum(map(len, self.names.values()))
        return after != before

    def _assign(self, target: ast.expr, value: ast.expr, names: set[str]) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for part, its in zip(target.elts, value.elts, strict=True):
                self._assign(part, its, names)
        elif self._is_number(value, names):
            names |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}

    def _pass(self, call: ast.Call, called: Function, names: set[str]) -> None:
        parameters = [a.arg for a in called.node.args.args]
        given = dict(zip(parameters, call.args, strict=False))
        given |= {k.arg: k.value for k in call.keywords if k.arg is not None}
        for name, value in given.items():
            if self._is_number(value, names):
                self.names[called.node].add(name)

    def _is_number(self, node: ast.AST, names: set[str]) -> bool:
        match node:
            case ast.Constant(value=value):
                return isinstance(value, float)
            case ast.Name(id=name):
                return name in names
            case ast.Call():
                return self._call_is_number(node, names)
            case ast.IfExp(body=a, orelse=b) | ast.BinOp(left=a, right=b):
                return self._is_number(a, names) or self._is_number(b, names)
            case ast.UnaryOp(operand=value) | ast.Subscript(value=value):
                return self._is_number(value, names)
            case ast.Tuple(elts=parts):
                return any(self._is_number(part, names) for part in parts)
            case ast.Compare(left=left, comparators=others):
                return any(self._is_number(part, names) for part in [left, *others])
        return False

    def _call_is_number(self, call: ast.Call, names: set[str]) -> bool:
        name = ast.unparse(call.func).rpartition(".")[2]
        if name in ("to", "cast", "zeros", "full", "zeros_like"):
            kind = ast.unparse(call.args[-1]) if call.args else ""
            kind += "".join(ast.unparse(k.value) for k in call.keywords)
            return "int" not in kind and "uint" not in kind
        if name == "load":
            return not _TABLES & {*leftmost(call.args[0]).split("_")}
        if name in _THROUGH:
            given = call.args[1:] if name == "where" else call.args
            return any(self._is_number(part, names) for part in given)
        return name in _NUMBERS or name in self.returning


def _tells(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign | ast.AugAssign | ast.Return | ast.Call)
