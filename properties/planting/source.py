"""A module as text and syntax tree, with the code that mutants are made of."""

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

# Code that computes nothing: messages, argument checks, assertions, compiler hints.
_CHECKS = ("check", "_check", "bind_dims", "describe", "isinstance", "len_check")
_ASIDE = frozenset(
    {"strict", "num_warps", "num_stages", "disable_licm", "eviction_policy", "cache_modifier"}
)
_SILENT = ("__repr__", "extra_repr")


def words(text: str) -> frozenset[str]:
    """Split a whitespace-separated list."""
    return frozenset(text.split())


@dataclass(frozen=True)
class Change:
    """Replace the characters from `start` to `stop` of a source by `text`.

    Args:
        also: pieces elsewhere in the source that the same change replaces.
    """

    start: int
    stop: int
    text: str
    also: tuple["Change", ...] = ()

    @property
    def pieces(self) -> list["Change"]:
        """Every piece that the change replaces, in the order of the source."""
        return sorted([replace(self, also=()), *self.also], key=lambda piece: piece.start)

    def moved(self, by: int) -> "Change":
        """The change for a source that begins `by` characters earlier."""
        also = tuple(piece.moved(by) for piece in self.also)
        return Change(self.start + by, self.stop + by, self.text, also)

    def of(self, source: str) -> str:
        for piece in reversed(self.pieces):
            source = source[: piece.start] + piece.text + source[piece.stop :]
        return source

    def overlaps(self, other: "Change") -> bool:
        """Whether both change the same text, or insert at the same place."""
        return any(_overlap(a, b) for a in self.pieces for b in other.pieces)


def _overlap(a: Change, b: Change) -> bool:
    return (a.start < b.stop and b.start < a.stop) or a.start == b.start


class Source:
    """A module's text and its tree, with positions of nodes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.parents: dict[ast.AST, ast.AST] = {}
        # Outermost first.
        self.nodes: list[ast.AST] = [self.tree]
        for node in self.nodes:
            children = [*ast.iter_child_nodes(node)]
            self.parents |= dict.fromkeys(children, node)
            self.nodes += children

    @cached_property
    def _lines(self) -> list[tuple[int, bytes]]:
        """Character offset and bytes of each line: columns of a tree count bytes."""
        found, offset = [], 0
        for line in self.text.splitlines(keepends=True):
            found.append((offset, line.encode()))
            offset += len(line)
        return found

    def _offset(self, line: int, column: int) -> int:
        offset, content = self._lines[line - 1]
        return offset + len(content[:column].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, (ast.expr, ast.stmt, ast.keyword))
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._offset(node.lineno, node.col_offset),
            self._offset(node.end_lineno, node.end_col_offset),
        )

    def of(self, node: ast.AST) -> str:
        start, stop = self.span(node)
        return self.text[start:stop]

    def replace(self, node: ast.AST, text: str) -> Change:
        """Replace an expression by `text`, in parentheses if necessary."""
        start, stop = self.span(node)
        if self.text[start - 1 : start] + self.text[stop : stop + 1] == "()" and not (
            self.text[start - 2].isidentifier() or self.text[start - 2] in ")]"
        ):
            start, stop = start - 1, stop + 1
        outer = self.statement(node)
        around, end = self.span(outer)
        statement = Change(start - around, stop - around, text)
        whole = self.text[around:end]
        safe = Change(statement.start, statement.stop, f"({text})")
        same = _tree(statement.of(whole), outer) == _tree(safe.of(whole), outer)
        return Change(start, stop, text if same else f"({text})")

    def statement(self, node: ast.AST) -> ast.stmt:
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def lines(self, node: ast.AST) -> range:
        """The lines of a node's statement; of a compound statement, its head."""
        statement = self.statement(node)
        assert statement.end_lineno is not None
        body = getattr(statement, "body", None)
        last = body[0].lineno - 1 if body else statement.end_lineno
        return range(statement.lineno, max(last, statement.lineno) + 1)

    @cached_property
    def functions(self) -> list["Function"]:
        """Every function, inner ones and methods too."""
        defined = (node for node in self.nodes if isinstance(node, ast.FunctionDef))
        return [Function(self, node) for node in defined if node.name not in _SILENT]


@dataclass(frozen=True, eq=False)
class Function:
    """A function whose code may be mutated."""

    source: Source
    node: ast.FunctionDef

    @cached_property
    def name(self) -> str:
        names, node = [self.node.name], self.source.parents.get(self.node)
        while node is not None:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.append(node.name)
            node = self.source.parents.get(node)
        return ".".join(reversed(names))

    @cached_property
    def on_device(self) -> bool:
        return any("triton.jit" in ast.unparse(d) for d in self.node.decorator_list)

    @cached_property
    def parameters(self) -> dict[str, str]:
        """Its parameters, and the text of their annotations."""
        given = self.node.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        return {a.arg: "" if a.annotation is None else ast.unparse(a.annotation) for a in every}

    @cached_property
    def tensors(self) -> list[str]:
        """The parameters that are tensors, or may be."""
        return [
            name
            for name, kind in self.parameters.items()
            if "Tensor" in kind and not kind.startswith("Callable")
        ]

    @cached_property
    def body(self) -> list[ast.stmt]:
        return self.node.body[1:] if ast.get_docstring(self.node) else self.node.body

    @cached_property
    def calls(self) -> frozenset[str]:
        return frozenset(called(node) for node in ast.walk(self.node))

    @cached_property
    def is_kernel(self) -> bool:
        """Whether the host launches it; other Triton functions are called by kernels."""
        return self.on_device and "program_id" in self.calls

    @cached_property
    def launches(self) -> bool:
        return any(is_launch(node) for node in ast.walk(self.node))

    @cached_property
    def is_public(self) -> bool:
        """Whether users call it: a host function that checks its arguments."""
        return not self.on_device and not self.calls.isdisjoint(("bind_dims", "check_flags"))

    @cached_property
    def opening(self) -> ast.AST | None:
        """The first statement that computes something."""
        return next(iter(self.nodes), None)

    @cached_property
    def names(self) -> list[str]:
        """Names that the function may use: its arguments, then what it assigns."""
        arguments = self.node.args
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        names = [a.arg for a in parameters]
        for node in ast.walk(self.node):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.append(node.id)
        return list(dict.fromkeys(names))

    @cached_property
    def dtype_of_inputs(self) -> str | None:
        """The dtype of the inputs in a kernel: a constant, or that of the first pointer."""
        if self.on_device and "DTYPE" in self.names:
            return "DTYPE"
        return f"{self.names[0]}.dtype.element_ty" if self.is_kernel else None

    @cached_property
    def pointers(self) -> frozenset[str]:
        """The names that addresses of loads and stores start with."""
        calls = (node for node in ast.walk(self.node) if isinstance(node, ast.Call) and node.args)
        return frozenset(
            leftmost(call.args[0])
            for call in calls
            if isinstance(call.func, ast.Attribute) and call.func.attr in ("load", "store")
        )

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """The nodes of its code that compute something, outermost first."""
        return [node for statement in self.body for node in _computing(statement)]


def called(node: ast.AST) -> str:
    """The last part of a called function's name; empty if the node is no call."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
    return ""


def is_launch(node: ast.AST) -> bool:
    """Whether an expression is the launch of a kernel, `kernel[grid](...)`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)


def leftmost(node: ast.AST) -> str:
    """The text of the first operand of a sum or product."""
    while isinstance(node, ast.BinOp):
        node = node.left
    return ast.unparse(node)


def _computing(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.FunctionDef() | ast.ClassDef() | ast.Raise() | ast.Assert() | ast.JoinedStr():
            return
        case ast.If(body=[*_, ast.Raise()]):
            for statement in node.orelse:
                yield from _computing(statement)
            return
        case ast.Call() if ast.unparse(node.func).rpartition(".")[2].startswith(_CHECKS):
            return
        case ast.keyword(arg=str(name)) if name in _ASIDE:
            return
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "ctx"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _computing(child)


def _tree(text: str, statement: ast.stmt) -> str | None:
    """The dump of a statement's tree, parsed at its indentation."""
    block = f"if True:\n{' ' * statement.col_offset}{text.removeprefix('el')}"
    try:
        with warnings.catch_warnings():
            # `1.clamp(min=0)`, say, where a number took the place of a name.
            warnings.simplefilter("ignore", SyntaxWarning)
            return ast.dump(ast.parse(block))
    except SyntaxError:
        return None
